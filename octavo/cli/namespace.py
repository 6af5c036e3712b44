"""`octavo namespace`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import AsJson, BadOption, Data, Url, broker_urls
from octavo.cli.output import emit_fields, emit_json, emit_table, say
from octavo.cli.policy_options import with_policies
from octavo.cli.topic import ask

if TYPE_CHECKING:
    from octavo.client.client import AsyncClient

app = typer.Typer(help="Create, show, change, list and delete namespaces.", no_args_is_help=True)

Encrypted = Annotated[
    bool | None,
    typer.Option(
        "--encrypted/--not-encrypted",
        help="Whether new ledgers are encrypted. Default: unchanged; for a new namespace, not.",
        show_default=False,
    ),
]


Auto = Annotated[
    str | None,
    typer.Option(
        "--auto-create",
        metavar="JSON|off",
        help='Create a missing topic at its first publish, with these settings: {"partitions": 4}.',
        show_default=False,
    ),
]
Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Its name.")]


@app.command("create")
@app.command("set")
@with_policies
def set_namespace(
    policies: dict[str, Any],
    namespace: Namespace,
    encrypted: Encrypted = None,
    auto_create: Auto = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Create a namespace, or change it. Its topics follow at once; their own settings stay.

    \b
    Examples:
      octavo namespace create clicks --ttl 1d --backlog-size 10GB --backlog-policy evict
      octavo namespace set payments --encrypted
    """
    if auto_create is not None:
        policies["auto_create"] = None if auto_create == "off" else _json(auto_create)
    urls = broker_urls(url, data)
    ask(urls, lambda one: one.create_namespace(namespace, encrypted=encrypted, **policies))
    say(f"namespace {namespace} is set")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise BadOption(
            f"--auto-create {text!r}: write it as JSON, such as '{{\"partitions\": 4}}', or off"
        ) from None


@app.command()
def show(namespace: Namespace, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show a namespace's settings for its topics.

    \b
    Example:
      octavo namespace show clicks
    """
    found = ask(broker_urls(url, data), lambda one: one.namespace(namespace))
    if as_json:
        emit_json(found)
    else:
        policies = {
            name: "off" if value is None else value for name, value in found["policies"].items()
        }
        emit_fields({"namespace": namespace, "topics": found["topics"], **policies})


@app.command()
def delete(namespace: Namespace, url: Url = None, data: Data = None) -> None:
    """Delete a namespace that has no topics.

    \b
    Example:
      octavo namespace delete clicks
    """
    ask(broker_urls(url, data), lambda one: one.delete_namespace(namespace))
    say(f"deleted namespace {namespace}")


@app.command("list")
def list_namespaces(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List all namespaces.

    \b
    Example:
      octavo namespace list --json
    """

    async def collect(client: AsyncClient) -> list[tuple[str, bool]]:
        return [(name, await client.is_encrypted(name)) for name in await client.namespaces()]

    found = ask(broker_urls(url, data), collect)
    if as_json:
        for name, encrypted in found:
            emit_json({"namespace": name, "encrypted": encrypted})
    else:
        emit_table(
            ("namespace", "encrypted"), [(name, "yes" if one else "no") for name, one in found]
        )
