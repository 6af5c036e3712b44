"""The checkers against hand-made histories and against random legal ones."""

from __future__ import annotations

import io
import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kit.checkers import Kind, Problem, check_ledgers, check_topics, kinds, report
from tests.support.kit.examples import examples
from tests.support.kit.history import Call, History
from tests.unit.kit.bad_histories import ALSO, BAD, GOOD
from tests.unit.kit.corruptions import LEDGER, TOPIC, Corruption
from tests.unit.kit.legal import Ledger, Topic
from tests.unit.kit.scripts import history


def problems_of(script: str) -> list[Problem]:
    told = history(script)
    return check_topics(told, dense=True) + check_ledgers(told, acks_in_order=True)


SCRIPTS = [(kind, script) for kind, scripts in BAD.items() for script in scripts]


@pytest.mark.parametrize(("kind", "script"), SCRIPTS)
def test_bad(kind: Kind, script: str) -> None:
    problems = problems_of(script)
    assert kinds(problems) == {kind} | ALSO.get(script, set()), report(problems)
    for one in problems:
        assert one.operations, "it names the operations"
        assert len(one.sentence) > 20, "it is a sentence"


@pytest.mark.parametrize("script", GOOD.values(), ids=GOOD)
def test_good(script: str) -> None:
    problems = problems_of(script)
    assert not problems, report(problems)


def test_each_kind_has_five_bad_histories() -> None:
    few = {kind for kind in Kind if len(BAD.get(kind, ())) < 5}
    assert few == {Kind.NOT_LINEARIZABLE}, "that one has test_linearizability"


# Random legal histories give no problem; with one lie in them, exactly that kind of problem.
OPERATIONS = int(os.environ.get("KIT_OPERATIONS", "50000"))
"""The goal is 30 s for a million: KIT_OPERATIONS=1000000 pytest … -k million -s"""

SEEDS = st.integers(0, 2**32)


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS, st.integers(0, 200), st.floats(0, 0.7))
def test_a_legal_topic_has_no_problem(seed: int, steps: int, failing: float) -> None:
    told = Topic(random.Random(seed), failing=failing).run(steps)
    for order in ("producer", "key"):
        problems = check_topics(told, order=order, dense=True)
        assert not problems, report(problems)


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS, st.integers(0, 100))
def test_a_legal_ledger_has_no_problem(seed: int, steps: int) -> None:
    told = Ledger(random.Random(seed)).run(steps)
    problems = check_ledgers(told, acks_in_order=True)
    assert not problems, report(problems)


@pytest.mark.parametrize(("corrupt", "kind"), TOPIC, ids=lambda one: getattr(one, "__name__", ""))
def test_one_lie_about_a_topic_is_found(corrupt: Corruption, kind: Kind) -> None:
    planted = 0
    for seed in range(100):
        rng = random.Random(seed)
        told = Topic(rng).run(rng.randrange(40, 160))
        if corrupt(told, rng):
            planted += 1
            problems = check_topics(told, dense=True)
            assert kinds(problems) == {kind}, f"seed {seed}: {report(problems)}"
    assert planted > 20, "it finds a place often"


@pytest.mark.parametrize(("corrupt", "kind"), LEDGER, ids=lambda one: getattr(one, "__name__", ""))
def test_one_lie_about_a_ledger_is_found(corrupt: Corruption, kind: set[Kind]) -> None:
    planted = 0
    for seed in range(200):
        rng = random.Random(seed)
        told = Ledger(rng).run(rng.randrange(20, 80))
        if corrupt(told, rng):
            planted += 1
            problems = check_ledgers(told, acks_in_order=True)
            assert kinds(problems) == kind, f"seed {seed}: {report(problems)}"
    assert planted > 20, "it finds a place often"


def test_lines_of_json_tell_the_same() -> None:
    rng = random.Random(5)
    for told in (Topic(rng).run(150), Ledger(rng).run(60)):
        again = History.load(told.lines())
        assert [str(one) for one in again] == [str(one) for one in told]
        assert [*again.lines()] == [*told.lines()]
        assert not check_topics(again, dense=True) + check_ledgers(again)


def test_a_killed_process_leaves_what_it_was_told() -> None:
    sink = io.StringIO()
    told = History(clock=lambda: 1.0, sink=sink)
    told.add_done("p", Call.SEND, "t", "a", 0)
    told.invoke("p", Call.SEND, "t", "b")
    told.info(told.invoke("p", Call.SEND, "t", "c"), "timeout")
    text = sink.getvalue() + '{"step":7,"of":3,"at":1.0,"outc'
    again = History.load(text.splitlines())
    assert [(one.value, one.outcome, one.result) for one in again] == [
        ("a", "ok", 0),
        ("b", "info", None),
        ("c", "info", "timeout"),
    ]
    with pytest.raises(ValueError, match="Expecting"):
        History.load(["{", *text.splitlines()])


def test_histories_of_several_processes_are_merged_by_time() -> None:
    """Events at the same moment are concurrent; merging invents no order."""
    moments = iter([1.0, 2.0, 2.0, 3.0])
    one = History(clock=lambda: next(moments))
    one.add_done("p", Call.SEND, "t", "a", 1)
    other = History(clock=lambda: next(moments))
    other.add_done("q", Call.SEND, "t", "b", 0)
    assert not check_topics(History.merge([one, other]))
    moments = iter([1.0, 2.0, 2.5, 3.0])
    one, other = History(clock=lambda: next(moments)), History(clock=lambda: next(moments))
    one.add_done("p", Call.SEND, "t", "a", 1)
    other.add_done("q", Call.SEND, "t", "b", 0)
    assert kinds(check_topics(History.merge([other, one]))) == {Kind.REAL_TIME}


def test_during_says_how_a_call_ended() -> None:
    told = History(clock=lambda: 0.0, definite=(KeyError,))
    with told.during("p", Call.SEND, "t", "a") as one:
        one.result = 0
    with pytest.raises(KeyError), told.during("p", Call.SEND, "t", "b"):
        raise KeyError("refused")
    with pytest.raises(TimeoutError), told.during("p", Call.SEND, "t", "c"):
        raise TimeoutError
    assert [(one.outcome, one.result) for one in told] == [
        ("ok", 0),
        ("fail", "'refused'"),
        ("info", "TimeoutError"),
    ]


def test_producers_without_sequences_may_store_twice() -> None:
    told = History(clock=lambda: 0.0)
    told.info(told.invoke("p", Call.SEND, "t", "a"))
    told.add_done("r", Call.POLL, "t", 0, [(0, "a"), (1, "a")])
    assert kinds(check_topics(told)) == {Kind.DUPLICATE}
    assert not check_topics(told, at_least_once=frozenset({"p"}))


def test_order_within_a_key_only() -> None:
    told = History(clock=lambda: 0.0)
    first = told.invoke("p", Call.SEND, "t", "a", key="x")
    second = told.invoke("p", Call.SEND, "t", "b", key="y")
    told.ok(second, 0)
    told.ok(first, 1)
    assert kinds(check_topics(told)) == {Kind.REORDERED}
    assert not check_topics(told, order="key")
    told.add_done("p", Call.SEND, "u", "c", 0, key="x")
    assert kinds(check_topics(told, order="key")) == {Kind.REORDERED}, "a key has one partition"


def test_a_million_operations_are_checked_in_time() -> None:
    told = Topic(random.Random(1), logs=8).run(int(OPERATIONS * 1.2))
    assert len(told) > OPERATIONS * 0.9
    begun = time.process_time()
    problems = check_topics(told, dense=True)
    took_s = time.process_time() - begun
    print(f"{len(told)} operations checked in {took_s:.1f} s")
    assert not problems, report(problems)
    assert took_s < max(5.0, 30.0 * len(told) / 1e6)
