"""Passwords, and what is kept of them: SCRAM's keys, from which nobody learns the password. Pure.

One credential serves SCRAM and, where a password comes as it is (HTTP Basic, PLAIN), its check: the
keys are computed of it and compared. RFC 5802, RFC 7677; the arithmetic is `scramp`'s.
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
"""Of new credentials: the most that Kafka's tools take."""
ITERATIONS_MIN = 4096
"""RFC 7677."""
ITERATIONS_MAX = 1_000_000
SALT_BYTES = 16
SALT_BYTES_MIN = 12
PASSWORD_CHARS_MIN = 8
PASSWORD_CHARS_MAX = 1024
PLAIN_BYTES_MAX = 8192
WRONG = "user or password is wrong"
"""What a caller is told whatever it was: nobody learns which users there are."""
_KEY_BYTES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}


class InvalidPassword(OctavoError):
    """A password or user's name that is not taken. The message says what is."""

    name = "invalid-password"


@dataclass(frozen=True, slots=True)
class Credential:
    """What is kept of a password for one mechanism."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def make_credential(
    mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS
) -> Credential:
    """The credential of a new password. Takes milliseconds. Raises `InvalidPassword`."""
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise InvalidPassword(
            f"a password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters, "
            f"this has {len(password)}"
        )
    try:
        return _credential(mechanism, password, salt, iterations)
    except ScramException:
        raise InvalidPassword(
            "a password holds no control characters and none that is not assigned (RFC 4013)"
        ) from None


def is_password(mechanism: str, password: str, credential: Credential) -> bool:
    """Whether it is that of the credential. Takes milliseconds, whatever comes."""
    try:
        found = _credential(mechanism, password, credential.salt, credential.iterations)
    except ScramException:
        # As long as any other one.
        _credential(mechanism, "wrong", credential.salt, credential.iterations)
        return False
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def made_up(mechanism: str, user: str, key: bytes) -> Credential:
    """For a user that there is not: the same one each time, as for one that there is."""
    long = _KEY_BYTES[mechanism]
    digest = hmac.digest(key, f"{mechanism} {user}".encode(errors="replace"), "sha512")
    return Credential(digest[:SALT_BYTES], ITERATIONS, digest[-long:], digest[:long])


def is_credential(mechanism: str, credential: Credential) -> bool:
    """Whether one that was read can be used."""
    return (
        len(credential.salt) >= SALT_BYTES_MIN
        and ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX
        and len(credential.stored_key) == len(credential.server_key) == _KEY_BYTES[mechanism]
    )


def checked_user(name: str) -> str:
    """`name`, if a user can be called so. Raises `InvalidPassword`."""
    try:
        if is_principal_name(name) and saslprep(name) == name:
            return name
    except ScramException:
        pass
    raise InvalidPassword(
        f"{name[:60]!r} is no name of a user: 1 to 249 characters without spaces and control "
        "characters, in their normal form (NFKC)"
    )


def parse_basic(value: str) -> tuple[str, str]:
    """User and password of what stands behind `Basic`. Raises `Unauthenticated`."""
    if len(value) > PLAIN_BYTES_MAX:
        raise Unauthenticated("the Basic credentials are too long")
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except ValueError:
        raise Unauthenticated("the Basic credentials are no base64 of UTF-8") from None
    user, colon, password = text.partition(":")
    if not colon:
        raise Unauthenticated("the Basic credentials are no user:password")
    return user, password


def parse_plain(message: bytes) -> tuple[str, str]:
    """User and password of a message of SASL PLAIN (RFC 4616). Raises `Unauthenticated`."""
    if len(message) > PLAIN_BYTES_MAX:
        raise Unauthenticated("the PLAIN message is too long")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise Unauthenticated("the PLAIN message is no UTF-8") from None
    if len(parts) != 3 or not parts[1]:
        raise Unauthenticated("the PLAIN message is not: who to be, NUL, user, NUL, password")
    as_whom, user, password = parts
    if as_whom not in ("", user):
        raise Unauthenticated("the PLAIN message asks to be another user")
    return user, password


def _credential(mechanism: str, password: str, salt: bytes, iterations: int) -> Credential:
    made = ScramMechanism(mechanism).make_auth_info(
        password[: PASSWORD_CHARS_MAX + 1], iteration_count=iterations, salt=salt
    )
    return Credential(made[0], made[3], made[1], made[2])
