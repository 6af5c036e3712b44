"""How long a ZooKeeper store waits on a new connection before it tries another one."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from octavo.metadata.store import SessionState
from octavo.metadata.zookeeper import ZooKeeperStore
from octavo.metadata.zookeeper_connections import ConnectionHandler

_CONNECT = struct.Struct(">iqiq")
_REPLY = struct.Struct(">iqi")
_NO_NODE, _PING = -101, -2


class StartingServer:
    """Speaks as much of ZooKeeper's protocol as a session needs. Connections numbered in
    `silent` (from 1 on) are accepted and never answered, as by a server that is just starting."""

    def __init__(self, *silent: int) -> None:
        self._silent = silent
        self._writers: list[asyncio.StreamWriter] = []
        self._session_ends = float("inf")
        self.connections = 0
        self.sessions = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    def drop(self) -> None:
        """Break all connections."""
        while self._writers:
            self._writers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        loop = asyncio.get_running_loop()
        is_silent, is_open = self.connections in self._silent, False
        try:
            while True:
                frame = await reader.readexactly(
                    struct.unpack(">i", await reader.readexactly(4))[0]
                )
                if is_silent:
                    continue
                if is_open:
                    xid = struct.unpack_from(">i", frame)[0]
                    answer = _REPLY.pack(xid, 0, 0 if xid == _PING else _NO_NODE)
                else:
                    timeout_ms, session = _CONNECT.unpack_from(frame)[2:]
                    if session == 0:
                        self.sessions += 1
                        session = self.sessions
                    elif loop.time() >= self._session_ends:
                        session = timeout_ms = 0  # the answer of a server whose session is over
                    answer = struct.pack(">iiqi16sb", 0, timeout_ms, session, 16, b"", 0)
                    is_open = True
                    lasts_s = timeout_ms / 1000
                self._session_ends = loop.time() + lasts_s
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def test_a_server_that_accepts_and_never_answers_costs_no_session() -> None:
    """The server breaks a connection, never answers on the next one, then serves again."""
    server = StartingServer(2)
    port = await server.start()
    store = ZooKeeperStore([f"127.0.0.1:{port}"], session_timeout_ms=8_000)
    states: list[SessionState] = []
    store.on_session(states.append)
    try:
        await store.start()
        server.drop()
        async with asyncio.timeout(30):
            while len(states) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
        assert (server.connections, server.sessions) == (3, 1)
    finally:
        await store.close()
        await server.close()


class _Handler(ConnectionHandler):
    """Makes no connections; its waits end by time."""

    def __init__(self) -> None:
        super().__init__(8_000)
        self.waits: list[float | None] = []
        self.ready: list[Any] = []
        self.error: Exception | None = None

    def connect(self, *args: Any, **options: Any) -> Any:
        self.waits.append(options["timeout"])
        if self.error is not None:
            raise self.error
        return object()

    def wait(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        self.waits.append(timeout)
        return [one for one in rlist if one in self.ready], [], []


def test_attempts_without_an_answer_wait_longer_until_a_connection_opens() -> None:
    """A slow server gets up to the time that kazoo asks for, until a connection is open."""
    handler = _Handler()
    for _ in range(5):
        made = handler.create_connection(("127.0.0.1", 1), timeout=8.0)
        assert handler.select([made], [], [], 8.0) == ([], [], [])
    assert handler.waits == [2, 2, 4, 4, 8, 8, 8, 8, 8, 8]
    made = handler.create_connection(("127.0.0.1", 1), timeout=8.0)
    handler.ready = [made]
    handler.select([made], [], [], 8.0)
    handler.select([made, object()], [], [], 5.0)
    handler.waits.clear()
    handler.select([made], [], [], 7.0)
    assert handler.waits == [7.0], "the rest of a frame on an open connection has kazoo's time"
    handler.create_connection(("127.0.0.1", 1), timeout=8.0)
    assert handler.waits[-1] == 2


def test_a_refused_connection_does_not_make_the_next_attempt_longer() -> None:
    """A server that is down refuses often; when it starts, the first wait is short all the same."""
    handler = _Handler()
    for error, waits in ((ConnectionRefusedError(), [2.0] * 20), (TimeoutError(), [2.0, 4.0, 8.0])):
        handler.error = error
        handler.waits.clear()
        for _ in waits:
            with pytest.raises(type(error)):
                handler.create_connection(("127.0.0.1", 1), timeout=8.0)
        assert handler.waits == waits


def test_the_bound_never_exceeds_what_kazoo_asks_for() -> None:
    """With three hosts kazoo waits a third of a session timeout for each."""
    handler = _Handler()
    made = handler.create_connection(("127.0.0.1", 1), timeout=1.0)
    handler.select([made], [], [], 1.0)
    assert handler.waits == [1.0, 1.0]
    assert isinstance(handler, SequentialThreadingHandler), "kazoo accepts its own handlers"
