"""The text of a key file. Pure.

    # comments, and empty lines
    namespace key-id base64-of-32-bytes

A namespace's first key wraps the data keys of new ledgers; all its keys unwrap. A process that can
read the file can read the data; without the file, the data is lost.
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
HEADER = (
    "# Octavo's keys. Whoever reads this file reads the data; whoever loses it loses the data.\n"
)


class NamespaceKey(NamedTuple):
    namespace: str
    key_id: str
    key: bytes

    def __repr__(self) -> str:
        return f"NamespaceKey({self.namespace!r}, {self.key_id!r})"


def parse(what: str, text: str) -> tuple[NamespaceKey, ...]:
    """Parse the keys, in the file's order. Raises `InvalidKeys`, which names file and line."""
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
            raise InvalidKeys(f"{where}: the first word is not a namespace: {NAME_RULE}")
        if not is_key_id(key_id):
            raise InvalidKeys(f"{where}: the second word is not a key id: {KEY_ID_RULE}")
        try:
            key = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            key = b""
        if len(key) != KEY_BYTES:
            raise InvalidKeys(f"{where}: the third word is not {KEY_BYTES} bytes in base64")
        if any((namespace, key_id) == (one.namespace, one.key_id) for one in found):
            raise InvalidKeys(f"{where}: namespace {namespace} already has a key {key_id}")
        found.append(NamespaceKey(namespace, key_id, key))
    return tuple(found)


def with_key(text: str, added: NamespaceKey) -> str:
    """Add a key before the namespace's other keys, so that it wraps from now on."""
    encoded = base64.b64encode(added.key).decode()
    line = f"{added.namespace} {added.key_id} {encoded}\n"
    lines = (text or HEADER).splitlines(keepends=True)
    at = next((n for n, one in enumerate(lines) if _is_of(one, added.namespace, None)), len(lines))
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return "".join([*lines[:at], line, *lines[at:]])


def without_keys(text: str, namespace: str, key_id: str | None = None) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(one for one in lines if not _is_of(one, namespace, key_id))


def _is_of(line: str, namespace: str, key_id: str | None) -> bool:
    words = line.split()
    if len(words) != 3 or words[0] != namespace:
        return False
    return key_id is None or words[1] == key_id
