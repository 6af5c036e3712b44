"""Takes a journal block apart again: add frames back into runs, meta records beside them. Pure."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator

from octavo.bookie.adds import AddBatch
from octavo.bookie.journal.format import META_VERSION, JournalDamaged, Meta, decode_meta
from octavo.protocol.frames import ADD_HEADER, ADD_IDS, LENGTH, PREFIX, Flag

_ADD = ADD_HEADER >> 16
_RECOVERY = int(Flag.RECOVERY_ADD)
_SAME_BYTES = ADD_IDS.size - 8
"""What of an add's frame is the same in all of a run: all that stands before the entry id."""


def records_of(body: bytes) -> Iterator[AddBatch | Meta]:
    """The records of a good block's body, in order. Raises `JournalDamaged`."""
    position, end = 0, len(body)
    while position < end:
        try:
            record, position = _next_record(body, position)
        except struct.error as error:
            raise JournalDamaged(f"a record does not fit into its good block: {error}") from error
        if position > end:
            raise JournalDamaged(f"a record ends {position - end} bytes behind its good block")
        yield record


def _next_record(body: bytes, start: int) -> tuple[AddBatch | Meta, int]:
    """The record at `start`, and where it ends. Raises `JournalDamaged`, `struct.error`."""
    length, head = PREFIX.unpack_from(body, start)
    if head >> 16 == _ADD:
        return _next_run(body, start)
    if head >> 24 == META_VERSION:
        return decode_meta(body, start), start + LENGTH.size + length
    raise JournalDamaged(f"unknown record {head:#010x} in a block whose checksum is good")


def _next_run(body: bytes, start: int) -> tuple[AddBatch, int]:
    """The longest run of adds that belong together from `start`, and where it ends."""
    length, head, key, ledger_id, first = ADD_IDS.unpack_from(body, start)
    same_length, end = True, len(body)
    count = _alike(body, start, 4 + length)
    position = start + count * (4 + length)
    offsets = list(range(0, position - start, 4 + length))
    while end - position >= ADD_IDS.size:
        its_length, its_head, its_key, its_ledger, entry_id = ADD_IDS.unpack_from(body, position)
        if (
            its_head != head
            or its_ledger != ledger_id
            or entry_id != first + len(offsets)
            or its_key != key
        ):
            break
        same_length = same_length and its_length == length
        offsets.append(position - start)
        position += 4 + its_length
    frames = body[start:position]
    found = range(0, len(frames), 4 + length) if same_length else offsets
    recovery = bool(head & _RECOVERY)
    return AddBatch(ledger_id, first, len(offsets), key, recovery, frames, found), position


def _alike(body: bytes, start: int, frame_bytes: int) -> int:
    """How many frames from `start` on, at least one, differ in nothing but ascending entry ids.

    Most do, and a start after a crash reads many: this is what it takes per entry.
    """
    room = (len(body) - start) // frame_bytes
    if room < 2 or frame_bytes < ADD_IDS.size:
        return 1
    front, first = body[start : start + _SAME_BYTES], 0
    count = 0
    rows = _rows_of(frame_bytes).iter_unpack(memoryview(body)[start : start + room * frame_bytes])
    for its_front, entry_id in rows:
        if its_front != front:
            break
        if count == 0:
            first = entry_id
        elif entry_id != first + count:
            break
        count += 1
    return max(1, count)


@functools.lru_cache(maxsize=64)
def _rows_of(frame_bytes: int) -> struct.Struct:
    return struct.Struct(f">{_SAME_BYTES}sq{frame_bytes - ADD_IDS.size}x")
