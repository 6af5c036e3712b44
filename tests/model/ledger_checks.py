"""Invariants of every state of a ledger's world, named as in the protocol's page: S1 … S7 of the
ledger protocol, P… of BookKeeper, in brackets those of J. Vanlightly's TLA+ specification.
Failed assertions of production (P10, P14, P32) and of the nodes (P12, P13, P14, P17) are
violations too."""

from __future__ import annotations

from octavo.ledger.quorum import Quorum
from octavo.ledger.recover.recovery_state import State
from octavo.metadata.ledgers import LedgerState
from tests.model.ledger_clients import Recoverer, Writer
from tests.model.ledger_nodes import BYTES, RECORD, Bookie, Record
from tests.model.world import Nodes


def check(nodes: Nodes) -> str | None:
    record: Record = nodes[RECORD].value
    bookies = {node.name: node for node in nodes.values() if isinstance(node, Bookie)}
    writer = next(node for node in nodes.values() if isinstance(node, Writer))
    return (
        _acked(record, writer, bookies)
        or _lacs(record, writer, bookies)
        or _closed(record, writer, bookies)
        or _fences(nodes, record, bookies)
        or _views(record, [node for node in nodes.values() if isinstance(node, Recoverer)], writer)
    )


def _copies(record: Record, entry_id: int, bookies: dict[str, Bookie]) -> int:
    fragment = [f for f in record.fragments if f.first_entry <= entry_id][-1]
    positions = Quorum(*record.shape).write_set(entry_id)
    return sum(entry_id in bookies[fragment.bookies[p]].entries for p in positions)


def _acked(record: Record, writer: Writer, bookies: dict[str, Bookie]) -> str | None:
    """P15, S1 [AllAckedEntriesAreReadable]: an acked entry is on Qa of the bookies that the
    record names."""
    for entry_id in range(writer.acked + 1):
        if (found := _copies(record, entry_id, bookies)) < record.shape[2]:
            if record.state is LedgerState.CLOSED and record.last_entry < entry_id:
                return f"S3: entry {entry_id} was acked, the ledger ends at {record.last_entry}"
            return f"S1, P15: entry {entry_id} was acked and has {found} copies where it should be"
    if record.state is LedgerState.CLOSED and writer.acked > record.last_entry:
        return f"S3: entry {writer.acked} was acked, the ledger ends at {record.last_entry}"
    return None


def _lacs(record: Record, writer: Writer, bookies: dict[str, Bookie]) -> str | None:
    """S6, P16: no bookie has a LAC above the acked entries."""
    for bookie in bookies.values():
        for entry_id, (_, lac) in bookie.entries.items():
            if lac > writer.acked:
                return f"S6: {bookie.name} tells of LAC {lac} with entry {entry_id}"
    return None


def _closed(record: Record, writer: Writer, bookies: dict[str, Bookie]) -> str | None:
    """P5 [AllCommittedEntriesReachAckQuorum, NoOutOfOrderEntries], P11, S4."""
    if record.state is not LedgerState.CLOSED:
        return None
    if record.length != BYTES * (record.last_entry + 1):
        return f"P11: {record.length} bytes in {record.last_entry + 1} entries"
    for entry_id in range(record.last_entry + 1):
        if (found := _copies(record, entry_id, bookies)) < record.shape[2]:
            return f"P5: entry {entry_id} is part of the closed ledger and has {found} copies"
        contents = {b.entries[entry_id] for b in bookies.values() if entry_id in b.entries}
        if len(contents) > 1 or {content for content, _ in contents} != {b"e%d" % entry_id}:
            return f"S4, P6: entry {entry_id} is {contents}"
    return None


def _fences(nodes: Nodes, record: Record, bookies: dict[str, Bookie]) -> str | None:
    """S5, P26: a recovery that reads has a fence in every write set, so no new ack quorum can
    form there."""
    ensemble_size, write_quorum, ack_quorum = record.shape
    for node in nodes.values():
        if not isinstance(node, Recoverer) or node.core is None:
            continue
        if node.core.state not in (State.READING, State.CLOSING):
            continue
        ring = node.core.metadata.fragments[-1].bookies
        for start in range(ensemble_size):
            window = [ring[(start + k) % ensemble_size] for k in range(write_quorum)]
            free = [name for name in window if not bookies[name].fenced]
            if len(free) >= ack_quorum:
                return f"S5: {node.name} reads on, and {' and '.join(free)} may ack without it"
    return None


def _views(record: Record, recoverers: list[Recoverer], writer: Writer) -> str | None:
    """S2 [NoDivergenceBetweenClientAndMetaData]: every client that knows the end knows the same
    end."""
    for name, view in [(r.name, r.done) for r in recoverers] + [("writer", writer.closed)]:
        if view is not None and view != record:
            return f"S2: to {name} the ledger is {view.brief()}, in truth {record.brief()}"
    return None
