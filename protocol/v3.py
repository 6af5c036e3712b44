"""BookKeeper's v3 frames: protobuf requests and answers, matched by a transaction id.

    frame := length:i32 message              length counts the message only
    message := Request | Response            v3_schema.py has their fields

Adds and reads get the flags of v2 frames, so a bookie treats both alike. Spec:
docs/formats/frames_v3.md.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from octavo.protocol.auth import AUTH_DISABLED, AuthMessage
from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.entry import Buffer
from octavo.protocol.frames import LENGTH, Flag
from octavo.protocol.v3_schema import RequestMessage, ResponseMessage

VERSION = 3
_BYTES, _VARINT_MORE = 2, 0x80


class Op(enum.IntEnum):
    """The operations that a bookie serves."""

    READ = 1
    ADD = 2
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    BOOKIE_INFO = 8
    START_TLS = 9
    FORCE = 10
    LIST_ENTRIES = 11


STATUS = {
    Code.OK: 0,
    Code.NO_LEDGER: 402,
    Code.NO_ENTRY: 403,
    Code.BAD_REQUEST: 404,
    Code.IO: 501,
    Code.UNAUTHORIZED: 502,
    Code.BAD_VERSION: 503,
    Code.FENCED: 504,
    Code.READ_ONLY: 505,
    Code.TOO_MANY_REQUESTS: 506,
    Code.UNKNOWN_STATE: 507,
}

_RECOVERY_ADD = 1
_DEFERRED_SYNC = 1
_FENCE_LEDGER = 1
_ENTRY_PIGGYBACK = 2


class Add(NamedTuple):
    """`flags` are a v2 frame's."""

    head: bytes
    flags: int
    ledger_id: int
    entry_id: int
    key: bytes
    entry: Buffer


class Read(NamedTuple):
    """`flags` are a v2 frame's; entry −1 is the last entry."""

    head: bytes
    flags: int
    ledger_id: int
    entry_id: int
    key: bytes
    previous_lac: int | None = None
    """A long poll waits until the LAC is above it."""
    timeout_ms: int | None = None
    piggyback: bool = False
    """Whether a long poll asks for the entry after `previous_lac`."""

    @property
    def waits(self) -> bool:
        return self.previous_lac is not None and not self.flags & Flag.FENCE


class Call(NamedTuple):
    """`op` may be unknown, and `body` another operation's."""

    head: bytes
    op: int
    version: int
    body: Any


Request = Add | Read | Call


def parse_request(frame: memoryview) -> Request | None:
    """Parse a request; None if it is not a v3 request.

    An add or read without its body, or of another version, becomes a `Call`.
    """
    try:
        message = RequestMessage.FromString(frame[LENGTH.size :])
    except DecodeError:
        return None
    if not message.IsInitialized():
        return None
    header = message.header
    urgent = int(Flag.HIGH_PRIORITY) if header.priority else 0
    head = head_of(header.version, header.operation, header.txnId)
    if header.version == VERSION:
        if header.operation == Op.ADD and message.HasField("addRequest"):
            add = message.addRequest
            flags = urgent | (int(Flag.RECOVERY_ADD) if add.flag == _RECOVERY_ADD else 0)
            flags |= flags_of_write(add.writeFlags)
            return Add(head, flags, add.ledgerId, add.entryId, add.masterKey, add.body)
        if header.operation == Op.READ and message.HasField("readRequest"):
            return _read(head, urgent, message.readRequest)
    return Call(head, header.operation, header.version, message)


def flags_of_write(write_flags: int) -> int:
    return int(Flag.DEFERRED_SYNC) if write_flags & _DEFERRED_SYNC else 0


def _read(head: bytes, flags: int, read: Any) -> Read:
    fences = read.flag == _FENCE_LEDGER
    return Read(
        head,
        flags | (int(Flag.FENCE) if fences else 0),
        read.ledgerId,
        read.entryId,
        read.masterKey if fences else b"",
        read.previousLAC if read.HasField("previousLAC") else None,
        read.timeOut if read.HasField("timeOut") else None,
        read.flag == _ENTRY_PIGGYBACK,
    )


def varint(number: int) -> bytes:
    """Encode a varint; negative numbers take ten bytes."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    if number < _VARINT_MORE:
        return bytes((number,))
    out = bytearray()
    while number >= _VARINT_MORE:
        out.append(number & 0x7F | _VARINT_MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def head_of(version: int, op: int, txn_id: int) -> bytes:
    return b"".join((b"\x08", varint(version), b"\x10", varint(op), b"\x18", varint(txn_id)))


_STATUS_BYTES = {code: varint(status) for code, status in STATUS.items()}
_READ_TAG = varint(100 << 3 | _BYTES)
_ADD_TAG = varint(101 << 3 | _BYTES)


def _frame(head: bytes, status: bytes, tag: bytes, *body: Buffer) -> bytes:
    size = sum(map(len, body))
    front = b"".join((b"\x0a", varint(len(head)), head, b"\x10", status, tag, varint(size)))
    return b"".join((LENGTH.pack(len(front) + size), front, *body))


def add_answer(head: bytes, code: Code, ledger_id: int, entry_id: int) -> bytes:
    status = _STATUS_BYTES[code]
    ids = b"".join((b"\x08", status, b"\x10", varint(ledger_id), b"\x18", varint(entry_id)))
    return _frame(head, status, _ADD_TAG, ids)


def read_answer(
    head: bytes,
    code: Code,
    ledger_id: int,
    entry_id: int,
    entry: bytes | None = None,
    lac: int | None = None,
) -> bytes:
    """Encode a read's answer.

    `lac` is the highest LAC that the bookie knows; None if the reader must not learn it.
    """
    status = _STATUS_BYTES[code]
    ids = b"".join((b"\x08", status, b"\x10", varint(ledger_id), b"\x18", varint(entry_id)))
    if entry is not None:
        ids += b"\x22" + varint(len(entry))
    end = b"" if lac is None else b"\x28" + varint(lac)
    return _frame(head, status, _READ_TAG, ids, entry or b"", end)


def answer(head: bytes, code: Code, name: str = "", **fields: Any) -> bytes:
    """Encode an answer; `name` is the body's field, which takes `fields` and often the status."""
    message = ResponseMessage(status=STATUS[code])
    message.header.MergeFromString(head)
    if name:
        body = getattr(message, name)
        body.SetInParent()
        for key, value in fields.items():
            setattr(body, key, value)
    data: bytes = message.SerializeToString()
    return LENGTH.pack(len(data)) + data


def start_tls_request(txn_id: int) -> bytes:
    """Wait for the answer before sending more."""
    message = RequestMessage()
    message.header.version, message.header.operation = VERSION, Op.START_TLS
    message.header.txnId = txn_id
    message.startTLSRequest.SetInParent()
    data: bytes = message.SerializeToString()
    return LENGTH.pack(len(data)) + data


def start_tls_code(message: bytes) -> Code:
    """Return the answer's code. Raises `ProtocolError` for another answer."""
    try:
        found = ResponseMessage.FromString(message)
    except DecodeError as error:
        raise ProtocolError("the answer to START_TLS is not a v3 answer") from error
    if found.header.operation != Op.START_TLS:
        raise ProtocolError(f"operation {found.header.operation} was answered, not START_TLS")
    return next((code for code, status in STATUS.items() if status == found.status), Code.IO)


def auth_message(call: Call) -> AuthMessage:
    return AuthMessage(call.body.authRequest.authPluginName, call.body.authRequest.payload)


_NOBODY_ASKED = AuthMessage(AUTH_DISABLED, b"")


def is_auth(call: Call) -> bool:
    return call.op == Op.AUTH and call.version == VERSION


def auth_answer(head: bytes, code: Code = Code.OK, said: AuthMessage = _NOBODY_ASKED) -> bytes:
    """Encode an answer; by default it says that no authentication is required."""
    return answer(head, code, "authResponse", authPluginName=said.plugin, payload=said.payload)
