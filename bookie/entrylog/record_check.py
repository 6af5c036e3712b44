"""Find what is wrong with the body of an entry log record. Pure: bytes in, faults out.

The extent's checksum proves the bytes, whatever digest the ledger uses. An entry's own digest is
checked if the writer said that it is CRC32C.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from octavo.bookie.adds import FALSE_LAC, split_adds
from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.entrylog.format import Record
from octavo.protocol.codes import OctavoError
from octavo.protocol.frames import LENGTH


class Fault(NamedTuple):
    kind: DamageKind
    offset: int
    """The offset from the first byte of the frames."""
    length: int
    first: int
    last: int


def frame_faults(record: Record, frames: bytes) -> list[Fault]:
    """Empty when the body is good."""
    if crc32c(frames) != record.frames_crc or len(frames) != record.frames_bytes:
        return [_whole(DamageKind.EXTENT_CHECKSUM, record)]
    try:
        found = split_adds(memoryview(frames), 0, record.frames_bytes)
    except OctavoError:
        return [_whole(DamageKind.WRONG_RECORD, record)]
    spans = [(run.ledger_id, run.first_entry, run.last_entry) for _, run in found.batches]
    refused = [(bad.ledger_id, bad.entry_id, bad.entry_id) for bad in found.refused]
    expected = record.first_entry
    in_order = found.end == len(frames) and spans == sorted(spans)
    for ledger_id, first, last in sorted([*spans, *refused]):
        in_order = in_order and ledger_id == record.ledger_id and first == expected
        expected = last + 1
    if not in_order or expected != record.last_entry + 1:
        return [_whole(DamageKind.WRONG_RECORD, record)]
    # An older version accepted false LACs. Readers ignore them (`Entry.known_lac`).
    bad_ids = [bad.entry_id for bad in found.refused if bad.reason != FALSE_LAC]
    return _bad_entries(record, frames, bad_ids) if bad_ids else []


def _whole(kind: DamageKind, record: Record) -> Fault:
    return Fault(kind, 0, record.frames_bytes, record.first_entry, record.last_entry)


def _bad_entries(record: Record, frames: bytes, entry_ids: list[int]) -> list[Fault]:
    faults: list[Fault] = []
    offset, entry_id = 0, record.first_entry
    wanted = iter(sorted(entry_ids))
    following = next(wanted, None)
    while following is not None:
        size = LENGTH.size + LENGTH.unpack_from(frames, offset)[0]
        if entry_id == following:
            faults.append(Fault(DamageKind.ENTRY_DIGEST, offset, size, entry_id, entry_id))
            following = next(wanted, None)
        offset += size
        entry_id += 1
    return faults
