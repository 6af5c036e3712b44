r"""Decode records that the compiled codec refuses. Pure.

It refuses all records of a call for one header name that is not UTF-8. Here such a name is shown
with its bytes spelled out (`caf\xe9`), and only a damaged record becomes an empty message that says
so.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.protocol.batch import BatchHeader
from octavo.protocol.limits import RECORD_HEADERS_MAX
from octavo.protocol.records import Record

ERROR_HEADER = "octavo-error"
"""The header that says why a damaged record was replaced by this message."""
_VARINT_BITS_MAX = 70
_APPEND_TIME = 0x08


class OddRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    offset: int


def parse(data: bytes, start: int, end: int, header: BatchHeader) -> OddRecord:
    """Parse a record whose length is at `start`; `offset` counts from the batch's base.

    Raises `ValueError`.
    """
    try:
        return _parse(data, start, end, header)
    except IndexError:
        raise ValueError("the batch ends within it") from None


def _parse(data: bytes, start: int, end: int, header: BatchHeader) -> OddRecord:
    size, at = _varint(data, start)
    if at + size != end:
        raise ValueError(f"its length is {size}, {end - at} bytes are there")
    time_delta, at = _varint(data, at + 1)
    offset, at = _varint(data, at)
    key, at = _bytes(data, at, end)
    value, at = _bytes(data, at, end)
    count, at = _varint(data, at)
    if not 0 <= count <= RECORD_HEADERS_MAX:
        raise ValueError(f"it has {count} headers; the most is {RECORD_HEADERS_MAX}")
    headers = []
    for _ in range(count):
        name, at = _bytes(data, at, end)
        if name is None:
            raise ValueError("a header has no name")
        text, at = _bytes(data, at, end)
        headers.append((name.decode("utf-8", "backslashreplace"), text))
    if at < end:
        raise ValueError(f"{end - at} bytes follow its headers")
    if at > end:
        raise ValueError(f"its fields take {at - end} bytes more than its length says")
    appended = header.attributes & _APPEND_TIME
    time_ms = header.max_timestamp if appended else header.first_timestamp + time_delta
    return OddRecord(key, value, headers, time_ms, offset)


def damaged(header: BatchHeader, offset: int, why: str) -> OddRecord:
    return OddRecord(None, None, [(ERROR_HEADER, why.encode())], header.first_timestamp, offset)


def as_record(found: OddRecord, delta: int) -> Record:
    return Record(found.key, found.value, found.headers, found.timestamp, delta)


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes with their length; a length below 0 means none, as in the compiled codec."""
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise ValueError(f"a field of {size} bytes; the record has {max(0, end - at)} left")
    return data[at : at + size], at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number and the next position."""
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found >> 1 ^ -(found & 1), at
        shift += 7
        if shift >= _VARINT_BITS_MAX:
            raise ValueError("a number without end")
