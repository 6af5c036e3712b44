"""A foreign token issuer: its keys, and tokens that it or an impostor signed."""

from __future__ import annotations

import json
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.support.identities import NOW_S

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ISSUER = "https://login.example"
FOREIGN = {"jwt_issuer": ISSUER, "jwt_audience": "octavo"}
KEY = b"k" * 32


def public(key: Any) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def jwk(key: Any, **how: Any) -> dict[str, Any]:
    kinds: dict[Any, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    [kind] = [one for of, one in kinds.items() if isinstance(key, of)]
    return {**kind.to_jwk(key.public_key(), as_dict=True), **how}


def claims(**how: Any) -> dict[str, Any]:
    made = {"iss": ISSUER, "aud": "octavo", "sub": "alice", "iat": NOW_S, "exp": NOW_S + 600, **how}
    return {name: value for name, value in made.items() if value is not None}


def signed(key: Any, algorithm: str, said: dict[str, Any] | None = None, **header: Any) -> str:
    return jwt.encode(said or claims(), key, algorithm=algorithm, headers=header)


def sealed(said: Any, key: Any, algorithm: str, kid: str = "") -> str:
    """Sign any content, even what token libraries refuse to make."""
    return jwt.PyJWS().encode(json.dumps(said).encode(), key, algorithm, {"kid": kid})
