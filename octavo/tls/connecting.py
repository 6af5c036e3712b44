"""Connect to a bookie over TLS: from the first byte, or by START_TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from octavo.protocol import v3
from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.frames import LENGTH
from octavo.tls.contexts import Certificates
from octavo.tls.words import BROKE_OFF

P = TypeVar("P", bound=asyncio.BaseProtocol)

ANSWER_BYTES_MAX = 1024
REFUSED = (
    "it does not support START_TLS: give the bookie certificates (tls.certificate), or connect "
    "without TLS"
)


async def connect_tls(tls: Certificates, made: Callable[[], P], host: str, port: int) -> P:
    """Connect, within the caller's time. Raises `OSError`, TLS errors included."""
    loop = asyncio.get_running_loop()
    context = tls.client
    assert context is not None, "called only with a CA"
    if not tls.config.start_tls:
        try:
            _, protocol = await loop.create_connection(
                made, host, port, ssl=context, server_hostname=host
            )
        except ConnectionResetError as error:
            raise ConnectionResetError(f"{BROKE_OFF} {error}".rstrip()) from error
        return protocol
    transport, asking = await loop.create_connection(_Asking, host, port)
    try:
        await asking.agreed
        protocol = made()
        secured = await loop.start_tls(transport, protocol, context, server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise ConnectionResetError("the connection was closed in its handshake")
    protocol.connection_made(secured)
    return protocol


class _Asking(asyncio.Protocol):
    def __init__(self) -> None:
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.BaseTransport | None = None
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(v3.start_tls_request(1))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._came += data
        if self.agreed.done() or len(self._came) < LENGTH.size:
            return
        length = LENGTH.unpack_from(self._came)[0]
        if length > ANSWER_BYTES_MAX or len(self._came) > LENGTH.size + length:
            # Bytes after the answer came unencrypted: an attacker may have added them.
            self._refuse("it does not answer START_TLS correctly")
        elif len(self._came) == LENGTH.size + length:
            try:
                code = v3.start_tls_code(self._came[LENGTH.size :])
            except ProtocolError as error:
                self._refuse(str(error))
                return
            if code is Code.OK:
                self.agreed.set_result(None)
            else:
                self._refuse(REFUSED)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.agreed.done():
            self._refuse(str(exc or "") or REFUSED)

    def _refuse(self, reason: str) -> None:
        if not self.agreed.done():
            self.agreed.set_exception(ConnectionRefusedError(reason))
