"""What one process has of the simulated metadata store: the production Protocol, over a bad line.

A connection keeps the order of what it carries. A call that is lost with it raises
`MetadataUnavailable`; one that finds the session over raises `SessionExpired` after the listeners
heard EXPIRED. Nothing comes while the process is paused; what it believes of its session then is
judged by its own clock. Its timers are its own and die with it: the session is left to time out.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metadata.paths import check_folder, check_path
from metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataUnavailable,
    Record,
    RecordExists,
    SessionExpired,
    SessionState,
    VersionConflict,
    Watch,
    check_value,
)
from metadata.watching import WatchKey, WatchTable

if TYPE_CHECKING:
    from tests.sim.metadata import SimMetadata

_RECONNECT_DELAY_S = 0.3
_DOUBTFUL = (MetadataUnavailable, VersionConflict, RecordExists)


class _Call:
    """A call on its way."""

    __slots__ = ("connection", "deadline_s", "future", "generation", "is_read", "sent_s", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
        deadline_s: float,
        *,
        is_read: bool,
        generation: int | None,
    ) -> None:
        self.work = work
        self.future = future
        self.deadline_s = deadline_s
        self.is_read = is_read
        self.generation = generation
        """Send it in this session or not at all."""
        self.connection = 0
        self.sent_s = 0.0


class SimMetadataStore:
    """A `MetadataStore` on a `SimMetadata`."""

    def __init__(
        self,
        server: SimMetadata,
        name: str,
        *,
        session_timeout_ms: int,
        call_timeout_ms: int,
    ) -> None:
        self.name = name
        self._server = server
        self._loop = server.loop
        self._session_timeout_ms = session_timeout_ms
        self._call_timeout_s = call_timeout_ms / 1000
        self._watches = WatchTable()
        self._state = SessionState.SUSPENDED
        self._context: contextvars.Context | None = None
        self._started: asyncio.Future[None] | None = None
        self._closed = False
        self._session = 0
        self._connection = 0
        self._linked = False
        self._generation = 0
        self._contact_s = 0.0
        self._view = 0
        self._lag_share = server.rng.random()
        self._in_doubt = False
        self._waiting: deque[_Call] = deque()
        self._under_way: dict[_Call, None] = {}
        self._requests: deque[_Call] = deque()
        self._replies: deque[tuple[_Call, Any, Exception | None]] = deque()
        self._next_arrival_s = self._next_reply_s = 0.0
        self._alarms: dict[WatchKey, int] = {}
        self._pulse: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        return f"sim://{self.name}"

    @property
    def session_state(self) -> SessionState:
        if (
            self._state is SessionState.CONNECTED
            and (self._loop.time() - self._contact_s) * 1000 >= self._session_timeout_ms
        ):
            return SessionState.SUSPENDED
        return self._state

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    # -- life

    async def start(self) -> None:
        assert self._context is None, "a store is started once"
        self._context = contextvars.copy_context()
        self._started = self._loop.create_future()
        self._contact_s = self._loop.time()
        self._beat()
        await self._started

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._give_up_all(MetadataUnavailable(f"{self.url} is closed"))
        try:
            if self._linked:
                server, session = self._server, self._session
                await self._send_and_wait(
                    _Call(
                        lambda: server.close_session(session),
                        self._loop.create_future(),
                        self._loop.time() + self._call_timeout_s,
                        is_read=False,
                        generation=None,
                    )
                )
        except SessionExpired:
            pass
        finally:
            self._state = SessionState.SUSPENDED
            self._linked = False
            if self._pulse is not None:
                self._pulse.cancel()
            self._server.forget(self)

    # -- records

    async def get(self, path: str) -> Record:
        check_path(path)
        return await self._call(lambda: self._server.tree.get(path, self._view), is_read=True)

    async def children(self, path: str) -> list[str]:
        check_folder(path)
        return await self._call(lambda: self._server.tree.children(path, self._view), is_read=True)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        check_path(path + "0" if sequence else path)
        check_value(path, value)
        return await self._call(
            lambda: self._server.tree.create(
                path,
                value,
                session=self._session if ephemeral else None,
                sequence=sequence,
                by=self.name,
            ),
            generation=self._generation if ephemeral else None,
        )

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        return await self._call(
            lambda: self._server.tree.put(path, value, version, by=self.name),
        )

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        return await self._call(lambda: self._server.tree.delete(path, version, by=self.name))

    async def sync(self) -> None:
        await self._call(self._catch_up, is_read=True)

    # -- watches

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watch(WatchKey(check_path(path), of_children=False), on_change)

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watch(WatchKey(check_folder(path), of_children=True), on_change)

    def _watch(self, key: WatchKey, on_change: Callable[[], None]) -> Watch:
        watch = self._watches.add(key, on_change)
        # The server that keeps the watch may not have seen the last changes yet.
        behind = self._server.tree.last_change(key) > self._view
        if behind or self._server.rng.random() < self._server.faults.false_alarms:
            self.maybe_alarm((key,), self._server.tree.seq)
        return watch

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._watches.listen(listener)

    def maybe_alarm(self, keys: tuple[WatchKey, ...], seq: int) -> None:
        """The server: `seq` changed `keys`. Alarms for one key are merged while one is due."""
        for key in keys:
            if key not in self._watches:
                continue
            if key not in self._alarms:
                rng, faults = self._server.rng, self._server.faults
                scale = 20.0 if rng.random() > 0.95 else 2.0
                delay_s = (faults.watch_delay_ms * scale * rng.random() + self._lag_ms()) / 1000
                self._loop.call_later(delay_s, self._alarm, key, context=self._context)
            self._alarms[key] = seq

    def _alarm(self, key: WatchKey) -> None:
        seq = self._alarms.pop(key, 0)
        # Lost with the connection: everybody gets an alarm with the next one.
        if self._linked and self._server.is_heard(self.name):
            self._view = max(self._view, seq)
            self._watches.notify((key,))

    # -- calls, in the process

    async def _call(
        self, work: Callable[[], Any], *, is_read: bool = False, generation: int | None = None
    ) -> Any:
        if self._closed or self._context is None:
            raise MetadataUnavailable(f"{self.url} is closed")
        deadline_s = self._loop.time() + self._call_timeout_s
        future = self._loop.create_future()
        call = _Call(work, future, deadline_s, is_read=is_read, generation=generation)
        return await self._send_and_wait(call)

    async def _send_and_wait(self, call: _Call) -> Any:
        if self._linked:
            self._send(call)
        else:
            self._waiting.append(call)
        try:
            return await call.future
        except _DOUBTFUL:
            self._in_doubt = True
            raise

    def _send(self, call: _Call) -> None:
        server = self._server
        if call.generation is not None and call.generation != self._generation:
            self._fail(call, self._session_over_error())
            return
        if call.is_read and self._in_doubt:
            self._in_doubt = False
            call.work = self._after_catching_up(call.work)
        call.connection = self._connection
        call.sent_s = self._loop.time()
        self._under_way[call] = None
        if server.rng.random() < server.faults.lost_request:
            server.trace.fault("metadata.lost_request")
            self._lose(call)
            return
        self._next_arrival_s = max(self._next_arrival_s, self._loop.time() + server.delay_s())
        self._requests.append(call)
        self._loop.call_at(self._next_arrival_s, self._arrive, context=server.context)

    def _lose(self, call: _Call) -> None:
        """No answer to this one: it is given up early or late."""
        delay_s = self._server.rng.random() * min(self._call_timeout_s, 0.5)
        self._loop.call_later(delay_s, self._give_up, call, context=self._context)

    def _give_up(self, call: _Call) -> None:
        if self._under_way.pop(call, 0) is None:
            self._fail(call, MetadataUnavailable(f"{self.url} did not answer in time"))

    def _fail(self, call: _Call, error: MetadataError) -> None:
        if not call.future.done():
            call.future.set_exception(error)

    def _session_over_error(self) -> SessionExpired:
        return SessionExpired(f"{self.url}: the session in which this call began is over")

    # -- calls, at the server

    def _arrive(self) -> None:
        call = self._requests.popleft()
        server = self._server
        if not server.hears(self.name):
            return  # lost with the connection, which is not known to be dead yet
        result, error = None, None
        try:
            session = server.session(self._session)
            if call.connection != session.connection:
                return
            server.touch(session)
            if call.is_read:
                self._view = max(self._view, self._seen_by_its_server())
                result = call.work()
            else:
                result = call.work()
                self._catch_up()
        except MetadataError as failure:
            error = failure
        if not server.is_heard(self.name):
            return
        if server.rng.random() < server.faults.lost_reply:
            server.trace.fault("metadata.lost_reply")
            self._lose(call)
            return
        self._next_reply_s = max(self._next_reply_s, self._loop.time() + server.delay_s())
        self._replies.append((call, result, error))
        self._loop.call_at(self._next_reply_s, self._receive, context=self._context)

    def _lag_ms(self) -> float:
        return self._server.faults.lag_ms * self._lag_share

    def _seen_by_its_server(self) -> int:
        """How far the server that we are connected to has come."""
        lag_ms, tree = self._lag_ms(), self._server.tree
        return tree.seq if lag_ms == 0 else tree.seq_at(self._loop.time() - lag_ms / 1000)

    def _catch_up(self) -> None:
        self._view = self._server.tree.seq

    def _after_catching_up(self, work: Callable[[], Any]) -> Callable[[], Any]:
        def synced() -> Any:
            self._catch_up()
            return work()

        return synced

    # -- answers, in the process

    def _receive(self) -> None:
        call, result, error = self._replies.popleft()
        if call.connection != self._connection or self._under_way.pop(call, 0) is not None:
            return
        if isinstance(error, SessionExpired):
            self._under_way[call] = None
            self._expired()
            return
        self._vouch(call.sent_s)
        if not call.future.done():
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)

    def _vouch(self, sent_s: float) -> None:
        """The session stood when this was sent, or later."""
        self._contact_s = max(self._contact_s, sent_s)

    # -- session, in the process

    def _beat(self) -> None:
        """Keep the session, find out about a dead connection, make a new one, end old calls."""
        now_s = self._loop.time()
        timeout_s = self._session_timeout_ms / 1000
        if self._linked:
            self._ping()
            if self._linked and now_s - self._contact_s >= timeout_s * 2 / 3:
                self._disconnect()
        else:
            self._connect()
        assert self._started is not None
        if not self._started.done() and now_s - self._contact_s >= self._call_timeout_s:
            self._closed = True
            self._server.forget(self)
            self._started.set_exception(MetadataUnavailable(f"{self.url}: no session"))
            return
        self._end_overdue(now_s)
        interval_s = timeout_s / 4 if self._linked else _RECONNECT_DELAY_S
        self._beat_after(interval_s * (0.5 + self._server.rng.random() / 2))

    def _beat_after(self, delay_s: float) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
        if not self._closed or self._linked:
            self._pulse = self._loop.call_later(delay_s, self._beat, context=self._context)

    def _ping(self) -> None:
        """Asks and hears at once: it is only ever lost as a whole, or not heard back."""
        server = self._server
        if not server.hears(self.name):
            return
        try:
            session = server.session(self._session)
        except SessionExpired:
            if server.is_heard(self.name):
                self._expired()
            return
        server.touch(session)
        if server.is_heard(self.name):
            self._vouch(self._loop.time())

    def _end_overdue(self, now_s: float) -> None:
        error = MetadataUnavailable(f"{self.url} did not answer in time")
        for call in [call for call in self._under_way if call.deadline_s <= now_s]:
            del self._under_way[call]
            self._fail(call, error)
        for call in [call for call in self._waiting if call.deadline_s <= now_s]:
            self._waiting.remove(call)
            self._fail(call, error)

    def _give_up_all(self, error: MetadataError) -> None:
        calls = [*self._under_way, *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        for call in calls:
            self._fail(call, error)

    def _disconnect(self) -> None:
        """The connection is gone, and with it every answer that was under way."""
        self._linked = False
        self._connection += 1
        calls = list(self._under_way)
        self._under_way.clear()
        for call in calls:
            if call.is_read and self._server.resends_reads:
                self._waiting.append(call)
            else:
                self._fail(call, MetadataUnavailable(f"{self.url}: the connection was lost"))
        self._in_doubt = True
        if self._state is SessionState.CONNECTED:
            self._set_state(SessionState.SUSPENDED)

    def _connect(self) -> None:
        server = self._server
        if self._closed or not (server.hears(self.name) and server.is_heard(self.name)):
            return
        if self._session:
            try:
                server.session(self._session)
            except SessionExpired:
                self._expired()
                return
        else:
            self._session = server.open_session(self)
        session = server.session(self._session)
        server.touch(session)
        self._connection += 1
        session.connection = self._connection
        self._linked = True
        self._catch_up()
        self._vouch(self._loop.time())
        self._set_state(SessionState.CONNECTED)
        self._watches.notify_all()
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        waiting = list(self._waiting)
        self._waiting.clear()
        for call in waiting:
            self._send(call)

    def _expired(self) -> None:
        """The session is over: listeners first, callers next, and soon a new session."""
        self._server.trace.probe("metadata.expired")
        self._linked = False
        self._connection += 1
        self._generation += 1
        self._session = 0
        calls = list(self._under_way)
        self._under_way.clear()
        self._set_state(SessionState.EXPIRED)
        for call in calls:
            self._fail(call, self._session_over_error())
        self._beat_after(self._server.delay_s())

    def _set_state(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._watches.notify_session(state)

    # -- from outside

    def closed_by_server(self, session: int) -> None:
        """The server ended the session and closes the connection; the process hears of it soon."""
        if self._context is not None:
            self._loop.call_later(
                self._server.delay_s(), self._hear_of_end, session, context=self._context
            )

    def _hear_of_end(self, session: int) -> None:
        if session == self._session and self._linked and self._server.is_heard(self.name):
            if self._server.rng.random() < 0.5:
                self._disconnect()
                self._beat_after(self._server.delay_s())
            else:
                self._expired()

    def reset(self) -> None:
        """The connection breaks; the process notices at once if it runs."""
        if self._context is not None:
            self._loop.call_soon(self._reset, context=self._context)

    def _reset(self) -> None:
        if self._linked and not self._closed:
            self._disconnect()
            self._beat_after(self._server.rng.random() * _RECONNECT_DELAY_S)
