"""Bookies that keep their own copies (profile `copies`), and their referee: P42, P52–P54, S8.

In the end every closed ledger's copies are whole again, if enough bookies are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from octavo.bookie.node import BookieNode
from octavo.ledger.options import LedgerOptions
from octavo.ledger.rereplication.copies import names
from octavo.metadata.store import MetadataStore
from octavo.process.copies import kept_copies
from tests.sim.ledger_audit import LedgerHistory, covered
from tests.sim.moves import missing_of
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.cluster import SimBookie

KEEPER: dict[str, Any] = {
    "lost_bookie_ms": 400,
    "copies_open_ledger_ms": 200,
    "copies_retry_ms": 150,
    "copies_interval_ms": 1_000,
}
_CLIENT = LedgerOptions(add_timeout_s=0.5, read_timeout_s=0.5, connect_timeout_s=0.5)


@contextlib.asynccontextmanager
async def keeping(
    bookie: SimBookie, node: BookieNode, store: MetadataStore, process: Process
) -> AsyncIterator[None]:
    """Keep the copies of a bookie while it lives, if this seed's bookies do."""
    if not bookie.cluster.options.keeps_copies:
        yield
        return
    _watch(bookie, node)
    async with kept_copies(
        node, store, rng=process.rng, clock=process.clock_ms, options=_CLIENT
    ) as bookie.keeper:
        yield


def _watch(bookie: SimBookie, node: BookieNode) -> None:
    audit, storage, name = bookie.cluster.audit, node.storage, bookie.name
    file: Any = storage.limbo_file
    vouch, end = file.vouch, file.end

    async def watched_vouch(ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            history = audit.ledgers.get(ledger_id)
            if history is None or history.deleted:
                continue
            what = f"bookie {name} vouches for ledger {ledger_id}"
            audit.check(history.is_closed, f"P42 {what}, which is open")
            missing = missing_of(history, name, covered(storage, ledger_id))
            audit.check(not missing, f"P42 {what} without entries {sorted(missing)}")
            state = storage._states.get(ledger_id)
            audit.check(state is not None and state.fenced, f"P24 {what}, which is not fenced")
        for ledger_id in ledger_ids:  # before the call: a failed call may still have been written
            audit.whole_again(name, ledger_id, covered(storage, ledger_id), named=True)
        await vouch(ledger_ids)
        for _ in ledger_ids:
            bookie.cluster.trace.probe("copies.whole_again")

    async def watched_end() -> None:
        named = [
            found.ledger_id
            for found in audit.ledgers.values()
            if not found.deleted
            and name in names(found.record)
            and storage.limbo.covers(found.ledger_id)
        ]
        # After the keeper looked, an ensemble change may have put this bookie in, which was sure by
        # then.
        lost = [found for found in named if found in audit.lost.get(name, ())]
        audit.check(not lost, f"P42 the limbo of {name} ends, and ledgers {lost} are not whole")
        for ledger_id in list(audit.lost.get(name, ())):
            audit.whole_again(name, ledger_id, covered(storage, ledger_id), named=False)
        await end()
        bookie.cluster.trace.probe("copies.limbo_over")

    file.vouch, file.end = watched_vouch, watched_end


def whole(bookies: dict[str, SimBookie], ledgers: Iterable[LedgerHistory]) -> str:
    serving = {name: bookie for name, bookie in bookies.items() if bookie.serving and bookie.node}
    for history in ledgers:
        if history.deleted or not history.is_closed:
            continue
        for fragment in history.record.fragments:
            spares = [
                name
                for name, bookie in serving.items()
                if name not in fragment.bookies
                and bookie.node is not None
                and not bookie.node.read_only
                and bookie.node.storage.limbo.unknown_through < history.ledger_id
            ]
            for name in fragment.bookies:
                if name not in serving and spares:
                    return f"{name} is gone, {spares} could hold ledger {history.ledger_id}"
        for name, bookie in serving.items():
            assert bookie.node is not None
            if name in names(history.record):
                held = covered(bookie.node.storage, history.ledger_id)
                missing = missing_of(history, name, held)
                if missing:
                    return f"{name} lacks ledger {history.ledger_id} entries {sorted(missing)}"
    return ""
