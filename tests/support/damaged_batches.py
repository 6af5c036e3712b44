"""Record batches with a valid checksum and one kind of damage each: in record 2 of five, or in
the batch's count or end."""

from __future__ import annotations

from collections.abc import Callable

from aiokafka import codec as codecs

from octavo.protocol.batch import HEADER_BYTES, read_header, sealed
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch

PACK: dict[int, Callable[[bytes], bytes]] = {
    Compression.NONE: bytes,
    Compression.GZIP: codecs.gzip_encode,
    Compression.SNAPPY: codecs.snappy_encode,
    Compression.LZ4: codecs.lz4_encode,
    Compression.ZSTD: codecs.zstd_encode,
}
KINDS = list(PACK)
COUNT = 5
AT = 2


def varint(value: int, more: int = 0) -> bytes:
    """Encode a zigzag number. `more` is the number of redundant bytes."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    for _ in range(more):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)


def field(data: bytes | None, size: int | None = None) -> bytes:
    """Encode a key, a value or a part of a header, with its own length or a false one."""
    if size is None:
        size = -1 if data is None else len(data)
    return varint(size) + (data or b"")


def body_of(
    number: int,
    *,
    time: bytes | None = None,
    offset: bytes | None = None,
    key: bytes | None = None,
    value: bytes | None = None,
    headers: bytes | None = None,
    rest: bytes = b"",
) -> bytes:
    """Encode a record behind its length. Each part may be given as raw bytes."""
    return b"".join(
        (
            b"\0",
            varint(number) if time is None else time,
            varint(number) if offset is None else offset,
            field(b"k%d" % number) if key is None else key,
            field(b"v%d" % number) if value is None else value,
            varint(0) if headers is None else headers,
            rest,
        )
    )


def whole(body: bytes, by: int = 0) -> bytes:
    return varint(len(body) + by) + body


def batch_of(records: list[bytes], kind: int = 0, count: int | None = None) -> bytes:
    """Build a batch with fitting checksum and length. `count` goes into its header."""
    packed = PACK[kind](b"".join(records))
    count = len(records) if count is None else count
    header = read_header(build_batch([Record(None, b"x", (), 1000)]))._replace(
        attributes=kind,
        batch_length=HEADER_BYTES - 12 + len(packed),
        record_count=count,
        last_offset_delta=count - 1,
        max_timestamp=1000 + count - 1,
    )
    return sealed(header, packed)


def _sound() -> list[bytes]:
    return [whole(body_of(number)) for number in range(COUNT)]


def _with(record: bytes) -> list[bytes]:
    found = _sound()
    found[AT] = record
    return found


_ALONE: dict[str, bytes] = {
    "a key longer than the record": whole(body_of(AT, key=field(b"k", 50))),
    "a key longer than the batch": whole(body_of(AT, key=field(b"k", 5000))),
    "a key of 2 GiB": whole(body_of(AT, key=field(b"k", 2**31))),
    "a value longer than the record": whole(body_of(AT, value=field(b"v", 9))),
    "-1 headers": whole(body_of(AT, headers=varint(-1))),
    "more headers than there are": whole(body_of(AT, headers=varint(2) + field(b"h") + field(b""))),
    "a million headers": whole(body_of(AT, headers=varint(1_000_000))),
    "fewer headers than there are": whole(
        body_of(AT, headers=varint(1) + (field(b"h") + field(b"")) * 2)
    ),
    "a header without a name": whole(body_of(AT, headers=varint(1) + field(None) + field(b"x"))),
    "a header name of -2 bytes": whole(body_of(AT, headers=varint(1) + varint(-2) + field(b"x"))),
    "a header value longer than the record": whole(
        body_of(AT, headers=varint(1) + field(b"h") + field(b"x", 60))
    ),
    "bytes behind its headers": whole(body_of(AT, rest=b"more")),
    "a time of 11 bytes": whole(body_of(AT, time=varint(1, 10))),
    "an offset delta of 11 bytes": whole(body_of(AT, offset=varint(AT, 10))),
    "a key's length of 11 bytes": whole(body_of(AT, key=varint(2, 10) + b"k2")),
    "an offset delta that is repeated": whole(body_of(AT, offset=varint(AT - 1))),
    "an offset delta that leaves one out": whole(body_of(AT, offset=varint(AT + 1))),
    "an offset delta below 0": whole(body_of(AT, offset=varint(-1))),
    "an offset delta beyond 32 bits": whole(body_of(AT, offset=varint(2**33 + AT))),
}
"""Record 2 is damaged inside; its length still says where record 3 begins."""
_LENIENT: dict[str, bytes] = {
    "a key of -2 bytes": whole(body_of(AT, key=field(b"", -2))),
    "a value of -1000 bytes": whole(body_of(AT, value=field(b"", -1000))),
    "a header value of -2 bytes": whole(body_of(AT, headers=varint(1) + field(b"h") + varint(-2))),
    "a key's length of 10 bytes": whole(body_of(AT, key=varint(2, 9) + b"k2")),
    "an offset delta of 10 bytes": whole(body_of(AT, offset=varint(AT, 9))),
    "a record's length of 10 bytes": varint(len(body_of(AT)), 9) + body_of(AT),
    "an odd header name": whole(body_of(AT, headers=varint(1) + field(b"caf\xe9") + field(b"x"))),
}
"""Odd encodings that producers do not write, and that every reader reads alike: accepted."""
_WHOLE: dict[str, tuple[list[bytes], int]] = {
    "a length that is less than its fields": (_with(whole(body_of(AT), -1)), COUNT),
    "a length of 0": (_with(varint(0)), COUNT),
    "a length of -1": (_with(varint(-1)), COUNT),
    "a length of -30": (_with(varint(-30) + body_of(AT)), COUNT),
    "a length beyond the batch": (_with(varint(500) + body_of(AT)), COUNT),
    "a length of 4 GiB": (_with(varint(2**32) + body_of(AT)), COUNT),
    "a length of 11 bytes": (_with(varint(len(body_of(AT)), 10) + body_of(AT)), COUNT),
    "a length that takes the next one's first byte": (_with(whole(body_of(AT), 1)), COUNT),
    "the last record is cut": ([*_sound()[:-1], _sound()[-1][:-2]], COUNT),
    "a length and nothing behind it": ([*_sound()[:-1], varint(12)], COUNT),
    "one record fewer than it says": (_sound(), COUNT + 1),
    "one record more than it says": (_sound(), COUNT - 1),
    "bytes behind the last record": ([*_sound(), b"\0\0\0"], COUNT),
    "one byte behind the last record": ([*_sound(), b"\0"], COUNT),
}
"""The borders between records are damaged."""
ALONE = list(_ALONE)
ALL = [*_ALONE, *_WHOLE]
LENIENT = list(_LENIENT)


def damaged(name: str, kind: int = 0) -> bytes:
    if (record := _ALONE.get(name) or _LENIENT.get(name)) is not None:
        return batch_of(_with(record), kind)
    records, count = _WHOLE[name]
    return batch_of(records, kind, count)


def sound(kind: int = 0) -> bytes:
    return batch_of(_sound(), kind)
