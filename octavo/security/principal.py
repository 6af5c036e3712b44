"""Who a caller is: the words for it, and what goes wrong. Pure.

A principal is text of a kind and a name: `user:alice`, `group:staff`, `role:operators`,
`node:broker-1`. Somebody who showed nothing is `anonymous`.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from octavo.protocol.codes import OctavoError

NAME_CHARS_MAX = 249
PRINCIPAL_RULE = (
    "a principal is user:NAME, group:NAME or role:NAME, its name 1 to 249 characters without "
    "spaces, or * for anybody; user:* is anybody who is known"
)
"""For people."""
KINDS = ("user", "group", "role", "node")
ANYBODY = "*"
ANY_USER = "user:*"

_NAME = re.compile(rf"[!-~\xa1-\ud7ff]{{1,{NAME_CHARS_MAX}}}")


class Unauthenticated(OctavoError):
    """What a caller showed does not prove who they are, or nothing was shown and is needed."""

    name = "unauthenticated"


class Forbidden(OctavoError):
    """A known caller asked for what no rule allows them."""

    name = "forbidden"


class InvalidPrincipal(OctavoError):
    """Text that names no principal."""

    name = "invalid-principal"


class Standing(NamedTuple):
    """What a proof rests on: for those who are shown something that was given out for it, so that
    it ends with what it was given for."""

    record: int = -1
    """The version of the user's record by which they were judged; −1: there was none."""
    mark: str = ""
    """Which of their certificates or API keys it was: `certificate:SERIAL`, `api-key:HASH`, both in
    hexadecimal digits; empty for other proofs, and for those that it does not say of."""


class Identity(NamedTuple):
    """Who a caller is, as far as they have proved it."""

    name: str
    """A principal: `user:alice`, `node:broker-1`, `anonymous`."""
    groups: frozenset[str] = frozenset()
    """Principals too: `group:staff`."""
    source: str = "none"
    """What proved it: `certificate`, `token`, `api-key`, `password`, `node`, `none`."""
    expires_at_s: float | None = None
    """When the proof ends, in seconds since 1970; None when it does not."""
    standing: Standing = Standing()

    @property
    def is_node(self) -> bool:
        """Whether it is a process of this cluster."""
        return self.name.startswith("node:")


ANONYMOUS = Identity("anonymous")


class Shown(NamedTuple):
    """What a caller shows of themselves."""

    authorization: str | None = None
    """The header `Authorization`."""
    certificate: bytes | None = None
    """The client's certificate (DER), which the TLS handshake has checked."""
    peer: str = "unknown"
    """The address that they come from."""

    def __repr__(self) -> str:
        """What is shown is secret."""
        return f"Shown(peer={self.peer!r})"


class Authenticates(Protocol):
    """Says who a caller is, by what they show."""

    async def identify(self, shown: Shown) -> Identity:
        """Anonymous when nothing is shown. Raises `Unauthenticated`."""

    def at_hand(self, shown: Shown) -> Identity | None:
        """The same without waiting: only what was verified before, and still holds."""


def checked_principal(text: str, *kinds: str) -> str:
    """`text`, if it names a principal of one of `kinds` (by default any). Raises
    `InvalidPrincipal`."""
    kind, colon, name = text.partition(":")
    if colon and kind in (kinds or KINDS) and _NAME.fullmatch(name):
        return text
    if not kinds and text == ANYBODY:
        return text
    shown = text if len(text) <= 60 else text[:60] + "…"
    raise InvalidPrincipal(f"{shown!r} is no principal here: {PRINCIPAL_RULE}")


def is_principal_name(name: str) -> bool:
    """Whether `name` can stand behind the colon of a principal."""
    return _NAME.fullmatch(name) is not None and name != ANYBODY
