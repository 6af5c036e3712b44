"""Readers of a caller's bytes before its identity is known, and of the files and records behind
it."""

from __future__ import annotations

import base64
import json

from octavo.metadata.secret import ClusterSecret
from octavo.metadata.store import BadRecord
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.security.bookie_tokens import BookieTokens
from octavo.security.identity.api_keys import line_of, make_key, parse_api_keys
from octavo.security.identity.certificates import identity_of, parse_revoked
from octavo.security.identity.jwt_keys import parse_jwks, parse_keys
from octavo.security.identity.passwords import parse_basic, parse_plain
from octavo.security.identity.scram import ScramServer
from octavo.security.identity.token_form import read_token
from octavo.security.identity.tokens import issue, verify
from octavo.security.identity.users import UserRecord, scram_records
from octavo.security.principal import Identity, Unauthenticated
from octavo.security.settings import SecurityError
from tests.fuzz.readers import Reader
from tests.support.foreign_tokens import EC, ED, KEY, RSA, jwk, public
from tests.support.identities import NOW_S, PASSWORD, RNG, certificate, revocation_list

_JSON_BYTES = 256 * 1024
_LIBRARY_BYTES = 1 << 20
"""The library's own memory, for any input: tables, errors."""
_USER = encode_record(UserRecord(*scram_records(PASSWORD, RNG), ("staff",), True, NOW_S))


def _token(data: bytes) -> object:
    token = read_token(data.decode("latin-1"))
    return verify(KEY, token, now_s=NOW_S)


def _scram(data: bytes) -> None:
    first, _, last = data.partition(b"\n")
    server = ScramServer("SCRAM-SHA-256", lambda _: None, salt_key=KEY, nonce="abc")
    server.step(first)
    server.step(last)


def _scram_valid(data: bytes) -> object:
    try:
        return _scram(data)
    except Unauthenticated as error:
        return str(error)  # no user is known there


_BOOKIE_TOKENS = BookieTokens(ClusterSecret(b"f" * 32), lambda: NOW_S * 1000)

READERS: dict[str, Reader] = {
    "token for a bookie": Reader(
        [
            _BOOKIE_TOKENS.node("broker-1", "b1"),
            _BOOKIE_TOKENS.reader(Identity("user:a"), "a/b", [1, 2, 9]).token.encode(),
        ],
        lambda data: _BOOKIE_TOKENS.verify(data, "b1"),
        (Unauthenticated,),
        bytes_max=_JSON_BYTES,
    ),
    "token": Reader(
        [issue(KEY, "user:alice", ttl_s=60, now_s=NOW_S, groups=["group:a"]).encode()],
        _token,
        (Unauthenticated,),
        bytes_max=_JSON_BYTES,
    ),
    "Basic": Reader(
        [base64.b64encode(b"alice:secret")],
        lambda data: parse_basic(data.decode("latin-1")),
        (Unauthenticated,),
    ),
    "PLAIN": Reader([b"\0alice\0secret"], parse_plain, (Unauthenticated,)),
    "SCRAM": Reader(
        [b"n,,n=alice,r=abc\nc=biws,r=abcabc,p=" + base64.b64encode(b"x" * 32)],
        _scram_valid,
        (),
        bytes_max=_LIBRARY_BYTES,
    ),
    "client's certificate": Reader(
        [certificate(), certificate(uris=("spiffe://a/b",))],
        lambda data: [identity_of(data, kind, frozenset()) for kind in ("cn", "dn")],
        (Unauthenticated,),
        bytes_max=_LIBRARY_BYTES,
    ),
    "revoked certificates": Reader(
        [b"07\n0A:0B # stolen\n", revocation_list(5, 7)],
        parse_revoked,
        (SecurityError,),
        bytes_max=_LIBRARY_BYTES,
    ),
    "API keys": Reader(
        [line_of("shop", make_key(RNG), ["a", "b"]).encode()],
        parse_api_keys,
        (SecurityError,),
        bytes_max=_JSON_BYTES,
    ),
    "JWKS": Reader(
        [json.dumps({"keys": [jwk(RSA, kid="1"), jwk(EC), jwk(ED)]}).encode()],
        parse_jwks,
        (SecurityError,),
        bytes_max=_LIBRARY_BYTES,
    ),
    "file of public keys": Reader(
        [public(RSA) + public(EC), json.dumps(jwk(EC)).encode()],
        parse_keys,
        (SecurityError,),
        bytes_max=_LIBRARY_BYTES,
    ),
    "record of a user": Reader(
        [_USER],
        lambda data: decode_record(UserRecord, "user", data),
        (BadRecord,),
        bytes_max=_JSON_BYTES,
    ),
}
