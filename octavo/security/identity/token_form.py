"""Parse a JSON Web Token and check its claims. Verifies no signature. Pure.

Its length is bounded; duplicate keys are refused, as two parsers might believe different values.
Keys in the header (`jku`, `x5u`, `jwk`, `x5c`) are ignored. RFC 7519, RFC 8725.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.security.principal import Unauthenticated, is_principal_name

TOKEN_CHARS_MAX = 8192
LEEWAY_S = 30
"""How far an issuer's clock may be ahead of ours."""
GROUPS_MAX = 256
_SECONDS_MAX = 2**40

_PART = re.compile(r"[A-Za-z0-9_-]+")
_TYPES = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")


class WrongSignature(Unauthenticated):
    pass


@dataclass(frozen=True, slots=True)
class Token:
    """A token's parts; `claims` are untrusted until the signature is verified."""

    text: str = field(repr=False)
    algorithm: str
    kid: str
    """Empty if the token names no key."""
    claims: dict[str, Any] = field(repr=False)


class Claims(NamedTuple):
    name: str
    groups: frozenset[str]
    """Groups, without `group:`."""
    issued_at_s: float | None
    expires_at_s: float


def read_token(text: str) -> Token:
    """Parse a token. Raises only `Unauthenticated`, for any input."""
    if len(text) > TOKEN_CHARS_MAX:
        raise Unauthenticated(f"the token is longer than {TOKEN_CHARS_MAX} characters")
    parts = text.split(".")
    if len(parts) != 3 or not all(map(_PART.fullmatch, parts)):
        raise Unauthenticated("the token is not a signed JWT: three parts with a dot between")
    header, claims, _ = _object(parts[0]), _object(parts[1]), _bytes(parts[2])
    algorithm, kid, kind = header.get("alg"), header.get("kid", ""), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or not isinstance(kid, str) or not isinstance(kind, str):
        raise Unauthenticated("the token's header has an alg, kid or typ that is not text")
    if "crit" in header or "b64" in header:
        raise Unauthenticated("the token needs an extension that is not supported (crit, b64)")
    if kind.lower() not in _TYPES:
        raise Unauthenticated("the token's typ is neither JWT nor at+jwt")
    return Token(text, algorithm, kid, claims)


def checked_claims(
    claims: dict[str, Any],
    *,
    issuer: str,
    audience: str,
    now_s: float,
    principal_claim: str = "sub",
    groups_claim: str = "groups",
) -> Claims:
    """Return the claims if the token is for us and valid now. The caller has verified the
    signature.

    Raises `Unauthenticated`.
    """
    if claims.get("iss") != issuer:
        raise Unauthenticated("the token is of another issuer")
    for_whom = claims.get("aud")
    if audience not in (for_whom if isinstance(for_whom, list) else [for_whom]):
        raise Unauthenticated("the token is for another audience")
    expires_at_s = _time(claims, "exp")
    if expires_at_s is None:
        raise Unauthenticated("the token does not say when it expires (exp)")
    if expires_at_s <= now_s:
        raise Unauthenticated("the token has expired")
    not_before_s, issued_at_s = _time(claims, "nbf"), _time(claims, "iat")
    if not_before_s is not None and not_before_s > now_s + LEEWAY_S:
        raise Unauthenticated("the token is not valid yet (nbf)")
    if issued_at_s is not None and issued_at_s > now_s + LEEWAY_S:
        raise Unauthenticated("the token was issued in the future (iat): are the clocks right?")
    name = claims.get(principal_claim)
    if not isinstance(name, str) or not is_principal_name(name):
        raise Unauthenticated(f"the token's claim {principal_claim[:40]!r} names no user")
    return Claims(
        name, _groups(claims.get(groups_claim, []), groups_claim), issued_at_s, expires_at_s
    )


def _groups(value: Any, claim: str) -> frozenset[str]:
    groups = [value] if isinstance(value, str) else value
    if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
        raise Unauthenticated(
            f"the token's claim {claim[:40]!r} is not a list of up to {GROUPS_MAX} groups"
        )
    # An issuer may have groups of any name: skip names that no rule could match.
    return frozenset(one for one in groups if isinstance(one, str) and is_principal_name(one))


def _time(claims: dict[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"the token's {name} is not a time")
    if not 0 <= value < _SECONDS_MAX:  # also nan
        raise Unauthenticated(f"the token's {name} is not a time")
    return float(value)


def _object(part: str) -> dict[str, Any]:
    try:
        found = json.loads(
            _bytes(part).decode(), object_pairs_hook=_each_key_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise Unauthenticated("the token is damaged: a part is not JSON in base64url") from error
    if not isinstance(found, dict):
        raise Unauthenticated("the token is damaged: a part is not a JSON object")
    return found


def _bytes(part: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError as error:
        raise Unauthenticated("the token is damaged: a part is not base64url") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=") != part.encode():
        raise Unauthenticated("the token is damaged: a part is not base64url")
    return data


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unauthenticated("the token has the same key twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(text)  # NaN and Infinity are not JSON
