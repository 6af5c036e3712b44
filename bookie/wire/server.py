"""The listening socket of a bookie and all its connections.

Owns what connections share: the scratch buffer, the storage's pressure signal, read-only mode.
`stop` is graceful: no new connections, no further requests, every request that was read is
answered, then the sockets close.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from octavo.bookie.back_pressure import FrameRoom, Pause, Pressure, Turns
from octavo.bookie.read.scheduler import ReadScheduler
from octavo.bookie.wire.connection import Connection
from octavo.bookie.wire.requests import Requests
from octavo.bookie.wire.v3_calls import V3Calls
from octavo.protocol.codes import OctavoError, Scope
from octavo.protocol.tally import Tally

if TYPE_CHECKING:
    from octavo.bookie.config import BookieConfig
    from octavo.bookie.metrics import BookieMetrics
    from octavo.bookie.storage import Storage

log = structlog.get_logger()

_KEEPALIVE_PROBES = 3
_BACKLOG = 1024


class ListenFailed(OctavoError):
    """The bookie cannot listen where it was told to. The message says why and what to do."""

    name = "listen-failed"
    scope = Scope.PROCESS


class Listener:
    """A port that is ours; nobody is served there before `serve`."""

    def __init__(self, host: str, port: int, sockets: asyncio.Server, line: _Line) -> None:
        self._host = host
        self._sockets = sockets
        self._line = line
        self.port = port

    @classmethod
    async def bind(cls, host: str, port: int) -> Listener:
        """Take the port; 0: any. Raises `ListenFailed`."""
        line = _Line()
        try:
            sockets = await asyncio.get_running_loop().create_server(
                line.accept, host, port, backlog=_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise ListenFailed(why_not_listening(error, host, port)) from error
        return cls(host, int(sockets.sockets[0].getsockname()[1]), sockets, line)

    async def serve(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Give each connection a `protocol`. Raises `ListenFailed`: only now is it surely ours."""
        self._line.protocol = protocol
        try:
            await self._sockets.start_serving()
        except OSError as error:
            raise ListenFailed(why_not_listening(error, self._host, self.port)) from error

    def close(self) -> None:
        """Take no more connections."""
        self._sockets.close()


class _Line:
    """What a socket hands its connections to, before anybody is there for them and after."""

    def __init__(self) -> None:
        self.protocol: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol

    def accept(self) -> asyncio.BaseProtocol:
        return self.protocol()


class BookieServer:
    """Serves one storage on one port."""

    def __init__(
        self,
        config: BookieConfig,
        storage: Storage,
        metrics: BookieMetrics,
        listener: Listener,
        node_info: Callable[[], dict[str, Any]],
    ) -> None:
        self.config = config
        self.storage = storage
        self.metrics = metrics
        self.requests = Requests(storage, config, metrics, node_info)
        self.v3_calls = V3Calls(
            storage, self.requests, node_info, lambda: self.read_only, config.frame_bytes_max
        )
        self.scratch = bytearray(config.scratch_bytes)
        self.read_only = False
        """Whether ordinary adds are answered READ_ONLY."""
        self.takes_recovery_adds = True
        """Whether there is room left for what recovery must write."""
        self._connections: dict[Connection, None] = {}  # a set in order of arrival
        self._empty = asyncio.Event()
        self._empty.set()
        self.answers = storage.answers
        self.reads = ReadScheduler(
            storage.answers,
            waiting_max=config.reads_waiting_max,
            tasks_max=config.read_tasks_max,
            wait_ms_max=config.read_wait_ms_max,
        )
        self.frames = FrameRoom(config.receive_bytes_max)
        """Frames of which a part has come, of all connections."""
        self.turns = Turns()
        """Requests that one turn of the loop takes, of all connections."""
        self.refusals = Tally()
        """Connections closed for bytes that are no frames, by host."""
        self._lanes = itertools.count(1)
        self._watch: asyncio.TimerHandle | None = None
        self._stopping = False
        self._listener = listener

    async def start(self) -> None:
        """Serve on the port. Raises `ListenFailed`."""
        self.storage.pressure.on_change(self._on_pressure)
        await self._listener.serve(lambda: Connection(self))
        self._look_after()

    async def stop(self, timeout_s: float) -> None:
        """Answer what was read, then close; what is not answered in time is cut off."""
        self._stopping = True
        self._listener.close()
        self.requests.stop()
        for connection in tuple(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            log.warning("requests_unanswered", connections=len(self._connections))
        self.abort()

    def abort(self) -> None:
        """Cut everything off now."""
        self._stopping = True
        self.reads.close()
        if self._watch is not None:
            self._watch.cancel()
        self._listener.close()
        for connection in tuple(self._connections):
            connection.abort()

    def admit(self, connection: Connection, transport: asyncio.Transport) -> bool:
        """Take a new connection in; false when there are too many or the server stops."""
        if self._stopping:
            return False
        if len(self._connections) >= self.config.connections_max:
            log.warning("too_many_connections", connections_max=self.config.connections_max)
            return False
        self._connections[connection] = None
        self._empty.clear()
        self.metrics.connections.set(len(self._connections))
        _keep_alive(transport, self.config.keepalive_ms // 1000)
        return True

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()
        self.metrics.connections.set(len(self._connections))

    @property
    def pressure(self) -> Pressure:
        """How far the storage is behind: who adds much, or adds at all, is not read meanwhile."""
        return self.storage.pressure.level

    def memory(self) -> dict[str, tuple[int, int]]:
        """What all connections together occupy, and the most that they ever did."""
        adds, answers, frames = self.storage.pressure, self.answers, self.frames
        return {
            "adds": (adds.used, adds.peak),
            "answers": (answers.used, answers.peak),
            "frames": (frames.used, frames.peak),
        }

    def next_lane(self) -> int:
        """Where a new connection lines up its adds."""
        return next(self._lanes)

    def _on_pressure(self, level: Pressure) -> None:
        """The storage is behind, or has caught up. Connections that only read are left alone."""
        for connection in tuple(self._connections):
            if not level:
                connection.flow.resume(Pause.STORAGE)
            elif connection.is_too_much(level):
                connection.flow.pause(Pause.STORAGE)

    def _look_after(self) -> None:
        """Now and then, while memory is short, look who holds some of it in vain."""
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        if self.answers.is_spent or self.frames.waiting:
            now = loop.time()
            for connection in tuple(self._connections):
                connection.flow.look(now)
        self._watch = loop.call_later(self.config.pressed_stall_ms_max / 4000, self._look_after)


def why_not_listening(error: OSError, host: str, port: int) -> str:
    """What stands in the way, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another process: stop it "
            f"(`ss -ltnp 'sport = :{port}'` shows which) or give this bookie another port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not allowed for this user: use a port above 1023"
    if error.errno in (errno.EADDRNOTAVAIL, None):  # None: asyncio of Python 3.13, for this alone
        return f"{host} is not an address of this machine: set `host` to one that is, or 0.0.0.0"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def _keep_alive(transport: asyncio.Transport, idle_s: int) -> None:
    """Let TCP find out about a peer that vanished; a simulated transport has no socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        probe_s = max(1, idle_s // 6)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, idle_s))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
