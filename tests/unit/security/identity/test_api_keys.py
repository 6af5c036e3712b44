"""The file of API keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.security.identity import api_keys
from octavo.security.identity.api_keys import (
    KEY_PREFIX,
    identity_of_key,
    line_of,
    make_key,
    parse_api_keys,
)
from octavo.security.principal import Unauthenticated
from octavo.security.settings import SecurityError
from tests.support.identities import RNG

KEY = make_key(RNG)


def test_a_key_is_its_users():
    keys = parse_api_keys(f"# keys\n\n{line_of('shop', KEY, ['a', 'b'])}\n".encode())
    found = identity_of_key(KEY, keys)
    assert found[:3] == ("user:shop", frozenset({"group:a", "group:b"}), "api-key")
    for wrong in (KEY[:-1], KEY + "x", "", "é", "x" * 10_000, "\ud800"):
        with pytest.raises(Unauthenticated, match="not known here"):
            identity_of_key(wrong, keys)


def test_keys_have_256_bits_of_chance_and_are_known_for_keys():
    made = {make_key(RNG) for _ in range(100)}
    assert len(made) == 100
    assert all(one.startswith(KEY_PREFIX) and len(one) == len(KEY_PREFIX) + 43 for one in made)


@pytest.mark.parametrize(
    "line",
    [
        f"shop:{KEY}",  # the key where its hash belongs
        "shop",
        ":" + "0" * 64,
        "shop:" + "0" * 63,
        "shop:" + "A" * 64,
        "a b:" + "0" * 64,
        f"shop:{'0' * 64}:a,,b",
        f"shop:{'0' * 64}\nother:{'0' * 64}",
        "\udcff",
    ],
)
def test_a_line_that_is_none_is_named_and_not_shown(line):
    with pytest.raises(SecurityError) as caught:
        parse_api_keys(line.encode(errors="surrogateescape"))
    assert "octavo_" not in str(caught.value)
    assert "0000" not in str(caught.value)


def test_no_more_than_is_allowed(monkeypatch):
    monkeypatch.setattr(api_keys, "API_KEYS_MAX", 2)
    lines = "\n".join(line_of("a", make_key(RNG)) for _ in range(3))
    with pytest.raises(SecurityError, match="more than 2"):
        parse_api_keys(lines.encode())


@given(st.binary(max_size=100))
def test_whatever_is_in_the_file_is_read_or_refused_in_words(data):
    try:
        parse_api_keys(data)
    except SecurityError:
        pass


@pytest.mark.parametrize("count", [2, 3, 4])
def test_as_many_keys_as_are_allowed(monkeypatch, count):
    monkeypatch.setattr(api_keys, "API_KEYS_MAX", 3)
    lines = "\n".join(line_of("a", make_key(RNG)) for _ in range(count)).encode()
    if count > 3:
        with pytest.raises(SecurityError, match="more than 3"):
            parse_api_keys(lines)
    else:
        assert len(parse_api_keys(lines)) == count
