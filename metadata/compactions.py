"""A partition's compacted view: the changes of its record that a compaction makes. Pure.

    begun (run) → published (horizon, ledgers) → collected

`begun` names who may publish: whoever begins anew takes the place, so of two runs only one can
publish. `published` puts the whole view in the place of the one before, in one compare-and-set;
the ledgers of that one are `retired`, and stay until `collected` takes them out of the record,
before they are deleted. A crash between any two leaves the old view or the new one. Ledgers that no
record names and whose run is not the record's will never be named: they may go.

A view holds what it is of: messages at their own offsets, in the topic's own ledgers' stead below
the horizon. Nothing of the partition itself is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from octavo.metadata.topics import CompactedLedger, CompactionRecord, PartitionRecord, RetiredLedger
from octavo.protocol.codes import OctavoError

KIND = b"compacted"
"""`octavo.kind` of a ledger that a compaction has written; its run stands under the other key."""
KIND_KEY, RUN_KEY = "octavo.kind", "octavo.compaction"


class CompactionLost(OctavoError):
    """Another run has begun to compact this partition: this one's result is not wanted."""

    name = "compaction-lost"


def compacted_ledgers(record: PartitionRecord) -> list[int]:
    """All that the record names, those of earlier views among them."""
    view = record.compaction
    if view is None:
        return []
    return [one.ledger_id for one in view.ledgers] + [one.ledger_id for one in view.retired]


def begun(record: PartitionRecord, run: str, now_ms: int) -> PartitionRecord:
    """This run, and no other one, may publish."""
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
    """The view of this run in the place of the one before. Raises `CompactionLost`."""
    view = record.compaction or CompactionRecord()
    if view.run != run:
        if (view.horizon, view.ledgers) == (horizon, tuple(ledgers)):
            return record  # it was done, and the answer was lost
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
    """This run will not publish any more."""
    view = record.compaction
    if view is None or view.run != run:
        return record
    return replace(record, compaction=replace(view, run=None, run_since_ms=0))


def retired_before(record: PartitionRecord, until_ms: int) -> list[int]:
    """Ledgers of earlier views that were replaced so long ago that nobody reads them."""
    view = record.compaction
    if view is None:
        return []
    return [one.ledger_id for one in view.retired if one.since_ms <= until_ms]


def collected(record: PartitionRecord, ledger_ids: Collection[int]) -> PartitionRecord:
    """Without these retired ledgers, which are deleted next."""
    view = record.compaction
    if view is None:
        return record
    kept = tuple(one for one in view.retired if one.ledger_id not in ledger_ids)
    return replace(record, compaction=replace(view, retired=kept))
