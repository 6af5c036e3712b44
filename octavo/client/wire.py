"""One HTTP exchange with one broker: the seam between the client and the network."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol

import aiohttp

from octavo.client.errors import InvalidCall
from octavo.tls.words import CUT_OFF, tls_error, why

CONNECT_TIMEOUT_S = 3.0
LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError)
"""What `Wire.send` raises when no answer came: whether the call took effect is unknown."""


Body = bytes | Callable[[], AsyncIterable[bytes]] | None
"""What is sent: whole, or what gives its parts, anew for each attempt."""


class Reply(NamedTuple):
    """An answer of any status. `reason` is the status in words."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    reason: str = ""


class Streamed(NamedTuple):
    """An answer that comes piece by piece: `pieces` behind a 2xx status, else `reply` is all."""

    reply: Reply
    pieces: AsyncIterator[bytes]


class Wire(Protocol):
    """How calls reach brokers."""

    async def send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        body: Body,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        follow: bool = True,
    ) -> Reply:
        """One exchange, redirects followed unless told not to. Raises one of `LOST`."""

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        """A GET whose answer may go on for ever; given up where nothing comes for `quiet_s`.

        Opening it, and each piece, raises one of `LOST`.
        """

    async def close(self) -> None:
        """Give all connections back."""


class HttpWire:
    """Real HTTP; connections open when needed."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, proof: Mapping[str, str] | None = None
    ) -> None:
        """`tls`: of URLs that begin with https://; without it the machine's CAs are believed.
        `proof`: the headers that say who asks."""
        self._tls = tls
        self._proof = dict(proof or {})
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        body: Body,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        follow: bool = True,
    ) -> Reply:
        """See `Wire`."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        async with self._opened().request(
            method,
            url,
            params=params,
            data=body() if callable(body) else body,
            headers=headers,
            timeout=timeout,
            allow_redirects=follow,
        ) as response:
            found = await response.read()
            return Reply(response.status, response.headers, found, response.reason or "")

    @asynccontextmanager
    async def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AsyncIterator[Streamed]:
        """See `Wire`."""
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=quiet_s)
        async with self._opened().get(
            url, params=params, headers=headers, timeout=timeout
        ) as response:
            body = await response.read() if response.status >= 300 else b""
            reply = Reply(response.status, response.headers, body, response.reason or "")
            yield Streamed(reply, response.content.iter_any())

    async def close(self) -> None:
        """See `Wire`. What still calls then, a producer that nobody closed, is refused."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise InvalidCall("this client is closed: make a new one")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._proof,
                connector=aiohttp.TCPConnector(
                    limit=0, ttl_dns_cache=60, ssl=self._tls if self._tls is not None else True
                ),
            )
            self._session._retry_connection = False  # it would repeat a DELETE behind our back
        return self._session


def is_hopeless(error: BaseException) -> bool:
    """Whether time alone will hardly help: the host name leads nowhere, or TLS was refused."""
    return isinstance(error, aiohttp.ClientConnectorDNSError) or tls_error(error) is not None


def reason_of(error: BaseException, url: str) -> str:
    """Why there was no answer from `url`, in words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if said := why(error):
        return said
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"there is no host named {error.host!r}: {error.strerror or error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.strerror or error.os_error or error)
    text = str(error) or type(error).__name__
    ended = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
    return f"{text}; {CUT_OFF}" if ended and url.startswith("https://") else text
