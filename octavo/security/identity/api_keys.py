"""API keys: random texts, whose hashes are in a file. Pure.

    # name:SHA-256 in hex[:group,group]
    shop:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08:writers

A key has 256 random bits, so its plain hash does not reveal it.
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
"""Tools that search code for secrets recognise it."""
KEY_BYTES = 32
API_KEYS_MAX = 100_000
KEY_MARK = "api-key:"
_KEY_CHARS_MAX = 200
_HASH = re.compile(r"[0-9a-f]{64}")

ApiKeys = Mapping[bytes, Identity]
"""API keys by hash. A dictionary lookup is safe from timing attacks: callers cannot choose hashes.
"""


def make_key(rng: random.Random) -> str:
    return KEY_PREFIX + base64.urlsafe_b64encode(rng.randbytes(KEY_BYTES)).decode().rstrip("=")


def line_of(name: str, key: str, groups: Iterable[str] = ()) -> str:
    return ":".join((name, hashlib.sha256(key.encode()).hexdigest(), ",".join(groups))).rstrip(":")


def parse_api_keys(data: bytes) -> ApiKeys:
    """Parse the file. Raises `SecurityError`, which shows no line: it may hold a key."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise SecurityError("the file is not UTF-8 text") from error
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
                f"line {number} is not name:SHA-256 in hex, as `octavo user key` makes it"
            )
        if not all(map(is_principal_name, groups)):
            raise SecurityError(f"line {number} has a group that cannot be a group's name")
        identity = Identity(
            f"user:{name}",
            frozenset(f"group:{one}" for one in groups),
            "api-key",
            standing=Standing(mark=f"{KEY_MARK}{digest}"),
        )
        if found.setdefault(bytes.fromhex(digest), identity) != identity:
            raise SecurityError(f"line {number} repeats the key of another user")
        if len(found) > API_KEYS_MAX:
            raise SecurityError(f"more than {API_KEYS_MAX} keys")
    return found


def identity_of_key(key: str, keys: ApiKeys) -> Identity:
    if len(key) <= _KEY_CHARS_MAX:
        found = keys.get(hashlib.sha256(key.encode(errors="replace")).digest())
        if found is not None:
            return found
    raise Unauthenticated("the API key is not known here")
