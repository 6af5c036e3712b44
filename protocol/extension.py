"""Octavo's own operations, on BookKeeper's port: a version byte, a msgpack body.

    request := length:i32 header:u32 msgpack([request_id, {…}])
    answer  := length:i32 header:u32 msgpack([request_id, code, {…}])    flags has ANSWER set

Unknown keys are ignored, and missing keys have defaults, for upgrades. Spec:
docs/formats/extension.md.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import msgpack

from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.entry import WHOLE, EntryRange
from octavo.protocol.frames import PREFIX, header

VERSION = 0x4F
ANSWER = 0x8000
_ARRAY_LEN_MAX = 262_144
_REQUEST_ARRAY_LEN_MAX = 64
_MAP_LEN_MAX = 1_024
"""msgpack reserves room for the announced elements, at every depth."""


class Op(enum.IntEnum):
    """Each operation with the keys of request → answer."""

    READ_LAC = 1
    """{ledger} → {lac, entry?}: highest LAC known here, and the last stored entry."""
    WRITE_LAC = 2
    """{ledger, key, lac} → {}: the explicit LAC of an idle writer."""
    WAIT_LAC = 3
    """{ledger, after, timeout_ms, entry: bool} → {lac, entry?}: waits until LAC > after, or the
    ledger is fenced or deleted.
    """
    FORCE = 4
    """{ledger} → {}: everything acked before is durable, also under `Flag.DEFERRED_SYNC` and
    journal_sync = false.
    """
    LIST_ENTRIES = 5
    """{ledger} → {runs: [[first, last], …]}: the entries held here."""
    NODE_INFO = 6
    """{} → {bookie_id, incarnation, read_only, unsure_through, free_bytes, total_bytes,
    version}."""
    FETCH_COPIES = 8
    """{} → {}: look at all ledgers soon, and fetch missing copies. {ledger, first, last} → {}:
    compare its copies with the others'.
    """
    ADDED = 7
    """answer only, request id 0: {ledger, first, last}: durable, or written if their sync was
    deferred.
    """


class Request(NamedTuple):
    op: Op
    request_id: int
    body: dict[str, Any]
    within: EntryRange = WHOLE
    """The entries that the caller may read. Never on the wire."""


class Answer(NamedTuple):
    op: Op
    request_id: int
    code: Code
    body: dict[str, Any]


def encode_request(op: Op, request_id: int, body: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb([request_id, body])
    return PREFIX.pack(4 + len(packed), header(op, 0, VERSION)) + packed


def encode_answer(op: Op, request_id: int, code: Code, body: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb([request_id, int(code), body])
    return PREFIX.pack(4 + len(packed), header(op, ANSWER, VERSION)) + packed


def encode_added(ledger_id: int, first: int, last: int) -> bytes:
    return encode_answer(Op.ADDED, 0, Code.OK, {"ledger": ledger_id, "first": first, "last": last})


def decode_request(frame: memoryview) -> Request:
    """Raises `ProtocolError`."""
    op, fields = _decode(frame, 2, 0)
    request_id, body = fields
    if type(request_id) is not int or not isinstance(body, dict):
        raise ProtocolError(f"extension request: {op.name} wants [request_id, {{…}}]")
    return Request(op, request_id, body)


def decode_answer(frame: memoryview) -> Answer:
    """Raises `ProtocolError`."""
    op, fields = _decode(frame, 3, ANSWER)
    request_id, code, body = fields
    if type(request_id) is not int or not isinstance(body, dict):
        raise ProtocolError(f"extension answer: {op.name} wants [request_id, code, {{…}}]")
    try:
        return Answer(op, request_id, Code(code), body)
    except ValueError as error:
        raise ProtocolError(f"extension answer: {error}") from error


def int_of(body: dict[str, Any], key: str, default: int | None = None) -> int:
    """Raises `ProtocolError`."""
    found = body.get(key, default)
    if type(found) is not int or not -(2**63) <= found < 2**63:
        raise ProtocolError(f"extension body: {key!r} wants a 64-bit integer, got {found!r:.40}")
    return found


def bytes_of(body: dict[str, Any], key: str, default: bytes | None = None) -> bytes:
    """Raises `ProtocolError`."""
    found = body.get(key, default)
    if not isinstance(found, bytes):
        raise ProtocolError(f"extension body: {key!r} wants bytes, got {found!r:.40}")
    return found


def _decode(frame: memoryview, count: int, direction: int) -> tuple[Op, list[Any]]:
    if len(frame) < PREFIX.size:
        raise ProtocolError(f"extension frame of {len(frame)} bytes has no header")
    head = PREFIX.unpack_from(frame)[1]
    if head >> 24 != VERSION or head & ANSWER != direction:
        wanted = "answer" if direction else "request"
        raise ProtocolError(f"frame header {head:#010x} does not begin an extension {wanted}")
    try:
        op = Op(head >> 16 & 0xFF)
    except ValueError as error:
        raise ProtocolError(f"extension frame: unknown operation {head >> 16 & 0xFF}") from error
    # msgpack takes memory for announced elements, and arrays may be nested a thousand deep.
    length_max = min(_ARRAY_LEN_MAX if direction else _REQUEST_ARRAY_LEN_MAX, len(frame))
    try:
        fields = msgpack.unpackb(
            frame[PREFIX.size :], max_array_len=length_max, max_map_len=_MAP_LEN_MAX
        )
    except Exception as error:  # msgpack raises a wide, undocumented set
        raise ProtocolError(f"extension frame: {op.name} body is not msgpack: {error}") from error
    if not isinstance(fields, list) or len(fields) != count:
        raise ProtocolError(f"extension frame: {op.name} body wants {count} fields")
    return op, fields
