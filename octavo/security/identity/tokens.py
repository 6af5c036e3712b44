"""The cluster's own tokens, made by `octavo token create`.

They are JWTs, signed (HS256) with a key derived from the cluster's secret. A token ends when it
expires, or when its user is disabled, deleted, or revokes its tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import jwt

from octavo.security.identity.token_form import Claims, Token, WrongSignature, checked_claims
from octavo.security.principal import Unauthenticated, checked_principal

ISSUER = "octavo"
AUDIENCE = "octavo"
KID = "octavo"
"""Names the key, and so the issuer, before anything is verified."""
TOKEN_KEY_USE = "tokens"
TTL_S_MAX = 3650 * 86_400

_ALGORITHM = "HS256"
_SIGNATURES = jwt.PyJWS(algorithms=[_ALGORITHM])


def issue(
    key: bytes,
    principal: str,
    *,
    ttl_s: float,
    now_s: float,
    groups: Iterable[str] = (),
    audience: str = AUDIENCE,
    rng: random.Random | None = None,
) -> str:
    """Make a token for `principal` (`user:alice`), valid for `ttl_s` seconds.

    `groups` as `group:staff`. `key`: the cluster's key for `TOKEN_KEY_USE`. Raises
    `InvalidPrincipal`.
    """
    assert 0 < ttl_s <= TTL_S_MAX
    claims = {
        "iss": ISSUER,
        "aud": audience,
        "sub": _name(checked_principal(principal, "user")),
        "iat": int(now_s),
        "exp": int(now_s + ttl_s),
        "jti": (rng or random.SystemRandom()).randbytes(12).hex(),
        "groups": [_name(checked_principal(one, "group")) for one in groups],
    }
    return _signed(key, claims, KID)


def verify(key: bytes, token: Token, *, now_s: float, audience: str = AUDIENCE) -> Claims:
    claims = _verified(key, token, KID)
    found = checked_claims(claims, issuer=ISSUER, audience=audience, now_s=now_s)
    if found.issued_at_s is None:
        raise Unauthenticated("the token does not say when it was issued (iat)")
    return found


def _name(principal: str) -> str:
    return principal.partition(":")[2]


def _signed(key: bytes, claims: dict[str, Any], kid: str) -> str:
    return jwt.encode(claims, key, algorithm=_ALGORITHM, headers={"kid": kid})


def _verified(key: bytes, token: Token, kid: str) -> dict[str, Any]:
    if token.kid != kid or token.algorithm != _ALGORITHM:
        raise Unauthenticated("the token is not this cluster's")
    try:
        _SIGNATURES.decode(token.text, key, algorithms=[_ALGORITHM])
    except jwt.PyJWTError as error:
        raise WrongSignature("the token's signature is wrong") from error
    return token.claims
