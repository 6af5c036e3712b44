"""An HTTP exchange with a broker: the seam between the client and the network."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from octavo.client.errors import InvalidCall
from octavo.tls.words import CUT_OFF, tls_error, why

if TYPE_CHECKING:
    import ssl

    import aiohttp

CONNECT_TIMEOUT_S = 3.0


class DefaultUrl(str):
    """The address to try when the user named none; the client waits for it only briefly."""

    __slots__ = ()


class NoAnswer(Exception):
    pass


LOST = (NoAnswer, TimeoutError, OSError)
"""What `Wire.send` raises when no answer came: whether the call took effect is unknown."""


Body = bytes | Callable[[], AsyncIterable[bytes]] | None
"""Bytes, or a function that yields the body's parts for each attempt."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    reason: str = ""


class Streamed(NamedTuple):
    """An answer in pieces: `pieces` after a 2xx status, else `reply` is the whole answer."""

    reply: Reply
    pieces: AsyncIterator[bytes]


class Wire(Protocol):
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
    ) -> Reply: ...

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        """GET an endless answer; give up after `quiet_s` seconds without data.

        Opening it, and each piece, may raise an error of `LOST`.
        """

    async def close(self) -> None: ...


class HttpWire:
    """Real HTTP. aiohttp is imported with the first connection: its import is slow."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, proof: Mapping[str, str] | None = None
    ) -> None:
        """`tls`: for https:// URLs; default: the machine's CAs. `proof`: the caller's
        credentials.
        """
        self._tls = tls
        self._proof = dict(proof or {})
        import aiohttp

        self._http = aiohttp
        self._lost = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)
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
        timeout = self._http.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
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
        except self._lost as error:
            raise NoAnswer(str(error)) from error

    @asynccontextmanager
    async def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AsyncIterator[Streamed]:
        timeout = self._http.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=quiet_s)
        try:
            async with self._opened().get(
                url, params=params, headers=headers, timeout=timeout
            ) as response:
                body = await response.read() if response.status >= 300 else b""
                reply = Reply(response.status, response.headers, body, response.reason or "")
                yield Streamed(reply, self._pieces(response.content))
        except self._lost as error:
            raise NoAnswer(str(error)) from error

    async def _pieces(self, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        try:
            async for piece in content.iter_any():
                yield piece
        except self._lost as error:
            raise NoAnswer(str(error)) from error

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise InvalidCall("this client is closed: make a new one")
        if self._session is None:
            self._session = self._http.ClientSession(
                headers=self._proof,
                connector=self._http.TCPConnector(
                    limit=0, ttl_dns_cache=60, ssl=self._tls if self._tls is not None else True
                ),
            )
            self._session._retry_connection = False  # aiohttp would silently repeat a DELETE
        return self._session


def is_hopeless(error: BaseException) -> bool:
    """Whether a retry will hardly help: the host name is unknown, or TLS was refused."""
    cause = _cause_of(error)
    return _unknown_host(cause) is not None or tls_error(cause) is not None


def is_refused(error: BaseException) -> bool:
    cause = _cause_of(error)
    inner = getattr(cause, "os_error", cause)
    return isinstance(inner, ConnectionRefusedError)


def reason_of(error: BaseException, url: str) -> str:
    error = _cause_of(error)
    if isinstance(error, TimeoutError):
        return "timed out"
    if said := why(error):
        return said
    if (host := _unknown_host(error)) is not None:
        return f"there is no host named {host!r}: {_os_words(error)}"
    if said := _os_words(error):
        return said
    text = str(error) or type(error).__name__
    ended = isinstance(error, ConnectionResetError) or type(error).__name__ == _DISCONNECTED
    return f"{text}; {CUT_OFF}" if ended and url.startswith("https://") else text


_DISCONNECTED = "ServerDisconnectedError"


def _cause_of(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error, NoAnswer) and error.__cause__ else error


def _unknown_host(error: BaseException) -> str | None:
    if type(error).__name__ != "ClientConnectorDNSError":
        return None
    return str(getattr(error, "host", ""))


def _os_words(error: BaseException) -> str:
    inner = getattr(error, "os_error", None)
    return "" if inner is None else str(getattr(error, "strerror", "") or inner or error)
