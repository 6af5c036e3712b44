"""The referee of garbage collection: P44, P45 and S8.

It looks at the disk's bytes and at the index as it was flushed, not at the collector's claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, decode_record, log_id_of
from octavo.bookie.index.index import INDEX_FOLDER
from octavo.bookie.storage import Storage

if TYPE_CHECKING:
    from tests.sim.cluster import SimBookie


def watch_garbage(bookie: SimBookie, storage: Storage) -> None:
    """See each log go, and each marker of a deleted ledger."""
    logs: Any = storage.logs
    states: Any = storage._states
    audit = bookie.cluster.audit
    remove, drop = logs.remove, states.drop

    def watched_remove(log_id: int) -> None:
        for ledger_id in _named_by_the_flushed_index(bookie, log_id):
            audit.check(
                audit.is_deleted(ledger_id),
                f"P45 {bookie.name} removes entry log {log_id}, ledger {ledger_id} is in it",
            )
        remove(log_id)
        bookie.cluster.trace.probe("bookie.log_removed")

    def watched_drop(ledger_id: int) -> None:
        drop(ledger_id)
        audit.marker_dropped(bookie.name, ledger_id)
        bookie.cluster.trace.probe("bookie.marker_dropped")

    logs.remove = watched_remove
    states.drop = watched_drop


def _named_by_the_flushed_index(bookie: SimBookie, log_id: int) -> list[int]:
    folder = bookie.cluster.options.ledger_directories[0]
    kept = bookie.disk.indexes.kept.get(f"{folder}/{INDEX_FOLDER}")
    if kept is None:
        return []
    return [
        ledger_id
        for ledger_id, runs in kept.flushed._runs.items()
        if any(run.location.log_id == log_id for run in runs)
    ]


def deleted_held(bookie: SimBookie) -> dict[int, None]:
    if bookie.node is None or bookie.refused is not None:
        return {}
    held = bookie.node.storage.ledgers()
    return dict.fromkeys(filter(bookie.cluster.audit.is_deleted, held))


def left_over(bookie: SimBookie) -> str:
    """Describe the deleted data that a bookie still has to throw away; "" when there is none."""
    if bookie.node is None or bookie.refused is not None:
        return ""
    audit, storage = bookie.cluster.audit, bookie.node.storage
    if known := deleted_held(bookie):
        return f"{bookie.name} holds ledgers {list(known)}, which were deleted"
    mark = storage._checkpointer.mark
    for path, log_id in _logs(bookie):
        if mark is None or log_id >= mark.log_id:
            continue
        held = dict.fromkeys(_ledgers_in(bytes(bookie.disk.names[path].data)))
        if held and all(map(audit.is_deleted, held)):
            return f"{bookie.name} keeps {path}, with deleted ledgers {list(held)} only"
    return ""


def _logs(bookie: SimBookie) -> Iterator[tuple[str, int]]:
    for path in bookie.disk.names:
        log_id = log_id_of(path.rpartition("/")[2])
        if log_id is not None:
            yield path, log_id


def _ledgers_in(data: bytes) -> Iterator[int]:
    at = FILE_HEADER_BYTES
    while (record := decode_record(data, at)) is not None:
        yield record.ledger_id
        at += record.total_bytes
