"""Public keys of another issuer. The key decides the algorithm, never the token. Pure.

So a token that says `none`, or that uses a public key as an HS256 secret, finds no key. Secrets
(`oct`) and private keys are refused. RFC 7517, RFC 8725.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from octavo.security.identity.token_form import Token, WrongSignature
from octavo.security.settings import SecurityError

PUBLIC_KEYS_MAX = 100
TRIED_MAX = 8
"""Every key without a name may have signed a token: bound the tries."""
RSA_BITS_MIN = 2048

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = (*RSA, *CURVES.values(), "EdDSA")
_SIGNATURES = jwt.PyJWS(algorithms=ALGORITHMS)
_KINDS: dict[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


class PublicKey(NamedTuple):
    kid: str
    algorithms: frozenset[str]
    key: Any


KeySet = tuple[PublicKey, ...]


def parse_keys(data: bytes) -> KeySet:
    """Parse PEM, a JWK or a JWKS. Raises `SecurityError` if any key cannot be used."""
    if b"-----BEGIN" in data:
        return _checked(_of_pem(kind, text) for kind, text in _pems(data))
    return _checked(map(_of_jwk, _jwks(data)))


def parse_jwks(data: bytes) -> KeySet:
    """Parse an issuer's JWKS, skipping keys of other uses or kinds. Raises `SecurityError`."""
    found = []
    for one in _jwks(data):
        try:
            found.append(_of_jwk(one))
        except SecurityError:
            continue
    return tuple(found)


def fitting(keys: KeySet, token: Token) -> KeySet:
    found = [
        key
        for key in keys
        if token.algorithm in key.algorithms and (not key.kid or key.kid == token.kid)
    ]
    return tuple(found[:TRIED_MAX])


def verify_signature(token: Token, keys: KeySet) -> None:
    for one in keys:
        try:
            _SIGNATURES.decode(token.text, one.key, algorithms=[token.algorithm])
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        return
    raise WrongSignature("the token's signature is wrong")


def _checked(keys: Iterable[PublicKey]) -> KeySet:
    found = tuple(keys)
    if not found:
        raise SecurityError("no public key found: use PEM (PUBLIC KEY), a JWK or a JWKS")
    if len(found) > PUBLIC_KEYS_MAX:
        raise SecurityError(f"more than {PUBLIC_KEYS_MAX} keys")
    return found


def _pems(data: bytes) -> Iterable[tuple[str, bytes]]:
    return ((match[1].decode(), match[0]) for match in _PEM.finditer(data))


def _of_pem(kind: str, text: bytes) -> PublicKey:
    if "PRIVATE" in kind:
        raise SecurityError("holds a private key, which only the issuer may have: remove it")
    try:
        return _of_key("", load_pem_public_key(text), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SecurityError(f"holds a {kind} that is not a public key: {error}") from error


def _jwks(data: bytes) -> list[Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SecurityError("the keys are neither PEM nor JSON") from error
    keys = found.get("keys", [found]) if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > PUBLIC_KEYS_MAX:
        raise SecurityError(f"this is not a JWK, nor a JWKS with up to {PUBLIC_KEYS_MAX} keys")
    return keys


def _of_jwk(jwk: Any) -> PublicKey:
    if not isinstance(jwk, dict) or not isinstance(jwk.get("kty"), str):
        raise SecurityError("a key is not a JWK")
    if jwk["kty"] not in _KINDS or jwk.get("use", "sig") != "sig":
        raise SecurityError("a key is not a signature key of kind RSA, EC or OKP (Ed25519)")
    if "d" in jwk:
        raise SecurityError("holds a private key, which only the issuer may have: remove it")
    kid, algorithm = jwk.get("kid", ""), jwk.get("alg")
    if not isinstance(kid, str) or not isinstance(algorithm, str | None):
        raise SecurityError("a JWK's kid or alg is not text")
    try:
        key = _KINDS[jwk["kty"]].from_jwk(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SecurityError(f"a JWK is not a valid {jwk['kty']} key") from error
    return _of_key(kid, key, algorithm)


def _of_key(kid: str, key: Any, only: str | None) -> PublicKey:
    may: tuple[str, ...] = ()
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise SecurityError(f"an RSA key has {key.key_size} bits: use {RSA_BITS_MIN} or more")
        may = RSA
    elif isinstance(key, ec.EllipticCurvePublicKey):
        may = tuple(CURVES[one] for one in (key.curve.name,) if one in CURVES)
    elif isinstance(key, ed25519.Ed25519PublicKey):
        may = ("EdDSA",)
    algorithms = frozenset(one for one in may if only in (None, one))
    if not algorithms:
        raise SecurityError("a key fits no supported algorithm: use " + ", ".join(ALGORITHMS))
    return PublicKey(kid, algorithms, key)
