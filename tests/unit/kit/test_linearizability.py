"""The search for an order, against hand-made histories and against trying all orders."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable

import pytest

from tests.support.kit.history import NEVER, Call, History, Operation
from tests.support.kit.linearizability import (
    ANY_VERSION,
    IMPOSSIBLE,
    Register,
    Search,
    check_registers,
    plain,
    versioned,
)

HISTORIES = int(os.environ.get("KIT_HISTORIES", "20000"))
"""More by command: KIT_HISTORIES=1000000 pytest tests/unit/kit/test_linearizability.py"""

Row = tuple[int, int | None, Call, object, object]
"""Invoked, completed (None: outcome unknown), call, value, result."""


def made(rows: Iterable[Row], key: str = "k") -> list[Operation]:
    found: list[Operation] = []
    for number, (invoked, completed, call, value, result) in enumerate(rows):
        one = Operation(f"c{number}", call, key, value, invoked, 0.0, result=result)
        if completed is not None:
            one.completed, one.outcome = completed, "ok"
        found.append(one)
    return found


GOOD: dict[str, list[Row]] = {
    "empty": [],
    "nothing but unknown": [(1, None, Call.PUT, 7, None), (2, None, Call.CAS, (7, 8), None)],
    "one after the other": [(1, 2, Call.PUT, 7, None), (3, 4, Call.GET, None, 7)],
    "a read beside a write sees either": [
        (1, 6, Call.PUT, 7, None),
        (2, 3, Call.GET, None, None),
        (4, 5, Call.GET, None, 7),
    ],
    "a write that changes nothing now may be what matters later": [
        (1, 9, Call.PUT, 0, None),
        (2, 8, Call.PUT, 0, None),
        (3, 4, Call.CAS, (0, 1), True),
        (5, 6, Call.CAS, (0, 0), True),
        (10, 11, Call.GET, None, 0),
    ],
    "an unknown write that was never seen": [
        (1, None, Call.PUT, 7, None),
        (2, 3, Call.GET, None, None),
    ],
    "an unknown write that is seen much later": [
        (1, None, Call.PUT, 7, None),
        (2, 3, Call.PUT, 8, None),
        (4, 5, Call.GET, None, 8),
        (6, 7, Call.GET, None, 7),
    ],
    "an unknown compare-and-set may have won": [
        (1, None, Call.CAS, (None, 7), None),
        (2, 3, Call.CAS, (None, 8), False),
        (4, 5, Call.GET, None, 7),
    ],
    "two compare-and-sets beside one another, one wins": [
        (1, 5, Call.CAS, (None, 7), False),
        (2, 4, Call.CAS, (None, 8), True),
        (6, 7, Call.GET, None, 8),
    ],
}

BAD: dict[str, list[Row]] = {
    "a read of what nobody wrote": [(1, 2, Call.GET, None, 7)],
    "a stale read": [(1, 2, Call.PUT, 7, None), (3, 4, Call.GET, None, None)],
    "new, then old": [
        (1, 8, Call.PUT, 7, None),
        (2, 3, Call.GET, None, 7),
        (4, 5, Call.GET, None, None),
    ],
    "two winners": [(1, 4, Call.CAS, (None, 7), True), (2, 3, Call.CAS, (None, 8), True)],
    "no winner": [(1, 4, Call.CAS, (None, 7), False), (2, 3, Call.CAS, (None, 8), False)],
    "a write from before comes again": [
        (1, 2, Call.PUT, 7, None),
        (3, 4, Call.PUT, 8, None),
        (5, 6, Call.GET, None, 7),
    ],
    "seen before it was asked for": [(1, 2, Call.GET, None, 7), (3, None, Call.PUT, 7, None)],
    "an unknown write takes effect once": [
        (1, None, Call.PUT, 7, None),
        (2, 3, Call.GET, None, 7),
        (4, 5, Call.PUT, 8, None),
        (6, 7, Call.GET, None, 7),
    ],
}


@pytest.mark.parametrize("rows", GOOD.values(), ids=GOOD)
def test_good(rows: list[Row]) -> None:
    assert check_registers(made(rows)) == []
    assert by_all_orders(made(rows), plain, None)


@pytest.mark.parametrize("rows", BAD.values(), ids=BAD)
def test_bad(rows: list[Row]) -> None:
    (problem,) = check_registers(made(rows))
    assert problem.kind == "not-linearizable"
    assert problem.operations, "it names what could not come next"
    assert not by_all_orders(made(rows), plain, None)


def test_keys_are_judged_apart() -> None:
    good, bad = made(GOOD["one after the other"], "a"), made(BAD["a stale read"], "b")
    (problem,) = check_registers(good + bad)
    assert problem.sentence.startswith("b: no order explains all answers")
    assert [one.call for one in problem.operations] == [Call.GET]


def test_what_surely_failed_did_nothing() -> None:
    history = History()
    history.fail(history.invoke("a", Call.PUT, "k", 7))
    history.ok(history.invoke("b", Call.GET, "k"), None)
    assert check_registers(history) == []
    history.ok(history.invoke("b", Call.GET, "k"), 7)
    assert len(check_registers(history)) == 1


VERSIONED_GOOD: dict[str, list[Row]] = {
    "a life": [
        (1, 2, Call.CAS, (None, "a"), 0),
        (3, 4, Call.CAS, (None, "b"), False),
        (5, 6, Call.CAS, (0, "c"), 1),
        (7, 8, Call.CAS, (0, "d"), False),
        (9, 10, Call.GET, None, ("c", 1)),
        (11, 12, Call.CAS, (ANY_VERSION, "e"), 2),
        (13, 14, Call.CAS, (2, None), True),
        (15, 16, Call.GET, None, None),
        (17, 18, Call.CAS, (ANY_VERSION, "f"), False),
        (19, 20, Call.CAS, (None, "g"), 0),
    ],
    "a lost reply": [(1, None, Call.CAS, (None, "a"), None), (2, 3, Call.GET, None, ("a", 0))],
}
VERSIONED_BAD: dict[str, list[Row]] = {
    "version 0 is not a refusal": [(1, 2, Call.CAS, (None, "a"), False)],
    "a refusal is not version 0": [
        (1, 2, Call.CAS, (None, "a"), 0),
        (3, 4, Call.CAS, (None, "b"), 0),
    ],
    "a version twice": [
        (1, 2, Call.CAS, (None, "a"), 0),
        (3, 6, Call.CAS, (0, "b"), 1),
        (4, 5, Call.CAS, (0, "c"), 1),
    ],
    "a version left out": [(1, 2, Call.CAS, (None, "a"), 0), (3, 4, Call.CAS, (0, "b"), 2)],
    "gone without a deletion": [(1, 2, Call.CAS, (None, "a"), 0), (3, 4, Call.GET, None, None)],
    "old value, new version": [
        (1, 2, Call.CAS, (None, "a"), 0),
        (3, 4, Call.CAS, (0, "b"), 1),
        (5, 6, Call.GET, None, ("a", 1)),
    ],
}


@pytest.mark.parametrize("rows", VERSIONED_GOOD.values(), ids=VERSIONED_GOOD)
def test_good_records(rows: list[Row]) -> None:
    assert check_registers(made(rows), versioned) == []


@pytest.mark.parametrize("rows", VERSIONED_BAD.values(), ids=VERSIONED_BAD)
def test_bad_records(rows: list[Row]) -> None:
    assert len(check_registers(made(rows), versioned)) == 1


def by_all_orders(operations: list[Operation], register: Register, initial: object) -> bool:
    sure = [one for one in operations if one.is_ok]
    unknown = [one for one in operations if one.outcome == "info"]
    for count in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, count):
            for order in itertools.permutations(sure + list(some)):
                if explains(order, register, initial):
                    return True
    return False


def explains(order: tuple[Operation, ...], register: Register, state: object) -> bool:
    for at, one in enumerate(order):
        if any(later.completed < one.invoked for later in order[at + 1 :]):
            return False
        if one.outcome == "info" and one.call is Call.GET:
            continue
        state = register(state, one)
        if state is IMPOSSIBLE:
            return False
    return True


def random_history(rng: random.Random, register: Register) -> list[Operation]:
    """Few operations of few processes; answers from a run of the register, some falsified."""
    steps = list(range(1, 15))
    rng.shuffle(steps)
    found: list[Operation] = []
    for number in range(rng.randrange(1, 6)):
        invoked, completed = sorted((steps.pop(), steps.pop()))
        one = Operation(f"c{number}", Call.GET, "k", None, invoked, 0.0)
        if register is plain:
            one.call = rng.choice((Call.GET, Call.PUT, Call.CAS))
            one.value = {Call.GET: None, Call.PUT: rng.randrange(2)}.get(
                one.call, (rng.choice((None, 0, 1)), rng.randrange(2))
            )
        elif rng.random() < 0.6:
            one.call = Call.CAS
            one.value = (rng.choice((None, None, 0, 1, ANY_VERSION)), rng.choice(("a", "b", None)))
        one.outcome = rng.choices(("ok", "info", "fail"), (6, 2, 1))[0]
        one.completed = NEVER if one.outcome == "info" else completed
        found.append(one)
    answer(rng, found, register)
    return found


def answer(rng: random.Random, operations: list[Operation], register: Register) -> None:
    """Give each the answer of some order, which may respect time or not, and falsify a few."""
    answers = (
        (None, 0, 1, True, False)
        if register is plain
        else (None, 0, 1, 2, True, False, ("a", 0), ("b", 1))
    )
    state: object = None
    order = sorted(
        operations, key=lambda one: rng.uniform(one.invoked, min(one.completed, one.invoked + 6))
    )
    for one in order:
        if one.outcome != "ok":
            if one.outcome == "info" and rng.random() < 0.5 and one.call is not Call.GET:
                state = register(state, one)
            continue
        if rng.random() < 0.3:
            one.result = rng.choice(answers)
            continue
        for result in answers:
            one.result = result
            after = register(state, one)
            if after is not IMPOSSIBLE:
                state = after
                break


def test_it_agrees_with_trying_all_orders() -> None:
    rng = random.Random(os.environ.get("KIT_SEED", "7"))
    explained = 0
    for number in range(HISTORIES):
        register = (plain, versioned)[number % 2]
        operations = random_history(rng, register)
        expected = by_all_orders(operations, register, None)
        explained += expected
        search = Search(operations, register, None)
        assert search.is_explained() is expected, "\n".join(map(str, operations))
    print(f"{HISTORIES} histories, {explained} of them linearizable")
    assert HISTORIES * 0.2 < explained < HISTORIES * 0.9, "both answers are tried often"


def test_a_long_history_is_searched_quickly() -> None:
    """Twenty clients, thousands of operations, some with unknown outcome: seconds, not years."""
    rng = random.Random(3)
    history = History()
    state: object = None
    pending: list[Operation] = []
    for number in range(3_000):
        if len(pending) == 20 or (pending and rng.random() < 0.5):
            one = pending.pop(rng.randrange(len(pending)))
            if one.call is Call.CAS and rng.random() < 0.02:
                history.info(one)
                continue
            if one.call is Call.GET:
                history.ok(one, state)
                continue
            expected, new = one.value
            history.ok(one, state == expected)
            state = new if state == expected else state
        elif rng.random() < 0.5:
            pending.append(history.invoke(f"c{number}", Call.GET, "k"))
        else:
            value = (rng.choice((state, number)), number)
            pending.append(history.invoke(f"c{number}", Call.CAS, "k", value))
    assert check_registers(history) == []
    answered = [one for one in history if one.call is Call.GET and one.is_ok]
    answered[len(answered) // 2].result = -5
    assert len(check_registers(history)) == 1
