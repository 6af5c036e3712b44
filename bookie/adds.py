"""Split adds from the wire into batches, with work for each chunk and not for each entry. Pure.

A batch is consecutive entries of one ledger, with the frames that the journal stores. An entry
whose LAC is not below its own id is refused: readers would look for entries that never existed.
Recovery adds may have one, because Apache's replicator does it.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from octavo.protocol.codes import ProtocolError
from octavo.protocol.entry import HEADER_BYTES
from octavo.protocol.frames import (
    ADD_HEADER,
    ADD_IDS,
    ADD_PREFIX_BYTES,
    LENGTH,
    Flag,
    checked_length,
)

_ADD_OP = ADD_HEADER >> 16
_FLAGS_MASK = 0xFFFF
_CRC32C = int(Flag.CRC32C)
_RECOVERY_ADD = int(Flag.RECOVERY_ADD)
_FRAME_BYTES_MIN = ADD_PREFIX_BYTES + HEADER_BYTES
_PAYLOAD_AT = _FRAME_BYTES_MIN + LENGTH.size
_ADD_FRONT = struct.Struct(f"{ADD_IDS.format}q")
_PREFIX_BYTES = ADD_PREFIX_BYTES + 8
"""The same in all frames of a batch, except the length."""


FALSE_LAC = "its LAC is not below its own id, as it was when the entry was written"


@dataclass(slots=True, eq=False)
class AddBatch:
    ledger_id: int
    first_entry: int
    count: int
    key: bytes
    recovery: bool
    """Whether the adds pass the fence (BookKeeper RECOVERY_ADD)."""
    frames: bytes
    offsets: Sequence[int]
    """Where each frame begins; a `range` when all have the same length."""

    @property
    def last_entry(self) -> int:
        return self.first_entry + self.count - 1


class Refused(NamedTuple):
    ledger_id: int
    entry_id: int
    reason: str


class Adds(NamedTuple):
    batches: list[tuple[int, AddBatch]]
    refused: list[Refused]
    end: int


class _OpenBatch:
    __slots__ = ("first", "head", "key", "ledger_id", "next_entry", "offsets", "start")

    def __init__(self, start: int, head: int, key: bytes, ledger_id: int, first: int) -> None:
        self.start = start
        self.head = head
        self.key = key
        self.ledger_id = ledger_id
        self.first = first
        self.next_entry = first
        self.offsets: range | list[int] = range(0)

    def takes(self, head: int, key: bytes, ledger_id: int, entry_id: int) -> bool:
        return (
            entry_id == self.next_entry
            and self.first >= 0
            and ledger_id == self.ledger_id
            and head == self.head
            and key == self.key
        )

    def extend(self, position: int, size: int, count: int) -> None:
        begin = position - self.start
        more = range(begin, begin + size * count, size)
        if not self.offsets:
            self.offsets = more
        else:
            if isinstance(self.offsets, range):
                self.offsets = list(self.offsets)
            self.offsets.extend(more)
        self.next_entry += count


def split_adds(data: memoryview, start: int, frame_bytes_max: int) -> Adds:
    """Split received bytes into adds. Raises `FrameTooLong`, `ProtocolError`.

    `ProtocolError`: an add does not name its entry. The connection's later bytes cannot be read.
    """
    adds: list[tuple[int, AddBatch]] = []
    refused: list[Refused] = []
    batch: _OpenBatch | None = None
    position = start
    end = len(data)
    while end - position >= _FRAME_BYTES_MIN:
        length, head, key, ledger_id, entry_id, lac = _ADD_FRONT.unpack_from(data, position)
        if head >> 16 != _ADD_OP:
            break
        _check_length(length, frame_bytes_max)
        size = LENGTH.size + length
        if position + size > end:
            break
        if lac >= entry_id >= 0 and not head & _RECOVERY_ADD:
            if batch is not None:
                _finish(batch, data, position, adds, refused)
                batch = None
            refused.append(Refused(ledger_id, entry_id, FALSE_LAC))
            position += size
            continue
        count = _count_alike(data, position, size, entry_id) if entry_id >= 0 else 1
        if batch is None or not batch.takes(head, key, ledger_id, entry_id):
            if batch is not None:
                _finish(batch, data, position, adds, refused)
            batch = _OpenBatch(position, head, key, ledger_id, entry_id)
        batch.extend(position, size, count)
        position += size * count
    if batch is not None:
        _finish(batch, data, position, adds, refused)
    return Adds(adds, refused, position)


def _check_length(length: int, frame_bytes_max: int) -> None:
    checked_length(length, frame_bytes_max)
    if length < _FRAME_BYTES_MIN - LENGTH.size:
        raise ProtocolError(
            f"add of {length} bytes; key and entry header alone have "
            f"{_FRAME_BYTES_MIN - LENGTH.size}"
        )


def _count_alike(data: memoryview, position: int, size: int, entry_id: int) -> int:
    """Count frames that differ only in payload, LAC (below the id) and ascending id."""
    following = position + size
    prefix = bytes(data[position : position + _PREFIX_BYTES])
    if data[following : following + _PREFIX_BYTES] != prefix:
        return 1
    count = (len(data) - position) // size
    expected = entry_id
    stretch = data[position : position + size * count]
    for found, found_entry, lac in _layout(size).iter_unpack(stretch):
        if found_entry != expected or found != prefix or lac >= found_entry:
            break
        expected += 1
    return max(1, expected - entry_id)


@functools.lru_cache(maxsize=64)
def _layout(size: int) -> struct.Struct:
    return struct.Struct(f">{_PREFIX_BYTES}sqq{size - _PREFIX_BYTES - 16}x")


def _finish(
    batch: _OpenBatch,
    data: memoryview,
    end: int,
    adds: list[tuple[int, AddBatch]],
    refused: list[Refused],
) -> None:
    flags = batch.head & _FLAGS_MASK
    count = len(batch.offsets)
    if batch.ledger_id < 0 or batch.first < 0:
        reason = "ledger and entry ids are not negative"
        refused.extend(Refused(batch.ledger_id, batch.first + i, reason) for i in range(count))
        return
    frames = bytes(data[batch.start : end])
    damaged = _damaged(frames, batch.offsets) if flags & _CRC32C else []
    recovery = bool(flags & _RECOVERY_ADD)
    whole = AddBatch(
        batch.ledger_id, batch.first, count, batch.key, recovery, frames, batch.offsets
    )
    if not damaged:
        adds.append((flags, whole))
        return
    reason = "the entry does not match its CRC32C digest"
    refused.extend(Refused(batch.ledger_id, batch.first + i, reason) for i in damaged)
    edges = [-1, *damaged, count]
    for before, after in itertools.pairwise(edges):
        if after - before > 1:
            adds.append((flags, _part(whole, before + 1, after)))


def _damaged(frames: bytes, offsets: Sequence[int]) -> list[int]:
    view = memoryview(frames)
    digest_at = LENGTH.unpack_from
    damaged: list[int] = []
    following = len(frames)
    index = len(offsets)
    for offset in reversed(offsets):
        index -= 1
        digest = offset + _FRAME_BYTES_MIN
        if following - digest < LENGTH.size or digest_at(frames, digest)[0] != crc32c(
            view[offset + _PAYLOAD_AT : following],
            crc32c(view[offset + ADD_PREFIX_BYTES : digest]),
        ):
            damaged.append(index)
        following = offset
    damaged.reverse()
    return damaged


def _part(batch: AddBatch, start: int, stop: int) -> AddBatch:
    """Return entries `start … stop − 1`, counted within the batch."""
    begin = batch.offsets[start]
    end = batch.offsets[stop] if stop < batch.count else len(batch.frames)
    return AddBatch(
        batch.ledger_id,
        batch.first_entry + start,
        stop - start,
        batch.key,
        batch.recovery,
        batch.frames[begin:end],
        [offset - begin for offset in batch.offsets[start:stop]],
    )
