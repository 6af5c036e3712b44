"""Decide by a topic's effective policies: due times, backlogs, ages. Pure.

`Quota` compares each subscription's backlog with its topic's quota: all bytes from its first
unacked offset, even acked messages, because their ledgers are kept.

`Ages` knows minimal ages by marks: every message before a mark's offset was stored by its time, by
the deletion clock, never by a producer's or one machine's. Between two marks the later counts, so
lost marks make messages live longer, never shorter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

from octavo.metadata.topic_settings import Policies


def why_never_due(due_ms: int | None, now_ms: int, policies: Policies) -> str | None:
    """Say why the message would never be due: its time to live begins when it is stored."""
    ttl_ms = policies.ttl_ms
    if due_ms is None or ttl_ms is None or due_ms - now_ms < ttl_ms:
        return None
    return (
        f"it is due in {(due_ms - now_ms) / 1000:g} s, and the topic's ttl acks messages "
        f"{ttl_ms / 1000:g} s old: it would never be delivered. Deliver it sooner, or set the "
        "topic's ttl to a longer time, or off"
    )


def is_deferred(policies: Policies) -> bool:
    return policies.durability == "deferred"


def has_append_times(policies: Policies) -> bool:
    """Return whether messages get the time of storing in place of their producer's."""
    return policies.message_time == "append"


def backlog_policy(policies: Policies) -> Literal["hold", "reject", "evict"]:
    return cast(Literal["hold", "reject", "evict"], policies.backlog_policy or "hold")


class Stored(NamedTuple):
    start: int
    end: int
    bytes: int


class Backlog(NamedTuple):
    """`age_ms`: the minimal age of its oldest message."""

    subscription: str
    unacked_from: int
    bytes: int
    age_ms: int


class Quota(NamedTuple):
    bytes: int | None
    age_ms: int | None

    def excess(self, backlog: Backlog) -> float:
        found = 0.0
        if self.bytes is not None:
            found = backlog.bytes / self.bytes
        if self.age_ms is not None:
            found = max(found, backlog.age_ms / self.age_ms)
        return found

    def slowest(self, backlogs: Iterable[Backlog]) -> Backlog | None:
        beyond = [one for one in backlogs if self.excess(one) > 1.0]
        return max(beyond, key=lambda one: (self.excess(one), one.subscription), default=None)

    def said_of(self, backlog: Backlog) -> str:
        said = []
        if self.bytes is not None and backlog.bytes > self.bytes:
            said.append(f"{backlog.bytes} bytes are kept for it, and the quota is {self.bytes}")
        if self.age_ms is not None and backlog.age_ms > self.age_ms:
            said.append(
                f"its oldest message is {backlog.age_ms / 1000:g} s old, and the quota is "
                f"{self.age_ms / 1000:g} s"
            )
        return (
            f"subscription {backlog.subscription!r} has not acked offset {backlog.unacked_from}: "
            + "; ".join(said)
        )


def bytes_from(offset: int, stored: Sequence[Stored]) -> int:
    total = 0
    for part in reversed(stored):
        if part.end <= offset:
            break
        count = part.end - max(part.start, offset)
        total += -(-part.bytes * count // max(1, part.end - part.start))
    return total


def room_from(bytes_max: int, stored: Sequence[Stored]) -> int:
    left = bytes_max
    first = stored[-1].end if stored else 0
    for part in reversed(stored):
        if part.bytes > left:
            return part.end - (part.end - part.start) * left // part.bytes
        left -= part.bytes
        first = part.start
    return first


MARKS_MAX = 64
"""Beyond it, one of the two closest marks goes; messages there count as younger."""


class Mark(NamedTuple):
    offset: int
    time_ms: int


class Ages:
    """The marks of a partition, ascending in offset and time."""

    __slots__ = ("_marks",)

    def __init__(self, marks: Iterable[tuple[int, int]] = ()) -> None:
        self._marks: list[Mark] = []
        for offset, time_ms in marks:
            self.note(offset, time_ms)

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(self._marks)

    def note(self, offset: int, time_ms: int) -> bool:
        """Note a mark; return False if it is no news.

        If the time was set back, later marks are dropped.
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
        last = self._marks[-1] if self._marks else None
        return end > 0 if last is None else end > last.offset and time_ms - last.time_ms >= span_ms

    def stored_before(self, time_ms: int) -> int:
        place = bisect_right(self._marks, time_ms, key=lambda mark: mark.time_ms)
        return self._marks[place - 1].offset if place else 0

    def age_of(self, offset: int, now_ms: int) -> int:
        """Return how long a message is stored at least; 0 if unknown."""
        place = bisect_right(self._marks, offset, key=lambda mark: mark.offset)
        return max(0, now_ms - self._marks[place].time_ms) if place < len(self._marks) else 0

    def forget_before(self, offset: int) -> None:
        while self._marks and self._marks[0].offset <= offset:
            del self._marks[0]
