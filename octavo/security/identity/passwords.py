"""Passwords, and the SCRAM keys stored for them, which do not reveal the password. Pure.

A plain password (HTTP Basic, SASL PLAIN) is checked by computing the same keys. RFC 5802, RFC 7677;
`scramp` does the arithmetic.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field

from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from octavo.protocol.codes import OctavoError
from octavo.security.principal import Unauthenticated, is_principal_name

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS = 16_384
"""Iterations of new credentials: the most that Kafka's tools accept."""
ITERATIONS_MIN = 4096
"""The least that RFC 7677 allows."""
ITERATIONS_MAX = 1_000_000
SALT_BYTES = 16
SALT_BYTES_MIN = 12
PASSWORD_CHARS_MIN = 8
PASSWORD_CHARS_MAX = 1024
PLAIN_BYTES_MAX = 8192
WRONG = "user or password is wrong"
"""One text for every cause, so that it does not reveal which users exist."""
_KEY_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}


class InvalidPassword(OctavoError):
    name = "invalid-password"


@dataclass(frozen=True, slots=True)
class Credential:
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def make_credential(
    mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS
) -> Credential:
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise InvalidPassword(
            f"a password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters, "
            f"this has {len(password)}"
        )
    try:
        return _credential(mechanism, password, salt, iterations)
    except ScramException:
        raise InvalidPassword(
            "a password must not hold control characters or unassigned characters (RFC 4013)"
        ) from None


def is_password(mechanism: str, password: str, credential: Credential) -> bool:
    """Check a password; takes equally long for any input."""
    try:
        found = _credential(mechanism, password, credential.salt, credential.iterations)
    except ScramException:
        # A refusal must take as long as a real check.
        _credential(mechanism, "wrong", credential.salt, credential.iterations)
        return False
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def made_up(mechanism: str, user: str, key: bytes) -> Credential:
    """Return a credential for an unknown user, always the same for a name."""
    long = _KEY_BYTES[mechanism]
    digest = hmac.digest(key, f"{mechanism} {user}".encode(errors="replace"), "sha512")
    return Credential(digest[:SALT_BYTES], ITERATIONS, digest[-long:], digest[:long])


def is_credential(mechanism: str, credential: Credential) -> bool:
    return (
        len(credential.salt) >= SALT_BYTES_MIN
        and ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX
        and len(credential.stored_key) == len(credential.server_key) == _KEY_BYTES[mechanism]
    )


def checked_user(name: str) -> str:
    try:
        if is_principal_name(name) and saslprep(name) == name:
            return name
    except ScramException:
        pass
    raise InvalidPassword(
        f"{name[:60]!r} cannot be a user's name: use 1 to 249 characters without spaces and "
        "control characters, in their normal form (NFKC)"
    )


def parse_basic(value: str) -> tuple[str, str]:
    if len(value) > PLAIN_BYTES_MAX:
        raise Unauthenticated("the Basic credentials are too long")
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except ValueError:
        raise Unauthenticated("the Basic credentials are not base64 of UTF-8") from None
    user, colon, password = text.partition(":")
    if not colon:
        raise Unauthenticated("the Basic credentials are not user:password")
    return user, password


def parse_plain(message: bytes) -> tuple[str, str]:
    if len(message) > PLAIN_BYTES_MAX:
        raise Unauthenticated("the PLAIN message is too long")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise Unauthenticated("the PLAIN message is not UTF-8") from None
    if len(parts) != 3 or not parts[1]:
        raise Unauthenticated("a PLAIN message must be: authzid, NUL, user, NUL, password")
    as_whom, user, password = parts
    if as_whom not in ("", user):
        raise Unauthenticated("the PLAIN message asks for another user's rights (authzid)")
    return user, password


def _credential(mechanism: str, password: str, salt: bytes, iterations: int) -> Credential:
    made = ScramMechanism(mechanism).make_auth_info(
        password[: PASSWORD_CHARS_MAX + 1], iteration_count=iterations, salt=salt
    )
    return Credential(made[0], made[3], made[1], made[2])
