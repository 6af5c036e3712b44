"""Headers with which brokers of former versions proved that they made a call. No broker
accepts them now; tests make them with the right key, so that a broker that did would show."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

BY, TO = "Octavo-Forwarded-By", "Octavo-Forwarded-To"
IDENTITY, NONCE = "Octavo-Forwarded-Identity", "Octavo-Forwarded-Nonce"
PROOF, SEAL = "Octavo-Forwarded-Proof", "Octavo-Forwarded-Seal"
ESCAPED = "Octavo-Forwarded-Escaped"
_COVERED = (BY, TO, "Octavo-Incarnation", ESCAPED)


def former_headers(
    key: bytes, caller: str, target: str, method: str, path: str, principal: str = "user:root"
) -> dict[str, str]:
    headers = {
        BY: caller, TO: target, IDENTITY: json.dumps([principal, [], "token", None]),
        NONCE: "0123456789abcdef-0",
    }  # fmt: skip
    for name, covered in ((PROOF, _COVERED), (SEAL, (*_COVERED, IDENTITY, NONCE))):
        headers[name] = _proof(key, covered, headers, method, path)
    return headers


def _proof(
    key: bytes, covered: Sequence[str], headers: dict[str, str], method: str, path: str
) -> str:
    fields = (method, path, *(headers.get(name, "") for name in covered))
    return hmac.digest(key, "\0".join(fields).encode(), hashlib.sha256).hex()
