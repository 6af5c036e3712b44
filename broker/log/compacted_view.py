"""A compacted view as readers see it: its ledgers, and where a reader's next page begins. Pure.

    horizon 90:   [ 3 … 17 ]   [ 40 … 88 ]   |  from 90 on the log, every message
                   ledger 21    ledger 22

Each ledger holds messages with their own offsets, with gaps, in ascending order. Any other view is
refused (`COMPACTED_VIEW_UNREADABLE`), never skipped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import NamedTuple

from octavo.broker.errors import COMPACTED_VIEW_UNREADABLE
from octavo.broker.types import StoredBatch
from octavo.metadata.topics import CompactedLedger, CompactionRecord
from octavo.protocol.batch import InvalidBatch, read_header, with_base_offset
from octavo.protocol.entry import Entry

_HINTS_MAX = 64


class CompactedBatch(StoredBatch):
    """An entry of a view: its records carry their offsets, with gaps."""

    __slots__ = ()

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.header.last_offset_delta + 1


class View:
    """The ledgers of a view. `horizon` is 0 without a view: then no offset lies below it."""

    __slots__ = ("_lasts", "horizon", "ledgers")

    def __init__(self, record: CompactionRecord | None) -> None:
        self.horizon = 0 if record is None else record.horizon
        self.ledgers = () if record is None else record.ledgers
        self._lasts = [one.last_offset for one in self.ledgers]
        before = -1
        for one in self.ledgers:
            if not before < one.first_offset <= one.last_offset < self.horizon or one.count < 1:
                raise COMPACTED_VIEW_UNREADABLE(
                    f"ledger {one.ledger_id} of the compacted view is said to hold {one.count} "
                    f"messages from offset {one.first_offset} to {one.last_offset}; it comes after "
                    f"offset {before}, and the horizon is {self.horizon}"
                )
            before = one.last_offset

    def number_at(self, offset: int) -> int:
        """Return the index of the first ledger with a message at or after `offset`; past the end if
        none."""
        return bisect_left(self._lasts, offset)

    def ledger(self, ledger_id: int) -> CompactedLedger | None:
        """Return the view's ledger with this id; None if it has no such ledger."""
        return next((one for one in self.ledgers if one.ledger_id == ledger_id), None)


def batch_of(ledger: CompactedLedger, entry: Entry) -> CompactedBatch:
    """Give an entry absolute offsets. Raises `COMPACTED_VIEW_UNREADABLE` for impossible offsets."""
    try:
        header = read_header(entry.payload)
    except InvalidBatch as error:
        raise COMPACTED_VIEW_UNREADABLE(
            f"entry {entry.entry_id} of ledger {ledger.ledger_id}, of the compacted view: {error}"
        ) from error
    base = ledger.first_offset + header.base_offset
    last = base + header.last_offset_delta
    if not ledger.first_offset <= base <= last <= ledger.last_offset:
        raise COMPACTED_VIEW_UNREADABLE(
            f"entry {entry.entry_id} of ledger {ledger.ledger_id}, of the compacted view, goes "
            f"from offset {base} to {last}; the ledger from {ledger.first_offset} to "
            f"{ledger.last_offset}"
        )
    served = header._replace(base_offset=base, partition_leader_epoch=0)
    data = with_base_offset(entry.payload, base)
    return CompactedBatch(base, ledger.ledger_id, entry.entry_id, served, data)


class Room(NamedTuple):
    """How much a page may still take: bytes of batches, and messages."""

    bytes: int
    messages: int

    @property
    def is_left(self) -> bool:
        """Whether another batch may follow."""
        return self.bytes > 0 and self.messages > 0

    def entries(self, ledger: CompactedLedger, entries: int) -> int:
        """About how many of the ledger's `entries` fill the page; at least one."""
        by_bytes = self.bytes * entries // max(1, ledger.bytes)
        by_messages = self.messages * entries // ledger.count
        return 1 + min(by_bytes, by_messages)

    def without(self, batch: StoredBatch) -> Room:
        """Return the room after this batch."""
        return Room(self.bytes - len(batch.data), self.messages - batch.header.record_count)


class Hints:
    """The entries at which recent pages ended, so that a reader that continues need not search."""

    def __init__(self) -> None:
        self._ranges: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    def note(self, batch: StoredBatch, *, is_last: bool) -> None:
        """Note that a page ended with or within this batch. `is_last`: the ledger's last batch."""
        following = batch.next_offset
        self._put(batch.ledger_id, batch.entry_id, batch.base_offset, following)
        if not is_last:
            self._put(batch.ledger_id, batch.entry_id + 1, following, following + 1)

    def entry_of(self, ledger_id: int, offset: int) -> int | None:
        """Return the first entry of this ledger with a message at or after `offset`, if known."""
        for (ledger, entry), (first, end) in reversed(self._ranges.items()):
            if ledger == ledger_id and first <= offset < end:
                return entry
        return None

    def clear(self) -> None:
        """Forget all hints: the view was replaced."""
        self._ranges.clear()

    def _put(self, ledger_id: int, entry_id: int, first: int, end: int) -> None:
        # A known range may begin earlier, in the gap before the entry, or end later.
        known = self._ranges.pop((ledger_id, entry_id), (first, end))
        self._ranges[ledger_id, entry_id] = min(first, known[0]), max(end, known[1])
        if len(self._ranges) > _HINTS_MAX:
            self._ranges.popitem(last=False)
