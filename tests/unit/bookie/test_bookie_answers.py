"""Answers to adds: the same bytes as singly, joined into ranges where allowed."""

from __future__ import annotations

import pytest

from octavo.bookie.wire.connection import Answers, add_answers
from octavo.protocol.answers import Added, parse_answers
from octavo.protocol.codes import Code
from octavo.protocol.frames import add_answer


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
@pytest.mark.parametrize("first", [0, 250, 65_535, 2**40 - 3])
def test_the_same_bytes_as_one_at_a_time(first: int, count: int) -> None:
    expected = b"".join(add_answer(Code.FENCED, 7, first + i) for i in range(count))
    assert add_answers(Code.FENCED, 7, first, count) == expected


def test_unbroken_ranges_are_joined() -> None:
    answers = Answers()
    for ledger_id, first, last in [(1, 0, 9), (1, 10, 19), (1, 21, 21), (2, 22, 30), (1, 22, 22)]:
        answers.acked_range(ledger_id, first, last)
    found, _ = parse_answers(memoryview(b"".join(answers.take())), 1000)
    assert found == [Added(1, 0, 19), Added(1, 21, 21), Added(2, 22, 30), Added(1, 22, 22)]
    assert answers.take() == []
