"""`octavo quota`: in the metadata store, or through a broker (`--url`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.options import AsJson, named_values
from octavo.cli.output import emit_fields, emit_json, emit_table, say
from octavo.cli.policy_place import PolicyPlace, with_place

if TYPE_CHECKING:
    from octavo.security.quotas import QuotaRecord

app = typer.Typer(
    help="Set, list, show and remove quotas of users and namespaces.",
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
        help="requests, publish_bytes, publish_messages, read_bytes, read_messages, processor_ms "
        "(each second); memory, groups (at once); only for users: connections, streams (at once); "
        "only for namespaces: topics, subscriptions. Such as 100, 10MB, 64KiB, unlimited.",
    ),
]


@app.command("set")
@with_place
def set_quota(place: PolicyPlace, subject: Subject, amounts: Amounts) -> None:
    """Set quotas of a user or namespace. Its other quotas stay.

    Each broker counts the rates of a user for itself. user:* and namespace:* set defaults.

    \b
    Example:
      octavo quota set user:alice publish_bytes=10MB requests=100 --data ./octavo-data
    """
    from octavo.security.quotas import parse_amount, with_quota

    named = named_values("quota", amounts)
    found = {name: parse_amount(amount) for name, amount in named.items()}
    record = place.change_quota(subject, lambda before: with_quota(before, subject, found))
    made = record.of(subject)
    say(f"{subject}: {'nothing' if made is None else _in_words(made)}")


@app.command("remove")
@with_place
def remove(
    place: PolicyPlace,
    subject: Subject,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Only these. Default: all.")
    ] = None,
) -> None:
    """Remove all or the named quotas of a user or namespace. Defaults then apply, if any.

    \b
    Example:
      octavo quota remove user:alice --data ./octavo-data
    """
    from octavo.security.quotas import without_quota

    record = place.change_quota(subject, lambda before: without_quota(before, subject, names or ()))
    left = record.of(subject)
    say(f"{subject}: {'no quota' if left is None else _in_words(left)}")


@app.command("list")
@with_place
def list_quotas(place: PolicyPlace, as_json: AsJson = False) -> None:
    """List all quotas that are set.

    \b
    Example:
      octavo quota list --data ./octavo-data
    """
    record = place.quotas()
    if as_json:
        emit_json([{"subject": one.subject, **one.said} for one in record.quotas])
        return
    emit_table(("subject", "quota"), [(one.subject, _in_words(one)) for one in record.quotas])


@app.command("show")
@with_place
def show(place: PolicyPlace, subject: Subject, as_json: AsJson = False) -> None:
    """Show the quotas of a user or namespace, including defaults.

    \b
    Example:
      octavo quota show user:alice --data ./octavo-data
    """
    from octavo.security.limits import NAMES
    from octavo.security.quotas import checked_subject, quotas_of, shown_amount

    holds = quotas_of(place.quotas()).of(checked_subject(subject))
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
