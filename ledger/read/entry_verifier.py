"""Check an entry's bytes and make an `Entry`, as fast as possible.

The usual case costs half of `octavo.protocol.entry.unpack_entry`: `bytes` under CRC32C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from crc32c import crc32c

from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.entry import HEADER_BYTES, DigestType, Entry, digest_for, unpack_entry

EntryVerifier = Callable[[int, bytes], Entry]
"""(entry id or −1 for any, bytes) → the entry. Raises `DigestMismatch`."""

_FRONT = struct.Struct(">qqqqI")
_FRONT_BYTES = _FRONT.size


def verifier_for(metadata: LedgerMetadata) -> EntryVerifier:
    digest = digest_for(metadata.digest_type, metadata.password)
    ledger_id = metadata.ledger_id

    def open_any(entry_id: int, data: bytes) -> Entry:
        entry = unpack_entry(digest, ledger_id, entry_id, data)
        return entry._replace(payload=bytes(entry.payload))

    def open_crc32c(entry_id: int, data: bytes) -> Entry:
        if len(data) < _FRONT_BYTES:
            return open_any(entry_id, data)  # raises the error that says what is wrong
        found_ledger, found_entry, lac, length, digest_found = _FRONT.unpack_from(data)
        payload = data[_FRONT_BYTES:]
        if (
            found_ledger != ledger_id
            or found_entry != entry_id
            or crc32c(payload, crc32c(data[:HEADER_BYTES])) != digest_found
        ):
            return open_any(entry_id, data)
        return Entry(found_ledger, found_entry, lac, length, payload)

    return open_crc32c if metadata.digest_type is DigestType.CRC32C else open_any
