"""Tokens, good and false. Made by hand, not by the code under attack."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

ISSUER = AUDIENCE = KID = "octavo"
_OF_ALGORITHM = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}


def packed(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def claims_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return a good token's claims; changes to None leave a claim out."""
    now = int(time.time())
    found = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now - 1, "exp": now + 3600,
        "jti": "00" * 12, "groups": [], **changes,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value is not None}


def signed(
    key: bytes,
    claims: Mapping[str, Any] | str,
    *,
    algorithm: str = "HS256",
    kid: str | None = KID,
    **head: Any,
) -> str:
    """Sign with `key`, whatever its `algorithm` says."""
    named = {"alg": algorithm, "typ": "JWT", **({} if kid is None else {"kid": kid}), **head}
    text = claims if isinstance(claims, str) else json.dumps(claims)
    body = f"{packed(json.dumps(named).encode())}.{packed(text.encode())}"
    digest = _OF_ALGORITHM.get(algorithm, hashlib.sha256)
    return f"{body}.{packed(hmac.digest(key, body.encode(), digest))}"


def unsigned(claims: Mapping[str, Any], algorithm: str, **head: Any) -> str:
    return signed(b"", claims, algorithm=algorithm, **head).rpartition(".")[0] + "."
