"""Tokens shown to bookies: what they prove, and everything that proves nothing."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest

from octavo.metadata.secret import ClusterSecret
from octavo.protocol.entry import WHOLE, EntryRange
from octavo.security.bookie_tokens import (
    CLOCKS_APART_S,
    LEDGERS_MAX,
    NODE_TOKEN_S,
    READER_TOKEN_S,
    TOKEN_BYTES_MAX,
    BookieTokens,
    TooManyLedgers,
    prover,
)
from octavo.security.principal import Identity, Standing, Unauthenticated

NOW_S = 1_700_000_000
SECRET = ClusterSecret(b"s" * 32)
ALICE = Identity("user:alice", frozenset({"group:staff"}), "token", None)


def tokens(now_s: float = NOW_S, secret: ClusterSecret = SECRET) -> BookieTokens:
    return BookieTokens(secret, lambda: int(now_s * 1000))


def signed(kid: str = "reader", key: bytes | None = None, **claims: Any) -> bytes:
    """Make a token with these claims added, by the right key by default."""
    usual = {
        "sub": "user:alice",
        "aud": "bookies" if kid == "reader" else "b1",
        "iat": NOW_S,
        "exp": NOW_S + 60,
        "ledgers": [1],
        "topic": "a/b",
    }
    made = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    use = {"reader": "bookie readers", "node": "bookies"}[kid]
    return jwt.encode(
        made, key or SECRET.key(use), algorithm="HS256", headers={"kid": kid}
    ).encode()


def refused(token: bytes, what: str, now_s: float = NOW_S, bookie: str = "b1") -> None:
    with pytest.raises(Unauthenticated, match=what) as raised:
        tokens(now_s).verify(token, bookie)
    assert token.decode("latin-1")[-20:] not in str(raised.value), "nothing of it is shown"


def test_a_node_is_known_by_one_bookie_for_a_minute() -> None:
    token = tokens().node("broker-1", "b1")
    proof = tokens(NOW_S + NODE_TOKEN_S + CLOCKS_APART_S - 1).verify(token, "b1")
    assert proof.identity == Identity("node:broker-1", source="node")
    assert proof.ledgers is None
    refused(token, "another bookie", bookie="b2")
    refused(token, "ended", NOW_S + NODE_TOKEN_S + CLOCKS_APART_S)
    assert tokens(NOW_S - CLOCKS_APART_S).verify(token, "b1") == proof
    refused(token, "clocks", NOW_S - CLOCKS_APART_S - 1)


def test_a_node_with_a_name_that_is_none_is_a_node_all_the_same() -> None:
    prove = prover(tokens(), "a b")
    assert tokens().verify(prove("b1"), "b1").identity.name == "node:unnamed"


def test_a_reader_has_its_ledgers_at_any_bookie() -> None:
    ids = [0, 5, 6, 2**40, 2**62]
    token, expires_at_s = tokens().reader(ALICE, "public/t", reversed(ids))
    assert expires_at_s == NOW_S + READER_TOKEN_S
    for bookie in ("b1", "b2"):
        proof = tokens().verify(token.encode(), bookie)
        assert proof.ledgers == dict.fromkeys(ids, WHOLE)
        assert proof.topic == "public/t"
        assert (proof.identity.name, proof.identity.groups) == (ALICE.name, ALICE.groups)
        assert proof.identity.expires_at_s == expires_at_s
    refused(token.encode(), "ended 0 s ago", expires_at_s)


def test_a_readers_token_ends_with_what_its_holder_has_proved() -> None:
    soon = ALICE._replace(expires_at_s=NOW_S + 30.5)
    assert tokens().reader(soon, "a/b", [1]).expires_at_s == NOW_S + 30


def test_a_readers_token_says_what_it_was_given_out_for() -> None:
    standing = Standing(7, "certificate:0a")
    token, _ = tokens().reader(ALICE._replace(standing=standing), "a/b", [1])
    assert tokens().verify(token.encode(), "b1").standing == standing
    assert tokens().verify(signed(), "b1").standing is None, "those of 0.1 say nothing of it"
    task, _ = tokens().reader(Identity("node:driver", source="node"), None, [1])
    assert tokens().verify(task.encode(), "b1").standing is None


def test_a_reader_has_a_bounded_number_of_ledgers() -> None:
    token, _ = tokens().reader(ALICE, "a/b", range(0, LEDGERS_MAX * 1000, 1000))
    assert len(token) < TOKEN_BYTES_MAX
    assert len(tokens().verify(token.encode(), "b").ledgers or ()) == LEDGERS_MAX
    with pytest.raises(TooManyLedgers, match="at most 10000"):
        tokens().reader(ALICE, "a/b", range(LEDGERS_MAX + 1))
    refused(signed(ledgers=[1] * (LEDGERS_MAX + 1)), "names no ledgers")


def test_a_reader_has_a_part_of_a_ledger() -> None:
    parts = {9: EntryRange(0, 4), 5: EntryRange(7), 2**62: EntryRange(3, 3)}
    token, _ = tokens().reader(ALICE, "a/b", [1, 5], parts=parts)
    assert tokens().verify(token.encode(), "b1").ledgers == {1: WHOLE, **parts}
    with pytest.raises(TooManyLedgers, match="at most 10000"):
        tokens().reader(ALICE, "a/b", range(LEDGERS_MAX), parts={10**6: EntryRange(1)})


def test_one_kind_never_passes_for_the_other() -> None:
    as_node = signed("node", SECRET.key("bookie readers"), sub="node:x")
    refused(as_node, "secret")
    refused(signed("reader", SECRET.key("bookies")), "secret")
    refused(signed("reader", SECRET.key("nodes")), "secret")
    refused(signed("node", sub="user:alice"), "names no principal")
    refused(tokens(secret=ClusterSecret(b"o" * 32)).node("x", "b1"), "secret")


@pytest.mark.parametrize(
    "claims",
    [
        {"ledgers": None},
        {"ledgers": "1"},
        {"ledgers": [-1]},
        {"ledgers": [True]},
        {"ledgers": [1.0]},
        {"ledgers": [2**64]},
        {"ledgers": [[1]]},
        {"ledgers": {"1": 1}},
        {"parts": "1"},
        {"parts": [1]},
        {"parts": [[1, 0]]},
        {"parts": [[1, 0, True]]},
        {"parts": [[1, 0, -2]]},
        {"parts": [[1, -1, 3]]},
        {"parts": [[-1, 0, 3]]},
        {"parts": [[2**63, 0, 3]]},
        {"parts": [[1, 0, 2**63]]},
        {"parts": [[1, 0, 3.0]]},
        {"parts": {"1": [0, 3]}},
        {"sub": None},
        {"sub": "alice"},
        {"sub": "*"},
        {"sub": "role:admin"},
        {"sub": "group:staff"},
        {"sub": "user:" + "x" * 300},
        {"groups": "group:x"},
        {"groups": [1]},
        {"groups": ["role:admin"]},
        {"groups": ["user:bob"]},
        {"topic": 7},
        {"record": 1},
        {"mark": ""},
        {"record": True, "mark": ""},
        {"record": "1", "mark": ""},
        {"record": 1, "mark": 7},
        {"exp": None},
        {"exp": "soon"},
        {"exp": 1e300},
        {"iat": None},
        {"iat": True},
        {"aud": None},
        {"aud": "b1"},
        {"aud": 7},
    ],
    ids=str,
)
def test_claims_that_make_no_sense_prove_nothing(claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        tokens().verify(_signed_as_it_is(claims), "b1")


def _signed_as_it_is(claims: dict[str, Any]) -> bytes:
    """Sign claims that the library would not sign, too."""
    head, _, _ = signed().split(b".")
    usual = jwt.decode(signed(), options={"verify_signature": False})
    made = {name: one for name, one in {**usual, **claims}.items() if one is not None}
    return _sealed(head, json.dumps(made).encode())


def _sealed(head: bytes, body: bytes) -> bytes:
    encoded = base64.urlsafe_b64encode(body).rstrip(b"=")
    signing = jwt.get_algorithm_by_name("HS256")
    signature = signing.sign(head + b"." + encoded, SECRET.key("bookie readers"))
    return b".".join((head, encoded, base64.urlsafe_b64encode(signature).rstrip(b"=")))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"7", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 50_000, b"1" * 9_999],
    ids=lambda body: str(body[:12]),
)
def test_a_body_that_is_no_object_proves_nothing(body: bytes) -> None:
    with pytest.raises(Unauthenticated):
        tokens().verify(_sealed(signed().split(b".")[0], body), "b1")


@pytest.mark.parametrize("alg", ["none", "HS384", "HS512", "RS256", "", "hs256"])
def test_other_algorithms_prove_nothing(alg: str) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": alg, "kid": "reader"}).encode())
    _, body, signature = signed().split(b".")
    for shown in (signature, b""):
        with pytest.raises(Unauthenticated):
            tokens().verify(b".".join((head.rstrip(b"="), body, shown)), "b1")


@pytest.mark.parametrize(
    "head",
    [b"[]", b"7", b'{"alg":"HS256"}', b'{"alg":"HS256","kid":["reader"]}', b"[" * 300, b"\xff"],
    ids=str,
)
def test_headers_that_make_no_sense_prove_nothing(head: bytes) -> None:
    encoded = base64.urlsafe_b64encode(head).rstrip(b"=")
    with pytest.raises(Unauthenticated):
        tokens().verify(b".".join((encoded, *signed().split(b".")[1:])), "b1")


def test_what_is_too_long_is_not_looked_at() -> None:
    refused(b"a." * TOKEN_BYTES_MAX, f"at most {TOKEN_BYTES_MAX}")
    refused(b"a" * 1000 + b"." + b"b.c", "not a JWT")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_longest_token_is_looked_at(more: int) -> None:
    head, _, rest = signed().partition(b".")
    token = head + b"." + rest + b"A" * (TOKEN_BYTES_MAX + more - len(head) - 1 - len(rest))
    with pytest.raises(Unauthenticated) as caught:
        tokens().verify(token, "b1")
    assert (f"at most {TOKEN_BYTES_MAX}" in str(caught.value)) == (more > 0)
