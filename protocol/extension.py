"""Our own operations, on the same port as BookKeeper's: a version byte of ours, a msgpack body.

    request := length:i32 header:u32 msgpack([request_id, {…}])
    answer  := length:i32 header:u32 msgpack([request_id, code, {…}])    flags has ANSWER set

Version byte 0x4F ('O') cannot be taken for v2 (0x02) nor for the first byte of a v3 protobuf
request (0x0A). Unknown keys are ignored, missing ones have defaults: that is the upgrade rule.
Spec with every operation's keys: docs/formats/extension.md.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import msgpack

from protocol.codes import Code, ProtocolError
from protocol.frames import PREFIX, header

VERSION = 0x4F
ANSWER = 0x8000


class Op(enum.IntEnum):
    """Extension operations; the keys of request → answer bodies stand beside each."""

    READ_LAC = 1
    """{ledger} → {lac, entry?}: highest LAC known to this bookie, and its last stored entry."""
    WRITE_LAC = 2
    """{ledger, key, lac} → {}: the explicit LAC of an idle writer."""
    WAIT_LAC = 3
    """{ledger, after, timeout_ms, entry: bool} → {lac, entry?}: parks until LAC > after."""
    FORCE = 4
    """{ledger} → {}: everything acked before is durable (also with journal_sync = false)."""
    LIST_ENTRIES = 5
    """{ledger} → {runs: [[first, last], …]}: what this bookie holds of the ledger."""
    NODE_INFO = 6
    """{} → {bookie_id, incarnation, read_only, free_bytes, total_bytes, version}."""
    ADDED = 7
    """answer only, request id 0: {ledger, first, last}: these adds are durable."""


class Request(NamedTuple):
    """A decoded extension request."""

    op: Op
    request_id: int
    body: dict[str, Any]


class Answer(NamedTuple):
    """A decoded extension answer. `code` is `Code.OK` or says why not."""

    op: Op
    request_id: int
    code: Code
    body: dict[str, Any]


def encode_request(op: Op, request_id: int, body: dict[str, Any]) -> bytes:
    """A whole request frame."""
    packed: bytes = msgpack.packb([request_id, body])
    return PREFIX.pack(4 + len(packed), header(op, 0, VERSION)) + packed


def encode_answer(op: Op, request_id: int, code: Code, body: dict[str, Any]) -> bytes:
    """A whole answer frame."""
    packed: bytes = msgpack.packb([request_id, int(code), body])
    return PREFIX.pack(4 + len(packed), header(op, ANSWER, VERSION)) + packed


def decode_request(frame: memoryview) -> Request:
    """Decode a whole request frame (length prefix included). Raises `ProtocolError`."""
    op, fields = _decode(frame, 2)
    request_id, body = fields
    if not isinstance(request_id, int) or not isinstance(body, dict):
        raise ProtocolError("extension request: wants [request_id, {…}]")
    return Request(op, request_id, body)


def decode_answer(frame: memoryview) -> Answer:
    """Decode a whole answer frame (length prefix included). Raises `ProtocolError`."""
    op, fields = _decode(frame, 3)
    request_id, code, body = fields
    if not isinstance(request_id, int) or not isinstance(body, dict):
        raise ProtocolError("extension answer: wants [request_id, code, {…}]")
    try:
        return Answer(op, request_id, Code(code), body)
    except ValueError as error:
        raise ProtocolError(f"extension answer: {error}") from error


def _decode(frame: memoryview, count: int) -> tuple[Op, list[Any]]:
    if len(frame) < PREFIX.size:
        raise ProtocolError(f"extension frame of {len(frame)} bytes has no header")
    number = PREFIX.unpack_from(frame)[1] >> 16 & 0xFF
    try:
        op = Op(number)
    except ValueError as error:
        raise ProtocolError(f"extension frame: unknown operation {number}") from error
    try:
        fields = msgpack.unpackb(frame[PREFIX.size :], strict_map_key=True)
    except Exception as error:  # msgpack raises a wide, undocumented set for bad input
        raise ProtocolError(f"extension frame: {op.name} body is not msgpack: {error}") from error
    if not isinstance(fields, list) or len(fields) != count:
        raise ProtocolError(f"extension frame: {op.name} body wants {count} fields")
    return op, fields
