"""The line between a process and the simulated metadata server: calls, connection, session.

A connection keeps the order of its messages. A call that is lost with it raises
`MetadataUnavailable`; a call that finds the session over raises `SessionExpired`, after the
listeners heard EXPIRED. A paused process judges its session by its own clock.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from octavo.metadata.store import (
    MetadataError,
    MetadataUnavailable,
    RecordExists,
    SessionExpired,
    SessionState,
    VersionConflict,
)
from octavo.metadata.watching import WatchTable
from tests.sim.metadata_tree import Author
from tests.sim.process import PROCESS, Process

if TYPE_CHECKING:
    from tests.sim.metadata import SimMetadata

_RECONNECT_DELAY_S = 0.3
_DOUBTFUL = (MetadataUnavailable, VersionConflict, RecordExists)


class _Call:
    __slots__ = ("connection", "deadline_s", "future", "generation", "is_read", "sent_s", "work")
    is_read: bool
    generation: int | None
    """Send it in this session or not at all."""
    connection: int
    sent_s: float

    def __init__(
        self, work: Callable[[], Any], future: asyncio.Future[Any], deadline_s: float
    ) -> None:
        self.work = work
        self.future = future
        self.deadline_s = deadline_s


class MetadataLine:
    """A process's connection to the server, its session, and the calls in progress."""

    def __init__(
        self,
        server: SimMetadata,
        author: Author,
        watches: WatchTable,
        *,
        session_timeout_ms: int,
        call_timeout_ms: int,
    ) -> None:
        self.name = author[0]
        self.url = f"sim://{author[0]}"
        self._author = author
        self.state = SessionState.SUSPENDED
        self.session = 0
        self.generation = 0
        """Grows when a session turns out to be over."""
        self.view = 0
        """The number of the last change that this process can know of."""
        self.is_linked = False
        self.context: contextvars.Context | None = None
        self._process: Process | None = None
        self._arrival = (self._arrive,)
        self._turn = (self._take_turn,)
        self._receipt = (self._receive,)
        self._server = server
        self._loop = server.loop
        self._watches = watches
        self._timeout_s = session_timeout_ms / 1000
        self._call_timeout_s = call_timeout_ms / 1000
        self._started: asyncio.Future[None] | None = None
        self._closed = False
        self._connection = 0
        self._contact_s = 0.0
        self._lag_share = server.random()
        self._in_doubt = False
        self._waiting: deque[_Call] = deque()
        self._under_way: dict[_Call, None] = {}
        self._requests: deque[_Call] = deque()
        self._held: deque[_Call] = deque()
        self._replies: deque[tuple[_Call, Any, Exception | None]] = deque()
        self._next_arrival_s = self._next_reply_s = 0.0
        self._pulse: asyncio.TimerHandle | None = None

    @property
    def vouched(self) -> bool:
        return self._loop.now - self._contact_s < self._timeout_s

    # -- life

    async def start(self) -> None:
        assert self.context is None, "a store is started once"
        self.context = contextvars.copy_context()
        self._process = PROCESS.get() or self._loop.world
        self._started = self._loop.create_future()
        self._contact_s = self._loop.now
        self._beat()
        await self._started

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._give_up_all(MetadataUnavailable(f"{self.url} is closed"))
        server, session = self._server, self.session
        try:
            if self.is_linked:
                await self._begin(lambda: server.close_session(session))
        except SessionExpired:
            pass
        except _DOUBTFUL:
            self._in_doubt = True
            raise
        finally:
            self.state = SessionState.SUSPENDED
            self.is_linked = False
            if self._pulse is not None:
                self._pulse.cancel()

    # -- calls, in the process

    async def call(
        self, work: Callable[[], Any], is_read: bool = False, generation: int | None = None
    ) -> Any:
        if self._closed or self.context is None:
            raise MetadataUnavailable(f"{self.url} is closed")
        try:
            return await self._begin(work, is_read, generation)
        except _DOUBTFUL:
            self._in_doubt = True
            raise

    def _begin(
        self, work: Callable[[], Any], is_read: bool = False, generation: int | None = None
    ) -> asyncio.Future[Any]:
        """Send a call, or keep it until there is a connection."""
        loop = self._loop
        call = _Call(work, loop.create_future(), loop.now + self._call_timeout_s)
        call.is_read = is_read
        call.generation = generation
        if self.is_linked:
            self._send(call)
        else:
            self._waiting.append(call)
        return call.future

    def _send(self, call: _Call) -> None:
        server, now_s = self._server, self._loop.now
        if call.generation is not None and call.generation != self.generation:
            self._fail(call, self._session_over_error())
            return
        if call.is_read and self._in_doubt:
            self._in_doubt = False
            call.work = self._after_catching_up(call.work)
        call.connection = self._connection
        call.sent_s = now_s
        self._under_way[call] = None
        if server.random() < server.faults.request_lost:
            server.trace.fault("metadata.request_lost")
            self._lose(call)
            return
        arrival_s = now_s + server.delay_s() + server.slow_s(self.name)
        if arrival_s > self._next_arrival_s:
            self._next_arrival_s = arrival_s
        self._requests.append(call)
        self._loop.put(self._next_arrival_s, server.context, self._loop.world, self._arrival)

    def _lose(self, call: _Call) -> None:
        """Drop the answer to this call: it is given up early or late."""
        delay_s = self._server.random() * min(self._call_timeout_s, 0.5)
        self._loop.call_later(delay_s, self._give_up, call, context=self.context)

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
        wait_s = 0.0 if call.is_read else self._server.writes_wait_s()
        if wait_s or (self._held and not call.is_read):
            self._held.append(call)
            server = self._server
            self._loop.put(self._loop.now + wait_s, server.context, self._loop.world, self._turn)
        else:
            self._do(call)

    def _take_turn(self) -> None:
        call = self._held.popleft()
        assert self._process is not None
        if self._process.alive and not (self._closed and call.future.done()):
            self._do(call)
        # If a process ends while it waits for the lock of an embedded store, its write is dropped.

    def _do(self, call: _Call) -> None:
        server = self._server
        if server.troubled and not server.hears(self.name):
            return  # lost with the connection, which is not known to be dead yet
        result, error = None, None
        try:
            session = server.session(self.session)
            if call.connection != session.connection:
                return
            server.touch(session)
            if call.is_read:
                seen = self._seen_by_its_server()
                if seen > self.view:
                    self.view = seen
                result = call.work()
            else:
                result = call.work()
                self.catch_up()
        except MetadataError as failure:
            error = failure
        if server.troubled and not server.is_heard(self.name):
            return
        if server.random() < server.faults.reply_lost:
            server.trace.fault("metadata.reply_lost")
            self._lose(call)
            return
        reply_s = self._loop.now + server.delay_s()
        if reply_s > self._next_reply_s:
            self._next_reply_s = reply_s
        self._replies.append((call, result, error))
        assert self.context is not None
        assert self._process is not None
        self._loop.put(self._next_reply_s, self.context, self._process, self._receipt)

    def lag_ms(self) -> float:
        return self._server.faults.lag_ms * self._lag_share

    def _seen_by_its_server(self) -> int:
        server = self._server
        if server.faults.lag_ms == 0:
            return server.tree.seq
        return server.tree.seq_at(self._loop.now - self.lag_ms() / 1000)

    def catch_up(self) -> None:
        self.view = self._server.tree.seq

    def _after_catching_up(self, work: Callable[[], Any]) -> Callable[[], Any]:
        def synced() -> Any:
            self.catch_up()
            return work()

        return synced

    # -- answers, in the process

    def _receive(self) -> None:
        call, result, error = self._replies.popleft()
        if call.connection != self._connection or self._under_way.pop(call, 0) is not None:
            return
        if error is not None and isinstance(error, SessionExpired):
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
        if sent_s > self._contact_s:
            self._contact_s = sent_s

    # -- session, in the process

    def _beat(self) -> None:
        """Keep the session, detect a dead connection, make a new one, end old calls."""
        now_s = self._loop.now
        if self.is_linked:
            self._ping()
            if self.is_linked and now_s - self._contact_s >= self._timeout_s * 2 / 3:
                self._disconnect()
        else:
            self._connect()
        assert self._started is not None
        if not self._started.done() and now_s - self._contact_s >= self._call_timeout_s:
            self._closed = True
            self._started.set_exception(MetadataUnavailable(f"{self.url}: no session"))
            return
        self._end_overdue(now_s)
        interval_s = self._timeout_s / 4 if self.is_linked else _RECONNECT_DELAY_S
        self._beat_after(interval_s * (0.5 + self._server.random() / 2))

    def _beat_after(self, delay_s: float) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
        if not self._closed or self.is_linked:
            self._pulse = self._loop.call_later(delay_s, self._beat, context=self.context)

    def _ping(self) -> None:
        """Ask and hear in one step: a ping is lost as a whole, or not heard back."""
        server = self._server
        if not server.hears(self.name):
            return
        try:
            session = server.session(self.session)
        except SessionExpired:
            if server.is_heard(self.name):
                self._expired()
            return
        server.touch(session)
        if server.is_heard(self.name):
            self._vouch(self._loop.now)

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
        self.is_linked = False
        self._connection += 1
        calls = list(self._under_way)
        self._under_way.clear()
        for call in calls:
            if call.is_read and self._server.resends_reads:
                self._waiting.append(call)
            else:
                self._fail(call, MetadataUnavailable(f"{self.url}: the connection was lost"))
        self._in_doubt = True
        if self.state is SessionState.CONNECTED:
            self._set_state(SessionState.SUSPENDED)

    def _connect(self) -> None:
        server = self._server
        if self._closed or not (server.hears(self.name) and server.is_heard(self.name)):
            return
        if self.session:
            try:
                server.session(self.session)
            except SessionExpired:
                self._expired()
                return
        else:
            self.session = server.open_session(self._author, self._timeout_s, self.closed_by_server)
        session = server.session(self.session)
        server.touch(session)
        self._connection += 1
        session.connection = self._connection
        self.is_linked = True
        self.catch_up()
        self._vouch(self._loop.now)
        self._set_state(SessionState.CONNECTED)
        self._watches.notify_all()
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        waiting = list(self._waiting)
        self._waiting.clear()
        for call in waiting:
            self._send(call)

    def _expired(self) -> None:
        """Handle an ended session: tell listeners first and callers next; open a new session
        soon."""
        self._server.trace.probe("metadata.expired")
        self.is_linked = False
        self._connection += 1
        self.generation += 1
        self.session = 0
        calls = list(self._under_way)
        self._under_way.clear()
        self._set_state(SessionState.EXPIRED)
        for call in calls:
            self._fail(call, self._session_over_error())
        self._beat_after(self._server.delay_s())

    def _set_state(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            self._watches.notify_session(state)

    # -- from outside

    def closed_by_server(self, session: int) -> None:
        """Handle a session that the server ended; the process hears of it soon."""
        if self.context is not None:
            self._loop.call_later(
                self._server.delay_s(), self._hear_of_end, session, context=self.context
            )

    def _hear_of_end(self, session: int) -> None:
        if session == self.session and self.is_linked and self._server.is_heard(self.name):
            if self._server.random() < 0.5:
                self._disconnect()
                self._beat_after(self._server.delay_s())
            else:
                self._expired()

    def reset(self) -> None:
        """Break the connection; a running process notices at once."""
        if self.context is not None:
            self._loop.call_soon(self._reset, context=self.context)

    def _reset(self) -> None:
        if self.is_linked and not self._closed:
            self._disconnect()
            self._beat_after(self._server.random() * _RECONNECT_DELAY_S)
