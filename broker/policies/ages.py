"""The minimal ages of a partition's messages, by marks of offset and time. Pure.

A mark says that every message before its offset was stored by its time. From time to time the owner
adds a mark with the time for deletions (clock/deletion_clock.py), and keeps the marks in the state
ledger. Neither a producer's timestamp nor this machine's clock counts. Known ages are always too
low rather than too high: if marks are lost, thinned out or late, messages live longer. A message
between two marks counts as stored at the later mark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

MARKS_MAX = 64
"""Marks of a partition. Beyond it, the mark between the closest two is dropped; messages there
count as younger."""


class Mark(NamedTuple):
    """All messages before `offset` were stored by `time_ms`."""

    offset: int
    time_ms: int


class Ages:
    """The marks of a partition, ascending in offset and in time."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Iterable[tuple[int, int]] = ()) -> None:
        self._marks: list[Mark] = []
        for offset, time_ms in marks:
            self.note(offset, time_ms)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The marks, oldest first."""
        return tuple(self._marks)

    def note(self, offset: int, time_ms: int) -> bool:
        """Note that all messages before `offset` were stored by `time_ms`; False: no news.

        If the time was set back, earlier marks with later times say less, and are dropped.
        """
        marks = self._marks
        if marks and offset <= marks[-1].offset:
            return False
        while marks and marks[-1].time_ms > time_ms:
            marks.pop()
        marks.append(Mark(offset, time_ms))
        if len(marks) > MARKS_MAX:
            inner = range(1, len(marks) - 1)
            del marks[min(inner, key=lambda at: marks[at + 1].time_ms - marks[at - 1].time_ms)]
        return True

    def is_due(self, end: int, time_ms: int, span_ms: int) -> bool:
        """Whether messages came since the last mark, which is at least `span_ms` old."""
        last = self._marks[-1] if self._marks else None
        return end > 0 if last is None else end > last.offset and time_ms - last.time_ms >= span_ms

    def stored_before(self, time_ms: int) -> int:
        """Return the offset before which all messages were certainly stored by `time_ms`."""
        place = bisect_right(self._marks, time_ms, key=lambda mark: mark.time_ms)
        return self._marks[place - 1].offset if place else 0

    def age_of(self, offset: int, now_ms: int) -> int:
        """Return for how long the message has been stored at least; 0 if unknown."""
        place = bisect_right(self._marks, offset, key=lambda mark: mark.offset)
        return max(0, now_ms - self._marks[place].time_ms) if place < len(self._marks) else 0

    def forget_before(self, offset: int) -> None:
        while self._marks and self._marks[0].offset <= offset:
            del self._marks[0]
