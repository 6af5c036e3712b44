"""How long the messages of a partition have been stored, at least: marks of offset and time. Pure.

A mark says that every message before its offset was stored by its time. Its owner makes one now
and then, by the time that deletions go by (clock/deletion_clock.py), and keeps them in the state
ledger; a producer's word about a message's time counts for nothing, nor does this machine's clock.
What is known is always a least age: marks that are lost, thinned out or made late have a message
live longer, never shorter. Between two marks nobody knows, so what is between ages from the later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

MARKS_MAX = 64
"""Of one partition. Beyond, the one between the closest two goes: what lies there ages later."""


class Mark(NamedTuple):
    """All before `offset` was stored by `time_ms`."""

    offset: int
    time_ms: int


class Ages:
    """The marks of one partition, ascending in offset and in time."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Iterable[tuple[int, int]] = ()) -> None:
        self._marks: list[Mark] = []
        for offset, time_ms in marks:
            self.note(offset, time_ms)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Oldest first."""
        return tuple(self._marks)

    def note(self, offset: int, time_ms: int) -> bool:
        """All before `offset` was stored by then. False: nothing is new in that.

        Of a time that was set back the earlier marks know less than this one, and go.
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
        """Whether messages came since the last mark, and that is `span_ms` ago or more."""
        last = self._marks[-1] if self._marks else None
        return end > 0 if last is None else end > last.offset and time_ms - last.time_ms >= span_ms

    def stored_before(self, time_ms: int) -> int:
        """The first offset of which it is not known that it was stored by then."""
        place = bisect_right(self._marks, time_ms, key=lambda mark: mark.time_ms)
        return self._marks[place - 1].offset if place else 0

    def age_of(self, offset: int, now_ms: int) -> int:
        """How long the message has been stored at least; 0 when nobody knows."""
        place = bisect_right(self._marks, offset, key=lambda mark: mark.offset)
        return max(0, now_ms - self._marks[place].time_ms) if place < len(self._marks) else 0

    def forget_before(self, offset: int) -> None:
        """Those messages are gone."""
        while self._marks and self._marks[0].offset <= offset:
            del self._marks[0]
