"""`octavo quota`: how much users and namespaces may do; in the metadata store, no broker is needed.

Brokers follow it: a change holds everywhere within seconds, without a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from octavo.cli.options import AsJson, Data, Metadata, metadata_url, named_values
from octavo.cli.output import emit_fields, emit_json, emit_table, say
from octavo.cli.store import with_store

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore
    from octavo.security.quotas import QuotaRecord, QuotasRecord

T = TypeVar("T")
app = typer.Typer(
    help="Set, list, show and remove what users and namespaces may do a second, and at once.",
    no_args_is_help=True,
)

Subject = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="user:NAME, user:* (each known user), anonymous, namespace:NS, namespace:* (each).",
    ),
]
Amounts = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME=AMOUNT…",
        help="requests, publish_bytes, publish_messages, read_bytes, read_messages (a second); "
        "connections, streams, topics (at once). 100, 10MB, 64KiB, unlimited.",
    ),
]


@app.command("set")
def set_quota(
    subject: Subject, amounts: Amounts, metadata: Metadata = None, data: Data = None
) -> None:
    """Set what one may do; what is set for it already and not named stays.

    Rates of a user hold at each broker for itself. What a user's own quota leaves open is that of
    user:*, and a namespace's that of namespace:*.

    \b
    Examples:
      octavo quota set user:alice publish_bytes=10MB requests=100 --data ./octavo-data
      octavo quota set 'user:*' connections=50 read_bytes=50MB
      octavo quota set namespace:payments topics=100 publish_bytes=unlimited
    """
    from octavo.security.quotas import parse_amount, with_quota

    named = named_values("quota", amounts)
    found = {name: parse_amount(amount) for name, amount in named.items()}
    record = _changed(metadata, data, lambda before: with_quota(before, subject, found))
    made = record.of(subject)
    say(f"{subject}: {'nothing' if made is None else _in_words(made)}")


@app.command("remove")
def remove(
    subject: Subject,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Only these. Default: all.")
    ] = None,
    metadata: Metadata = None,
    data: Data = None,
) -> None:
    """Remove a quota, or some of its names: from then on the default holds, if there is one.

    \b
    Examples:
      octavo quota remove user:alice --data ./octavo-data
      octavo quota remove user:alice requests publish_bytes
    """
    from octavo.security.quotas import without_quota

    record = _changed(metadata, data, lambda before: without_quota(before, subject, names or ()))
    left = record.of(subject)
    say(f"{subject}: {'no quota' if left is None else _in_words(left)}")


@app.command("list")
def list_quotas(metadata: Metadata = None, data: Data = None, as_json: AsJson = False) -> None:
    """List all quotas, as they are set.

    \b
    Examples:
      octavo quota list --data ./octavo-data
      octavo quota list --metadata zk://127.0.0.1:2181/octavo --json
    """
    record = _read(metadata, data)
    if as_json:
        emit_json([{"subject": one.subject, **one.said} for one in record.quotas])
        return
    emit_table(("subject", "quota"), [(one.subject, _in_words(one)) for one in record.quotas])


@app.command("show")
def show(
    subject: Subject, metadata: Metadata = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Show what holds for a user or namespace, defaults included.

    \b
    Examples:
      octavo quota show user:alice --data ./octavo-data
      octavo quota show namespace:payments --json
    """
    from octavo.security.limits import NAMES
    from octavo.security.quotas import checked_subject, quotas_of, shown_amount

    holds = quotas_of(_read(metadata, data)).of(checked_subject(subject))
    if as_json:
        emit_json({"subject": subject} | {name: getattr(holds, name) for name in NAMES})
        return
    said = {name: getattr(holds, name) for name in NAMES}
    emit_fields(
        {name: "no bound" if one is None else shown_amount(one) for name, one in said.items()}
    )


def _in_words(one: QuotaRecord) -> str:
    from octavo.security.quotas import shown_amount

    return " ".join(f"{name}={shown_amount(amount)}" for name, amount in one.said.items())


def _read(metadata: str | None, data: Path | None) -> QuotasRecord:
    from octavo.security.quotas import quota_store

    async def work(store: MetadataStore) -> QuotasRecord:
        return (await quota_store(store).read())[0]

    return with_store(metadata_url(metadata, data), work)


def _changed(
    metadata: str | None, data: Path | None, make: Callable[[QuotasRecord], QuotasRecord]
) -> QuotasRecord:
    from octavo.security.quotas import quota_store

    async def work(store: MetadataStore) -> QuotasRecord:
        return (await quota_store(store).change(make))[0]

    return with_store(metadata_url(metadata, data), work)
