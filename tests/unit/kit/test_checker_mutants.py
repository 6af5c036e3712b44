"""The tests of the checkers notice nearly every small mistake in a checker. `KIT_MUTANTS=all
pytest … -s` tries every mutant and prints the survivors; otherwise each tenth is tried."""

from __future__ import annotations

import os
import random
import types

import pytest

from tests.support.kit.history import Call, History
from tests.support.kit.problems import Kind, kinds
from tests.unit.kit.bad_histories import ALSO, BAD, GOOD
from tests.unit.kit.corruptions import LEDGER, TOPIC
from tests.unit.kit.legal import Ledger, Topic
from tests.unit.kit.mutate import MODULES, is_noticed, load, mutants
from tests.unit.kit.scripts import history
from tests.unit.kit.test_linearizability import BAD as BAD_REGISTERS
from tests.unit.kit.test_linearizability import GOOD as GOOD_REGISTERS
from tests.unit.kit.test_linearizability import VERSIONED_BAD, VERSIONED_GOOD, made

STRIDE = 1 if os.environ.get("KIT_MUTANTS") == "all" else 10
SCORE_MIN = 0.95

Expected = list[tuple[History, set[Kind]]]


def hand_made() -> Expected:
    found = [(history(script), set[Kind]()) for script in GOOD.values()]
    for kind, scripts in BAD.items():
        found += [(history(script), {kind} | ALSO.get(script, set())) for script in scripts]
    return found


def random_topics() -> Expected:
    found: Expected = []
    for seed in range(8):
        rng = random.Random(seed)
        found.append((Topic(rng).run(150), set()))
    for number, (corrupt, kind) in enumerate(TOPIC):
        rng = random.Random(number)
        told = Topic(rng).run(150)
        if corrupt(told, rng):
            found.append((told, {kind}))
    return found


def random_ledgers() -> Expected:
    found: Expected = []
    for seed in range(12):
        found.append((Ledger(random.Random(seed)).run(60), set()))
    for number, (corrupt, kind) in enumerate(LEDGER):
        rng = random.Random(number)
        told = Ledger(rng).run(60)
        if corrupt(told, rng):
            found.append((told, kind))
    return found


HAND_MADE, TOPICS, LEDGERS = hand_made(), random_topics(), random_ledgers()


def judges_right(modules: dict[str, types.ModuleType]) -> bool:
    checkers, registers = modules["checkers"], modules["linearizability"]
    for told, expected in HAND_MADE:
        found = checkers.check_topics(told, dense=True)
        found += checkers.check_ledgers(told, acks_in_order=True)
        if kinds(found) != expected:
            return False
    for told, expected in TOPICS:
        if kinds(checkers.check_topics(told, dense=True)) != expected:
            return False
    for told, expected in LEDGERS:
        if kinds(checkers.check_ledgers(told, acks_in_order=True)) != expected:
            return False
    for rows, register, is_good in (
        (GOOD_REGISTERS, registers.plain, True),
        (BAD_REGISTERS, registers.plain, False),
        (VERSIONED_GOOD, registers.versioned, True),
        (VERSIONED_BAD, registers.versioned, False),
    ):
        for one in rows.values():
            if (registers.check_registers(made(one), register) == []) is not is_good:
                return False
    return names_what_is_stuck(registers) and takes_options(checkers) and holds(modules)


def names_what_is_stuck(registers: types.ModuleType) -> bool:
    told = History(clock=lambda: 0.0)
    told.add_done("p", Call.SEND, "k", "a", 0)
    told.add_done("p", Call.PUT, "k", 7)
    told.fail(told.invoke("p", Call.PUT, "k", 8))
    told.fail(told.invoke("p", Call.CAS, "k", (7, 9)))
    if registers.check_registers(told):
        return False
    told.add_done("p", Call.PUT, "k", 6)
    stuck = told.add_done("p", Call.GET, "k", None, 8)
    told.add_done("p", Call.GET, "k", None, 9)
    (problem,) = registers.check_registers(told)
    return problem.operations == (stuck,)


def holds(modules: dict[str, types.ModuleType]) -> bool:
    rng = random.Random(1)
    for _ in range(60):
        starts = [rng.randrange(12) for _ in range(rng.randrange(5))]
        pairs = [(start, start + rng.randrange(4)) for start in starts]
        ranges = modules["log_checks"].Ranges(pairs)
        for at in range(-1, 16):
            if (at in ranges) is not any(start <= at < end for start, end in pairs):
                return False
        offsets = sorted(starts)
        start, end = rng.randrange(12), rng.randrange(14)
        first = next((at for at in offsets if start <= at < end), None)
        if modules["log_checks"].first_within(offsets, start, end) != first:
            return False
    return True


def takes_options(checkers: types.ModuleType) -> bool:
    """Check the options: order within a key, producers that may store twice, holes, acks in no
    order."""
    unkeyed = history("p send a -> 1; p send b -> 0")
    elsewhere = history("p send a #x -> 1; p send b #x @u -> 0")
    apart = history("p send a -> 1; p send b @u -> 0")
    holed = history("p send a -> 0; p send b -> 2; r poll -> 0:a,2:b")
    moved = history("p send a -> 1; r poll -> 0:a")
    acks = history("x=p add a; y=p add b; y -> 1; x -> 0")
    p = frozenset({"p"})
    if (
        kinds(checkers.check_topics(unkeyed, order="key")) != {Kind.REORDERED}
        or kinds(checkers.check_topics(elsewhere, order="key")) != {Kind.REORDERED}
        or checkers.check_topics(elsewhere)
        or checkers.check_topics(apart, order="key")
        or checkers.check_topics(holed)
        or checkers.check_ledgers(acks)
        or checkers.check_topics(moved, at_least_once=p)
        or kinds(checkers.check_topics(moved)) != {Kind.MOVED}
    ):
        return False
    told = History(clock=lambda: 0.0)
    first = told.invoke("p", Call.SEND, "t", "a", key="x")
    told.add_done("p", Call.SEND, "t", "b", 0, key="y")
    told.ok(first, 1)
    told.add_done("q", Call.POLL, "t", 0, [(0, "b"), (1, "a"), (2, "a")])
    return (
        kinds(checkers.check_topics(told, order="key")) == {Kind.DUPLICATE}
        and not checkers.check_topics(told, order="key", at_least_once=p)
        and kinds(checkers.check(told)) == {Kind.DUPLICATE}
    )


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_small_mistakes_are_noticed(module: str) -> None:
    tried = [one for number, one in enumerate(mutants(module)) if number % STRIDE == 0]
    alive = [one for one in tried if not is_noticed(judges_right, one)]
    print(f"{module}: {len(tried) - len(alive)} of {len(tried)} mutants noticed")
    print("\n".join(map(str, alive)))
    assert len(alive) <= (1 - SCORE_MIN) * len(tried) + 1, "\n".join(map(str, alive))


def test_the_true_checkers_judge_right() -> None:
    assert judges_right(load(None))
