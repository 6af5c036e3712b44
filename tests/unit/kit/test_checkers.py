"""The checkers against hand-made histories: bad ones of each kind, and innocent ones."""

from __future__ import annotations

import pytest

from tests.support.kit.checkers import Kind, Problem, check_ledgers, check_topics, kinds, report
from tests.unit.kit.bad_histories import ALSO, BAD, GOOD
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
