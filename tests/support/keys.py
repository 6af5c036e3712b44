"""Keys for tests: a key file, and a key service that can forget keys and be down."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from octavo.keys import change_text
from octavo.security.keys.config import KeysConfig
from octavo.security.keys.key_file import NamespaceKey, with_key, without_keys

RECHECK_MS = 50


def key_of(number: int, namespace: str = "public") -> NamespaceKey:
    return NamespaceKey(namespace, f"k{number}", bytes([number]) * 32)


def key_file(folder: Path, *keys: NamespaceKey) -> KeysConfig:
    """Write a file with these keys, and return the settings that name it. The last key wraps."""
    path = folder / "keys"
    for key in keys:
        add_key(path, key)
    return KeysConfig(file=str(path), recheck_ms=RECHECK_MS)


def add_key(path: Path, key: NamespaceKey) -> None:
    change_text(path, lambda text: with_key(text, key))


def forget(path: Path, namespace: str = "public", key_id: str | None = None) -> None:
    change_text(path, lambda text: without_keys(text, namespace, key_id))


class MemoryKms:
    def __init__(self) -> None:
        self.keys: dict[str, list[tuple[str, bytes]]] = {}
        self.away: Exception | None = None
        self.asked = 0

    def add(self, namespace: str, key_id: str) -> None:
        self.keys.setdefault(namespace, []).insert(0, (key_id, AESGCM.generate_key(256)))

    def wrap(self, namespace: str, data_key: bytes) -> tuple[str, bytes]:
        self._answers()
        key_id, key = self.keys[namespace][0]
        nonce = len(data_key).to_bytes(4, "big") + self.asked.to_bytes(8, "big")
        return key_id, nonce + AESGCM(key).encrypt(nonce, data_key, namespace.encode())

    def unwrap(self, namespace: str, key_id: str, wrapped: bytes) -> bytes:
        self._answers()
        key = dict(self.keys[namespace])[key_id]
        try:
            return AESGCM(key).decrypt(wrapped[:12], wrapped[12:], namespace.encode())
        except InvalidTag:
            raise KeyError(key_id) from None

    def _answers(self) -> None:
        self.asked += 1
        if self.away is not None:
            raise self.away


KMS = MemoryKms()


def connect() -> MemoryKms:
    """The factory that a setting names: `tests.support.keys:connect`."""
    return KMS
