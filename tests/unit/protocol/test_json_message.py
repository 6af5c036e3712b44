"""A stored value as JSON: a value that takes a broker long to read is shown unread. 4 MiB of
empty lists held its loop for a second at each read."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.json_message import (
    CONTROLS_FROM_BYTES,
    COST_NS_MAX,
    FRACTIONS_MAX,
    Shown,
    show_value,
    stored_value,
)

MEMBERS = COST_NS_MAX // 225
"""Each costs a colon and a comma."""


def _lists(count: int) -> bytes:
    return b"[" + b",".join([b"[]"] * count) + b"]"


def _members(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":0' % n for n in range(count)) + b"}"


def _fractions(count: int) -> bytes:
    return b"[" + b",".join([b"0.5"] * count) + b"]"


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (_lists(60_000), _lists(62_000)),
        (_members(MEMBERS - 10), _members(MEMBERS + 10)),
        (_fractions(FRACTIONS_MAX), _fractions(FRACTIONS_MAX + 1)),
    ],
)
def test_json_of_very_many_parts_is_shown_as_text(least: bytes, most: bytes) -> None:
    assert show_value(least) == Shown(msgspec.Raw(least))
    assert show_value(most) == Shown(text=most.decode())


@pytest.mark.parametrize("size", [CONTROLS_FROM_BYTES - 1, CONTROLS_FROM_BYTES])
def test_a_long_value_of_control_characters_is_shown_as_base64(size: int) -> None:
    is_long = size >= CONTROLS_FROM_BYTES
    few = bytes(size // 4) + b"x" * (size - size // 4)
    assert show_value(few) == Shown(text=few.decode())
    many = bytes(size // 4 + 1) + b"x" * (size - size // 4 - 1)
    assert show_value(many) == (Shown(base64=many) if is_long else Shown(text=many.decode()))


PARTS = st.sampled_from([b"[", b"]", b"{", b"}", b'"a":', b",", b"0.5", b"1e5", b"0", b"\n", b"\0"])


@given(st.lists(PARTS, max_size=30), st.integers(1, 20_000))
def test_each_byte_can_be_had_again(parts: list[bytes], times: int) -> None:
    stored = b"".join(parts) * times
    value, text, base64 = show_value(stored)
    assert stored_value(value if value is not None else msgspec.UNSET, text, base64) == stored
    if isinstance(value, msgspec.Raw):
        json.loads(bytes(value))
