"""Make and check the tokens that callers show to bookies (in AUTH). They are JWTs (HS256).

    node    for brokers, bookies and tools, which know the cluster's secret: allows everything
    reader  for a principal that may consume a topic: allows reading the topic's entries

A node token lives a minute and names one bookie, so that an impostor cannot use it at another. A
reader token names the topic's ledgers, or ranges of them. The bookie ends it when the principal may
no longer consume the topic, or its proof was revoked (`Standing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jwt

from octavo.metadata.secret import ClusterSecret, cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import ENTRY_MAX, WHOLE, EntryRange
from octavo.security.principal import (
    Identity,
    InvalidPrincipal,
    Standing,
    Unauthenticated,
    checked_principal,
    is_principal_name,
)

NODE_TOKEN_S = 60
CLOCKS_APART_S = 60
READER_TOKEN_S = 600
LEDGERS_MAX = 10_000
TOKEN_BYTES_MAX = 256 * 1024
"""Longer tokens are refused unread: an unauthenticated client can send them."""
_HEADER_BYTES_MAX = 512
_NODE, _READER = "node", "reader"
_KEY_OF = {_NODE: "bookies", _READER: "bookie readers"}
_CLAIMS = {_NODE: ["sub", "aud", "iat", "exp"], _READER: ["sub", "aud", "iat", "exp", "ledgers"]}
_ANY_BOOKIE = "bookies"
_ALGORITHM = "HS256"
_TO_THE_END = -1
"""The last entry of a range that includes entries still to be written."""

Prove = Callable[[str], bytes]
"""Takes a bookie's id and returns the token for that bookie."""


class Proof(NamedTuple):
    identity: Identity
    topic: str | None = None
    """`namespace/topic`; the proof holds only while the principal may consume it."""
    ledgers: Mapping[int, EntryRange] | None = None
    """None for a node, which may read all."""
    standing: Standing | None = None
    """The proof that the token was given out for; None for tokens of 0.1, which do not say."""


class TooManyLedgers(OctavoError):
    name = "too-many-ledgers"


class ReaderToken(NamedTuple):
    token: str
    expires_at_s: int


class BookieTokens:
    def __init__(self, secret: ClusterSecret, clock: Callable[[], int]) -> None:
        self._keys = {kind: secret.key(use) for kind, use in _KEY_OF.items()}
        self._clock = clock

    def node(self, name: str, bookie_id: str) -> bytes:
        now_s = self._now_s()
        return self._signed(
            _NODE,
            {"sub": f"node:{name}", "aud": bookie_id, "iat": now_s, "exp": now_s + NODE_TOKEN_S},
        ).encode()

    def reader(
        self,
        identity: Identity,
        topic: str | None,
        ledgers: Iterable[int],
        life_s: int = READER_TOKEN_S,
        *,
        parts: Mapping[int, EntryRange] | None = None,
    ) -> ReaderToken:
        """Return a token for reading `ledgers` as a whole and the ranges in `parts`, at any bookie.

        It ends no later than the identity's own proof. Raises `TooManyLedgers`.
        """
        some = sorted((parts or {}).items())
        named = sorted(set(ledgers).difference(parts or ()))
        if len(named) + len(some) > LEDGERS_MAX:
            raise TooManyLedgers(
                f"{len(named) + len(some)} ledgers, and a reader's token names at most "
                f"{LEDGERS_MAX}: ask for fewer of them, by offset or partition"
            )
        now_s = self._now_s()
        end_s = now_s + life_s
        if identity.expires_at_s is not None:
            end_s = min(end_s, int(identity.expires_at_s))
        claims: dict[str, Any] = {
            "sub": identity.name,
            "aud": _ANY_BOOKIE,
            "iat": now_s,
            "exp": end_s,
            "groups": sorted(identity.groups),
            # A topic's ledger ids lie close together: differences take less room.
            "ledgers": [one - before for before, one in zip([0, *named], named, strict=False)],
        }
        if some:  # a bookie that does not know this claim refuses these ledgers: safe
            claims["parts"] = [
                [one, entries.first, _TO_THE_END if entries.last == ENTRY_MAX else entries.last]
                for one, entries in some
            ]
        if topic is not None:
            claims["topic"] = topic
        if not identity.is_node:  # a node has no user record; its right ends with the secret
            claims["record"], claims["mark"] = identity.standing
        return ReaderToken(self._signed(_READER, claims), end_s)

    def verify(self, token: bytes, bookie_id: str) -> Proof:
        """Return what `token` proves to this bookie.

        Raises `Unauthenticated`, whose message shows no part of the token.
        """
        kind, claims = self._claims(token, bookie_id)
        now_s, since_s, end_s = self._now_s(), claims["iat"], claims["exp"]
        if not all(type(one) is int for one in (since_s, end_s)):
            raise Unauthenticated("the token's times are not whole seconds")
        apart_s = CLOCKS_APART_S if kind == _NODE else 0
        if now_s >= end_s + apart_s:
            raise Unauthenticated(
                f"the token ended {now_s - end_s} s ago: ask for another one, or set the clocks"
            )
        if now_s < since_s - CLOCKS_APART_S:
            raise Unauthenticated(
                f"the token starts {since_s - now_s} s from now: set the clocks of both machines"
            )
        try:
            if kind == _NODE:
                name = checked_principal(claims["sub"], "node")
                return Proof(Identity(name, source="node"))
            name, groups = claims["sub"], claims.get("groups", [])
            if name != "anonymous":
                checked_principal(name, "user", "node")
            if not isinstance(groups, list):
                raise InvalidPrincipal("groups are a list")
            for group in groups:
                checked_principal(group, "group")
            topic = claims.get("topic")
            if not isinstance(topic, str | None):
                raise InvalidPrincipal("a topic is text")
            standing = _standing_of(claims)
        except (InvalidPrincipal, TypeError, AttributeError) as error:
            raise Unauthenticated(f"the token names no principal: {error}") from None
        identity = Identity(name, frozenset(groups), "token", float(end_s))
        ledgers = _ledgers_of(claims["ledgers"], claims.get("parts", []))
        return Proof(identity, topic, ledgers, standing)

    def _claims(self, token: bytes, bookie_id: str) -> tuple[str, dict[str, Any]]:
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthenticated(
                f"{len(token)} bytes are too long for a token: it has at most {TOKEN_BYTES_MAX}"
            )
        if not 0 < token.find(b".") <= _HEADER_BYTES_MAX:
            raise Unauthenticated("the token cannot be read: it is not a JWT")
        try:
            kind = jwt.get_unverified_header(token).get("kid")
            if kind not in self._keys:
                raise Unauthenticated(
                    "this is not a token for bookies: a node makes its token from the cluster's "
                    "secret, a reader gets one from a broker (reader-token)"
                )
            claims = jwt.decode(
                token,
                self._keys[kind],
                algorithms=[_ALGORITHM],
                audience=bookie_id if kind == _NODE else _ANY_BOOKIE,
                options={
                    "require": _CLAIMS[kind],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.InvalidAudienceError:
            raise Unauthenticated(f"the token is for another bookie; this is {bookie_id}") from None
        except jwt.InvalidSignatureError:
            raise Unauthenticated(
                "the token is not signed with this cluster's secret: is that the right cluster?"
            ) from None
        except (jwt.PyJWTError, RecursionError, ValueError, TypeError) as error:
            raise Unauthenticated(f"the token cannot be read ({type(error).__name__})") from None
        return kind, claims

    def _signed(self, kind: str, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self._keys[kind], algorithm=_ALGORITHM, headers={"kid": kind})

    def _now_s(self) -> int:
        return self._clock() // 1000


def prover(tokens: BookieTokens, name: str) -> Prove:
    shown = name if is_principal_name(name) else "unnamed"
    return lambda bookie_id: tokens.node(shown, bookie_id)


async def node_prover(store: MetadataStore, name: str, clock: Callable[[], int]) -> Prove:
    return prover(BookieTokens(await cluster_secret(store), clock), name)


def _standing_of(claims: dict[str, Any]) -> Standing | None:
    if "record" not in claims and "mark" not in claims:
        return None
    record, mark = claims.get("record"), claims.get("mark")
    if type(record) is not int or not isinstance(mark, str):
        raise InvalidPrincipal("record is a number, and mark is text")
    return Standing(record, mark)


def _ledgers_of(whole: object, parts: object) -> Mapping[int, EntryRange]:
    if not isinstance(whole, list) or not isinstance(parts, list):
        raise _names_none()
    if len(whole) + len(parts) > LEDGERS_MAX:
        raise _names_none()
    found: dict[int, EntryRange] = {}
    last = 0
    for step in whole:
        if type(step) is not int or not 0 <= step < 2**63:
            raise _names_none()
        last += step
        found[last] = WHOLE
    for part in parts:
        if not isinstance(part, list) or [type(one) for one in part] != [int, int, int]:
            raise _names_none()
        ledger_id, first, end = part
        end = ENTRY_MAX if end == _TO_THE_END else end
        if not (0 <= ledger_id < 2**63 and 0 <= first < 2**63 and 0 <= end < 2**63):
            raise _names_none()
        found[ledger_id] = EntryRange(first, end)
    return found


def _names_none() -> Unauthenticated:
    return Unauthenticated("the token names no ledgers")
