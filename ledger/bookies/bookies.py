"""Every bookie that this process talks to: its address, its connection, its health.

A `Bookie` with listeners reconnects by itself. A new connection authenticates, if needed, then asks
for the bookie's id: another bookie on the same port must not pass for the bookie that made the
promises (BookKeeper #4812).

v2 answers name only ledger and entry, so a recovery has separate connections: the answer to a plain
read must not pass for a fencing read's. An Apache bookie speaks one version per connection, so v3
has separate ones too.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.bookies.v3_connection import V3Connection
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.store import MetadataError, Watch
from octavo.protocol.auth import OCTAVO
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError
from octavo.protocol.extension import Op
from octavo.tls.connecting import connect_tls
from octavo.tls.contexts import Certificates
from octavo.tls.words import CUT_OFF, why

if TYPE_CHECKING:
    from octavo.security.bookie_tokens import Prove  # slow to import

log = structlog.get_logger()

CLOSING = "this client is closing"
_LOOK_AGAIN_S = 60.0
"""A watch does not tell that a bookie's free space changed."""


class RequestClass(enum.Enum):
    NORMAL = "normal"
    RECOVERY = "recovery"
    V3 = "v3"
    """Some requests to Apache bookies exist only in v3."""


class BookieListener(Protocol):
    def bookie_up(self, bookie_id: str) -> None: ...

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None: ...

    def bookie_writable(self, bookie_id: str) -> None: ...


class Bookie:
    def __init__(self, bookie_id: str, pool: Bookies, request_class: RequestClass) -> None:
        self.bookie_id = bookie_id
        self.request_class = request_class
        self.connection: BookieConnection | None = None
        self._pool = pool
        self._options = pool.options
        self._listeners: dict[BookieListener, None] = {}
        self._connecting: asyncio.Task[BookieConnection] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._error: BookieUnavailable | None = None

    @property
    def is_up(self) -> bool:
        return self.connection is not None

    @property
    def is_ours(self) -> bool:
        """Whether the bookie understands our extension; an Apache bookie would hang up."""
        info = self._pool.info(self.bookie_id)
        return info is not None and bool(info.incarnation)

    @property
    def is_foreign(self) -> bool:
        info = self._pool.info(self.bookie_id)
        return info is not None and not info.incarnation

    @property
    def is_idle(self) -> bool:
        return not (self.connection or self._listeners or self._connecting or self._reconnecting)

    @property
    def is_connecting(self) -> bool:
        return self._connecting is not None

    def listen(self, listener: BookieListener) -> None:
        assert self._pool.get(self.bookie_id, self.request_class) is self, (
            "get the bookie from the pool again for each listener"
        )
        self._listeners[listener] = None
        if self.connection is None and self._reconnecting is None:
            self._reconnecting = self._pool.spawn(self._keep_connected())
        elif self._error is not None and self.connection is None:
            loop = asyncio.get_running_loop()
            loop.call_soon(listener.bookie_down, self.bookie_id, self._error)

    def unlisten(self, listener: BookieListener) -> None:
        self._listeners.pop(listener, None)
        self._pool.let_go(self)

    async def connected(self) -> BookieConnection:
        """Connect if needed. Raises `BookieUnavailable`."""
        if self.connection is not None:
            return self.connection
        if self._pool.closed:
            raise BookieUnavailable(self.bookie_id, CLOSING)
        if (current := self._pool.get(self.bookie_id, self.request_class)) is not self:
            return await current.connected()  # the pool dropped us while the caller waited
        if self._connecting is None:
            self._connecting = self._pool.spawn(self._connect())
            self._connecting.add_done_callback(self._connect_done)
        return await asyncio.shield(self._connecting)

    def drop(self, reason: str) -> None:
        """Close the connection as if it had broken."""
        if self.connection is not None:
            self.connection.close(reason)

    def _connect_done(self, task: asyncio.Task[BookieConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # mark as retrieved
        self._pool.let_go(self)

    async def _connect(self) -> BookieConnection:
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                connection = await self._open()
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            # The last two: no host name, or a port out of range.
            reason = (
                why(error)
                or str(error)
                or f"no connection in {self._options.connect_timeout_s:g} s"
            )
            self._error = BookieUnavailable(self.bookie_id, reason)
            raise self._error from error
        except BookieUnavailable as error:
            self._error = error
            raise
        self._error = None
        self.connection = connection
        self._pool.clear(self.bookie_id)
        for listener in tuple(self._listeners):
            listener.bookie_up(self.bookie_id)
        return connection

    async def _open(self) -> BookieConnection:
        host, port = await self._pool.address(self.bookie_id)
        loop = asyncio.get_running_loop()
        kind = V3Connection if self.request_class is RequestClass.V3 else BookieConnection

        def made() -> BookieConnection:
            return kind(
                self.bookie_id,
                self,
                self._pool.scratch,
                timeout_s=self._options.read_timeout_s,
                buffer_bytes_max=self._options.connection_buffer_bytes_max,
            )

        if self._pool.tls is None:
            _, connection = await loop.create_connection(made, host, port)
        else:
            connection = await connect_tls(self._pool.tls, made, host, port)
        info = self._pool.info(self.bookie_id)
        if self._pool.prove is not None and (info is None or info.auth == OCTAVO):
            connection.authenticate(self._pool.prove(self.bookie_id))
        try:
            if self.is_ours:
                await self._check_identity(connection)
        except BaseException:
            connection.close("not used")
            raise
        return connection

    async def _check_identity(self, connection: BookieConnection) -> None:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        connection.request(Op.NODE_INFO, {}, settle(answer))
        try:
            found = (await answer).get("bookie_id")
        except OctavoError as error:
            hint = f"; {CUT_OFF}" if self._pool.tls and isinstance(error, BookieUnavailable) else ""
            if connection.refusal:
                hint = f"; it refused our authentication: {connection.refusal}"
            raise BookieUnavailable(
                self.bookie_id, f"did not answer with its id: {error}{hint}"
            ) from error
        if found != self.bookie_id:
            raise BookieUnavailable(self.bookie_id, f"bookie {found} answers at its address")

    async def _keep_connected(self) -> None:
        """Retry until the bookie is connected or nothing listens any more."""
        pauses = self._pool.pauses()
        told = False
        try:
            while self.connection is None and self._listeners and not self._pool.closed:
                try:
                    await self.connected()
                except Exception as error:  # a bug must not end the retries in silence
                    if not isinstance(error, BookieUnavailable):
                        log.error(
                            "bookie_lost",
                            bookie=self.bookie_id,
                            reason=repr(error),
                            exc_info=error,
                        )
                        error = BookieUnavailable(self.bookie_id, repr(error))
                    if not told:
                        self._tell_down(error)
                        told = True
                    self._pool.refresh()
                    await asyncio.sleep(pauses.next_s())
        finally:
            self._reconnecting = None
            self._pool.let_go(self)

    def _tell_down(self, error: BookieUnavailable) -> None:
        for listener in tuple(self._listeners):
            listener.bookie_down(self.bookie_id, error)

    def connection_writable(self) -> None:
        for listener in tuple(self._listeners):
            listener.bookie_writable(self.bookie_id)

    def connection_lost(self, error: BookieUnavailable) -> None:
        """Tell the listeners, and reconnect if there are any."""
        if self.connection is None:
            return
        self.connection = None
        self._error = error
        log.info(
            "bookie_lost",
            bookie=self.bookie_id,
            request_class=self.request_class.value,
            reason=error.reason,
        )
        self._tell_down(error)
        if self._listeners and self._reconnecting is None and not self._pool.closed:
            self._reconnecting = self._pool.spawn(self._keep_connected())
        self._pool.let_go(self)


class Bookies:
    def __init__(
        self,
        registry: BookieRegistry,
        options: LedgerOptions,
        rng: random.Random,
        tls: Certificates | None = None,
        prove: Prove | None = None,
    ) -> None:
        """Keep connections; `prove` makes tokens for bookies that require authentication."""
        self.options = options
        self.prove = prove
        self.tls = tls if tls and tls.config.connects else None
        self._rng = rng
        self.scratch = bytearray(options.scratch_bytes)
        self.closed = False
        self._registry = registry
        self._bookies: dict[tuple[str, RequestClass], Bookie] = {}
        self._infos: dict[str, BookieInfo] = {}
        self._known: dict[str, BookieInfo] = {}
        self._unsure_through: dict[str, int] = {}
        """For each bookie in limbo, the highest ledger of which it may have lost entries."""
        self._watch: Watch | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._again = False
        self._suspects: dict[str, float] = {}
        self._on_change: dict[Callable[[], None], None] = {}

    async def start(self) -> None:
        if self._watch is None:
            self._watch = self._registry.watch(self.refresh)
            self.spawn(self._look_again())
        self._take(await self._registry.available())

    async def close(self) -> None:
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        for bookie in tuple(self._bookies.values()):
            bookie.drop(CLOSING)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def pauses(self) -> Backoff:
        """Make the pauses between attempts to connect or to read registrations."""
        options = self.options
        return Backoff(options.reconnect_ms_min / 1000, options.reconnect_ms_max / 1000, self._rng)

    def get(self, bookie_id: str, request_class: RequestClass = RequestClass.NORMAL) -> Bookie:
        """Return the pool's only object for this bookie and request class."""
        bookie = self._bookies.get((bookie_id, request_class))
        if bookie is None:
            bookie = self._bookies[bookie_id, request_class] = Bookie(
                bookie_id, self, request_class
            )
        return bookie

    async def in_v3(self, bookie_id: str) -> V3Connection:
        """Connect in v3 frames if needed. Raises `BookieUnavailable`."""
        connection = await self.get(bookie_id, RequestClass.V3).connected()
        assert isinstance(connection, V3Connection)
        return connection

    def let_go(self, bookie: Bookie) -> None:
        key = (bookie.bookie_id, bookie.request_class)
        gone = bookie.bookie_id not in self._infos and bookie.is_idle and not self.closed
        if gone and self._bookies.get(key) is bookie:
            del self._bookies[key]

    # ------------------------------------------------------------------ registrations

    @property
    def available(self) -> dict[str, BookieInfo]:
        return self._infos

    def is_unsure(self, ledger_id: int, bookie_ids: Iterable[str]) -> bool:
        """Whether one of these bookies may have lost entries of this ledger."""
        unsure = self._unsure_through
        return bool(unsure) and any(unsure.get(one, -1) >= ledger_id for one in bookie_ids)

    def info(self, bookie_id: str) -> BookieInfo | None:
        return self._known.get(bookie_id)

    async def address(self, bookie_id: str) -> tuple[str, int]:
        """Return the bookie's host and port. Raises `BookieUnavailable`."""
        info = self._infos.get(bookie_id)
        if info is None:
            try:
                self._take(await self._registry.available())
            except MetadataError as error:
                log.info("bookies_not_read", reason=str(error))
            info = self._known.get(bookie_id)
        if info is not None:
            return info.host, info.port
        host, colon, port = bookie_id.rpartition(":")
        if colon and port.isascii() and port.isdigit():
            return host, int(
                port
            )  # BookKeeper's ids are addresses; it may only have lost its session
        raise BookieUnavailable(bookie_id, "is not registered, and its id is not host:port")

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after bookies came or went; the returned function unregisters it."""
        self._on_change[listener] = None
        return lambda: self._on_change.pop(listener, None)

    async def all_known(self, enough: int) -> set[str]:
        """Return all known bookies, up or down; ask the store if fewer than `enough` are up."""
        if len(self._infos) < enough:
            known = await self._registry.known() | self._infos.keys()
            self._known = {one: info for one, info in self._known.items() if one in known}
            return known
        return set(self._known)

    async def reload(self) -> None:
        self._take(await self._registry.available())

    def refresh(self) -> None:
        self._again = True
        if self._refreshing is None and not self.closed:
            self._refreshing = self.spawn(self._refresh())

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            self.refresh()

    async def _refresh(self) -> None:
        pauses = self.pauses()
        try:
            while self._again:
                self._again = False
                try:
                    self._take(await self._registry.available())
                except Exception as error:  # a bug must not end the retries in silence
                    bug = None if isinstance(error, MetadataError) else error
                    log.warning("bookies_not_read", reason=str(error), exc_info=bug)
                    self._again = True
                    await asyncio.sleep(pauses.next_s())
        finally:
            self._refreshing = None

    def _take(self, infos: dict[str, BookieInfo]) -> None:
        changed = infos != self._infos
        self._infos = infos
        self._known.update(infos)
        bounds = {bookie_id: info.unsure_through for bookie_id, info in infos.items()}
        self._unsure_through = {one: bound for one, bound in bounds.items() if bound >= 0}
        if changed:
            for bookie in tuple(self._bookies.values()):
                self.let_go(bookie)
            for listener in tuple(self._on_change):
                listener()

    # ------------------------------------------------------------------ health

    def suspect(self, bookie_id: str) -> None:
        now = asyncio.get_running_loop().time()
        self._suspects[bookie_id] = now + self.options.suspect_ms / 1000

    def clear(self, bookie_id: str) -> None:
        """Trust the bookie again: it took a new connection and answered with its id."""
        self._suspects.pop(bookie_id, None)

    def probe(self) -> None:
        """Connect to the suspects: a bookie that answers is no longer suspected."""
        for bookie_id in sorted(self.suspects() & self._infos.keys()):
            bookie = self.get(bookie_id)
            if not bookie.is_up and not bookie.is_connecting:
                self.spawn(_ignore_unavailable(bookie))

    def suspects(self) -> set[str]:
        """Return the bookies that failed within the last `suspect_ms`."""
        now = asyncio.get_running_loop().time()
        self._suspects = {b: until for b, until in self._suspects.items() if until > now}
        return set(self._suspects)


def settle(future: asyncio.Future[Any]) -> Callable[[OctavoError | None, Any], None]:
    def done(error: OctavoError | None, found: Any) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(found)

    return done


async def _ignore_unavailable(bookie: Bookie) -> None:
    with contextlib.suppress(BookieUnavailable):
        await bookie.connected()
