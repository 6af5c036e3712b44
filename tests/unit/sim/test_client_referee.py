"""The referee of the production client fails each story that it must."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from octavo.protocol.records import Record
from tests.sim.client_load import judge_loops
from tests.sim.odd_values import OddValues


def sent(value: bytes | None) -> tuple[OddValues, list[str], Record]:
    said: list[str] = []
    odd = OddValues(said.append)
    rng = random.Random(1)
    while True:
        key, found, headers = odd.make(rng, "e0.1-7", b"k")
        if found == value:
            return odd, said, Record(key, found, headers)


@pytest.mark.parametrize(
    ("value", "given"),
    [(b"null", None), (b'"hello"', b"hello"), (b"1\n", b"1"), (None, b""), (b"1.0", b"1")],
)
def test_a_value_that_came_back_otherwise(value: bytes | None, given: bytes | None) -> None:
    odd, said, record = sent(value)
    assert odd.name_of(record, "a reader") == "e0.1-7"
    assert said == []
    odd.name_of(record._replace(value=given), "a reader")
    assert said[0].startswith("X11 'e0.1-7' was sent as")


def test_keys_and_headers_count_as_well() -> None:
    odd, said, record = sent(b"null")
    odd.name_of(record._replace(key=None), "a reader")
    odd.name_of(record._replace(headers=[*record.headers, ("h", None)]), "a reader")
    odd.name_of(record._replace(headers=list(reversed(record.headers))), "a reader")
    assert len(said) == 3


def test_others_have_their_name_in_their_value() -> None:
    odd, said, _ = sent(b"null")
    assert odd.name_of(Record(None, b"p1.1-3"), "a reader") == "p1.1-3"
    assert odd.name_of(Record(None, b"\xff"), "a reader") == repr(b"\xff")
    assert said == []


def test_a_message_that_loops_processed_twice() -> None:
    said: list[str] = []
    judge_loops(Counter({(0, 1, "5"): 1, (0, 1, "6"): 1, (1, 1, "5"): 1}), said.append)
    assert said == [], "after a take-over it may come again"
    judge_loops(Counter({(0, 1, "5"): 2}), said.append)
    assert said[0].startswith("X12 partition 0 offset 1 was processed 2 times")
