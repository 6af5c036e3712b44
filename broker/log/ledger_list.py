"""A partition as a list of ledgers: base offsets, roll-over, offset to ledger. Pure.

All segments but the last are closed, so their counts are known, and each starts where the ledger
before it ends. Entries store offsets relative to their ledger's base, so a closed ledger can be
inserted unchanged. A list is a value: a change takes effect by compare-and-set of the partition's
record.

A large message has its own ledger: its pieces, then the message. Pieces have offsets, so that there
are no gaps, but no reader gets them as messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from octavo.metadata.bulk_loads import PrivateLedger
from octavo.metadata.topic_records import partition_end, partition_start
from octavo.metadata.topics import PartitionLedger
from octavo.protocol.batch import BatchHeader

Range = tuple[int, int]
"""Offsets from the first (included) to the second (excluded)."""


def end_offset(segment: PartitionLedger) -> int:
    assert segment.count is not None, f"ledger {segment.ledger_id} is open"
    return segment.base_offset + segment.count


def is_written(segments: Sequence[PartitionLedger]) -> bool:
    return bool(segments) and segments[-1].count is None


class RolloverPolicy(NamedTuple):
    """A ledger that reaches any bound is closed."""

    bytes_max: int
    entries_max: int
    age_ms_max: int

    def due(self, payload_bytes: int, entries: int, age_ms: int) -> bool:
        """Return whether the ledger must be closed; an empty ledger never rolls."""
        return entries > 0 and (
            payload_bytes >= self.bytes_max
            or entries >= self.entries_max
            or age_ms >= self.age_ms_max
        )


class Contents(NamedTuple):
    """A ledger's totals; timestamps (-1: none) as readers see them.

    `disorder_ms`: as in `PartitionLedger`.
    """

    messages: int = 0
    payload_bytes: int = 0
    first_ms: int = -1
    last_ms: int = -1
    disorder_ms: int = 0

    def plus(self, header: BatchHeader, payload_bytes: int) -> Contents:
        first, newest = header.first_timestamp, header.max_timestamp
        if not self.messages:
            return Contents(header.record_count, payload_bytes, first, newest)
        return Contents(
            self.messages + header.record_count,
            self.payload_bytes + payload_bytes,
            min(self.first_ms, first),
            max(self.last_ms, newest),
            max(self.disorder_ms, self.last_ms - newest),
        )


class Cut(NamedTuple):
    """A fork's part of a ledger, up to `last_entry`, perhaps not all of that.

    `payload_bytes` is an estimate; `some_ms` is the timestamp of a message in it, or −1.
    """

    ledger_id: int
    last_entry: int
    payload_bytes: int
    some_ms: int


class ForkPoint(NamedTuple):
    offset: int
    cut: Cut | None = None


def measured(segment: PartitionLedger, contents: Contents) -> PartitionLedger:
    return replace(
        segment,
        first_ms=contents.first_ms,
        last_ms=contents.last_ms,
        disorder_ms=contents.disorder_ms,
    )


def is_measured(segment: PartitionLedger) -> bool:
    return segment.disorder_ms >= 0


class LedgerList:
    """Segments in order; immutable.

    Offsets before `trimmed_to` are gone; it may lie within a segment.
    """

    __slots__ = ("_bases", "hidden", "segments", "trimmed_to")

    def __init__(self, segments: Iterable[PartitionLedger] = (), trimmed_to: int = 0) -> None:
        self.segments = tuple(segments)
        self.trimmed_to = trimmed_to
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            assert before.count is not None, f"ledger {before.ledger_id} is followed but not closed"
            assert end_offset(before) == after.base_offset, (
                f"ledger {before.ledger_id} ends at {end_offset(before)}, "
                f"ledger {after.ledger_id} starts at {after.base_offset}"
            )
        self._bases = [segment.base_offset for segment in self.segments]
        self.hidden = _hidden(self.segments)

    def shown_from(self, offset: int) -> int:
        place = bisect_right(self.hidden, offset, key=_start) - 1
        return offset if place < 0 else max(offset, self.hidden[place][1])

    def uploaded(self, upload: str) -> PartitionLedger | None:
        return next((one for one in self.segments if one.upload == upload), None)

    @property
    def earliest_offset(self) -> int:
        first_base = self.segments[0].base_offset if self.segments else None
        return partition_start(first_base, self.trimmed_to)

    @property
    def last(self) -> PartitionLedger | None:
        return self.segments[-1] if self.segments else None

    @property
    def end_offset(self) -> int:
        """Return one past the last offset; only if the newest ledger is closed."""
        last_end = end_offset(self.segments[-1]) if self.segments else None
        return partition_end(last_end, self.trimmed_to)

    @property
    def closed(self) -> tuple[PartitionLedger, ...]:
        return self.segments[:-1] if is_written(self.segments) else self.segments

    @property
    def closed_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def find(self, offset: int) -> PartitionLedger:
        assert self.segments
        assert offset >= self.earliest_offset
        return self.segments[bisect_right(self._bases, offset) - 1]

    def segment_of(self, ledger_id: int) -> PartitionLedger | None:
        return next((segment for segment in self.segments if segment.ledger_id == ledger_id), None)

    def after(self, ledger_id: int) -> PartitionLedger | None:
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            if segment.ledger_id == ledger_id:
                return following
        return None

    def closing_last(self, ledger_id: int, contents: Contents, closed_ms: int) -> LedgerList:
        """Close the last ledger; an empty ledger leaves the list."""
        last = self.segments[-1]
        assert last.ledger_id == ledger_id, f"ledger {last.ledger_id} is the newest"
        assert last.count is None
        if contents.messages == 0:
            rest = self.segments[:-1]
            return LedgerList(rest, self.trimmed_to if rest else self.earliest_offset)
        closed = replace(
            last,
            count=contents.messages,
            bytes=contents.payload_bytes,
            closed_ms=closed_ms,
        )
        return LedgerList((*self.segments[:-1], measured(closed, contents)), self.trimmed_to)

    @property
    def newest_append_ms(self) -> int:
        """Return the last append time in a closed ledger, or −1; later times are not lower."""
        for segment in reversed(self.segments):
            if segment.appended_ms is not None:
                return max(segment.appended_ms, segment.last_ms)
        return -1

    def appending(self, ledger_id: int, appended_ms: int | None = None) -> LedgerList:
        """Append a ledger; `appended_ms`: its messages have append times, from then on."""
        assert self.segment_of(ledger_id) is None
        new = PartitionLedger(ledger_id, self.end_offset, appended_ms=appended_ms)
        return LedgerList((*self.segments, new), self.trimmed_to)

    def inserting(
        self,
        ledgers: Iterable[PrivateLedger],
        closed_ms: int,
        upload: str | None = None,
        appended_ms: int | None = None,
    ) -> LedgerList:
        """Insert closed ledgers at the end of the list, whose newest ledger must be closed.

        `upload`: of a large message. `appended_ms`: the append time of all messages, if any.
        """
        segments = list(self.segments)
        base = self.end_offset
        for one in ledgers:
            assert self.segment_of(one.ledger_id) is None, (
                f"ledger {one.ledger_id} is there already"
            )
            assert one.count > 0, f"ledger {one.ledger_id} is empty"
            times = one.first_ms, one.last_ms, one.disorder_ms
            first_ms, last_ms, disorder_ms = (
                times if appended_ms is None else (appended_ms, appended_ms, 0)
            )
            segments.append(
                PartitionLedger(
                    one.ledger_id, base, one.count, one.bytes, first_ms, last_ms,
                    closed_ms, bulk_loaded=True, disorder_ms=disorder_ms,
                    pieces=one.pieces, upload=upload, appended_ms=appended_ms,
                )
            )  # fmt: skip
            base += one.count
        return LedgerList(segments, self.trimmed_to)

    def truncating(self, before: int) -> LedgerList:
        """Remove offsets before `before`; never go back.

        An open ledger stays, and so does the ledger of `before`.
        """
        keep = 0
        for segment in self.closed:
            if end_offset(segment) > before:
                break
            keep += 1
        return LedgerList(self.segments[keep:], max(before, self.earliest_offset))

    def dating(self, now_ms: int) -> LedgerList:
        """Date the closed ledgers of unknown age by a trusted time, from which they age."""
        segments = tuple(
            replace(segment, aging_since_ms=now_ms)
            if segment.count is not None
            and segment.aging_since_ms is None
            and (segment.first_ms < 0 or segment.last_ms > now_ms)
            else segment
            for segment in self.segments
        )
        return self if segments == self.segments else LedgerList(segments, self.trimmed_to)

    def measuring(self, ledger_id: int, contents: Contents) -> LedgerList:
        return LedgerList(
            (
                one if one.ledger_id != ledger_id else measured(one, contents)
                for one in self.segments
            ),
            self.trimmed_to,
        )

    def forked(self, point: ForkPoint, now_ms: int) -> LedgerList:
        """Raise `ValueError` if the cut ledger is gone."""
        at = point.offset
        if at < self.earliest_offset:
            raise ValueError(f"offset {at} was trimmed; the earliest is {self.earliest_offset}")
        if at == self.earliest_offset:
            return LedgerList((), at)
        found = []
        for segment in self.segments:
            if segment.base_offset >= at:
                break
            if segment.count is not None and end_offset(segment) <= at:
                found.append(replace(segment, shared=True, upload=None))
                continue
            if point.cut is None or point.cut.ledger_id != segment.ledger_id:
                raise ValueError(f"no cut is given for ledger {segment.ledger_id}")
            found.append(
                PartitionLedger(
                    segment.ledger_id, segment.base_offset, at - segment.base_offset,
                    point.cut.payload_bytes, point.cut.some_ms, point.cut.some_ms, now_ms,
                    bulk_loaded=segment.bulk_loaded, aging_since_ms=segment.aging_since_ms,
                    offload=segment.offload, shared=True, cut=point.cut.last_entry,
                    appended_ms=segment.appended_ms,
                    pieces=segment.pieces and min(segment.pieces, at - segment.base_offset),
                )
            )  # fmt: skip
        if found and end_offset(found[-1]) != at:
            raise ValueError(f"the messages end at {end_offset(found[-1])}, before offset {at}")
        if not found:
            raise ValueError(f"no message before offset {at} is there")
        return LedgerList(found, self.earliest_offset)

    def dropped_in(self, newer: LedgerList) -> list[int]:
        kept = {segment.ledger_id for segment in newer.segments}
        return [segment.ledger_id for segment in self.segments if segment.ledger_id not in kept]


def _start(hidden: Range) -> int:
    return hidden[0]


def _hidden(segments: Iterable[PartitionLedger]) -> tuple[Range, ...]:
    found: list[Range] = []
    for segment in segments:
        if segment.pieces:
            start = segment.base_offset
            if found and found[-1][1] == start:  # a fork was cut before the message: join pieces
                start = found.pop()[0]
            found.append((start, segment.base_offset + segment.pieces))
    return tuple(found)
