"""The text of a key file: which keys each namespace has. Pure.

    # comments, and empty lines
    namespace key-id base64-of-32-bytes

The first key of a namespace wraps the data keys of new ledgers; all of them unwrap. Whoever can
read the file can read the data, so it belongs to its owner alone; and whoever loses it has lost the
data.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from octavo.protocol.encrypted import KEY_BYTES
from octavo.protocol.names import NAME_RULE, is_name
from octavo.security.keys.errors import InvalidKeys
from octavo.security.keys.wrapped import KEY_ID_RULE, is_key_id

FILE_BYTES_MAX = 4 * 1024 * 1024
"""A longer file is no key file: it is not read."""
HEADER = (
    "# Octavo's keys. Whoever reads this file reads the data; whoever loses it loses the data.\n"
)


class NamespaceKey(NamedTuple):
    """One key of a namespace."""

    namespace: str
    key_id: str
    key: bytes

    def __repr__(self) -> str:
        return f"NamespaceKey({self.namespace!r}, {self.key_id!r})"


def parse(what: str, text: str) -> tuple[NamespaceKey, ...]:
    """The keys in the order of the file. Raises `InvalidKeys`, which names file and line."""
    found: list[NamespaceKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        where = f"{what} line {number}"
        words = stripped.split()
        if len(words) != 3:
            raise InvalidKeys(
                f"{where} has {len(words)} words; a line is a namespace, a key's id and "
                f"{KEY_BYTES} bytes in base64"
            )
        namespace, key_id, encoded = words
        if not is_name(namespace):
            raise InvalidKeys(f"{where}: its first word names no namespace: {NAME_RULE}")
        if not is_key_id(key_id):
            raise InvalidKeys(f"{where}: its second word is no id: {KEY_ID_RULE}")
        try:
            key = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            key = b""
        if len(key) != KEY_BYTES:
            raise InvalidKeys(f"{where}: its third word is not {KEY_BYTES} bytes in base64")
        if any((namespace, key_id) == (one.namespace, one.key_id) for one in found):
            raise InvalidKeys(f"{where}: namespace {namespace} has a key {key_id} already")
        found.append(NamespaceKey(namespace, key_id, key))
    return tuple(found)


def with_key(text: str, added: NamespaceKey) -> str:
    """The text with another key, before all that its namespace has: it wraps from now on."""
    encoded = base64.b64encode(added.key).decode()
    line = f"{added.namespace} {added.key_id} {encoded}\n"
    lines = (text or HEADER).splitlines(keepends=True)
    at = next((n for n, one in enumerate(lines) if _is_of(one, added.namespace, None)), len(lines))
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines[:at], line, *lines[at:]])


def without_keys(text: str, namespace: str, key_id: str | None = None) -> str:
    """The text without the namespace's keys, or without that one of them."""
    lines = text.splitlines(keepends=True)
    return "".join(one for one in lines if not _is_of(one, namespace, key_id))


def _is_of(line: str, namespace: str, key_id: str | None) -> bool:
    words = line.split()
    if len(words) != 3 or words[0] != namespace:
        return False
    return key_id is None or words[1] == key_id
