"""BookKeeper's `AuthMessage`, the protobuf body of an AUTH frame.

message AuthMessage { required string authPluginName = 1; required bytes payload = 2; }
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.protocol.codes import ProtocolError
from octavo.protocol.entry import Buffer

AUTH_DISABLED = "AuthDisabledPlugin"
"""The plugin of a bookie that requires no authentication."""
OCTAVO = "octavo"
"""The request's payload is a token, the answer's is an error text or empty."""

_PLUGIN, _PAYLOAD = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class AuthMessage(NamedTuple):
    plugin: str
    payload: bytes


def encode_auth(message: AuthMessage) -> bytes:
    plugin = message.plugin.encode()
    return b"".join(
        (
            bytes((_PLUGIN << 3 | _BYTES,)),
            _encode_varint(len(plugin)),
            plugin,
            bytes((_PAYLOAD << 3 | _BYTES,)),
            _encode_varint(len(message.payload)),
            message.payload,
        )
    )


def decode_auth(data: Buffer) -> AuthMessage:
    """Raises `ProtocolError`."""
    view = memoryview(data)
    plugin: str | None = None
    payload: bytes | None = None
    position = 0
    while position < len(view):
        tag, position = _decode_varint(view, position)
        start, position = _field(view, position, tag & 7)
        if tag == _PLUGIN << 3 | _BYTES:
            try:
                plugin = str(view[start:position], "utf-8")
            except UnicodeDecodeError as error:
                raise ProtocolError(f"auth message: plugin name is not UTF-8: {error}") from error
        elif tag == _PAYLOAD << 3 | _BYTES:
            payload = bytes(view[start:position])
    if plugin is None or payload is None:
        raise ProtocolError("auth message: wants a plugin name (1) and a payload (2)")
    return AuthMessage(plugin, payload)


def _field(view: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    if wire_type == _VARINT:
        start, end = position, _decode_varint(view, position)[1]
    elif wire_type == _BYTES:
        length, start = _decode_varint(view, position)
        end = start + length
    elif wire_type in (_FIXED64, _FIXED32):
        start, end = position, position + (8 if wire_type == _FIXED64 else 4)
    else:
        raise ProtocolError(f"auth message: unknown wire type {wire_type}")
    if end > len(view):
        raise ProtocolError(f"auth message: a field ends at {end}, the message at {len(view)}")
    return start, end


def _encode_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _decode_varint(view: memoryview, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(view):
            raise ProtocolError("auth message: ends within a number")
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ProtocolError("auth message: a number has more than ten bytes")
