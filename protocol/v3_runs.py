"""Take and answer runs of similar v3 adds, with no Python work for each add. Pure.

A busy writer's frames have the same length. `take_run` walks the first by hand and compares the
others column by column: the k-th byte of all frames is one slice. Anything unusual goes to
`v3.parse_request`, ten times as dear. A test checks that both agree.
"""

from __future__ import annotations

import functools
import operator
import struct
from typing import NamedTuple

from octavo.protocol.codes import Code
from octavo.protocol.entry import HEADER, HEADER_BYTES, MASTER_KEY_BYTES, Buffer
from octavo.protocol.frames import Flag
from octavo.protocol.v3 import add_answer, flags_of_write, varint

_FRONT_BYTES = 112
"""The most bytes before a usual add's entry."""
_REST_BYTES_MAX = 16
_RUN_MIN = 16
"""The fewest frames of a run: for fewer, a slice for each column costs more."""
_HEAD_FRONT = b"\x08\x03\x10\x02\x18"
"""Version 3, operation ADD; then the transaction id."""
_ADD_TAG = b"\xaa\x06"
_FLAG_TAG = 0xA0
_WRITE_FLAGS_TAG = 0x28
_NUMBER_BYTES_MAX = 8
_LENGTH_BYTES_MAX = 5
_MORE = 0x80
_LOW, _HIGH = bytes(range(0x80)), bytes(range(0x80, 0x100))
_RECOVERY_ADD = 1


class _Shape(NamedTuple):
    """Positions from the frame's first byte."""

    flags: int
    ledger_id: int
    entry_id: int
    key: bytes
    txn: tuple[int, int]
    id_: tuple[int, int]
    entry: tuple[int, int]
    size: int


class Heads(NamedTuple):
    adds: int
    txn_bytes: int
    txns: bytes
    """The headers lie back to back. A priority is not repeated."""

    def answers(self, code: Code, ledger_id: int, first: int) -> bytes:
        """Encode answers to entries whose ids all have the same encoded length."""
        txn_bytes, one = self.txn_bytes, self.txns[: self.txn_bytes]
        front = _HEAD_FRONT + one
        frame = add_answer(front, code, ledger_id, first)
        ids = varints(first, self.adds)
        id_bytes = len(ids) // self.adds
        answers = bytearray(frame * self.adds)
        size = len(frame)
        at = frame.index(front) + len(_HEAD_FRONT)
        for column in range(txn_bytes):
            answers[at + column :: size] = self.txns[column::txn_bytes]
        at = size - id_bytes
        for column in range(id_bytes):
            answers[at + column :: size] = ids[column::id_bytes]
        return bytes(answers)


class Run(NamedTuple):
    flags: int
    ledger_id: int
    first_entry: int
    key: bytes
    entries: list[Buffer]
    heads: Heads | bytes
    """A plain header for a single add, to save memory."""
    end: int


def take_run(data: memoryview, start: int, following: int) -> Run | None:
    """Return None if the frame `data[start:following]` is unusual."""
    shape = _shape(bytes(data[start : min(following, start + _FRONT_BYTES)]), following - start)
    if shape is None:
        return None
    if rest := data[start + shape.entry[1] : following]:
        write_flags = _write_flags(bytes(rest[: _REST_BYTES_MAX + 1]))
        if write_flags is None:
            return None
        shape = shape._replace(flags=shape.flags | flags_of_write(write_flags))
    begin, stop = start + shape.entry[0], start + shape.entry[1]
    ledger_id, entry_id, lac, _ = HEADER.unpack_from(data, begin)
    if (
        (ledger_id, entry_id) != (shape.ledger_id, shape.entry_id)
        or ledger_id < 0
        or entry_id < 0
        or (lac >= entry_id and not shape.flags & Flag.RECOVERY_ADD)
    ):
        return None
    count = _count(data[start:], shape)
    if count == 1:
        head = _HEAD_FRONT + bytes(data[start + shape.txn[0] : start + shape.txn[1]])
        one: list[Buffer] = [data[begin:stop]]
        return Run(shape.flags, ledger_id, entry_id, shape.key, one, head, following)
    end = start + count * shape.size
    block = bytes(data[start:end])
    entries: list[Buffer] = [entry for (entry,) in _entries_of(shape).iter_unpack(block)]
    heads = _heads(block, shape, count)
    return Run(shape.flags, ledger_id, entry_id, shape.key, entries, heads, end)


def varints(first: int, count: int) -> bytes:
    """Encode consecutive numbers whose varints have the same length."""
    width = len(varint(first))
    out = bytearray(width * count)
    for column in range(width):
        out[column::width] = _digits(first, count, column, 0 if column == width - 1 else _MORE)
    return bytes(out)


def _digits(first: int, count: int, column: int, more: int) -> bytes:
    """Return one base-128 digit of consecutive numbers."""
    if not column:
        cycle = bytes(digit | more for digit in range(128))
        return (cycle * (count // 128 + 2))[first & 0x7F :][:count]
    shift = 7 * column
    parts: list[bytes] = []
    number, end = first, first + count
    while number < end:  # the digit changes at each multiple of 128 to the power of its place
        same = min((1 << shift) - number % (1 << shift), end - number)
        parts.append(bytes((number >> shift & 0x7F | more,)) * same)
        number += same
    return b"".join(parts)


def _shape(front: bytes, size: int) -> _Shape | None:
    try:
        return _walked(front, size)
    except IndexError:
        return None


def _walked(front: bytes, size: int) -> _Shape | None:
    head_end = 6 + front[5]
    txn_at = 6 + len(_HEAD_FRONT)
    if front[4] != 0x0A or front[5] >= _MORE or front[6:txn_at] != _HEAD_FRONT:
        return None
    _, txn_end = _number(front, txn_at)
    flags, at = 0, txn_end
    if at < head_end:
        priority, at = _number(front, at + 1)
        if front[txn_end] != 0x20 or priority >> 32:
            return None
        flags = int(Flag.HIGH_PRIORITY) if priority else 0
    if at != head_end or front[at : at + 2] != _ADD_TAG:
        return None
    length, at = _length(front, at + 2)
    if at + length != size:
        return None
    seen = 0
    ledger_id = entry_id = -1
    key = b""
    id_ = (0, 0)
    while True:
        tag = front[at]
        at += 1
        if tag == 0x08:
            ledger_id, at = _number(front, at)
            seen |= 1
        elif tag == 0x10:
            entry_id, id_end = _number(front, at)
            id_, at = (at, id_end), id_end
            seen |= 2
        elif tag == 0x1A and front[at] == MASTER_KEY_BYTES:
            key = front[at + 1 : at + 1 + MASTER_KEY_BYTES]
            at += 1 + MASTER_KEY_BYTES
            seen |= 4
        elif tag == _FLAG_TAG and front[at] == 0x06:
            flag, at = _number(front, at + 1)
            if flag != _RECOVERY_ADD:
                return None
            flags |= int(Flag.RECOVERY_ADD)
        elif tag == 0x22:
            entry_bytes, at = _length(front, at)
            break
        else:
            return None
    if seen != 7 or id_[1] - id_[0] != len(varint(entry_id)):
        return None
    if entry_bytes < HEADER_BYTES or at + entry_bytes > size:
        return None
    txn, entry = (txn_at, txn_end), (at, at + entry_bytes)
    return _Shape(flags, ledger_id, entry_id, key, txn, id_, entry, size)


def _number(front: bytes, at: int) -> tuple[int, int]:
    """Return the varint and its end. Raises `IndexError` if unusually long."""
    byte = front[at]
    if byte < _MORE:
        return byte, at + 1
    number = byte & 0x7F
    for place in range(1, _NUMBER_BYTES_MAX):
        byte = front[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < _MORE:
            return number, at + place + 1
    raise IndexError("a number with unusually many bytes")


def _length(front: bytes, at: int) -> tuple[int, int]:
    number, end = _number(front, at)
    if end - at > _LENGTH_BYTES_MAX:
        raise IndexError("a length with too many bytes")
    return number, end


def _write_flags(rest: bytes) -> int | None:
    try:
        write_flags, end = _number(rest, 1)
    except IndexError:
        return None
    return write_flags if rest[0] == _WRITE_FLAGS_TAG and end == len(rest) else None


def _count(data: memoryview, shape: _Shape) -> int:
    """Count the frames that form a run; 1 if they are few.

    A few are compared first, so that a writer that mixes ledgers costs little.
    """
    last_of_few = (_RUN_MIN - 1) * shape.size + shape.entry[0]
    if len(data) < _RUN_MIN * shape.size:
        return 1
    ids = HEADER.unpack_from(data, last_of_few)[:2]
    if ids != (shape.ledger_id, shape.entry_id + _RUN_MIN - 1):
        return 1
    if _count_alike(bytes(data[: _RUN_MIN * shape.size]), shape, _RUN_MIN) < _RUN_MIN:
        return 1
    count = len(data) // shape.size
    return _count_alike(bytes(data[: count * shape.size]), shape, count)


def _count_alike(block: bytes, shape: _Shape, count: int) -> int:
    size, first = shape.size, shape.entry_id
    begin, stop = shape.entry
    id_bytes = shape.id_[1] - shape.id_[0]
    # A longer entry id makes a longer frame, so all ids in a run have the same length.
    count = min(count, (1 << 7 * id_bytes) - first)
    free = {*range(*shape.txn), *range(*shape.id_)}
    # Also the entry's own ledger id.
    for column in (*range(begin), *range(begin, begin + 8), *range(stop, size)):
        if column not in free:
            same = block[column : count * size : size]
            count -= len(same.lstrip(same[:1]))
    for column in range(*shape.txn):
        values = block[column : count * size : size]
        count -= len(values.lstrip(_LOW if column == shape.txn[1] - 1 else _HIGH))
    ids = varints(first, count)
    own = struct.pack(f">{count}q", *range(first, first + count))
    wanted = [(shape.id_[0] + place, ids[place::id_bytes]) for place in range(id_bytes)]
    wanted += [(begin + 8 + place, own[place::8]) for place in range(8)]
    for column, values in wanted:
        count = min(count, _same(block[column : count * size : size], values[:count]))
    if not shape.flags & Flag.RECOVERY_ADD:
        lacs = (lac for (lac,) in _lacs_of(shape).iter_unpack(block[: count * size]))
        if not all(map(operator.lt, lacs, range(first, first + count))):
            return 1
    return count


def _same(found: bytes, wanted: bytes) -> int:
    if found == wanted:
        return len(found)
    differing = int.from_bytes(found) ^ int.from_bytes(wanted)
    return len(found) - (differing.bit_length() + 7) // 8


def _heads(block: bytes, shape: _Shape, count: int) -> Heads:
    begin, end = shape.txn
    txns = bytearray((end - begin) * count)
    for place in range(end - begin):
        txns[place :: end - begin] = block[begin + place : count * shape.size : shape.size]
    return Heads(count, end - begin, bytes(txns))


@functools.lru_cache(maxsize=64)
def _layout(before: int, field: str, after: int) -> struct.Struct:
    return struct.Struct(f">{before}x{field}{after}x")


def _entries_of(shape: _Shape) -> struct.Struct:
    begin, stop = shape.entry
    return _layout(begin, f"{stop - begin}s", shape.size - stop)


def _lacs_of(shape: _Shape) -> struct.Struct:
    at = shape.entry[0] + 16
    return _layout(at, "q", shape.size - at - 8)
