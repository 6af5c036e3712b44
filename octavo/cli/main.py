"""Entry point of `octavo`: the tree of commands, and the one place where errors become text.

An error is one line that names the cause, and where we know it, one that says what would help;
exit code 1. Bad usage is exit code 2. A stack trace appears only with `OCTAVO_DEBUG=1`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import typer

from octavo import __version__
from octavo.assertions import require_assertions
from octavo.cli import (
    acl,
    bookie,
    bookies,
    broker,
    certs,
    consume,
    demo,
    inspect,
    keys,
    ledger,
    namespace,
    nodes,
    pipeline,
    publish,
    quota,
    schema,
    security,
    standalone,
    stream,
    subscription,
    token,
    topic,
    user,
)
from octavo.cli.output import debugging, fail
from octavo.protocol.codes import OctavoError

app = typer.Typer(
    name="octavo",
    help="Octavo: a replicated ledger store (bookies) with stateless topic brokers.",
    epilog="Start here: octavo standalone --data ./octavo-data",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def _octavo(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Octavo: a replicated ledger store (bookies) with stateless topic brokers."""
    del version


app.command("standalone")(standalone.standalone)
app.add_typer(bookie.app, name="bookie")
app.add_typer(broker.app, name="broker")
app.command("zookeeper")(nodes.zookeeper)
app.add_typer(namespace.app, name="namespace")
app.add_typer(topic.app, name="topic")
app.add_typer(subscription.app, name="subscription")
app.command("publish")(publish.publish)
app.command("consume")(consume.consume)
app.add_typer(stream.app, name="stream")
app.add_typer(ledger.app, name="ledger")
app.command("bookies")(bookies.bookies)
app.command("certs")(certs.certs)
app.add_typer(keys.app, name="keys")
app.add_typer(quota.app, name="quota")
app.add_typer(schema.app, name="schema")
app.add_typer(security.app, name="security")
app.add_typer(acl.app, name="acl")
app.add_typer(user.app, name="user")
app.add_typer(token.app, name="token")
app.add_typer(inspect.app, name="inspect")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(demo.app, name="demo")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    require_assertions()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        _command()(args=list(arguments) if arguments is not None else None, prog_name="octavo")
        return 0
    except SystemExit as done:  # help, bad usage (2), `typer.Exit`: already said
        return done.code if isinstance(done.code, int) else 0
    except KeyboardInterrupt:
        fail("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OctavoError as error:
        if debugging():
            raise
        fail(_said(error), _remedy(error))
        return 2 if error.name in _USAGE else 1
    except OSError as error:
        if debugging():
            raise
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except Exception as error:
        if debugging():
            raise
        fail(
            f"this should not have happened: {type(error).__name__}: {error}",
            "run it again with OCTAVO_DEBUG=1 for the stack trace, and report it",
        )
        return 1


@functools.cache
def _command() -> Any:
    """The tree of commands, made once: that takes longer than most of what they do."""
    return typer.main.get_command(app)


_USAGE = {
    "bad-metadata-credentials",
    "bad-metadata-url",
    "bad-option",
    "bookie-config",
    "broker-config",
    "invalid-principal",
    "invalid-rule",
    "invalid-call",
    "keys",
    "invalid-quota",
    "invalid-password",
    "no-bookie-here",
    "no-cluster",
    "nothing-to-inspect",
    "security",
    "settings",
    "tls",
}
"""Errors of what was typed, by name: nothing was done, and typing it again will not help."""
_REMEDIES = {
    "unreachable": "is the cluster running? start one with `octavo standalone`, or name a broker's "
    "HTTP port with --url (or OCTAVO_URL)",
    "unauthenticated": "a token says who you are: OCTAVO_TOKEN_FILE=FILE or OCTAVO_TOKEN, made by "
    "`octavo token create`; a standalone cluster's own is found by --data",
    "topic-not-found": "`octavo topic list` shows what exists, `octavo topic create` makes one",
    "metadata-unavailable": "is the metadata store running, and is its URL right (--metadata or "
    "OCTAVO_METADATA_URL)?",
}


def _said(error: OctavoError) -> str:
    """A broker's own sentence tells all; what no broker said is told with what was asked."""
    detail = "" if _is_no_brokers(error) else str(getattr(error, "detail", ""))
    return detail or str(error) or error.name


def _remedy(error: OctavoError) -> str:
    """What would help, where the message itself does not say it."""
    if _is_no_brokers(error):
        return (
            "does --url (or OCTAVO_URL) name the HTTP port of a broker? A bookie's admin port and "
            "the metadata store have others; `octavo broker list` shows the brokers' URLs"
        )
    return _REMEDIES.get(getattr(error, "code", error.name), "")


def _is_no_brokers(error: OctavoError) -> bool:
    """Whether it is an HTTP answer that was no broker's."""
    return str(getattr(error, "code", "")).startswith("http-")


if __name__ == "__main__":
    main()
