"""Ledgers: one writer, one end, one content, and a last-add-confirmed that never goes back.
Each process is a client's handle: a process that reopens a ledger takes a new name."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.kit.history import Call, Operation
from tests.support.kit.problems import Kind, Problem

CALLS = (Call.ADD, Call.READ, Call.LAC, Call.FENCE, Call.CLOSE, Call.REPLICA, Call.DRAIN)


def check_ledger(
    log: str, operations: Iterable[Operation], *, acks_in_order: bool = False
) -> Iterator[Problem]:
    calls: defaultdict[Call, list[Operation]] = defaultdict(list)
    for one in operations:
        calls[one.call].append(one)
    yield from LedgerChecks(log, calls).problems(acks_in_order)


class LedgerChecks:
    def __init__(self, log: str, calls: dict[Call, list[Operation]]) -> None:
        self.log = log
        self._adds = calls.get(Call.ADD, [])
        self._acked = sorted((o for o in self._adds if o.is_ok), key=lambda one: one.completed)
        self._drains = _ok(calls, Call.DRAIN)
        self._fences = _ok(calls, Call.FENCE)
        self._closes = _ok(calls, Call.CLOSE)
        self._reads = _ok(calls, Call.READ)
        self._replicas = _ok(calls, Call.REPLICA)
        self._lacs = _ok(calls, Call.LAC)
        self._last: int | None = min(map(_last_of, self._closes), default=None)

    def problems(self, acks_in_order: bool) -> Iterator[Problem]:
        yield from self._contents()
        yield from self._missing()
        yield from self._ends()
        yield from self._acks(acks_in_order)
        yield from self._lac()
        yield from self._unconfirmed()

    def _contents(self) -> Iterator[Problem]:
        added: dict[Any, Operation] = {}
        for one in self._adds:
            before = added.setdefault(one.value, one)
            if before.outcome == "fail" and one.outcome != "fail":
                added[one.value] = one
        held: dict[int, tuple[Any, Operation]] = {}
        for one in self._acked:
            value, other = held.setdefault(one.result, (one.value, one))
            if other is not one:
                what = f"entry {one.result} was acked to {value!r} and to {one.value!r}"
                yield self._problem(Kind.DIVERGED, what, other, one)
        for one in (*self._reads, *self._replicas):
            for entry, value in one.result or ():
                if value is None or (one.call is Call.REPLICA and not self._is_within(entry)):
                    continue
                before_value, other = held.setdefault(entry, (value, one))
                if before_value != value:
                    what = f"entry {entry} is {before_value!r} and {value!r}"
                    yield self._problem(Kind.DIVERGED, what, other, one)
                add = added.get(value)
                if add is None or add.outcome == "fail" or one.completed < add.invoked:
                    why = "nobody added it" if add is None else "its add failed, or came later"
                    shown = (one,) if add is None else (add, one)
                    what = f"entry {entry} holds {value!r}: {why}"
                    yield self._problem(Kind.PHANTOM, what, *shown)

    def _is_within(self, entry: int) -> bool:
        """Whether the entry is known to be part of the ledger: copies above its end are garbage."""
        return self._last is not None and entry <= self._last

    def _missing(self) -> Iterator[Problem]:
        shown: dict[int, Operation] = {one.result: one for one in reversed(self._acked)}
        for read in self._reads:
            for entry, value in read.result or ():
                if value is not None and read.completed < _completed(shown.get(entry)):
                    shown[entry] = read
        for read in self._reads:
            for entry, value in read.result or ():
                if value is None and _completed(shown.get(entry)) < read.invoked:
                    what = f"entry {entry} was there and is not any more"
                    yield self._problem(Kind.LOST, what, shown[entry], read)
        for drain in self._drains:
            yield from self._missing_after(drain, shown)

    def _missing_after(self, drain: Operation, shown: dict[int, Operation]) -> Iterator[Problem]:
        """A reader that reads to the end meets every entry that was acked, read or closed in."""
        seen = {
            entry
            for read in self._reads
            if read.process == drain.process
            for entry, _ in read.result or ()
        }
        owed = {entry: one for entry, one in shown.items() if one.completed < drain.invoked}
        for close in self._closes:
            if close.completed < drain.invoked:
                for entry in range(_last_of(close) + 1):
                    owed.setdefault(entry, close)
        for entry in sorted(owed.keys() - seen):
            what = f"{drain.process} read to the end without entry {entry}"
            yield self._problem(Kind.UNSEEN, what, owed[entry], drain)

    def _ends(self) -> Iterator[Problem]:
        """A ledger has one end, at or after every entry that was acked or read."""
        if self._last is None:
            return
        first = min(self._closes, key=_last_of)
        for one in self._closes:
            if not _agree(first.result, one.result):
                what = f"it ends at {_shown_end(first.result)} and at {_shown_end(one.result)}"
                yield self._problem(Kind.TWO_ENDS, what, first, one)
                break
        for one in self._acked:
            if one.result > self._last:
                what = f"entry {one.result} was acked, and the ledger ends at {self._last}"
                yield self._problem(Kind.ACK_BEYOND_END, what, one, first)
        for read in self._reads:
            for entry, value in read.result or ():
                if entry > self._last and value is not None:
                    what = f"entry {entry} was read, and the ledger ends at {self._last}"
                    yield self._problem(Kind.READ_BEYOND_END, what, read, first)

    def _acks(self, in_order: bool) -> Iterator[Problem]:
        """No add that began after the fence is acked; acks come in the order of adds."""
        bars = (*self._fences, *self._closes)
        bar = min(bars, key=_completed, default=None)
        for one in self._acked:
            if bar is not None and bar.completed < one.invoked:
                what = f"entry {one.result} was acked, and its add began after the {bar.call}"
                yield self._problem(Kind.ACK_AFTER_FENCE, what, bar, one)
        latest: dict[str, Operation] = {}
        for one in self._adds:
            if one.outcome != "ok":
                continue
            before = latest.get(one.process)
            latest[one.process] = one
            if before is not None and before.result > one.result:
                what = (
                    f"{before.value!r}, added first, is entry {before.result}, behind {one.result}"
                )
                yield self._problem(Kind.REORDERED, what, before, one)
        if in_order:
            for before, one in zip(self._acked, self._acked[1:], strict=False):
                if before.result > one.result:
                    what = f"the ack of entry {before.result} came before that of {one.result}"
                    yield self._problem(Kind.ACK_DISORDER, what, before, one)

    def _lac(self) -> Iterator[Problem]:
        """A process's LAC never goes back, covers the entries that the process knows, and is
        true."""
        adds_begun = [one.invoked for one in self._adds]
        highest: dict[str, tuple[int, Operation]] = {}
        for one, completes in _both_ends((*self._lacs, *self._acked, *self._closes)):
            if one.call is Call.LAC and not completes:
                one_floor = highest.get(one.process)
                if one_floor is not None and one.result < one_floor[0]:
                    before = one_floor[1]
                    kind = Kind.LAC_BACK if before.call is Call.LAC else Kind.LAC_STALE
                    what = f"{one.process} is told LAC {one.result}, and knew of {one_floor[0]}"
                    yield self._problem(kind, what, before, one)
            elif completes:
                known = _last_of(one) if one.call is Call.CLOSE else one.result
                if known > highest.get(one.process, (-1, one))[0]:
                    highest[one.process] = (known, one)
        for one in self._lacs:
            begun = bisect_left(adds_begun, one.completed)
            if one.result >= begun:
                what = f"LAC {one.result}, and only {begun} adds had begun"
                yield self._problem(Kind.LAC_AHEAD, what, one)
            elif self._last is not None and one.result > self._last:
                what = f"LAC {one.result}, and the ledger ends at {self._last}"
                yield self._problem(Kind.LAC_AHEAD, what, one, self._closes[0])
        yield from self._lac_after_drain()

    def _lac_after_drain(self) -> Iterator[Problem]:
        for drain in self._drains:
            learnt = [o for o in self._lacs if o.process == drain.process]
            learnt = [o for o in learnt if o.completed < drain.completed]
            acked = [o for o in self._acked if o.completed < drain.invoked]
            if not learnt or not acked:
                continue
            best, top = max(learnt, key=_result), max(acked, key=_result)
            if best.result < top.result:
                what = f"{drain.process} came to LAC {best.result}, and {top.result} was acked"
                yield self._problem(Kind.LAC_STALE, what, top, best)

    def _unconfirmed(self) -> Iterator[Problem]:
        """A process that records its LAC reads no entry above it."""
        learning = {one.process for one in self._lacs}
        known: dict[str, int] = {}
        events = _both_ends((*self._lacs, *self._acked, *self._closes, *self._reads))
        for one, completes in events:
            if not completes:
                continue
            if one.call is Call.READ:
                top = max((e for e, value in one.result or () if value is not None), default=-1)
                if one.process in learning and top > known.get(one.process, -1):
                    at = known.get(one.process, -1)
                    what = f"{one.process} was given entry {top} while it knew of LAC {at}"
                    yield self._problem(Kind.UNCONFIRMED, what, one)
            else:
                learnt = _last_of(one) if one.call is Call.CLOSE else one.result
                known[one.process] = max(known.get(one.process, -1), learnt)

    def _problem(self, kind: Kind, what: str, *operations: Operation) -> Problem:
        return Problem(kind, f"{self.log}: {what}", operations)


def _ok(calls: dict[Call, list[Operation]], call: Call) -> list[Operation]:
    return [one for one in calls.get(call, ()) if one.outcome == "ok"]


def _both_ends(operations: Iterable[Operation]) -> list[tuple[Operation, bool]]:
    events: list[tuple[int, bool, Operation]] = []
    for one in operations:
        events += ((one.invoked, False, one), (one.completed, True, one))
    events.sort(key=lambda event: event[0])
    return [(one, completes) for _, completes, one in events]


def _completed(one: Operation | None) -> int:
    return (1 << 62) if one is None else one.completed


def _result(one: Operation) -> int:
    result: int = one.result
    return result


def _last_of(close: Operation) -> int:
    return close.result[0] if isinstance(close.result, tuple) else close.result


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one == other
    return (one[0] if isinstance(one, tuple) else one) == (
        other[0] if isinstance(other, tuple) else other
    )


def _shown_end(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{result[0]} (length {result[1]})"
    return str(result)
