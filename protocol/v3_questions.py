"""The client's side of BookKeeper's v3 frames: operations that v2 lacks. Pure.

Spec: docs/formats/frames_v3.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from octavo.protocol.codes import ProtocolError
from octavo.protocol.frames import LENGTH, checked_length
from octavo.protocol.v3 import STATUS, VERSION, Op
from octavo.protocol.v3_schema import RequestMessage, ResponseMessage

_CODES = {status: code for code, status in STATUS.items()}


class V3Answer(NamedTuple):
    request_id: int
    code: int
    message: Any


def write_lac_request(
    request_id: int, ledger_id: int, lac: int, key: bytes, signed: bytes
) -> bytes:
    """Encode an explicit LAC; `signed` is the result of `entry.pack_lac`."""
    message = _request(Op.WRITE_LAC, request_id)
    body = message.writeLacRequest
    body.ledgerId, body.lac, body.masterKey, body.body = ledger_id, lac, key, signed
    return _framed(message)


def read_lac_request(request_id: int, ledger_id: int) -> bytes:
    """Ask for the LAC with the last entry, whose header has a LAC too."""
    message = _request(Op.READ_LAC, request_id)
    message.readLacRequest.ledgerId = ledger_id
    return _framed(message)


def parse_v3_answers(data: memoryview, frame_bytes_max: int) -> tuple[list[V3Answer], int]:
    """Return the whole answers, and where the unfinished frame begins. Raises `ProtocolError`."""
    found: list[V3Answer] = []
    start = 0
    while len(data) - start >= LENGTH.size:
        length = checked_length(LENGTH.unpack_from(data, start)[0], frame_bytes_max)
        after = start + LENGTH.size + length
        if after > len(data):
            break
        found.append(_answer(data[start + LENGTH.size : after]))
        start = after
    return found, start


def _answer(body: memoryview) -> V3Answer:
    try:
        message = ResponseMessage.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"not a v3 answer: {error}") from error
    if not message.IsInitialized():
        raise ProtocolError(f"a v3 answer without {', '.join(message.FindInitializationErrors())}")
    code = _CODES.get(message.status)
    if code is None:
        raise ProtocolError(f"v3 answer with the unknown status {message.status}")
    return V3Answer(message.header.txnId, code, message)


def _request(op: Op, request_id: int) -> Any:
    message = RequestMessage()
    header = message.header
    header.version, header.operation, header.txnId = VERSION, op, request_id
    return message


def _framed(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return LENGTH.pack(len(data)) + data
