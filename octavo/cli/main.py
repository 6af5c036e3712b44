"""The entry point of `octavo`, which also turns errors into a line with the cause and a remedy.

Exit code 1, for bad usage 2. A stack trace appears only with `OCTAVO_DEBUG=1`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import typer

from octavo import __version__
from octavo.assertions import require_assertions
from octavo.cli.tree import Commands
from octavo.protocol.codes import OctavoError

app = typer.Typer(
    name="octavo",
    cls=Commands,
    help="Octavo: a replicated ledger store (bookies) with stateless topic brokers.",
    epilog="Start here: octavo standalone --data ./octavo-data",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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


def main(arguments: Sequence[str] | None = None) -> None:
    require_assertions()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    try:
        _command()(args=list(arguments) if arguments is not None else None, prog_name="octavo")
        return 0
    except SystemExit as done:  # help, bad usage (2), `typer.Exit`: the text is printed already
        return done.code if isinstance(done.code, int) else 0
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        return _told(error)


def _told(error: BaseException) -> int:
    from octavo.cli.output import debugging, fail

    if isinstance(error, KeyboardInterrupt):
        fail("interrupted")
        return 130
    if debugging():
        raise error
    if isinstance(error, OctavoError):
        fail(_said(error), _remedy(error))
        return 2 if error.name in _USAGE else 1
    if isinstance(error, OSError):
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    fail(
        f"this should not have happened: {type(error).__name__}: {error}",
        "run it again with OCTAVO_DEBUG=1 for the stack trace, and report it",
    )
    return 1


@functools.cache
def _command() -> Any:
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
"""Bad usage: the command did nothing, and a repetition fails again."""
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
    """Return a broker's own sentence; for other errors, the text that also names the call."""
    detail = "" if _is_no_brokers(error) else str(getattr(error, "detail", ""))
    return detail or str(error) or error.name


def _remedy(error: OctavoError) -> str:
    """Return a remedy if the message itself does not contain it, else an empty text."""
    if _is_no_brokers(error):
        return (
            "does --url (or OCTAVO_URL) name the HTTP port of a broker? A bookie's admin port and "
            "the metadata store have others; `octavo broker list` shows the brokers' URLs"
        )
    return _REMEDIES.get(getattr(error, "code", error.name), "")


def _is_no_brokers(error: OctavoError) -> bool:
    return str(getattr(error, "code", "")).startswith("http-")


if __name__ == "__main__":
    main()
