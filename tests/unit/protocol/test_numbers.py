"""One spelling for one number."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.producer import producer_id_of
from octavo.protocol.numbers import producer_number, whole


@given(st.integers())
def test_a_number_as_python_writes_it_is_itself(number: int) -> None:
    assert whole(str(number), 2**62, -(2**62)) == (number if abs(number) <= 2**62 else None)


@given(st.text(max_size=6) | st.from_regex(r"[-+ ]?\d[\d_.e]{0,5}\s?", fullmatch=True))
def test_every_other_text_is_none(text: str) -> None:
    found = whole(text, least=-(2**63))
    assert found is None or str(found) == text


@pytest.mark.parametrize(
    ("text", "found"), [("0", 0), ("9", 9), ("10", None), ("-1", None), ("", None)]
)
def test_bounds_belong_to_it(text: str, found: int | None) -> None:
    assert whole(text, 9) == found


@given(st.text(min_size=1, max_size=9))
def test_client_and_broker_number_a_producer_alike(name: str) -> None:
    assert producer_id_of(name, random.Random(1)) == producer_number(name)


def test_two_spellings_are_two_producers() -> None:
    names = ["7", "07", "007", "+7", " 7", "٧", "9223372036854775808"]
    found = [producer_number(name) for name in names]
    assert found[0] == 7
    assert len(set(found)) == len(names)
    assert all(0 <= one < 2**63 for one in found)
