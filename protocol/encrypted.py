"""An encrypted entry's payload: bookies, journals and objects hold it instead of the message.

    sealed := version:u8 = 0xE1  nonce:12  ciphertext  tag:16
    nonce  := writer:4 entry_id:u64
    aad    := version:u8 ledger_id:u64 entry_id:u64

All integers are big-endian. The cipher is AES-256-GCM, from a library; the ciphertext is as long as
the payload. The associated data makes an entry useless in another place: in another ledger, or
under another id. It does not include header fields that may change when an entry is copied (the
LAC; in some of Apache's replicators the length). docs/formats/encrypted_entry.md has a worked
example.

A nonce is never used twice with the same data key. A ledger's key is drawn for that ledger alone. A
ledger has a single writer in its life: a recovery that fences it only adds entries that it has
read, unchanged. A writer seals each entry id, which is in the nonce, once, and resends the bytes
that it kept. The writer draws the four bytes before the id at random, in case any of this ever
fails.
"""

from __future__ import annotations

import struct
from typing import Protocol

from cryptography.exceptions import InvalidTag

from octavo.protocol.entry import Buffer

VERSION = 0xE1
"""Neither a record batch (it begins with the high byte of an offset) nor UTF-8 text begins so."""
WRITER_BYTES = 4
FRONT_BYTES = 13
TAG_BYTES = 16
OVERHEAD_BYTES = FRONT_BYTES + TAG_BYTES
"""How much longer than its payload a sealed payload is."""
KEY_BYTES = 32

_FRONT = struct.Struct(">B4sQ")
_AAD = struct.Struct(">BQQ")


class Cipher(Protocol):
    """`AESGCM` of the library `cryptography`, with a ledger's data key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        """Return ciphertext and tag."""

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes, /) -> bytes:
        """Return what was encrypted. Raises `InvalidTag`."""


class NotSealed(Exception):
    """Bytes that this key never sealed for this place. The text says what is wrong with them."""


def seal(cipher: Cipher, writer: bytes, ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """Encrypt the payload. Never call it twice for an id with the same `writer` (4 bytes) and
    key."""
    front = _FRONT.pack(VERSION, writer, entry_id)
    return front + cipher.encrypt(front[1:], payload, _AAD.pack(VERSION, ledger_id, entry_id))


def unseal(cipher: Cipher, ledger_id: int, entry_id: int, sealed: Buffer) -> bytes:
    """Return the payload that was sealed for this place. Raises `NotSealed`."""
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
    """Whether it may be an encrypted payload, for tools without a key."""
    return len(payload) >= OVERHEAD_BYTES and payload[0] == VERSION
