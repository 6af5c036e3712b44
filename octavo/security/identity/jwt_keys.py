"""Public keys of another issuer, and which algorithms each of them may verify. Pure.

The algorithm follows from the key, never from the token: a token that says `none`, or asks for a
public key to be taken as the secret of HS256, finds no key. Secrets (`oct`) and private keys are
none for this. RFC 7517, RFC 8725.
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
"""Keys for one token: those that say no name of their own may all be meant."""
RSA_BITS_MIN = 2048

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = (*RSA, *CURVES.values(), "EdDSA")
_SIGNATURES = jwt.PyJWS(algorithms=ALGORITHMS)
_KINDS: dict[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


class PublicKey(NamedTuple):
    """One key. `kid` is empty where it has no name."""

    kid: str
    algorithms: frozenset[str]
    key: Any


KeySet = tuple[PublicKey, ...]


def parse_keys(data: bytes) -> KeySet:
    """Of a file: PEM, a JWK or a JWKS. Raises `SecurityError`: in a file each must be of use."""
    if b"-----BEGIN" in data:
        return _checked(_of_pem(kind, text) for kind, text in _pems(data))
    return _checked(map(_of_jwk, _jwks(data)))


def parse_jwks(data: bytes) -> KeySet:
    """Of an issuer: keys for other uses, and of kinds that are not known here, are passed over.
    Raises `SecurityError`."""
    found = []
    for one in _jwks(data):
        try:
            found.append(_of_jwk(one))
        except SecurityError:
            continue
    return tuple(found)


def fitting(keys: KeySet, token: Token) -> KeySet:
    """Those that may have signed it."""
    found = [
        key
        for key in keys
        if token.algorithm in key.algorithms and (not key.kid or key.kid == token.kid)
    ]
    return tuple(found[:TRIED_MAX])


def verify_signature(token: Token, keys: KeySet) -> None:
    """One of `keys`, which fit, has signed it. Raises `WrongSignature`."""
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
        raise SecurityError("holds no public key: needed is PEM (PUBLIC KEY), a JWK or a JWKS")
    if len(found) > PUBLIC_KEYS_MAX:
        raise SecurityError(f"more than {PUBLIC_KEYS_MAX} keys")
    return found


def _pems(data: bytes) -> Iterable[tuple[str, bytes]]:
    return ((match[1].decode(), match[0]) for match in _PEM.finditer(data))


def _of_pem(kind: str, text: bytes) -> PublicKey:
    if "PRIVATE" in kind:
        raise SecurityError("holds a private key: it belongs to the issuer alone, take it out")
    try:
        return _of_key("", load_pem_public_key(text), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SecurityError(f"holds a {kind} that is no public key: {error}") from error


def _jwks(data: bytes) -> list[Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SecurityError("neither PEM nor JSON") from error
    keys = found.get("keys", [found]) if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > PUBLIC_KEYS_MAX:
        raise SecurityError(f"no JWK or JWKS with up to {PUBLIC_KEYS_MAX} keys")
    return keys


def _of_jwk(jwk: Any) -> PublicKey:
    if not isinstance(jwk, dict) or not isinstance(jwk.get("kty"), str):
        raise SecurityError("a key is no JWK")
    if jwk["kty"] not in _KINDS or jwk.get("use", "sig") != "sig":
        raise SecurityError("a key is none for signatures of RSA, EC or OKP (Ed25519)")
    if "d" in jwk:
        raise SecurityError("holds a private key: it belongs to the issuer alone, take it out")
    kid, algorithm = jwk.get("kid", ""), jwk.get("alg")
    if not isinstance(kid, str) or not isinstance(algorithm, str | None):
        raise SecurityError("a JWK's kid or alg is no text")
    try:
        key = _KINDS[jwk["kty"]].from_jwk(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SecurityError(f"a JWK is no key of its kind {jwk['kty']}") from error
    return _of_key(kid, key, algorithm)


def _of_key(kid: str, key: Any, only: str | None) -> PublicKey:
    may: tuple[str, ...] = ()
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise SecurityError(f"an RSA key has {key.key_size} bits: {RSA_BITS_MIN} are needed")
        may = RSA
    elif isinstance(key, ec.EllipticCurvePublicKey):
        may = tuple(CURVES[one] for one in (key.curve.name,) if one in CURVES)
    elif isinstance(key, ed25519.Ed25519PublicKey):
        may = ("EdDSA",)
    algorithms = frozenset(one for one in may if only in (None, one))
    if not algorithms:
        raise SecurityError("a key fits no algorithm: use " + ", ".join(ALGORITHMS))
    return PublicKey(kid, algorithms, key)
