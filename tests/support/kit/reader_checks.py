"""A topic's readers: no reader goes back, skips a message, or misses one at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.kit.history import NEVER, Call, Operation
from tests.support.kit.log_checks import LogChecks, Ranges, first_within
from tests.support.kit.problems import Kind, Problem


class Gap(NamedTuple):
    start: int
    end: int
    poll: Operation


@dataclass(slots=True)
class Subscribed:
    """The state of a subscription in a log. It begins at 0 unless a RESET moves it."""

    high: int = 0
    acked: int = 0
    """Everything before it may have been acked, seen or not."""
    single: set[int] = field(default_factory=set)
    moves: set[Operation] = field(default_factory=set)
    """Resets in progress. A reset with an unknown outcome stays here for ever."""
    begin: int = 0
    """The highest position to which a reset may have moved it."""

    def is_excused(self, offset: int) -> bool:
        """Whether the offset need not be delivered: it was acked, or lies before the beginning."""
        return offset < self.acked or offset < self.begin or offset in self.single


class ReaderChecks:
    """POLLs go up without a gap; after a DRAIN no message is missing."""

    def __init__(self, operations: Iterable[Operation], checks: LogChecks, *, dense: bool) -> None:
        self._checks = checks
        self._dense = dense
        self._drains: list[Operation] = []
        self._gaps: defaultdict[str, list[Gap]] = defaultdict(list)
        self._backs: list[Problem] = []
        self._groups: defaultdict[tuple[str, str], Subscribed] = defaultdict(Subscribed)
        self._next: dict[tuple[str, str], int | None] = {}
        for _, one, completes in _events(operations):
            self._apply(one, completes)

    def problems(self) -> Iterator[Problem]:
        yield from self._backs
        known = {log: sorted(at) for log, at in self._checks.seen.at.items()}
        yield from self._skips(known)
        yield from self._missing(known)
        if self._dense:
            yield from self._holes(known)

    def _apply(self, one: Operation, completes: bool) -> None:
        if one.call is Call.POLL:
            (self._follow_group if one.group else self._follow)(one)
        elif one.call is Call.SEEK:
            for session in [session for session in self._next if session[0] == one.process]:
                if one.log in ("", session[1]):
                    del self._next[session]
        elif one.call is Call.DRAIN:
            self._drains.append(one)
        else:
            group = self._groups[one.group, one.log]
            if one.call is Call.ACK:
                group.single.update(one.value)
            elif one.call is Call.ACK_UP_TO:
                group.acked = max(group.acked, one.value + 1)
            elif not completes:
                group.moves.add(one)
                group.begin = max(group.begin, one.value)
            elif one.outcome == "ok":
                group.moves.discard(one)
                group.high, group.acked, group.single = one.value, 0, set()

    def _follow(self, poll: Operation) -> None:
        session = (poll.process, poll.log)
        expected = self._next.get(session) if poll.value is None else poll.value
        for offset, value in poll.result or ():
            if expected is not None and offset < expected:
                where = f"{poll.log} {offset} after {expected - 1}"
                what = f"{poll.process} was given {value!r} at {where}"
                self._backs.append(Problem(Kind.NONMONOTONIC, what, (poll,)))
            elif expected is not None and offset > expected:
                self._gaps[poll.log].append(Gap(expected, offset, poll))
            expected = offset + 1
        self._next[session] = expected

    def _follow_group(self, poll: Operation) -> None:
        """A subscription may return to unacked messages, but skips none."""
        group = self._groups[poll.group, poll.log]
        previous = -1
        for offset, value in poll.result or ():
            if offset <= previous:
                what = f"{poll.process} was given {value!r} at {poll.log} {offset} after {previous}"
                self._backs.append(Problem(Kind.NONMONOTONIC, what, (poll,)))
            expected = max(group.high, group.acked, previous + 1)
            if offset > expected and not group.moves:
                self._gaps[poll.log].append(Gap(expected, offset, poll))
            previous = offset
            group.high = max(group.high, offset + 1)

    def _skips(self, known: dict[str, list[int]]) -> Iterator[Problem]:
        seen = self._checks.seen
        for log, gaps in self._gaps.items():
            for gap in gaps:
                group = gap.poll.group
                missed = first_within(known.get(log, []), gap.start, gap.end)
                while missed is not None and group:  # another call may have delivered it
                    if seen.at[log][missed][0] not in seen.groups[group]:
                        break
                    missed = first_within(known[log], missed + 1, gap.end)
                if missed is not None:
                    value, reader = seen.at[log][missed]
                    what = (
                        f"{gap.poll.process} went on at {log} {gap.end}, past {value!r} at {missed}"
                    )
                    yield Problem(Kind.SKIPPED, what, (gap.poll, reader))

    def _missing(self, known: dict[str, list[int]]) -> Iterator[Problem]:
        """Acked and never read: lost when readers passed it, unseen at the end of a drain."""
        passed = {log: Ranges((gap.start, gap.end) for gap in of) for log, of in self._gaps.items()}
        seen, sent = self._checks.seen, self._checks.sent
        for value, send in sent.acked.items():
            if value in seen.place:
                continue
            highest = known[send.log][-1] if known.get(send.log) else -1
            if send.result is not None and send.result in passed.get(send.log, ()):
                what = f"{value!r} was acked at {send.log} {send.result}; readers went past it"
                yield Problem(Kind.LOST, what, (send,))
            elif (drain := self._drained(value, send.log, send.result)) is not None:
                is_lost = send.result is not None and send.result <= highest
                what = f"{value!r} was acked and is not there after {drain.process} read to the end"
                yield Problem(Kind.LOST if is_lost else Kind.UNSEEN, what, (send, drain))
        yield from self._missing_for_some()

    def _missing_for_some(self) -> Iterator[Problem]:
        seen = self._checks.seen
        drained = {drain.group for drain in self._drains}
        for value, (log, offset) in seen.place.items():
            for group in drained:
                if value in seen.groups[group]:
                    continue
                drain = self._drained(value, log, offset, group)
                if drain is not None:
                    whose = f"subscription {group}" if group else "a reader of the log"
                    what = f"{value!r} at {log} {offset} was never given to {whose}"
                    yield Problem(Kind.UNSEEN, what, (seen.by[value], drain))

    def _drained(
        self, value: object, log: str, offset: int | None, group: str | None = None
    ) -> Operation | None:
        for drain in self._drains:
            if drain.log not in ("", log) or (group is not None and drain.group != group):
                continue
            if not self._checks.is_known_before(value, drain.invoked):
                continue
            state = self._groups.get((drain.group, log)) if drain.group else None
            if state is None or offset is None or not state.is_excused(offset):
                return drain
        return None

    def _holes(self, known: dict[str, list[int]]) -> Iterator[Problem]:
        """Report offsets that readers skipped: no reader got a message there, and no send was
        acked there."""
        acked = {(one.log, one.result) for one in self._checks.sent.acked.values()}
        for log, gaps in self._gaps.items():
            for gap in gaps:
                for offset in range(gap.start, gap.end):
                    if offset not in self._checks.seen.at[log] and (log, offset) not in acked:
                        what = (
                            f"{gap.poll.process} went on at {log} {gap.end}: nothing is at {offset}"
                        )
                        yield Problem(Kind.HOLE, what, (gap.poll,))
                        break


def _events(operations: Iterable[Operation]) -> list[tuple[int, Operation, bool]]:
    """Yield polls at completion, acks as soon as they may take effect, resets at both ends."""
    events: list[tuple[int, Operation, bool]] = []
    for one in operations:
        if one.call in (Call.POLL, Call.DRAIN):
            if one.outcome == "ok":
                events.append((one.completed, one, True))
        elif one.call in (Call.ACK, Call.ACK_UP_TO, Call.SEEK) and one.outcome != "fail":
            events.append((one.invoked, one, False))
        elif one.call is Call.RESET and one.outcome != "fail":
            events.append((one.invoked, one, False))
            if one.completed != NEVER:
                events.append((one.completed, one, True))
    events.sort(key=lambda event: event[0])
    return events
