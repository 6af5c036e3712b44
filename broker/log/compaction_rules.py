"""Which messages a broker's own compaction keeps, and when a run is due. Pure.

    view before:   [ keys' newest below horizon 90 ]      new: 90 … 200, closed ledgers
    first pass     over the new part only: the newest offset of each key, in bounded memory
    second pass    the old view without keys that have a newer message, then the new part with
                each key's newest message; all in the order of offsets

A key longer than 128 bits counts by its BLAKE2b. A run ends at its limit of keys, and the next
continues (like Kafka's cleaner), or after a few times as many messages as the view has: the topic
shrinks only when a run ends.

A tombstone stays in at least one view, and until it is older than the topic's delay; a message
without a key always stays.

A view's ledgers hold messages at their original offsets, ascending, with gaps; a view out of order
is refused, never skipped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from octavo.broker.errors import COMPACTED_VIEW_UNREADABLE
from octavo.broker.log.ledger_list import LedgerList, end_offset
from octavo.broker.types import StoredBatch
from octavo.metadata.topics import CompactedLedger, CompactionRecord, PartitionRecord
from octavo.protocol.batch import InvalidBatch, read_header, with_base_offset
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record

RUN_PREFIX = "broker-"
"""Other runs belong to an operator's job."""
_RETIRED_MAX = 5_000
"""With more ledgers of earlier views, some 50 bytes each in the record, no run starts."""
_LEDGERS_MAX = 1_000
"""About the most ledgers of a view, some 130 bytes each in the record."""
_KEY_BYTES = 16
_SETTLED_AT_ONCE = 5_000
_RUN_MESSAGES_MIN = 1_000_000
_RUN_MESSAGES_MAX = 16_000_000
"""A run takes a byte of memory for each new message."""
_RUN_TIMES_VIEW = 4
"""Bounds a run's new messages, as a multiple of the view's."""


class CompactionPolicy(NamedTuple):
    after_bytes: int
    dirty_ratio: float
    tombstones_ms: int


class Dirt(NamedTuple):
    start: int
    end: int
    bytes: int
    kept: int

    @property
    def ratio(self) -> float:
        new = self.end - self.start
        return new / (new + self.kept) if new else 0.0


def dirt_of(ledgers: LedgerList, view: CompactionRecord | None) -> Dirt:
    horizon = 0 if view is None else view.horizon
    start = max(horizon, ledgers.earliest_offset)
    end, size = start, 0
    for segment in ledgers.segments:
        if segment.count is None or end_offset(segment) <= start:
            continue
        new = end_offset(segment) - max(start, segment.base_offset)
        size += segment.bytes * new // segment.count
        end = end_offset(segment)
    return Dirt(start, end, size, 0 if view is None else sum(one.count for one in view.ledgers))


def run_messages_max(dirt: Dirt) -> int:
    return min(max(_RUN_MESSAGES_MIN, _RUN_TIMES_VIEW * dirt.kept), _RUN_MESSAGES_MAX)


def urgency(dirt: Dirt, policy: CompactionPolicy) -> float:
    """Return the work as a multiple of the work that makes a run due; at least 1."""
    times = dirt.bytes / policy.after_bytes
    if policy.dirty_ratio and dirt.kept and policy.dirty_ratio < 1:
        enough = dirt.kept * policy.dirty_ratio / (1 - policy.dirty_ratio)
        times = min(times, (dirt.end - dirt.start) / enough)
    return max(1.0, times)


def is_due(
    dirt: Dirt, view: CompactionRecord | None, policy: CompactionPolicy, now_ms: int | None
) -> bool:
    """Return whether a run is due; `now_ms` is None while no message may expire."""
    if view is not None and len(view.retired) > _RETIRED_MAX:
        return False
    if dirt.end > dirt.start and dirt.bytes >= policy.after_bytes:
        return dirt.ratio >= policy.dirty_ratio
    if view is None or now_ms is None or now_ms - view.published_ms < policy.tombstones_ms:
        return False  # a view is rewritten for its tombstones alone at most once in their delay
    return any(
        one.tombstones and now_ms - one.tombstone_ms >= policy.tombstones_ms for one in view.ledgers
    )


def is_ours_to_begin(view: CompactionRecord | None, now_ms: int, yield_ms: int) -> bool:
    """Return whether no job compacts: a broker may restart a broker's run, but not a job's.

    A job that began more than `yield_ms` ago counts as dead.
    """
    if view is None or view.run is None or view.run.startswith(RUN_PREFIX):
        return True
    return now_ms - view.run_since_ms >= yield_ms


def ledger_bytes(dirt: Dirt, before: CompactionRecord, rollover_bytes: int) -> int:
    """Return the length of the new view's ledgers: the roll-over length, or more to keep
    them few.
    """
    total = dirt.bytes + sum(one.bytes for one in before.ledgers)
    return max(rollover_bytes, -(-total // _LEDGERS_MAX))


def compacted_figures(view: CompactionRecord | None) -> tuple[int, int, int] | None:
    if view is None or not view.horizon:
        return None
    return view.horizon, sum(one.count for one in view.ledgers), sum(o.bytes for o in view.ledgers)


def covered_to(record: PartitionRecord) -> int:
    return 0 if record.compaction is None else record.compaction.horizon


class NewestOffsets:
    """Keeps the newest offset of each key, and for each message a byte that says whether it stays.
    Filled by `note`, then by `settling`. `is_full` with `keys_max` keys or `messages_max` messages.
    """

    def __init__(self, start: int, keys_max: int, messages_max: int) -> None:
        self._start = start
        self._keys_max = keys_max
        self._messages_max = messages_max
        self._newest: dict[bytes, int] = {}
        self._stays = bytearray()

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        """Whether a run must end; checked between batches, where a horizon must lie."""
        return len(self._newest) >= self._keys_max or len(self._stays) >= self._messages_max

    def note(self, first: int, keys: Sequence[bytes | None]) -> None:
        """Note the keys of messages from `first` on, in the order of offsets."""
        before = max(0, self._start - first)
        first, keys = first + before, keys[before:]
        at = first - self._start
        assert at >= len(self._stays), f"offset {first} was noted already"
        self._stays.extend(bytes(at + len(keys) - len(self._stays)))
        offsets: Iterable[int] = range(first, first + len(keys))
        if None in keys:
            for offset, key in zip(offsets, keys, strict=True):
                self._stays[offset - self._start] = key is None
            offsets = [offset for offset, key in zip(offsets, keys, strict=True) if key is not None]
        named = [_short(key) for key in keys if key is not None]
        self._newest.update(zip(named, offsets, strict=True))

    def settling(self) -> Iterator[None]:
        """Call this after the last `note`; yields regularly."""
        for number, offset in enumerate(self._newest.values(), 1):
            self._stays[offset - self._start] = 1
            if not number % _SETTLED_AT_ONCE:
                yield

    def has(self, key: bytes) -> bool:
        return _short(key) in self._newest

    def staying(self, first: int, count: int) -> bytes:
        at = first - self._start
        return bytes(min(count, max(0, -at))) + self._stays[max(0, at) : max(0, at + count)]


def _short(key: bytes) -> bytes:
    # A key shorter than a digest cannot be mistaken for a digest.
    return key if len(key) < _KEY_BYTES else blake2b(key, digest_size=_KEY_BYTES).digest()


class Choice:
    def __init__(self, newest: NewestOffsets, tombstones_ms: int, now_ms: int | None) -> None:
        self._newest = newest
        self._gone_before_ms = None if now_ms is None else now_ms - tombstones_ms

    def keeps(self, record: Record) -> bool:
        """Decide on a message of the old view, which has each key once."""
        if record.key is None:
            return True
        if self._newest.has(record.key):
            return False
        # A tombstone goes after a view that had it, so that readers saw it.
        if record.value is not None or self._gone_before_ms is None:
            return True
        return record.timestamp_ms > self._gone_before_ms


_HINTS_MAX = 64


class CompactedBatch(StoredBatch):
    __slots__ = ()

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta + 1


class View:
    """The plan for a compacted view; without a view `horizon` is 0."""

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
        return bisect_left(self._lasts, offset)

    def ledger(self, ledger_id: int) -> CompactedLedger | None:
        return next((one for one in self.ledgers if one.ledger_id == ledger_id), None)


def batch_of(ledger: CompactedLedger, entry: Entry) -> CompactedBatch:
    """Give an entry absolute offsets; raise `COMPACTED_VIEW_UNREADABLE` for impossible offsets."""
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
    bytes: int
    messages: int

    @property
    def is_left(self) -> bool:
        return self.bytes > 0 and self.messages > 0

    def entries(self, ledger: CompactedLedger, entries: int) -> int:
        by_bytes = self.bytes * entries // max(1, ledger.bytes)
        by_messages = self.messages * entries // ledger.count
        return 1 + min(by_bytes, by_messages)

    def without(self, batch: StoredBatch) -> Room:
        return Room(self.bytes - len(batch.data), self.messages - batch.header.record_count)


class Hints:
    """Where recent pages ended, so that continuing readers need not search."""

    def __init__(self) -> None:
        self._ranges: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    def note(self, batch: StoredBatch, *, is_last: bool) -> None:
        following = batch.next_offset
        self._put(batch.ledger_id, batch.entry_id, batch.base_offset, following)
        if not is_last:
            self._put(batch.ledger_id, batch.entry_id + 1, following, following + 1)

    def entry_of(self, ledger_id: int, offset: int) -> int | None:
        for (ledger, entry), (first, end) in reversed(self._ranges.items()):
            if ledger == ledger_id and first <= offset < end:
                return entry
        return None

    def clear(self) -> None:
        self._ranges.clear()

    def _put(self, ledger_id: int, entry_id: int, first: int, end: int) -> None:
        # A known range may begin earlier, in the gap, or end later.
        known = self._ranges.pop((ledger_id, entry_id), (first, end))
        self._ranges[ledger_id, entry_id] = min(first, known[0]), max(end, known[1])
        if len(self._ranges) > _HINTS_MAX:
            self._ranges.popitem(last=False)
