"""BookKeeper's v2 frames: add, read, auth and batch-read; and the bounded receiver.

    frame  := length:i32 body                     length counts the body only
    body   := header:u32 rest                     header = version:8 opcode:8 flags:16
    add    := header master_key:20 entry          the entry names its own ledger and entry id
    read   := header ledger_id:i64 entry_id:i64 [master_key:20 iff flags & FENCE]
    auth   := header AuthMessage                  protobuf, see auth.py

answers.py decodes the answers. Spec: docs/formats/frames.md.
"""

from __future__ import annotations

import enum
import struct
import sys
from typing import NamedTuple

from octavo.protocol.auth import AuthMessage, decode_auth, encode_auth
from octavo.protocol.codes import FrameTooLong, ProtocolError
from octavo.protocol.entry import MASTER_KEY_BYTES, Buffer

VERSION = 2


class Op(enum.IntEnum):
    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class Flag(enum.IntFlag):
    """The low three are BookKeeper's; its bookies ignore the others."""

    NONE = 0
    FENCE = 0x0001
    """BookKeeper's flag DO_FENCING."""
    RECOVERY_ADD = 0x0002
    """An add that passes the fence."""
    HIGH_PRIORITY = 0x0004
    """Passes queue limits and read-only mode while the reserve lasts."""
    CRC32C = 0x0100
    """Octavo's: the bookie may check the digest, CRC32C, on arrival."""
    RANGE_ACK = 0x0200
    """Octavo's: one `Op.ADDED` may ack consecutive adds."""
    DEFERRED_SYNC = 0x0800
    """Octavo's, and v3's `writeFlags`: acked when written, durable after a force."""
    UNKNOWN_STATE = 0x0400
    """Octavo's: without it, code 107 becomes `IO`."""


_FENCE = int(Flag.FENCE)
"""`&` of enum flags costs more than decoding a whole frame."""


def header(op: int, flags: int = 0, version: int = VERSION) -> int:
    return version << 24 | op << 16 | flags


LENGTH = struct.Struct(">I")
PREFIX = struct.Struct(">II")
ADD_PREFIX = struct.Struct(">II20s")
ADD_PREFIX_BYTES = ADD_PREFIX.size
ADD_IDS = struct.Struct(">II20sqq")
READ = struct.Struct(">IIqq")
ANSWER = struct.Struct(">IIiqq")
"""length, header, code, ledger id, entry id: an add answer, or the front of a read answer."""
ANSWER_BYTES = ANSWER.size
BATCH_READ = struct.Struct(">IIqqqiq")
"""length, header, ledger id, start entry, request id, max count, max size in bytes."""
BATCH_ANSWER = struct.Struct(">IIiqqq")

SCRATCH_BYTES_MIN = 4096
"""The least size of a read buffer: below it, ordinary frames would need separate buffers."""
_LARGE_FIRST_BYTES = 65_536

ADD_HEADER = header(Op.ADD)
READ_HEADER = header(Op.READ)
AUTH_HEADER = header(Op.AUTH)
BATCH_READ_HEADER = header(Op.BATCH_READ)
_ADD_ANSWER_BODY_BYTES = ANSWER_BYTES - LENGTH.size


def add_prefix(key: bytes, entry_bytes: int, flags: int = 0) -> bytes:
    return ADD_PREFIX.pack(ADD_PREFIX_BYTES - 4 + entry_bytes, ADD_HEADER | flags, key)


def read_request(ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> bytes:
    """Encode a read; entry id −1: the last entry. `key` only with `Flag.FENCE`."""
    assert (len(key) == MASTER_KEY_BYTES) == bool(flags & _FENCE)
    return READ.pack(READ.size - 4 + len(key), READ_HEADER | flags, ledger_id, entry_id) + key


def add_answer(code: int, ledger_id: int, entry_id: int) -> bytes:
    return ANSWER.pack(_ADD_ANSWER_BODY_BYTES, ADD_HEADER, code, ledger_id, entry_id)


def read_answer(code: int, ledger_id: int, entry_id: int, entry: Buffer = b"") -> bytes:
    """Encode a read's answer; the ids repeat the request's."""
    front = ANSWER.pack(_ADD_ANSWER_BODY_BYTES + len(entry), READ_HEADER, code, ledger_id, entry_id)
    return b"".join((front, entry)) if entry else front


def batch_read_request(
    ledger_id: int,
    start_entry: int,
    request_id: int,
    count_max: int,
    bytes_max: int,
    flags: int = 0,
    key: bytes = b"",
) -> bytes:
    """Ask for consecutive entries of at most `bytes_max` bytes together."""
    assert (len(key) == MASTER_KEY_BYTES) == bool(flags & _FENCE)
    front = BATCH_READ.pack(
        BATCH_READ.size - 4 + len(key),
        BATCH_READ_HEADER | flags,
        ledger_id,
        start_entry,
        request_id,
        count_max,
        bytes_max,
    )
    return front + key


def batch_read_answer(
    code: int, ledger_id: int, start_entry: int, request_id: int, entries: list[bytes]
) -> bytes:
    """Answer with a prefix of these entries, each after its length."""
    lengths = list(map(len, entries))
    size = sum(lengths) + LENGTH.size * len(lengths)
    front = BATCH_ANSWER.pack(
        BATCH_ANSWER.size - 4 + size,
        BATCH_READ_HEADER,
        code,
        ledger_id,
        start_entry,
        request_id,
    )
    if len(set(lengths)) == 1:  # insert the same length by a single join
        length = LENGTH.pack(lengths[0])
        return length.join((front, *entries))
    parts = [front]
    for length_of_one, entry in zip(lengths, entries, strict=True):
        parts.append(LENGTH.pack(length_of_one))
        parts.append(entry)
    return b"".join(parts)


def auth_frame(plugin: str, payload: bytes = b"") -> bytes:
    """Request and answer have the same form.

    Without authentication a bookie answers `AUTH_DISABLED` and an empty payload.
    """
    message = encode_auth(AuthMessage(plugin, payload))
    return PREFIX.pack(PREFIX.size - 4 + len(message), AUTH_HEADER) + message


def parse_auth(frame: memoryview) -> AuthMessage:
    """Raises `ProtocolError`."""
    _flags_of(frame, PREFIX.size)
    return decode_auth(frame[PREFIX.size :])


class ReadRequest(NamedTuple):
    flags: int
    ledger_id: int
    entry_id: int
    key: bytes


class BatchReadRequest(NamedTuple):
    flags: int
    ledger_id: int
    start_entry: int
    request_id: int
    count_max: int
    bytes_max: int
    key: bytes


def parse_read(frame: memoryview) -> ReadRequest:
    """Raises `ProtocolError`."""
    flags = _flags_of(frame, READ.size)
    _, _, ledger_id, entry_id = READ.unpack_from(frame)
    return ReadRequest(flags, ledger_id, entry_id, _key_of(frame, READ.size, flags))


def parse_batch_read(frame: memoryview) -> BatchReadRequest:
    """Raises `ProtocolError`."""
    flags = _flags_of(frame, BATCH_READ.size)
    _, _, ledger_id, start, request_id, count, size = BATCH_READ.unpack_from(frame)
    key = _key_of(frame, BATCH_READ.size, flags)
    return BatchReadRequest(flags, ledger_id, start, request_id, count, size, key)


def _flags_of(frame: memoryview, bytes_min: int) -> int:
    if len(frame) < bytes_min:
        raise ProtocolError(f"frame of {len(frame)} bytes is shorter than its {bytes_min}")
    return int(PREFIX.unpack_from(frame)[1]) & 0xFFFF


def _key_of(frame: memoryview, start: int, flags: int) -> bytes:
    key = bytes(frame[start:])
    if flags & _FENCE and len(key) != MASTER_KEY_BYTES:
        raise ProtocolError(f"a fencing read carries a key of 20 bytes, not {len(key)}")
    return key if flags & _FENCE else b""


_TLS_BEGINS = 0x1603


def checked_length(length: int, frame_bytes_max: int) -> int:
    """Check a frame's length; as in BookKeeper, the bound includes the length field.

    Raises `FrameTooLong`, or `ProtocolError` below 4.
    """
    if length > frame_bytes_max - LENGTH.size:
        if length >> 16 == _TLS_BEGINS:
            raise ProtocolError(
                "this is TLS, and this port has none: give the bookie certificates "
                "(tls.certificate), or connect without TLS"
            )
        raise FrameTooLong(
            f"frame announces {length} bytes after its length field; "
            f"the limit is {frame_bytes_max} with it"
        )
    if length < LENGTH.size:
        raise ProtocolError(f"frame announces {length} bytes; the header alone has 4")
    return length


class FrameReceiver:
    """Cuts a byte stream into frames, bounded, copying only the unfinished tail.

    For `asyncio.BufferedProtocol`. All connections of a loop share a scratch buffer, so an idle
    connection holds no memory. The caller parses *all* whole frames in what `received` returns,
    then calls `keep`; after that, views into the scratch buffer are invalid.

    A frame larger than half the scratch buffer gets a separate buffer, which grows as bytes arrive:
    announced bytes occupy nothing. `received` returns that frame when it is whole.
    """

    __slots__ = (
        "_filled",
        "_frame_bytes_max",
        "_large",
        "_large_bytes",
        "_scratch",
        "_tail",
        "held_bytes",
        "missing_bytes",
    )

    def __init__(self, frame_bytes_max: int, scratch: bytearray) -> None:
        assert frame_bytes_max > 0
        assert len(scratch) >= SCRATCH_BYTES_MIN
        self._frame_bytes_max = frame_bytes_max
        self._scratch = scratch
        self._tail = b""
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._filled = 0
        self.held_bytes = 0
        """Bytes of an unfinished frame, as of the last `keep`."""
        self.missing_bytes = 0
        """0 if no frame is unfinished, or its length is unknown."""

    @property
    def is_large(self) -> bool:
        return self._large is not None

    def get_buffer(self, bytes_max: int = sys.maxsize) -> memoryview:
        """Return the buffer to receive into, never empty, and valid until `received`."""
        large = self._large
        if large is not None:
            if self._filled == len(large):
                large = self._grow(large)
            return memoryview(large)[self._filled :]
        start = len(self._tail)
        self._scratch[:start] = self._tail
        if bytes_max < sys.maxsize:
            return memoryview(self._scratch)[start : start + bytes_max]
        return memoryview(self._scratch)[start:]

    def received(self, count: int) -> memoryview:
        """Return the bytes to parse; empty while a large frame is partial."""
        if self._large is None:
            return memoryview(self._scratch)[: len(self._tail) + count]
        self._filled += count
        if self._filled == self._large_bytes:
            return memoryview(self._large)
        return memoryview(b"")

    def keep(self, data: memoryview, start: int) -> None:
        """Keep `data[start:]`, the unfinished frame. Raises `FrameTooLong`."""
        if self._large is not None:
            if self._filled < self._large_bytes:
                return
            assert start == len(data), "a large frame is parsed whole"
            self._large = None
            self.held_bytes = self.missing_bytes = 0
            return
        self.held_bytes = rest = len(data) - start
        self.missing_bytes = 0
        if rest >= LENGTH.size:
            frame_bytes = LENGTH.size + self.checked_length(LENGTH.unpack_from(data, start)[0])
            assert rest < frame_bytes, "a whole frame was left unparsed"
            self.missing_bytes = frame_bytes - rest
            if frame_bytes > len(self._scratch) // 2:
                self._start_large(data[start:], frame_bytes)
                return
        self._tail = bytes(data[start:])

    def checked_length(self, length: int) -> int:
        return checked_length(length, self._frame_bytes_max)

    def _start_large(self, front: memoryview, frame_bytes: int) -> None:
        self._large_bytes = frame_bytes
        self._filled = len(front)
        self._large = bytearray(front)
        self._tail = b""

    def _grow(self, large: bytearray) -> bytearray:
        """Move to a larger new buffer: the transport may still view the old one."""
        room = bytearray(min(self._large_bytes, max(_LARGE_FIRST_BYTES, 2 * len(large))))
        room[: len(large)] = large
        self._large = room
        return room
