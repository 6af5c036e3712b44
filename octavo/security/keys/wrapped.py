"""The wrapped data key in a ledger's record. Pure.

    octavo.encryption := "1 " namespace " " key-id " " base64(wrapped data key)

It is stored in BookKeeper's field `customMetadata`, and in the record of an offloaded copy.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from octavo.metadata.store import BadRecord
from octavo.protocol.names import is_name

ENCRYPTION_KEY = "octavo.encryption"
KEY_ID_CHARS_MAX = 100
WRAPPED_BYTES_MAX = 256
"""A key service may add its own data to the 32 bytes."""
KEY_ID_RULE = f"a key's id has 1 to {KEY_ID_CHARS_MAX} of A-Z a-z 0-9 . _ : / -"
_VERSION = "1"
_KEY_ID = re.compile(rf"[A-Za-z0-9._:/-]{{1,{KEY_ID_CHARS_MAX}}}")


def is_key_id(text: str) -> bool:
    return _KEY_ID.fullmatch(text) is not None


class Wrapped(NamedTuple):
    namespace: str
    key_id: str
    wrapped: bytes

    @property
    def key_name(self) -> str:
        return f"{self.key_id} of namespace {self.namespace}"

    def encode(self) -> bytes:
        assert is_key_id(self.key_id), self.key_id
        assert len(self.wrapped) <= WRAPPED_BYTES_MAX
        text = base64.b64encode(self.wrapped).decode()
        return f"{_VERSION} {self.namespace} {self.key_id} {text}".encode()

    @classmethod
    def decode(cls, what: str, data: bytes) -> Wrapped:
        """Decode a wrapped key; `what` names the record in errors. Raises `BadRecord`."""
        try:
            version, namespace, key_id, text = data.decode("ascii").split(" ")
            wrapped = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise BadRecord(
                f"{what}: {ENCRYPTION_KEY} is not a version, a namespace, a key's id and the "
                "wrapped key in base64"
            ) from None
        if version != _VERSION:
            raise BadRecord(
                f"{what}: {ENCRYPTION_KEY} has version {version[:20]!r}; this Octavo knows "
                f"version {_VERSION}"
            )
        if not (is_name(namespace) and is_key_id(key_id) and len(wrapped) <= WRAPPED_BYTES_MAX):
            raise BadRecord(f"{what}: {ENCRYPTION_KEY} has an invalid namespace, key id or key")
        return cls(namespace, key_id, wrapped)
