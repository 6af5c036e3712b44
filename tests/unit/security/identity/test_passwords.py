"""Passwords: which are accepted, what is stored, and what is not normalised."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.security.identity.passwords import (
    ITERATIONS_MAX,
    MECHANISMS,
    PASSWORD_CHARS_MAX,
    PASSWORD_CHARS_MIN,
    Credential,
    InvalidPassword,
    checked_user,
    is_credential,
    is_password,
    make_credential,
    parse_basic,
    parse_plain,
)
from octavo.security.principal import Unauthenticated
from tests.support.identities import PASSWORD, basic

SALT = b"0123456789abcdef"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_only_the_password_is_the_password(mechanism):
    kept = make_credential(mechanism, PASSWORD, SALT)
    assert is_password(mechanism, PASSWORD, kept)
    for wrong in ("", PASSWORD + " ", PASSWORD[:-1], PASSWORD.upper(), "\0", "x" * 100_000):
        assert not is_password(mechanism, wrong, kept)


def test_letters_that_look_alike_are_the_same_password():
    kept = make_credential(MECHANISMS[0], "p\u00e4ssword", SALT)  # RFC 4013: NFKC
    assert is_password(MECHANISMS[0], "pa\u0308ssword", kept)


@pytest.mark.parametrize("password", ["", "short", "x" * (PASSWORD_CHARS_MAX + 1), "with\x07bell"])
def test_a_password_that_is_not_taken(password):
    with pytest.raises(InvalidPassword) as caught:
        make_credential(MECHANISMS[0], password, SALT)
    assert not password or password not in str(caught.value)


def test_nothing_that_is_kept_is_shown():
    kept = make_credential(MECHANISMS[0], PASSWORD, SALT)
    for secret in (kept.stored_key, kept.server_key, kept.salt):
        assert repr(secret)[2:-1] not in repr(kept)


@pytest.mark.parametrize(
    "change",
    [{"iterations": 4095}, {"iterations": ITERATIONS_MAX + 1}, {"iterations": -1},
     {"salt": b"short"}, {"stored_key": b""}, {"server_key": b"x" * 64}],
)  # fmt: skip
def test_keys_that_cannot_be_are_refused(change):
    kept = make_credential(MECHANISMS[0], PASSWORD, SALT)
    assert is_credential(MECHANISMS[0], kept)
    parts = {name: getattr(kept, name) for name in Credential.__slots__}
    assert not is_credential(MECHANISMS[0], Credential(**{**parts, **change}))


@pytest.mark.parametrize("name", ["alice", "a@b.example", "a:b", "é", "a/b", ".."])
def test_a_user_may_be_called(name):
    assert checked_user(name) == name


@pytest.mark.parametrize("name", ["", "a b", "*", "a\n", "a" * 250, "ﬁ", "a\u0308", "\u00ad"])
def test_a_user_may_not_be_called(name):
    with pytest.raises(InvalidPassword, match="cannot be a user's name"):
        checked_user(name)


def test_basic_and_plain():
    assert parse_basic(basic("alice", "a:b").removeprefix("Basic ")) == ("alice", "a:b")
    assert parse_plain(b"\0alice\0secret") == ("alice", "secret")
    assert parse_plain(b"alice\0alice\0secret") == ("alice", "secret")


@pytest.mark.parametrize(
    "value", ["", "!", "YQ", base64.b64encode(b"alice").decode(), "x" * 8193, "/w==", "YTpi\n=="]
)
def test_basic_that_is_none(value):
    with pytest.raises(Unauthenticated, match="Basic"):
        parse_basic(value)


@pytest.mark.parametrize(
    "message",
    [b"", b"alice", b"\0alice", b"\0\0secret", b"admin\0alice\0secret", b"\0a\0b\0c", b"\0\xff\0x",
     b"\0a\0" + b"x" * 8192],
)  # fmt: skip
def test_plain_that_is_none(message):
    with pytest.raises(Unauthenticated, match="PLAIN"):
        parse_plain(message)


@given(st.text(max_size=40), st.binary(max_size=40))
def test_whatever_comes_is_read_or_refused_in_words(text, data):
    for parse, given_ in ((parse_basic, text), (parse_plain, data)):
        try:
            parse(given_)  # type: ignore[operator]
        except Unauthenticated:
            pass


@pytest.mark.parametrize(
    "characters",
    [
        *(PASSWORD_CHARS_MIN + more for more in (-1, 0, 1)),
        *(PASSWORD_CHARS_MAX + more for more in (-1, 0, 1)),
    ],
)
def test_the_shortest_and_the_longest_password_are_taken(characters: int) -> None:
    password = "x" * characters
    if not PASSWORD_CHARS_MIN <= characters <= PASSWORD_CHARS_MAX:
        with pytest.raises(InvalidPassword, match=f"{PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX}"):
            make_credential(MECHANISMS[0], password, SALT)
    else:
        kept = make_credential(MECHANISMS[0], password, SALT)
        assert is_password(MECHANISMS[0], password, kept)
        assert not is_password(MECHANISMS[0], password + "x", kept), "it is not cut off before"
