"""Principals and identities: the words for a caller, and the errors. Pure.

A principal is text of a kind and a name: `user:alice`, `group:staff`, `role:operators`,
`node:broker-1`. A caller that showed no proof is `anonymous`.
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
"""For error messages."""
KINDS = ("user", "group", "role", "node")
ANYBODY = "*"
ANY_USER = "user:*"

_NAME = re.compile(rf"[!-~\xa1-\ud7ff]{{1,{NAME_CHARS_MAX}}}")


class Unauthenticated(OctavoError):
    """The caller's proof is not valid, or a proof is needed and was not shown."""

    name = "unauthenticated"
    http_status = 401
    kafka = KafkaCode.SASL_AUTHENTICATION_FAILED


class Forbidden(OctavoError):
    """No rule allows an authenticated caller what it asked for."""

    name = "forbidden"
    http_status = 403
    kafka = KafkaCode.TOPIC_AUTHORIZATION_FAILED


class InvalidPrincipal(OctavoError):
    """A text that is not a principal."""

    name = "invalid-principal"
    http_status = 422


class Standing(NamedTuple):
    """The user record and key that a proof rests on. A token that is given out for this proof
    records it, so that the token ends together with the proof."""

    record: int = -1
    """The version of the user's record when the proof was checked; −1: no record."""
    mark: str = ""
    """Which certificate or API key it was: `certificate:SERIAL`, `api-key:HASH`, both in hex; empty
    for other proofs, and where it is not known."""


class Identity(NamedTuple):
    """A caller, as far as it has proved who it is."""

    name: str
    """A principal: `user:alice`, `node:broker-1`, `anonymous`."""
    groups: frozenset[str] = frozenset()
    """The caller's groups, as principals: `group:staff`."""
    source: str = "none"
    """The kind of proof: `certificate`, `token`, `api-key`, `password`, `node`, `none`."""
    expires_at_s: float | None = None
    """When the proof ends, in seconds since 1970; None: it does not end."""
    standing: Standing = Standing()

    @property
    def is_node(self) -> bool:
        """Whether it is a process of this cluster."""
        return self.name.startswith("node:")


ANONYMOUS = Identity("anonymous")


class Shown(NamedTuple):
    """The proofs that a caller shows, not verified yet."""

    authorization: str | None = None
    """The header `Authorization`."""
    certificate: bytes | None = None
    """The client's certificate (DER); the TLS handshake has verified it."""
    peer: str = "unknown"
    """The caller's address."""

    def __repr__(self) -> str:
        """Leave out the secrets."""
        return f"Shown(peer={self.peer!r})"


class Authenticates(Protocol):
    """Finds out who a caller is."""

    async def identify(self, shown: Shown) -> Identity:
        """Return the caller's identity; `ANONYMOUS` without a proof. Raises `Unauthenticated`."""

    def at_hand(self, shown: Shown) -> Identity | None:
        """Return the identity if it was verified before and still holds. Does not wait."""


def checked_principal(text: str, *kinds: str) -> str:
    """Return `text` if it is a principal and its kind is in `kinds` (default: all kinds). Raises
    `InvalidPrincipal`."""
    kind, colon, name = text.partition(":")
    if colon and kind in (kinds or KINDS) and _NAME.fullmatch(name):
        return text
    if not kinds and text == ANYBODY:
        return text
    shown = text if len(text) <= 60 else text[:60] + "…"
    raise InvalidPrincipal(f"{shown!r} is not a principal that fits here: {PRINCIPAL_RULE}")


def is_principal_name(name: str) -> bool:
    """Return whether `name` can follow the colon of a principal."""
    return _NAME.fullmatch(name) is not None and name != ANYBODY
