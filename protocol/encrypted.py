"""An encrypted entry's payload.

    sealed := version:u8 = 0xE1  nonce:12  ciphertext  tag:16
    nonce  := writer:4 entry_id:u64
    aad    := version:u8 ledger_id:u64 entry_id:u64

Integers are big-endian; the cipher is AES-256-GCM. The associated data binds an entry to its place.
It leaves out header fields that a copy may change: the LAC, and with some of Apache's replicators
the length. Example: docs/formats/encrypted_entry.md.

A nonce is never used twice with a data key: the key belongs to one ledger with one writer, which
seals each entry id once and resends the same bytes. Its four random bytes are a second defence.
"""

from __future__ import annotations

import struct
from typing import Protocol

from cryptography.exceptions import InvalidTag

from octavo.protocol.entry import Buffer

VERSION = 0xE1
"""No record batch and no UTF-8 text begins so."""
WRITER_BYTES = 4
FRONT_BYTES = 13
TAG_BYTES = 16
OVERHEAD_BYTES = FRONT_BYTES + TAG_BYTES
KEY_BYTES = 32

_FRONT = struct.Struct(">B4sQ")
_AAD = struct.Struct(">BQQ")


class Cipher(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes, /) -> bytes:
        """Raises `InvalidTag`."""


class NotSealed(Exception):
    """This key never sealed these bytes for this place."""


def seal(cipher: Cipher, writer: bytes, ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """Seal a payload; never call it twice for an id with the same `writer` (4 bytes) and key."""
    front = _FRONT.pack(VERSION, writer, entry_id)
    return front + cipher.encrypt(front[1:], payload, _AAD.pack(VERSION, ledger_id, entry_id))


def unseal(cipher: Cipher, ledger_id: int, entry_id: int, sealed: Buffer) -> bytes:
    """Raises `NotSealed`."""
    if len(sealed) < OVERHEAD_BYTES:
        raise NotSealed(f"holds {len(sealed)} bytes, fewer than the {OVERHEAD_BYTES} around each")
    if sealed[0] != VERSION:
        raise NotSealed(f"begins with {sealed[0]:#04x}; encrypted payloads: {VERSION:#04x}")
    view = memoryview(sealed)
    try:
        return cipher.decrypt(
            bytes(view[1:FRONT_BYTES]),
            view[FRONT_BYTES:],
            _AAD.pack(VERSION, ledger_id, entry_id),
        )
    except InvalidTag:
        raise NotSealed("was not sealed for this entry under the ledger's data key") from None


def looks_sealed(payload: Buffer) -> bool:
    return len(payload) >= OVERHEAD_BYTES and payload[0] == VERSION
