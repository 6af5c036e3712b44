"""An encrypted entry's payload: what bookies, journals and objects hold instead of the message.

    sealed := version:u8 = 0xE1  nonce:12  ciphertext  tag:16
    nonce  := writer:4 entry_id:u64
    aad    := version:u8 ledger_id:u64 entry_id:u64

All integers are big-endian. The ciphertext is as long as the payload; AES-256-GCM, by a library.
The associated data makes an entry worthless in another place: in another ledger, under another id.
Header fields that change when a copy is made anew (the LAC; in some of Apache's replicators the
length) are no part of it. docs/formats/encrypted_entry.md has a worked example.

A nonce never comes twice under one data key. A ledger's key is drawn for that ledger alone, a
ledger has one writer in its life (who fences it may only add what it has read, as it is), and a
writer seals each entry id once: what it sends again are the bytes it kept. The id is in the nonce.
The four bytes before it are drawn by the writer, should any of that ever fail.
"""

from __future__ import annotations

import struct
from typing import Protocol

from cryptography.exceptions import InvalidTag

from octavo.protocol.entry import Buffer

VERSION = 0xE1
"""No record batch begins so (its first byte is the high one of an offset), nor text in UTF-8."""
WRITER_BYTES = 4
FRONT_BYTES = 13
TAG_BYTES = 16
OVERHEAD_BYTES = FRONT_BYTES + TAG_BYTES
"""What a sealed payload is longer."""
KEY_BYTES = 32

_FRONT = struct.Struct(">B4sQ")
_AAD = struct.Struct(">BQQ")


class Cipher(Protocol):
    """`AESGCM` of the library `cryptography`, with a ledger's data key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        """Ciphertext and tag."""

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes, /) -> bytes:
        """What was encrypted. Raises `InvalidTag`."""


class NotSealed(Exception):
    """Bytes that this key never sealed for this place. The text says what is wrong with them."""


def seal(cipher: Cipher, writer: bytes, ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """The payload, encrypted. Never twice for one id with one `writer` (4 bytes) and key."""
    front = _FRONT.pack(VERSION, writer, entry_id)
    return front + cipher.encrypt(front[1:], payload, _AAD.pack(VERSION, ledger_id, entry_id))


def unseal(cipher: Cipher, ledger_id: int, entry_id: int, sealed: Buffer) -> bytes:
    """The payload that was sealed for this place. Raises `NotSealed`."""
    if len(sealed) < OVERHEAD_BYTES:
        raise NotSealed(f"holds {len(sealed)} bytes, fewer than the {OVERHEAD_BYTES} around each")
    if sealed[0] != VERSION:
        raise NotSealed(f"begins with {sealed[0]:#04x}; encrypted ones begin with {VERSION:#04x}")
    view = memoryview(sealed)
    try:
        return cipher.decrypt(
            bytes(view[1:FRONT_BYTES]),
            view[FRONT_BYTES:],
            _AAD.pack(VERSION, ledger_id, entry_id),
        )
    except InvalidTag:
        raise NotSealed("was not written so, here, under the ledger's data key") from None


def looks_sealed(payload: Buffer) -> bool:
    """Whether it may be an encrypted payload: for tools that have no key."""
    return len(payload) >= OVERHEAD_BYTES and payload[0] == VERSION
