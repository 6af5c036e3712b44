"""A partition's compacted view: the changes that a compaction makes to its record. Pure.

    begun (run) → published (horizon, ledgers) → collected

Only the run in `begun` may publish. `published` replaces the whole earlier view in one
compare-and-set; its ledgers become `retired`, and leave the record by `collected` before they are
deleted. A crash leaves the old view or the new. Ledgers of another run that no record names may be
deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from octavo.metadata.topics import CompactedLedger, CompactionRecord, PartitionRecord, RetiredLedger
from octavo.protocol.codes import OctavoError

KIND = b"compacted"
"""`octavo.kind` of a compaction's ledgers; the other key holds the run."""
KIND_KEY, RUN_KEY = "octavo.kind", "octavo.compaction"


class CompactionLost(OctavoError):
    """Another run has begun: this run's result is not used."""

    name = "compaction-lost"


def compacted_ledgers(record: PartitionRecord) -> list[int]:
    """Return the ledgers of this view and of earlier views."""
    view = record.compaction
    if view is None:
        return []
    return [one.ledger_id for one in view.ledgers] + [one.ledger_id for one in view.retired]


def begun(record: PartitionRecord, run: str, now_ms: int) -> PartitionRecord:
    """Let only this run publish."""
    view = record.compaction or CompactionRecord()
    if view.run == run:
        return record
    return replace(record, compaction=replace(view, run=run, run_since_ms=now_ms))


def published(
    record: PartitionRecord,
    run: str,
    horizon: int,
    ledgers: Sequence[CompactedLedger],
    now_ms: int,
) -> PartitionRecord:
    """Replace the earlier view. Raises `CompactionLost`."""
    view = record.compaction or CompactionRecord()
    if view.run != run:
        if (view.horizon, view.ledgers) == (horizon, tuple(ledgers)):
            return record  # published before, and the answer was lost
        raise CompactionLost(f"run {run} may not publish: {view.run or 'none'} was begun after it")
    retired = tuple(RetiredLedger(one.ledger_id, now_ms) for one in view.ledgers)
    made = replace(
        view,
        horizon=horizon,
        ledgers=tuple(ledgers),
        published_ms=now_ms,
        run=None,
        run_since_ms=0,
        retired=view.retired + retired,
    )
    return replace(record, compaction=made)


def given_up(record: PartitionRecord, run: str) -> PartitionRecord:
    view = record.compaction
    if view is None or view.run != run:
        return record
    return replace(record, compaction=replace(view, run=None, run_since_ms=0))


def retired_before(record: PartitionRecord, until_ms: int) -> list[int]:
    """Return ledgers that were replaced so long ago that no reader is left."""
    view = record.compaction
    if view is None:
        return []
    return [one.ledger_id for one in view.retired if one.since_ms <= until_ms]


def collected(record: PartitionRecord, ledger_ids: Collection[int]) -> PartitionRecord:
    """Remove these retired ledgers, which are deleted next."""
    view = record.compaction
    if view is None:
        return record
    kept = tuple(one for one in view.retired if one.ledger_id not in ledger_ids)
    return replace(record, compaction=replace(view, retired=kept))
