"""`octavo ledger`: show and repair ledgers, without a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from octavo.cli.options import AsJson, BadOption, Data, Metadata, Yes, metadata_url
from octavo.cli.output import emit_fields, emit_json, emit_raw, emit_table, say
from octavo.protocol.calendar import in_calendar

if TYPE_CHECKING:
    from octavo.ledger.client import LedgerClient
    from octavo.ledger.recover.events import RecoveryEvent
    from octavo.metadata.ledgers import LedgerMetadata

T = TypeVar("T")
app = typer.Typer(
    help="List, show, read, recover and delete ledgers; show their password.", no_args_is_help=True
)

LedgerId = Annotated[int, typer.Argument(min=0, metavar="LEDGER", help="A ledger's number.")]
Password = Annotated[
    str | None,
    typer.Option(help="Refuse the ledger unless this is its password. Default: do not check."),
]
SHOWN_BYTES_MAX = 60


def with_ledgers(url: str, work: Callable[[LedgerClient], Awaitable[T]]) -> T:
    from octavo.clock import wall_clock_ms
    from octavo.credentials import certificates, credentials_file
    from octavo.keys import keys_of_environment
    from octavo.ledger.client import LedgerClient
    from octavo.logs import configure_logging
    from octavo.metadata.opening import open_store
    from octavo.security.bookie_tokens import node_prover

    configure_logging(form="console", level="error")

    async def run() -> T:
        store = open_store(url, credentials_file=credentials_file(), tls=certificates())
        await store.start()
        try:
            ledgers = LedgerClient(
                store,
                rng=random.SystemRandom(),
                clock=wall_clock_ms,
                tls=certificates(),
                keys=keys_of_environment(),
                prove=await node_prover(store, "cli", wall_clock_ms),
            )
            await ledgers.start()
            try:
                return await work(ledgers)
            finally:
                await ledgers.close()
        finally:
            await store.close()

    return asyncio.run(run())


@app.command("list")
def list_ledgers(metadata: Metadata = None, data: Data = None, as_json: AsJson = False) -> None:
    """List all ledgers with state, quorums and end.

    \b
    Example:
      octavo ledger list --data ./octavo-data
    """

    async def collect(ledgers: LedgerClient) -> list[LedgerMetadata]:
        return list((await ledgers.standing(await ledgers.list())).values())

    found = with_ledgers(metadata_url(metadata, data), collect)
    if as_json:
        emit_json([plain_metadata(one) for one in found])
        return
    rows = [
        (
            one.ledger_id,
            one.state.name,
            f"{one.ensemble_size}/{one.write_quorum}/{one.ack_quorum}",
            len(one.fragments),
            _end(one),
            one.length if one.state.name == "CLOSED" else None,
            ", ".join(one.fragments[-1].bookies),
        )
        for one in found
    ]
    emit_table(("ledger", "state", "E/Qw/Qa", "fragments", "last", "bytes", "ensemble"), rows)


@app.command()
def show(
    ledger: LedgerId, metadata: Metadata = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Show one ledger's metadata, fragment by fragment.

    \b
    Example:
      octavo ledger show 7 --data ./octavo-data
    """
    found = with_ledgers(metadata_url(metadata, data), lambda ledgers: ledgers.metadata(ledger))
    if as_json:
        emit_json(plain_metadata(found))
        return
    emit_fields(
        {
            "ledger": found.ledger_id,
            "state": found.state.name,
            "ensemble size": found.ensemble_size,
            "write quorum": found.write_quorum,
            "ack quorum": found.ack_quorum,
            "digest": found.digest_type.name,
            "created": _time(found.created_ms),
            "last entry": _end(found),
            "length": found.length if found.state.name == "CLOSED" else "",
            **{name: text.decode(errors="replace") for name, text in found.custom.items()},
        }
    )
    emit_table(
        ("first entry", "bookies"),
        [(fragment.first_entry, ", ".join(fragment.bookies)) for fragment in found.fragments],
    )


@app.command()
def read(
    ledger: LedgerId,
    first: Annotated[int, typer.Option(min=0, help="From this entry.")] = 0,
    last: Annotated[int | None, typer.Option(min=0, help="To this entry (default: end).")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Payloads only, as they are.")] = False,
    password: Password = None,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Read entries without disturbing the ledger's writer.

    \b
    Example:
      octavo ledger read 7 --data ./octavo-data --last 9
    """

    from octavo.security.keys.errors import KeyMissing, KeySourceUnavailable

    async def work(ledgers: LedgerClient) -> int:
        reader = await ledgers.open(ledger, password=_bytes(password))
        end = reader.last_add_confirmed
        if reader.metadata.state.name != "CLOSED":
            end = await reader.refresh()
        if last is not None and last > end:
            raise BadOption(f"ledger {ledger} is confirmed up to entry {end}, not {last}")
        stop = end if last is None else last
        if first > stop:
            return 0
        try:
            await reader.check_key()
        except (KeyMissing, KeySourceUnavailable) as error:
            if raw:
                raise  # --raw asks for the messages themselves
            say(f"{error}; entries are shown as they are stored")
            reader = await ledgers.open(ledger, as_stored=True)
        async for entry in reader.entries(first, stop):
            _show_entry(entry.entry_id, bytes(entry.payload), raw, as_json)
        return stop - first + 1

    count = with_ledgers(metadata_url(metadata, data), work)
    say(f"{count:,} entries")


@app.command()
def recover(
    ledger: LedgerId,
    password: Password = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a ledger that a live broker writes.")
    ] = False,
    metadata: Metadata = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Fence a ledger and close it: its writer, if still alive, gets no further ack.

    Refused for a ledger that a live broker writes: that would interrupt the topic.

    \b
    Example:
      octavo ledger recover 7 --data ./octavo-data
    """

    from octavo.broker.cluster.in_use import in_use, user_of
    from octavo.log_messages import recovery_step_in_words
    from octavo.process.recovery_log import step_fields

    def told(event: RecoveryEvent) -> None:
        say("  " + recovery_step_in_words(step_fields(ledger, event)))

    async def work(ledgers: LedgerClient) -> LedgerMetadata:
        found = await ledgers.metadata(ledger)
        user = None if force else await user_of(ledgers.store, found)
        if user is not None:
            raise in_use(found, user, "To do it all the same: --force")
        return await ledgers.recover(ledger, password=_bytes(password), observe=told)

    found = with_ledgers(metadata_url(metadata, data), work)
    if as_json:
        emit_json(plain_metadata(found))
    else:
        say(f"ledger {ledger} is {found.state.name}, last entry {found.last_entry}")


@app.command()
def delete(
    ledger: LedgerId,
    yes: Yes = False,
    metadata: Metadata = None,
    data: Data = None,
) -> None:
    """Delete a ledger. A topic that still lists it loses these messages.

    \b
    Example:
      octavo ledger delete 7 --data ./octavo-data --yes
    """
    if not yes:
        typer.confirm(f"Delete ledger {ledger} for ever?", abort=True, err=True)
    with_ledgers(metadata_url(metadata, data), lambda ledgers: ledgers.delete(ledger))
    say(f"deleted ledger {ledger}")


@app.command()
def password(metadata: Metadata = None, data: Data = None) -> None:
    """Print the password of the cluster's own ledgers.

    Clients that know it may write and fence them; BookKeeper's and Pulsar's clients need it to open
    them.

    \b
    Example:
      octavo ledger password --data ./octavo-data
    """

    async def work(ledgers: LedgerClient) -> bytes:
        return ledgers.cluster_password

    emit_raw(with_ledgers(metadata_url(metadata, data), work))


def plain_metadata(found: LedgerMetadata) -> dict[str, Any]:
    closed = found.state.name == "CLOSED"
    return {
        "ledger_id": found.ledger_id,
        "state": found.state.name,
        "ensemble_size": found.ensemble_size,
        "write_quorum": found.write_quorum,
        "ack_quorum": found.ack_quorum,
        "digest_type": found.digest_type.name,
        "created_ms": found.created_ms,
        "last_entry": found.last_entry if closed else None,
        "length": found.length if closed else None,
        "fragments": [
            {"first_entry": fragment.first_entry, "bookies": list(fragment.bookies)}
            for fragment in found.fragments
        ],
        "custom": {name: text.decode(errors="replace") for name, text in found.custom.items()},
    }


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()


def _end(found: LedgerMetadata) -> str:
    if found.state.name != "CLOSED":
        return "open"
    return str(found.last_entry) if found.last_entry >= 0 else "empty"


def _time(ms: int) -> str:
    if not ms:
        return ""
    if not in_calendar(ms):
        return f"{ms} ms"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _show_entry(entry_id: int, payload: bytes, raw: bool, as_json: bool) -> None:
    if raw:
        emit_raw(payload)
    elif as_json:
        emit_json({"entry_id": entry_id, "bytes": len(payload), "hex": payload.hex()})
    else:
        shown = payload[:SHOWN_BYTES_MAX].decode("latin-1")
        text = "".join(one if one.isprintable() else "." for one in shown)
        more = "…" if len(payload) > SHOWN_BYTES_MAX else ""
        emit_raw(f"{entry_id}\t{len(payload)} B\t{text}{more}".encode())
