"""The adds of a writer that may have to be sent again: encoded once, kept until all bookies ack.

Header and digest are made once per entry, and frames joined once for all bookies. Large payloads
are never copied.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from octavo.ledger.quorum import Quorum
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.entry import HEADER, HEADER_BYTES, Buffer, DigestType, digest_for, master_key
from octavo.protocol.frames import ADD_HEADER, ADD_PREFIX_BYTES, LENGTH, Flag

CHUNK_BYTES_MAX = 128 * 1024
"""A chunk is small, so that bookies can start before all entries are encoded."""
JOINED_PAYLOAD_BYTES_MAX = 8 * 1024
"""Above this mean payload size a copy costs more than several buffers."""
_FRONT_CRC32C = struct.Struct(">II20s32sI")
_TRIM_AT = 256


@dataclass(slots=True)
class Chunk:
    """Consecutive entries: for each its front (frame header to digest) and its payload."""

    first_entry: int
    last_entry: int
    parts: list[Buffer]
    size: int
    length_before: int
    """The ledger's payload bytes below `first_entry`."""


class Pending:
    def __init__(
        self,
        metadata: LedgerMetadata,
        quorum: Quorum,
        *,
        deferred: bool = False,
        seal: Callable[[int, bytes], bytes] | None = None,
    ) -> None:
        """Keep entries until they are acked; `seal` makes the stored payload, once per entry."""
        assert metadata.ledger_id >= 0
        self._ledger_id = metadata.ledger_id
        self._quorum = quorum
        self._key = master_key(metadata.password)
        self._digest = digest_for(metadata.digest_type, metadata.password)
        self._crc32c = metadata.digest_type is DigestType.CRC32C
        flags = Flag.CRC32C | Flag.RANGE_ACK if self._crc32c else Flag.NONE
        if deferred:
            flags |= Flag.DEFERRED_SYNC
        self._add_header = ADD_HEADER | flags
        self._seal = seal
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self._released = 0
        self.next_entry = 0
        self.length = 0
        self.held_bytes = 0

    def describe(self) -> dict[str, int]:
        return {"bytes": self.held_bytes}

    @property
    def key(self) -> bytes:
        return self._key

    # ------------------------------------------------------------------ encoding

    def encode(self, payloads: Sequence[bytes], start: int, lac: int) -> tuple[Chunk, int]:
        first, before = self.next_entry, self.length
        parts: list[Buffer] = []
        encode = self._encode_crc32c if self._crc32c else self._encode_any
        stop, size = encode(payloads, start, lac, parts)
        self.next_entry = first + stop - start
        chunk = Chunk(first, self.next_entry - 1, parts, size, before)
        self._chunks.append(chunk)
        self._firsts.append(first)
        self.held_bytes += size
        return chunk, stop

    def _encode_crc32c(
        self, payloads: Sequence[bytes], start: int, lac: int, parts: list[Buffer]
    ) -> tuple[int, int]:
        # The hot loop: locals only, one object per entry.
        pack_header, pack_front, crc, append = HEADER.pack, _FRONT_CRC32C.pack, crc32c, parts.append
        ledger_id, entry_id, length = self._ledger_id, self.next_entry, self.length
        key, add_header = self._key, self._add_header
        front_bytes, seal = _FRONT_CRC32C.size, self._seal
        size, stop, end = 0, start, len(payloads)
        while stop < end and size < CHUNK_BYTES_MAX:
            payload = payloads[stop]
            if seal is not None:
                payload = seal(entry_id, payload)
            payload_bytes = len(payload)
            length += payload_bytes
            header = pack_header(ledger_id, entry_id, lac, length)
            append(
                pack_front(
                    front_bytes - 4 + payload_bytes,
                    add_header,
                    key,
                    header,
                    crc(payload, crc(header)),
                )
            )
            append(payload)
            size += front_bytes + payload_bytes
            entry_id += 1
            stop += 1
        self.length = length
        return stop, size

    def _encode_any(
        self, payloads: Sequence[bytes], start: int, lac: int, parts: list[Buffer]
    ) -> tuple[int, int]:
        digest = self._digest
        size, stop, entry_id = 0, start, self.next_entry
        front_bytes = ADD_PREFIX_BYTES + HEADER_BYTES + digest.size
        while stop < len(payloads) and size < CHUNK_BYTES_MAX:
            payload = payloads[stop]
            if self._seal is not None:
                payload = self._seal(entry_id, payload)
            self.length += len(payload)
            header = HEADER.pack(self._ledger_id, entry_id, lac, self.length)
            frame_bytes = front_bytes + len(payload)
            parts += (
                b"".join(
                    (
                        LENGTH.pack(frame_bytes - LENGTH.size),
                        LENGTH.pack(self._add_header),
                        self._key,
                        header,
                        digest.compute(header, payload),
                    )
                ),
                payload,
            )
            size += frame_bytes
            entry_id += 1
            stop += 1
        return stop, size

    # ------------------------------------------------------------------ sending

    def frames(self, chunk: Chunk) -> tuple[Sequence[Buffer], int]:
        """Return the chunk's frames for a bookie that gets all of it (E = Qw)."""
        return _gather(chunk.parts, chunk.size), chunk.size

    def frames_for(self, position: int, first: int, last: int) -> tuple[Sequence[Buffer], int, int]:
        """Return frames that `position` must hold, up to `last` or the chunk's end.

        With the size, and the next entry to send.
        """
        chunk = self.chunk_of(first)
        last = min(last, chunk.last_entry)
        parts = chunk.parts
        at, end = 2 * (first - chunk.first_entry), 2 * (last + 1 - chunk.first_entry)
        if self._quorum.everywhere:
            chosen = parts[at:end] if end - at < len(parts) else parts
        else:
            holds = self._quorum.holds
            chosen = [
                part
                for entry_id in range(first, last + 1)
                if holds(position, entry_id)
                for part in parts[
                    2 * (entry_id - chunk.first_entry) : 2 * (entry_id - chunk.first_entry) + 2
                ]
            ]
        size = chunk.size if chosen is parts else sum(map(len, chosen))
        return _gather(chosen, size), size, last + 1

    def chunk_of(self, entry_id: int) -> Chunk:
        """Return the entry's chunk; the entry must not have been released."""
        index = bisect_right(self._firsts, entry_id) - 1
        assert index >= self._released, f"entry {entry_id} was released"
        chunk = self._chunks[index]
        assert chunk.first_entry <= entry_id <= chunk.last_entry
        return chunk

    # ------------------------------------------------------------------ release

    def release(self, up_to: int) -> None:
        chunks, at = self._chunks, self._released
        while at < len(chunks) and chunks[at].last_entry <= up_to:
            self.held_bytes -= chunks[at].size
            chunks[at].parts = []
            at += 1
        self._released = at
        if at >= _TRIM_AT:
            del chunks[:at]
            del self._firsts[:at]
            self._released = 0

    @property
    def held_from(self) -> int:
        if self._released < len(self._chunks):
            return self._chunks[self._released].first_entry
        return self.next_entry

    def length_at(self, entry_id: int) -> int:
        """Return the length up to `entry_id`: the last entry, or one before a kept entry."""
        if entry_id == self.next_entry - 1:
            return self.length
        chunk = self.chunk_of(entry_id + 1)
        count = entry_id + 1 - chunk.first_entry
        return chunk.length_before + sum(map(len, chunk.parts[1 : 2 * count : 2]))


def _gather(parts: list[Buffer], size: int) -> Sequence[Buffer]:
    """Join small frames into one buffer; large frames stay as they are."""
    if 2 * size > JOINED_PAYLOAD_BYTES_MAX * len(parts):
        return parts
    return (b"".join(parts),) if parts else ()
