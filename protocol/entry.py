"""An entry: 32-byte header, digest, payload; and the keys derived from a ledger's password.

    entry  := ledger_id:i64 entry_id:i64 last_add_confirmed:i64 length:i64 digest payload
    digest := crc32c:u32 | crc32:u64 | hmac_sha1:20 bytes | nothing

Integers are big-endian. `length` is the ledger's payload bytes up to and including this entry. The
digest covers header and payload. These are BookKeeper's bytes exactly (docs/formats/entry.md).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from typing import NamedTuple, Protocol

from octavo.protocol.checksum import crc32c
from octavo.protocol.codes import DigestMismatch

INVALID_ENTRY_ID = -1
"""The LAC before an entry is confirmed; the last entry of an empty ledger."""

HEADER = struct.Struct(">qqqq")
HEADER_BYTES = HEADER.size
MASTER_KEY_BYTES = 20
LAC_ALONE = struct.Struct(">qq")
"""The digest of an explicit LAC covers them."""
_CRC32C = struct.Struct(">I")
_CRC32 = struct.Struct(">Q")

Buffer = bytes | bytearray | memoryview
ENTRY_MAX = 2**63 - 1


class EntryRange(NamedTuple):
    """The entries from `first` to `last`, both included."""

    first: int = 0
    last: int = ENTRY_MAX

    def has(self, entry_id: int) -> bool:
        return self.first <= entry_id <= self.last

    def covers(self, other: EntryRange) -> bool:
        return self.first <= other.first and other.last <= self.last


WHOLE = EntryRange()
"""All entries of a ledger, future entries included."""


class DigestType(enum.IntEnum):
    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class Entry(NamedTuple):
    """`payload` may be a view into a larger buffer: copy it to keep it."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: Buffer

    @property
    def known_lac(self) -> int:
        """Return up to where the ledger was certainly confirmed when this entry was written.

        Its writer could not know that the entry itself is confirmed. Copies by Apache's replicator
        may claim it: ignore that.
        """
        return min(self.last_add_confirmed, self.entry_id - 1)


def master_key(password: bytes) -> bytes:
    """Proves the right to write or fence: SHA-1("ledger" + password)."""
    return hashlib.sha1(b"ledger" + password).digest()


class Digest(Protocol):
    """Stateless after construction, safe to share."""

    size: int

    def compute(self, header: Buffer, payload: Buffer) -> bytes: ...


class _Crc32c:
    size = 4

    def compute(self, header: Buffer, payload: Buffer) -> bytes:
        return _CRC32C.pack(crc32c(payload, crc32c(header)))


class _Crc32:
    size = 8

    def compute(self, header: Buffer, payload: Buffer) -> bytes:
        return _CRC32.pack(zlib.crc32(payload, zlib.crc32(header)))


class _Hmac:
    size = 20

    def __init__(self, password: bytes) -> None:
        self._key = hashlib.sha1(b"mac" + password).digest()

    def compute(self, header: Buffer, payload: Buffer) -> bytes:
        mac = hmac.new(self._key, header, hashlib.sha1)
        mac.update(payload)
        return mac.digest()


class _Dummy:
    size = 0

    def compute(self, header: Buffer, payload: Buffer) -> bytes:  # noqa: ARG002
        return b""


def digest_for(kind: DigestType, password: bytes) -> Digest:
    match kind:
        case DigestType.CRC32C:
            return _Crc32c()
        case DigestType.CRC32:
            return _Crc32()
        case DigestType.HMAC:
            return _Hmac(password)
        case DigestType.DUMMY:
            return _Dummy()


def pack_entry(
    digest: Digest, ledger_id: int, entry_id: int, lac: int, length: int, payload: Buffer
) -> bytes:
    header = HEADER.pack(ledger_id, entry_id, lac, length)
    return b"".join((header, digest.compute(header, payload), payload))


def pack_lac(digest: Digest, ledger_id: int, lac: int) -> bytes:
    """Encode ledger, LAC and digest, as BookKeeper's writers sign it."""
    front = LAC_ALONE.pack(ledger_id, lac)
    return front + digest.compute(front, b"")


def unpack_lac(digest: Digest, ledger_id: int, data: Buffer) -> int:
    """Raises `DigestMismatch`."""
    front = bytes(data[: LAC_ALONE.size])
    if len(front) == LAC_ALONE.size and bytes(data[LAC_ALONE.size :]) == digest.compute(front, b""):
        found, lac = LAC_ALONE.unpack(front)
        if found == ledger_id:
            return int(lac)
    raise DigestMismatch(f"ledger {ledger_id}: its explicit LAC does not match its digest")


def unpack_entry(digest: Digest, ledger_id: int, entry_id: int, data: Buffer) -> Entry:
    """Check `data` and decode it; `entry_id` −1 accepts any entry of the ledger.

    Raises `DigestMismatch`: this replica gives no answer, but the entry may exist.
    """
    view = memoryview(data)
    start = HEADER_BYTES + digest.size
    if len(view) < start:
        raise DigestMismatch(
            f"ledger {ledger_id} entry {entry_id}: {len(view)} bytes are fewer than the {start} "
            "of header and digest"
        )
    found_ledger, found_entry, lac, length = HEADER.unpack_from(view)
    if found_ledger != ledger_id or (entry_id != INVALID_ENTRY_ID and found_entry != entry_id):
        raise DigestMismatch(
            f"asked for ledger {ledger_id} entry {entry_id}, "
            f"got ledger {found_ledger} entry {found_entry}"
        )
    payload = view[start:]
    if view[HEADER_BYTES:start] != digest.compute(view[:HEADER_BYTES], payload):
        raise DigestMismatch(f"ledger {ledger_id} entry {found_entry}: digest does not match")
    return Entry(ledger_id, found_entry, lac, length, payload)
