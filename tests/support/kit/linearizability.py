"""Whether operations on one register can be ordered so that every answer is explained. The
search is Wing and Gong's with Lowe's memory, for each key by itself. Operations with an
unknown outcome may be taken at any time after their invocation, or never. A register is a
function of its state and an operation that returns the next state, or `IMPOSSIBLE`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from tests.support.kit.history import NEVER, Call, Operation
from tests.support.kit.problems import Kind, Problem

IMPOSSIBLE = object()
ANY_VERSION = -1

Register = Callable[[Any, Operation], Any]


def plain(state: Any, one: Operation) -> Any:
    """Model a register: GET → value. PUT value. CAS (expected, new) → whether the value was as
    expected."""
    if one.call is Call.GET:
        return state if state == one.result else IMPOSSIBLE
    if one.call is Call.PUT:
        return one.value
    expected, new = one.value
    if one.outcome == "ok" and one.result is not (state == expected):
        return IMPOSSIBLE
    return new if state == expected else state


def versioned(state: tuple[Any, int] | None, one: Operation) -> Any:
    """Model a record of the metadata store: None when absent, else (value, version). CAS
    (expected version, new value) → the new version, True for a deletion, or False when
    refused. Expected version None demands that the record is absent; new value None deletes
    it; `ANY_VERSION` accepts any record."""
    if one.call is Call.GET:
        return state if state == one.result else IMPOSSIBLE
    expected, new = one.value
    if state is None:
        is_taken = expected is None
    else:
        is_taken = expected is not None and expected in (ANY_VERSION, state[1])
    after: tuple[Any, int] | None = state
    answer: int | bool = False
    if is_taken:
        version = 0 if state is None else state[1] + 1
        after, answer = (None, True) if new is None else ((new, version), version)
    # Version 0 and a refusal are different answers, though 0 == False.
    is_answer = type(answer) is type(one.result) and answer == one.result
    return IMPOSSIBLE if one.is_ok and not is_answer else after


class Search:
    def __init__(self, operations: Iterable[Operation], register: Register, initial: Hashable):
        kept = [one for one in operations if _matters(one)]
        self._operations = sorted(kept, key=lambda one: one.invoked)
        self._register = register
        self._initial = initial
        self._wanted = sum(1 << at for at, one in enumerate(self._operations) if one.is_ok)
        self.best = 0
        """The set of taken operations with the most answers explained."""

    def is_explained(self) -> bool:
        if not self._wanted:
            return True
        known: set[tuple[int, Hashable]] = {(0, self._initial)}
        stack = [self._steps(0, self._initial)]
        while stack:
            for taken, state in stack[-1]:
                if (taken, state) in known:
                    continue
                known.add((taken, state))
                explained = taken & self._wanted
                if explained == self._wanted:
                    return True
                if explained.bit_count() > (self.best & self._wanted).bit_count():
                    self.best = taken
                stack.append(self._steps(taken, state))
                break
            else:
                stack.pop()
        return False

    def unexplained(self) -> list[Operation]:
        return [self._operations[at] for at in self._next(self.best)]

    def _steps(self, taken: int, state: Any) -> Iterator[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        tried: set[Hashable] = set()
        for at in self._next(taken):
            one = self._operations[at]
            after = self._register(state, one)
            if after is IMPOSSIBLE:
                continue
            is_answer_only = one.call is Call.GET or (one.call is Call.CAS and one.result is False)
            if one.is_ok and is_answer_only:
                # It has no effect at any time, and its answer is right now: take it.
                return iter([(taken | 1 << at, state)])
            if not one.is_ok:
                # It may also have had no effect. Among equal operations, trying one is enough.
                same = (one.call, one.value)
                if after == state or same in tried:
                    continue
                tried.add(same)
            found.append((taken | 1 << at, after))
        return iter(found)

    def _next(self, taken: int) -> list[int]:
        found: list[int] = []
        first = (~taken & (taken + 1)).bit_length() - 1
        earliest = NEVER
        for at in range(first, len(self._operations)):
            one = self._operations[at]
            if one.invoked > earliest:
                break
            if not taken >> at & 1:
                found.append(at)
                earliest = min(earliest, one.completed)
        return found


def check_registers(
    operations: Iterable[Operation], register: Register = plain, initial: Hashable = None
) -> list[Problem]:
    keys: dict[str, list[Operation]] = {}
    for one in operations:
        if one.call in (Call.GET, Call.PUT, Call.CAS):
            keys.setdefault(one.log, []).append(one)
    problems: list[Problem] = []
    for key, of_key in keys.items():
        search = Search(of_key, register, initial)
        if not search.is_explained():
            stuck = search.unexplained()
            what = f"{key}: no order explains all answers; the best of {len(of_key)} ends before"
            problems.append(Problem(Kind.NOT_LINEARIZABLE, what, tuple(stuck[:6])))
    return problems


def _matters(one: Operation) -> bool:
    """A read without an answer and a failed operation cannot matter."""
    return one.is_ok or (one.outcome == "info" and one.call is not Call.GET)
