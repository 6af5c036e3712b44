"""Principals and identities of callers, and their errors. Pure.

A principal is a kind and a name: `user:alice`, `group:staff`, `role:operators`, `node:broker-1`. A
caller without proof is `anonymous`.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from octavo.protocol.codes import KafkaCode, OctavoError

NAME_CHARS_MAX = 249
PRINCIPAL_RULE = (
    "a principal is user:NAME, group:NAME or role:NAME, its name 1 to 249 characters without "
    "spaces, or * for every caller; user:* is every authenticated user"
)
KINDS = ("user", "group", "role", "node")
ANYBODY = "*"
ANY_USER = "user:*"

_NAME = re.compile(rf"[!-~\xa1-\ud7ff]{{1,{NAME_CHARS_MAX}}}")


class Unauthenticated(OctavoError):
    """The caller's proof is not valid, or it showed none where one is needed."""

    name = "unauthenticated"
    http_status = 401
    kafka = KafkaCode.SASL_AUTHENTICATION_FAILED


class Forbidden(OctavoError):
    name = "forbidden"
    http_status = 403
    kafka = KafkaCode.TOPIC_AUTHORIZATION_FAILED


class InvalidPrincipal(OctavoError):
    name = "invalid-principal"
    http_status = 422


class Standing(NamedTuple):
    """The user record and key that a proof rests on.

    A token given out for this proof records it, so that the token ends together with the proof.
    """

    record: int = -1
    """The version of the user's record when the proof was checked; −1: no record."""
    mark: str = ""
    """`certificate:SERIAL` or `api-key:HASH`, in hex; empty for other proofs."""


class Identity(NamedTuple):
    name: str
    """A principal: `user:alice`, `node:broker-1`, `anonymous`."""
    groups: frozenset[str] = frozenset()
    """Groups as principals: `group:staff`."""
    source: str = "none"
    """The kind of proof: `certificate`, `token`, `api-key`, `password`, `node`, `none`."""
    expires_at_s: float | None = None
    """When the proof ends, in seconds since 1970; None: it does not end."""
    standing: Standing = Standing()

    @property
    def is_node(self) -> bool:
        return self.name.startswith("node:")


ANONYMOUS = Identity("anonymous")


class Shown(NamedTuple):
    authorization: str | None = None
    certificate: bytes | None = None
    """DER; the TLS handshake has verified it."""
    peer: str = "unknown"

    def __repr__(self) -> str:
        """Leave out the secrets."""
        return f"Shown(peer={self.peer!r})"


class Authenticates(Protocol):
    async def identify(self, shown: Shown) -> Identity: ...

    def at_hand(self, shown: Shown) -> Identity | None:
        """Return the identity if it was verified before and still holds. Does not wait."""


def checked_principal(text: str, *kinds: str) -> str:
    """Return `text` if it is a principal and has one of these kinds (default: any).

    Raises `InvalidPrincipal`.
    """
    kind, colon, name = text.partition(":")
    if colon and kind in (kinds or KINDS) and _NAME.fullmatch(name):
        return text
    if not kinds and text == ANYBODY:
        return text
    shown = text if len(text) <= 60 else text[:60] + "…"
    raise InvalidPrincipal(f"{shown!r} is not a principal that fits here: {PRINCIPAL_RULE}")


def is_principal_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name != ANYBODY
