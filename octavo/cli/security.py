"""`octavo security`: secure or open a cluster, in the metadata store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import AsJson, Data, Metadata, Yes, metadata_url
from octavo.cli.output import emit_fields, emit_json, say
from octavo.cli.store import with_store

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore
    from octavo.security.policy import PolicyRecord

app = typer.Typer(
    help="Show whether this cluster is secured; secure or open it. A secured cluster "
    "allows only calls that a rule allows.",
    no_args_is_help=True,
)


@app.command()
def status(metadata: Metadata = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show whether the cluster is secured, how many rules it has, and who may do everything.

    \b
    Example:
      octavo security status --data ./octavo-data
    """
    from octavo.security.policy import ADMIN_ROLE, PolicyStore

    async def work(store: MetadataStore) -> tuple[PolicyRecord, int]:
        return await PolicyStore(store).read_record()

    record, version = with_store(metadata_url(metadata, data), work)
    admins = [one.principal for one in record.roles if one.role == ADMIN_ROLE]
    shown: dict[str, object] = {
        "secured": record.secured,
        "version": version,
        "rules": len(record.rules),
        "admins": admins,
    }
    if as_json:
        emit_json(shown)
        return
    if version < 0:
        say("no policy yet: every caller may do anything")
    emit_fields(
        {
            **shown,
            "secured": "yes" if record.secured else "no: every caller may do anything",
            "admins": ", ".join(admins) or "none",
        }
    )


@app.command()
def secure(
    admin: Annotated[
        str,
        typer.Option(
            metavar="user:NAME",
            help="The principal who may do everything from now on.",
            show_default=False,
        ),
    ],
    metadata: Metadata = None,
    data: Data = None,
) -> None:
    """Secure the cluster: from now on only calls that a rule allows are allowed.

    Brokers follow within seconds, and then decide open calls again.

    \b
    Example:
      octavo security secure --admin user:ann --metadata zk://127.0.0.1:2181/octavo
    """
    from octavo.security.policy import PolicyStore, secured

    secured_for = secured(_nothing(), admin)  # raises for a bad principal

    async def work(store: MetadataStore) -> None:
        await PolicyStore(store).change(lambda record: secured(record, admin))

    with_store(metadata_url(metadata, data), work)
    say(f"secured: {secured_for.roles[0].principal} may do everything, others what rules allow")


@app.command("open")
def open_(yes: Yes = False, metadata: Metadata = None, data: Data = None) -> None:
    """Open the cluster: every caller may do everything again. Rules are kept for the next time.

    \b
    Example:
      octavo security open --yes --data ./octavo-data
    """
    from octavo.security.policy import PolicyStore, opened

    if not yes:
        typer.confirm("Let every caller do anything?", abort=True, err=True)

    async def work(store: MetadataStore) -> None:
        await PolicyStore(store).change(opened)

    with_store(metadata_url(metadata, data), work)
    say("open: every caller may do anything")


def _nothing() -> PolicyRecord:
    from octavo.security.policy import PolicyRecord

    return PolicyRecord()
