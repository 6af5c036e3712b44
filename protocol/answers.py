"""The client's side of a bookie connection: bytes become a few answers. Pure.

Apache's bookies answer each add, Octavo's answer runs; both become `Added`. Spec:
docs/formats/frames.md, docs/formats/extension.md.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.protocol import extension
from octavo.protocol.auth import AuthMessage
from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.frames import (
    ADD_HEADER,
    ANSWER,
    ANSWER_BYTES,
    AUTH_HEADER,
    BATCH_ANSWER,
    BATCH_READ_HEADER,
    LENGTH,
    PREFIX,
    READ_HEADER,
    checked_length,
    parse_auth,
)

_EXTENSION_ADDED = extension.VERSION << 24 | extension.Op.ADDED << 16 | extension.ANSWER
_ADD_LENGTH = ANSWER_BYTES - LENGTH.size
_OK = int(Code.OK)
_NO_RUN = -(2**63) - 1
"""Below every entry id: no answer continues this run."""


class Added(NamedTuple):
    ledger_id: int
    first: int
    last: int


class AddRefused(NamedTuple):
    """`code` is the wire number."""

    code: int
    ledger_id: int
    entry_id: int


class ReadAnswer(NamedTuple):
    """The ids repeat the request's, so `entry_id` may be −1."""

    code: int
    ledger_id: int
    entry_id: int
    entry: bytes


class BatchReadAnswer(NamedTuple):
    code: int
    ledger_id: int
    start_entry: int
    request_id: int
    entries: list[bytes]


AnyAnswer = Added | AddRefused | ReadAnswer | BatchReadAnswer | AuthMessage | extension.Answer


def parse_answers(data: memoryview, frame_bytes_max: int) -> tuple[list[AnyAnswer], int]:
    """Return the whole answers, and where the unfinished frame begins. Raises `ProtocolError`."""
    found: list[AnyAnswer] = []
    end = len(data)
    start = 0
    while end - start >= LENGTH.size:
        length = checked_length(LENGTH.unpack_from(data, start)[0], frame_bytes_max)
        after = start + LENGTH.size + length
        if after > end:
            break
        if PREFIX.unpack_from(data, start)[1] == ADD_HEADER:
            if length != _ADD_LENGTH:
                raise ProtocolError(f"add answer of {length} bytes, it has {_ADD_LENGTH}")
            start = _take_adds(data, start, found)
        else:
            found.append(_parse(data[start:after]))
            start = after
    return found, start


def _take_adds(data: memoryview, start: int, found: list[AnyAnswer]) -> int:
    end = start + (len(data) - start) // ANSWER_BYTES * ANSWER_BYTES
    run_ledger, first, following = -1, _NO_RUN, _NO_RUN
    for length, header, code, ledger_id, entry_id in ANSWER.iter_unpack(data[start:end]):
        if header != ADD_HEADER or length != _ADD_LENGTH:
            break
        start += ANSWER_BYTES
        if entry_id == following and code == _OK and ledger_id == run_ledger:
            following += 1
            continue
        if first != _NO_RUN:
            found.append(Added(run_ledger, first, following - 1))
        if code == _OK:
            run_ledger, first, following = ledger_id, entry_id, entry_id + 1
        else:
            found.append(AddRefused(code, ledger_id, entry_id))
            first = following = _NO_RUN
    if first != _NO_RUN:
        found.append(Added(run_ledger, first, following - 1))
    return start


def _parse(frame: memoryview) -> AnyAnswer:
    header = PREFIX.unpack_from(frame)[1]
    if header == READ_HEADER:
        _need(frame, ANSWER_BYTES, "read")
        _, _, code, ledger_id, entry_id = ANSWER.unpack_from(frame)
        return ReadAnswer(code, ledger_id, entry_id, bytes(frame[ANSWER_BYTES:]))
    if header >> 24 == extension.VERSION:
        return _parse_extension(frame, header)
    if header == BATCH_READ_HEADER:
        return _parse_batch_read(frame)
    if header == AUTH_HEADER:
        return parse_auth(frame)
    raise ProtocolError(f"answer with the unknown header {header:#010x}")


def _parse_extension(frame: memoryview, header: int) -> Added | extension.Answer:
    answer = extension.decode_answer(frame)
    if header != _EXTENSION_ADDED:
        return answer
    ledger_id = extension.int_of(answer.body, "ledger")
    first = extension.int_of(answer.body, "first")
    last = extension.int_of(answer.body, "last")
    if not 0 <= first <= last:
        raise ProtocolError(f"ADDED answer for the entries {first} to {last}")
    return Added(ledger_id, first, last)


def _parse_batch_read(frame: memoryview) -> BatchReadAnswer:
    _need(frame, BATCH_ANSWER.size, "batch read")
    _, _, code, ledger_id, start_entry, request_id = BATCH_ANSWER.unpack_from(frame)
    entries: list[bytes] = []
    position = BATCH_ANSWER.size
    while position < len(frame):
        _need(frame, position + LENGTH.size, "batch read")
        after = position + LENGTH.size + LENGTH.unpack_from(frame, position)[0]
        _need(frame, after, "batch read")
        entries.append(bytes(frame[position + LENGTH.size : after]))
        position = after
    return BatchReadAnswer(code, ledger_id, start_entry, request_id, entries)


def _need(frame: memoryview, count: int, what: str) -> None:
    if len(frame) < count:
        raise ProtocolError(f"{what} answer of {len(frame)} bytes wants at least {count}")
