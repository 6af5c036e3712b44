"""A subscription's acks: durable acks stay, and no unacked message is passed. A subscription
begins at 0 unless a RESET moves it. During a reset, and after a reset with an unknown outcome,
nothing is checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.support.kit.history import NEVER, Call, Operation
from tests.support.kit.problems import Kind, Problem

CALLS = (Call.POLL, Call.RECEIVE, Call.ACK, Call.ACK_UP_TO, Call.MARK, Call.RESET)


@dataclass(slots=True)
class Front:
    """Acked offsets: all before `to`, and some above."""

    to: int = 0
    by: Operation | None = None
    above: dict[int, Operation] = field(default_factory=dict)

    def add(self, offset: int, one: Operation) -> None:
        if offset >= self.to:
            self.above.setdefault(offset, one)
            self._grow()

    def raise_to(self, to: int, one: Operation) -> None:
        if to > self.to:
            self.to, self.by = to, one
            for offset in [offset for offset in self.above if offset < to]:
                del self.above[offset]
            self._grow()

    def _grow(self) -> None:
        while (one := self.above.pop(self.to, None)) is not None:
            self.to, self.by = self.to + 1, one


@dataclass(slots=True)
class Cursor:
    durable: Front = field(default_factory=Front)
    tried: Front = field(default_factory=Front)
    acked_at: dict[int, Operation] = field(default_factory=dict)
    moves: set[Operation] = field(default_factory=set)
    """Resets in progress. A reset with an unknown outcome stays here for ever."""
    era: int = 0
    """Grows when a reset begins or ends."""
    begun: dict[Operation, tuple[int, int, Operation | None]] = field(default_factory=dict)
    """Call in progress → era, durable front and its author when the call began."""


class CursorChecks:
    def __init__(self, operations: Iterable[Operation]) -> None:
        self._cursors: defaultdict[tuple[str, str], Cursor] = defaultdict(Cursor)
        self._events: list[tuple[int, bool, Operation]] = []
        for one in operations:
            if one.group and one.call in CALLS:
                self._events.append((one.invoked, False, one))
                if one.completed != NEVER:
                    self._events.append((one.completed, True, one))
        self._events.sort(key=lambda event: event[0])

    def problems(self) -> Iterator[Problem]:
        for _, completes, one in self._events:
            cursor = self._cursors[one.group, one.log]
            if not completes:
                self._begin(cursor, one)
                continue
            era, front, by = cursor.begun.pop(one)
            if one.call is Call.RESET:
                self._reset(cursor, one)
            elif one.outcome != "ok" or cursor.moves or era != cursor.era:
                pass  # a reset ran at the same time: no claim
            elif one.call is Call.MARK:
                yield from self._observed(cursor, one, front, by)
            elif one.call in (Call.POLL, Call.RECEIVE):
                yield from self._delivered(cursor, one, front, by)
            else:
                _enter(cursor.durable, one)
                if one.call is Call.ACK:
                    for offset in _taken(one):
                        cursor.acked_at.setdefault(offset, one)

    def _begin(self, cursor: Cursor, one: Operation) -> None:
        if one.call is Call.RESET:
            cursor.moves.add(one)
            cursor.era += 1
        elif one.call in (Call.ACK, Call.ACK_UP_TO) and one.outcome != "fail":
            _enter(cursor.tried, one)
        cursor.begun[one] = (cursor.era, cursor.durable.to, cursor.durable.by)

    def _reset(self, cursor: Cursor, one: Operation) -> None:
        cursor.era += 1
        cursor.moves.discard(one)
        if one.outcome != "ok":
            return
        cursor.durable, cursor.tried = Front(one.value, one), Front(one.value, one)
        cursor.acked_at.clear()
        # requested before the reset ended: it may still take effect afterwards
        for ack in cursor.begun:
            if ack.call in (Call.ACK, Call.ACK_UP_TO) and ack.outcome != "fail":
                _enter(cursor.tried, ack)

    def _observed(
        self, cursor: Cursor, one: Operation, front: int, by: Operation | None
    ) -> Iterator[Problem]:
        whose = f"{one.group} on {one.log}"
        if one.result < front:
            what = f"{whose}: the committed offset is {one.result}, and was {front} before"
            yield Problem(Kind.CURSOR_REGRESS, what, (by, one) if by else (one,))
        if one.result > cursor.tried.to:
            what = (
                f"{whose}: the committed offset is {one.result}, "
                f"and nobody acknowledged {cursor.tried.to}"
            )
            yield Problem(Kind.MARK_OVER_UNACKED, what, (one,))
            cursor.tried.raise_to(one.result, one)  # report it once
        else:
            cursor.durable.raise_to(one.result, one)

    def _delivered(
        self, cursor: Cursor, one: Operation, front: int, by: Operation | None
    ) -> Iterator[Problem]:
        for offset, value in one.result or ():
            ack = by if offset < front else cursor.acked_at.get(offset)
            if ack is not None and ack.completed < one.invoked:
                ack = cursor.acked_at.get(offset, ack)
                what = f"{value!r} at {one.log} {offset} was delivered after its ack was durable"
                yield Problem(Kind.REDELIVERED, what, (ack, one))


def _taken(one: Operation) -> list[int]:
    refused = set(one.result or ()) if one.outcome == "ok" else set()
    return [offset for offset in one.value if offset not in refused]


def _enter(front: Front, one: Operation) -> None:
    if one.call is Call.ACK_UP_TO:
        front.raise_to(one.value + 1, one)
    else:
        for offset in _taken(one):
            front.add(offset, one)
