"""Read a sealed entry log back, and find what the index still points to. Blocking.

Every byte must belong to a good record: a bad header once made a live log look empty, and removable
(BookKeeper #4607).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind
from octavo.bookie.entrylog.format import (
    FILE_HEADER_BYTES,
    FOOTER,
    Extent,
    Location,
    Record,
    decode_file_header,
    file_name,
)
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.entrylog.walk import LogWalk, ledgers_map
from octavo.bookie.index.index import IndexedExtent, LedgerIndex
from octavo.protocol.codes import BookieIOError
from octavo.protocol.frames import ADD_IDS, LENGTH


class Stored(NamedTuple):
    record: Record
    location: Location
    frames: bytes


class LogEnd(NamedTuple):
    offset: int
    bytes_of: dict[int, int] | None
    """None for a log that was not sealed."""


def log_end(logs: EntryLogs, log_id: int) -> LogEnd:
    """Find the log's end. Raises `DamagedRead` when the log cannot be trusted."""
    path = logs.path_of(log_id)
    header = logs.read_bytes(log_id, 0, FILE_HEADER_BYTES)
    if decode_file_header(header) != log_id:
        raise DamagedRead(
            f"entry log {path}: {decode_file_header(header)}",
            Damage(DamageKind.FILE_HEADER, path, 0, FILE_HEADER_BYTES),
        )
    size = logs.size_of(log_id)
    sealed = ledgers_map(logs.reader(log_id), size)
    if sealed is None:
        return LogEnd(size, None)
    offset, bytes_of = sealed
    if bytes_of is None:
        raise DamagedRead(
            f"entry log {path}: its ledgers map is damaged",
            Damage(
                *(DamageKind.LEDGERS_MAP, path),
                *(min(offset, size), max(0, size - FOOTER.size - offset)),
            ),
        )
    return LogEnd(offset, bytes_of)


def read_slice(
    logs: EntryLogs, log_id: int, offset: int, end: int, bytes_max: int
) -> tuple[list[Stored], int]:
    """Read about `bytes_max` bytes of records; also return where the next record begins.

    Raises `DamagedRead` at the first wrong byte.
    """
    found: list[Stored] = []
    walk = LogWalk(logs.reader(log_id), log_id, start=offset, end=end, window_bytes=bytes_max)
    while not found or (walk.offset < end and walk.is_ahead):
        location, record, frames, fault = walk.next()
        if record is None:
            assert fault is not None
            raise _damaged(logs, log_id, location.offset, end, fault)
        if fault is not None or crc32c(frames) != record.frames_crc:
            start, behind = location.offset, location.offset + location.length
            raise _damaged(logs, log_id, start, behind, DamageKind.EXTENT_CHECKSUM, record)
        found.append(Stored(record, location, frames))
    return found, walk.offset


def _damaged(
    logs: EntryLogs,
    log_id: int,
    start: int,
    end: int,
    kind: DamageKind,
    record: Record | None = None,
) -> DamagedRead:
    path = logs.path_of(log_id)
    damage = Damage(kind, path, start, end - start)
    if record is not None:
        damage = damage._replace(
            ledger_id=record.ledger_id, first=record.first_entry, last=record.last_entry
        )
    return DamagedRead(f"entry log {path} is damaged from byte {start} on: {kind.value}", damage)


def live_in(index: LedgerIndex, one: Stored) -> list[IndexedExtent]:
    """Return the index's extents that point to this very record."""
    record = one.record
    runs = index.runs(record.ledger_id, record.first_entry, record.last_entry)
    return [run for run in runs if run.location == one.location]


def live_parts(index: LedgerIndex, found: Sequence[Stored]) -> list[Extent]:
    parts: list[Extent] = []
    for one in found:
        for run in live_in(index, one):
            frames = cut_frames(one, run.first, run.last)
            count = run.last - run.first + 1
            parts.append(Extent(run.ledger_id, run.first, count, [frames], len(frames)))
    return parts


def cut_frames(one: Stored, first: int, last: int) -> bytes:
    """Cut the frames of these entries. Raises `BookieIOError` when header and frames differ."""
    record, frames = one.record, one.frames
    start = position = 0
    end = len(frames)
    for expected in range(record.first_entry, record.last_entry + 1):
        if len(frames) - position < ADD_IDS.size:
            raise _not_held(one, expected)
        length, _, _, ledger_id, entry_id = ADD_IDS.unpack_from(frames, position)
        if (ledger_id, entry_id) != (record.ledger_id, expected):
            raise _not_held(one, expected)
        if entry_id == first:
            start = position
        position += LENGTH.size + length
        if entry_id == last:
            end = position
    if position != len(frames) or not record.first_entry <= first <= last <= record.last_entry:
        raise _not_held(one, first)
    return frames if (start, end) == (0, len(frames)) else frames[start:end]


def _not_held(one: Stored, entry_id: int) -> BookieIOError:
    at = one.location
    return BookieIOError(
        f"entry log {file_name(at.log_id)} at byte {at.offset}: entry {entry_id} of ledger "
        f"{one.record.ledger_id} is not where the record's header has it"
    )
