"""API keys: long random texts, of which a file holds the hashes. For the small. Pure.

    # name:SHA-256 in hex[:group,group]
    shop:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08:writers

A key has 256 bits of chance, so its plain hash gives nothing away, and nobody finds one by trying.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
from collections.abc import Iterable, Mapping

from octavo.security.principal import (
    Identity,
    Standing,
    Unauthenticated,
    is_principal_name,
)
from octavo.security.settings import SecurityError

KEY_PREFIX = "octavo_"
"""So that a key is known for one, by us and by those who look for secrets in code."""
KEY_BYTES = 32
API_KEYS_MAX = 100_000
KEY_MARK = "api-key:"
"""Of a `Standing`; behind it stands the key's hash."""
_KEY_CHARS_MAX = 200
_HASH = re.compile(r"[0-9a-f]{64}")

ApiKeys = Mapping[bytes, Identity]
"""By the key's hash. Who looks by a hash learns nothing from how long it takes: to come nearer to
one that is there he would have to choose hashes, and he can only choose keys."""


def make_key(rng: random.Random) -> str:
    """A new key."""
    return KEY_PREFIX + base64.urlsafe_b64encode(rng.randbytes(KEY_BYTES)).decode().rstrip("=")


def line_of(name: str, key: str, groups: Iterable[str] = ()) -> str:
    """What the file is to say of a key."""
    return ":".join((name, hashlib.sha256(key.encode()).hexdigest(), ",".join(groups))).rstrip(":")


def parse_api_keys(data: bytes) -> ApiKeys:
    """What a file says. Raises `SecurityError`, which never shows a line: it may hold a key."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise SecurityError("no text in UTF-8") from error
    found: dict[bytes, Identity] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, rest = text.partition(":")
        digest, _, names = rest.partition(":")
        groups = [one.strip() for one in names.split(",")] if names else []
        if not is_principal_name(name) or not _HASH.fullmatch(digest):
            raise SecurityError(
                f"line {number} is no name:SHA-256 in hex, as `octavo user key` makes it"
            )
        if not all(map(is_principal_name, groups)):
            raise SecurityError(f"line {number} names a group that can be none")
        identity = Identity(
            f"user:{name}",
            frozenset(f"group:{one}" for one in groups),
            "api-key",
            standing=Standing(mark=f"{KEY_MARK}{digest}"),
        )
        if found.setdefault(bytes.fromhex(digest), identity) != identity:
            raise SecurityError(f"line {number} has the key of another line for another user")
        if len(found) > API_KEYS_MAX:
            raise SecurityError(f"more than {API_KEYS_MAX} keys")
    return found


def identity_of_key(key: str, keys: ApiKeys) -> Identity:
    """Whose key it is. Raises `Unauthenticated`."""
    if len(key) <= _KEY_CHARS_MAX:
        found = keys.get(hashlib.sha256(key.encode(errors="replace")).digest())
        if found is not None:
            return found
    raise Unauthenticated("the API key is none that is known here")
