"""What is shown to a bookie in AUTH: the token of a node, and that of a reader.

    node     whoever has the cluster's secret: brokers, bookies, tools. May do everything
    reader   a principal who may consume a topic, and what it has of which ledgers; read, for some
             minutes

Both are JWTs (HS256), each signed with a key of its own, made of the cluster's secret. A node's is
for one bookie by its id and short-lived, so that an impostor at the address of one bookie can do
nothing with it at another. A reader's names the topic and the entries that the topic has: ledgers
as a whole, and of a ledger that is shared with another topic or was truncated only a part. The
bookie asks its own policy once more whether the principal may consume that. And it says what it was
given out for: so it ends with that, wherever the bookie hears of its end (`Standing`).
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
"""So far apart may the clocks of two nodes be."""
READER_TOKEN_S = 600
"""The life of a reader's token; then its holder asks for another one."""
LEDGERS_MAX = 10_000
"""That one reader's token names."""
TOKEN_BYTES_MAX = 256 * 1024
"""Longer ones are not looked at: anybody can send one."""
_HEADER_BYTES_MAX = 512
_NODE, _READER = "node", "reader"
_KEY_OF = {_NODE: "bookies", _READER: "bookie readers"}
_CLAIMS = {_NODE: ["sub", "aud", "iat", "exp"], _READER: ["sub", "aud", "iat", "exp", "ledgers"]}
_ANY_BOOKIE = "bookies"
_ALGORITHM = "HS256"
_TO_THE_END = -1
"""In place of a part's last entry: also those that are still to come."""

Prove = Callable[[str], bytes]
"""From a bookie's id to the token that is shown to it."""


class Proof(NamedTuple):
    """What a caller of a bookie has proved."""

    identity: Identity
    topic: str | None = None
    """`namespace/topic`: the right to consume it is what the proof rests on."""
    ledgers: Mapping[int, EntryRange] | None = None
    """The ledgers that may be read, and their entries; None when the proof is not about them."""
    standing: Standing | None = None
    """What it was given out for; None when it says nothing of that, as those of 0.1 do."""


class TooManyLedgers(OctavoError):
    """More ledgers than one token may name. The message says how many may be."""

    name = "too-many-ledgers"


class ReaderToken(NamedTuple):
    """A token, and when it ends, in seconds since 1970."""

    token: str
    expires_at_s: int


class BookieTokens:
    """Makes and checks the tokens of one cluster."""

    def __init__(self, secret: ClusterSecret, clock: Callable[[], int]) -> None:
        """`clock` gives milliseconds since 1970."""
        self._keys = {kind: secret.key(use) for kind, use in _KEY_OF.items()}
        self._clock = clock

    def node(self, name: str, bookie_id: str) -> bytes:
        """That we are the node `name`, for one bookie."""
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
        """That `identity` may read `ledgers`, those of `topic`, and of other ledgers these `parts`,
        at any bookie; no longer than what it has proved itself holds. Raises `TooManyLedgers`."""
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
            # Ids of one topic lie close together: as distances they take a fraction of the room.
            "ledgers": [one - before for before, one in zip([0, *named], named, strict=False)],
        }
        if some:  # a bookie that does not know the claim refuses these ledgers
            claims["parts"] = [
                [one, entries.first, _TO_THE_END if entries.last == ENTRY_MAX else entries.last]
                for one, entries in some
            ]
        if topic is not None:
            claims["topic"] = topic
        if not identity.is_node:  # a node has no record, and what it may ends with the secret
            claims["record"], claims["mark"] = identity.standing
        return ReaderToken(self._signed(_READER, claims), end_s)

    def verify(self, token: bytes, bookie_id: str) -> Proof:
        """What `token` proves to this bookie. Raises `Unauthenticated`, which says what is wrong
        and shows nothing of the token."""
        kind, claims = self._claims(token, bookie_id)
        now_s, since_s, end_s = self._now_s(), claims["iat"], claims["exp"]
        if not all(type(one) is int for one in (since_s, end_s)):
            raise Unauthenticated("the token's times are no whole seconds")
        apart_s = CLOCKS_APART_S if kind == _NODE else 0
        if now_s >= end_s + apart_s:
            raise Unauthenticated(
                f"the token ended {now_s - end_s} s ago: ask for another one, or set the clocks"
            )
        if now_s < since_s - CLOCKS_APART_S:
            raise Unauthenticated(
                f"the token is of {since_s - now_s} s from now: set the clocks of the two machines"
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
            raise Unauthenticated(f"the token names nobody: {error}") from None
        identity = Identity(name, frozenset(groups), "token", float(end_s))
        ledgers = _ledgers_of(claims["ledgers"], claims.get("parts", []))
        return Proof(identity, topic, ledgers, standing)

    def _claims(self, token: bytes, bookie_id: str) -> tuple[str, dict[str, Any]]:
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthenticated(
                f"{len(token)} bytes are no token of ours: it has at most {TOKEN_BYTES_MAX}"
            )
        if not 0 < token.find(b".") <= _HEADER_BYTES_MAX:
            raise Unauthenticated("what was shown is no token")
        try:
            kind = jwt.get_unverified_header(token).get("kid")
            if kind not in self._keys:
                raise Unauthenticated(
                    "it is no token for bookies: nodes make theirs of the cluster's secret, "
                    "readers get theirs from a broker (reader-token)"
                )
            claims = jwt.decode(
                token,
                self._keys[kind],
                algorithms=[_ALGORITHM],
                audience=bookie_id if kind == _NODE else _ANY_BOOKIE,
                options={
                    "require": _CLAIMS[kind],
                    "verify_exp": False,  # by our clock, above
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.InvalidAudienceError:
            raise Unauthenticated(
                f"the token is for another bookie than this one, {bookie_id}"
            ) from None
        except jwt.InvalidSignatureError:
            raise Unauthenticated(
                "the token is not signed with this cluster's secret: is that the right cluster?"
            ) from None
        except (jwt.PyJWTError, RecursionError, ValueError, TypeError) as error:
            raise Unauthenticated(f"what was shown is no token ({type(error).__name__})") from None
        return kind, claims

    def _signed(self, kind: str, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self._keys[kind], algorithm=_ALGORITHM, headers={"kid": kind})

    def _now_s(self) -> int:
        return self._clock() // 1000


def prover(tokens: BookieTokens, name: str) -> Prove:
    """How the node `name` proves to bookies who it is."""
    shown = name if is_principal_name(name) else "unnamed"
    return lambda bookie_id: tokens.node(shown, bookie_id)


async def node_prover(store: MetadataStore, name: str, clock: Callable[[], int]) -> Prove:
    """The same for whoever has the metadata store. Raises `MetadataUnavailable`, `BadRecord`."""
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
