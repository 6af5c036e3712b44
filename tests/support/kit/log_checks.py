"""A topic's messages: each acked message is there, once, in order, and the same for every
reader. A message with an unknown outcome may be read or be absent."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from tests.support.kit.history import Call, Operation
from tests.support.kit.problems import Kind, Problem

Place = tuple[str, int]


class Sent:
    def __init__(self) -> None:
        self.first: dict[Any, Operation] = {}
        """The first attempt that did not certainly fail, or else the first attempt."""
        self.again: dict[Any, list[Operation]] = {}
        self.acked: dict[Any, Operation] = {}
        self.first_step: dict[Any, int] = {}

    def add(self, one: Operation) -> None:
        value = one.value
        first = self.first.get(value)
        if first is None:
            self.first[value] = one
            self.first_step[value] = one.invoked
        elif one.outcome != "fail":
            if first.outcome == "fail":
                self.first[value] = one
            else:
                self.again.setdefault(value, []).append(one)
        if one.outcome == "ok":
            self.acked.setdefault(value, one)


class Seen:
    def __init__(self) -> None:
        self.place: dict[Any, Place] = {}
        self.by: dict[Any, Operation] = {}
        self.moved: dict[Any, list[tuple[Place, Operation]]] = {}
        self.at: defaultdict[str, dict[int, tuple[Any, Operation]]] = defaultdict(dict)
        self.others: dict[Place, list[tuple[Any, Operation]]] = {}
        self.groups: defaultdict[str, set[Any]] = defaultdict(set)

    def add(self, one: Operation) -> None:
        log, group = one.log, self.groups[one.group]
        at, place_of, by = self.at[log], self.place, self.by
        for offset, value in one.result or ():
            group.add(value)
            before = at.get(offset)
            if before is None:
                at[offset] = (value, one)
            elif before[0] != value:
                self.others.setdefault((log, offset), []).append((value, one))
            known = place_of.get(value)
            if known is None:
                place_of[value] = (log, offset)
                by[value] = one
                continue
            if one.completed < by[value].completed:
                by[value] = one
            if known != (log, offset):
                self.moved.setdefault(value, []).append(((log, offset), one))


class LogChecks:
    """Checks sends against reads. `order`: the scope in which a producer's messages keep their
    order."""

    def __init__(
        self,
        operations: Iterable[Operation],
        *,
        order: str = "producer",
        at_least_once: frozenset[str] = frozenset(),
    ) -> None:
        assert order in ("producer", "key")
        self._order = order
        self._at_least_once = at_least_once
        self.sent, self.seen = Sent(), Seen()
        self.sends: list[Operation] = []
        for one in operations:
            if one.call is Call.SEND:
                self.sends.append(one)
                self.sent.add(one)
            elif one.call in (Call.POLL, Call.RECEIVE) and one.outcome == "ok":
                self.seen.add(one)

    def problems(self) -> Iterator[Problem]:
        yield from self._phantoms()
        yield from self._duplicates()
        yield from self._inconsistent()
        yield from self._out_of_order()
        yield from self._against_real_time()

    def is_known_before(self, value: Any, step: int) -> bool:
        acked = self.sent.acked.get(value)
        if acked is not None and acked.completed < step:
            return True
        read = self.seen.by.get(value)
        return read is not None and read.completed < step

    def place(self, value: Any) -> Place | None:
        """Return the message's place, unless it is unknown or readers disagree."""
        if (place := self.seen.place.get(value)) is not None:
            return None if place in self.seen.others else place
        acked = self.sent.acked.get(value)
        return None if acked is None or acked.result is None else (acked.log, acked.result)

    def _phantoms(self) -> Iterator[Problem]:
        for value, one in self.seen.by.items():
            sent = self.sent.first.get(value)
            if sent is None:
                yield Problem(Kind.PHANTOM, f"{value!r} was read, and nobody sent it", (one,))
            elif sent.outcome == "fail":
                what = f"{value!r} was read, though its send surely failed"
                yield Problem(Kind.PHANTOM, what, (sent, one))
            elif one.completed < self.sent.first_step[value]:
                what = f"{value!r} was read before it was sent"
                yield Problem(Kind.PHANTOM, what, (one, sent))

    def _duplicates(self) -> Iterator[Problem]:
        for value, moved in self.seen.moved.items():
            sent = self.sent.first.get(value)
            if value in self.sent.again or (sent and sent.process in self._at_least_once):
                continue
            places = [self.seen.place[value], *(place for place, _ in moved)]
            shown = ", ".join(f"{log} {offset}" for log, offset in dict.fromkeys(places))
            readers = (self.seen.by[value], moved[0][1])
            yield Problem(Kind.DUPLICATE, f"{value!r} was sent once and is at {shown}", readers)

    def _inconsistent(self) -> Iterator[Problem]:
        for (log, offset), others in self.seen.others.items():
            value, one = self.seen.at[log][offset]
            what = f"{log} {offset} was read as {value!r} and as {others[0][0]!r}"
            yield Problem(Kind.INCONSISTENT, what, (one, others[0][1]))
        acked_at: dict[Place, Operation] = {}
        for one in self.sends:
            if one.outcome != "ok" or one.result is None:
                continue
            place = (one.log, one.result)
            other = acked_at.setdefault(place, one)
            if other.value != one.value:
                what = f"{place[0]} {place[1]} was given to {other.value!r} and to {one.value!r}"
                yield Problem(Kind.INCONSISTENT, what, (other, one))
                continue
            held = self.seen.at[one.log].get(one.result)
            if held is not None and held[0] != one.value:
                what = f"{place[0]} {place[1]} was given to {one.value!r} and holds {held[0]!r}"
                yield Problem(Kind.INCONSISTENT, what, (one, held[1]))
            elif held is None and (found := self.seen.place.get(one.value)) is not None:
                if one.value in self.sent.again or one.process in self._at_least_once:
                    continue
                where = f"acked at {place[0]} {place[1]} and is at {found[0]} {found[1]}"
                what = f"{one.value!r} was {where}"
                yield Problem(Kind.MOVED, what, (one, self.seen.by[one.value]))

    def _ordered(self) -> Iterator[tuple[Operation, Place]]:
        for one in self.sends:
            value = one.value
            if one.outcome == "fail" or value in self.sent.again or value in self.seen.moved:
                continue
            if one.process not in self._at_least_once and (place := self.place(value)) is not None:
                yield one, place

    def _line(self, one: Operation, log: str) -> Hashable:
        """Return the line (producer, or producer and key) within which messages keep their
        order."""
        return (one.process, log if self._order == "producer" or one.key is None else one.key)

    def _out_of_order(self) -> Iterator[Problem]:
        latest: dict[Hashable, tuple[Operation, Place]] = {}
        for one, place in self._ordered():
            line = self._line(one, place[0])
            before = latest.get(line)
            latest[line] = (one, place)
            if before is None:
                continue
            if before[1][0] != place[0]:
                what = f"key {one.key!r} of {one.process} is in {before[1][0]} and in {place[0]}"
                yield Problem(Kind.REORDERED, what, (before[0], one))
            elif before[1][1] > place[1]:
                what = (
                    f"{before[0].value!r}, sent first, is at {place[0]} {before[1][1]}, "
                    f"behind {one.value!r} at {place[1]}"
                )
                yield Problem(Kind.REORDERED, what, (before[0], one))

    def _against_real_time(self) -> Iterator[Problem]:
        """Go up the offsets, remembering the latest invocation so far: no later message was
        acked before it."""
        logs: defaultdict[str, list[tuple[int, Operation]]] = defaultdict(list)
        for one, (log, offset) in self._ordered():
            logs[log].append((offset, one))
        for log, placed in logs.items():
            placed.sort(key=lambda pair: pair[0])
            newest: list[tuple[int, Hashable, int, Operation]] = []
            for offset, one in placed:
                line = self._line(one, log)
                for invoked, other_line, other_offset, other in newest:
                    # `_out_of_order` judges two messages of one line.
                    if other_line != line and one.completed < invoked and other_offset < offset:
                        what = (
                            f"{one.value!r} was acked before {other.value!r} was sent, and is "
                            f"at {log} {offset}, behind it at {other_offset}"
                        )
                        yield Problem(Kind.REAL_TIME, what, (one, other))
                        break
                newest = _newest_two(newest, (one.invoked, line, offset, one))


def _newest_two(
    newest: list[tuple[int, Hashable, int, Operation]], one: tuple[int, Hashable, int, Operation]
) -> list[tuple[int, Hashable, int, Operation]]:
    """Keep the latest sends of two lines, so that one of them differs from any third line."""
    if len(newest) == 2 and one[0] < newest[1][0]:
        return newest
    best: dict[Hashable, tuple[int, Hashable, int, Operation]] = {}
    for each in (*newest, one):
        if each[1] not in best or each[0] > best[each[1]][0]:
            best[each[1]] = each
    return sorted(best.values(), key=lambda each: each[0], reverse=True)[:2]


class Ranges:
    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]


def first_within(offsets: list[int], start: int, end: int) -> int | None:
    at = bisect_left(offsets, start)
    return offsets[at] if at < len(offsets) and offsets[at] < end else None
