"""Own the connections of a bookie and what they share.

`stop` is graceful: it accepts no connection, reads no request, answers every request that was read,
and closes the sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from octavo.bookie.back_pressure import FrameRoom, Pause, Pressure, Turns
from octavo.bookie.wire.caller import Caller
from octavo.bookie.wire.connection import Connection
from octavo.bookie.wire.listener import Listener, SecureListener
from octavo.bookie.wire.read_scheduler import ReadScheduler
from octavo.bookie.wire.requests import Requests
from octavo.bookie.wire.v3_calls import V3Calls
from octavo.protocol.log_limiter import LogLimiter

if TYPE_CHECKING:
    from octavo.bookie.config import BookieConfig
    from octavo.bookie.metrics import BookieMetrics
    from octavo.bookie.storage import Storage
    from octavo.bookie.wire.guard import Guard
    from octavo.bookie.wire.rights import Rights

log = structlog.get_logger()

_KEEPALIVE_PROBES = 3


class BookieServer:
    def __init__(
        self,
        config: BookieConfig,
        storage: Storage,
        metrics: BookieMetrics,
        listener: Listener | SecureListener,
        node_info: Callable[[], dict[str, Any]],
        guard: Guard | None = None,
    ) -> None:
        """Serve a bookie's port; without `guard` every caller may do everything."""
        self.config = config
        self.guard = guard
        self.storage = storage
        self.metrics = metrics
        self.requests = Requests(storage, config, metrics, node_info)
        self.v3_calls = V3Calls(
            storage, self.requests, node_info, lambda: self.read_only, config.frame_bytes_max
        )
        self.scratch = bytearray(config.scratch_bytes)
        self.read_only = False
        """Whether ordinary adds are answered with READ_ONLY."""
        self.takes_recovery_adds = True
        self._connections: dict[Connection, None] = {}
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
        """The room for frames that have arrived in part, of all connections."""
        self.turns = Turns()
        """Requests handled in a turn of the loop, of all connections."""
        self.refusals = LogLimiter()
        """Connections closed for breaking the protocol, by host."""
        self.strangers = LogLimiter()
        """Requests refused for lack of rights, by host."""
        self._lanes = itertools.count(1)
        self._watch: asyncio.TimerHandle | None = None
        self._stopping = False
        self._listener = listener

    async def start(self) -> None:
        """Accept connections. Raises `ListenFailed`."""
        self.storage.pressure.on_change(self._on_pressure)
        if self.guard is not None:
            self.guard.on_change(self._on_policy)
            self.guard.on_doubt(self._on_doubt)
        await self._listener.serve(lambda: Connection(self))
        self._look_after()

    async def stop(self, timeout_s: float) -> None:
        """Answer, for at most `timeout_s`, the requests that were read; then close everything."""
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
        self._stopping = True
        self.reads.close()
        if self._watch is not None:
            self._watch.cancel()
        self._listener.close()
        for connection in tuple(self._connections):
            connection.abort()

    def admit(self, connection: Connection, transport: asyncio.Transport) -> bool:
        """Count a new connection; False when there are too many or the server stops."""
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
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()
        self.metrics.connections.set(len(self._connections))

    @property
    def pressure(self) -> Pressure:
        """Return how far the storage is behind: this decides which writers are not read."""
        return self.storage.pressure.level

    def memory(self) -> dict[str, tuple[int, int]]:
        adds, answers, frames = self.storage.pressure, self.answers, self.frames
        return {
            "adds": (adds.used, adds.peak),
            "answers": (answers.used, answers.peak),
            "frames": (frames.used, frames.peak),
        }

    def next_lane(self) -> int:
        return next(self._lanes)

    def _on_pressure(self, level: Pressure) -> None:
        """Pause or resume writers; readers continue."""
        for connection in tuple(self._connections):
            if not level:
                connection.flow.resume(Pause.STORAGE)
            elif connection.is_too_much(level):
                connection.flow.pause(Pause.STORAGE)

    def caller(self, on_rights: Callable[[Rights | None], None]) -> Caller:
        assert self.guard is not None
        return Caller(self.guard, self.strangers, self.metrics.unauthorized, on_rights)

    def _on_policy(self) -> None:
        """Check the rights of all peers: the policy has changed."""
        for connection in tuple(self._connections):
            connection.judge()

    def _on_doubt(self) -> None:
        for connection in tuple(self._connections):
            connection.doubt()

    def _look_after(self) -> None:
        """Cut off clients that hold memory without progress while it is short."""
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        if self.answers.is_spent or self.frames.waiting:
            now = loop.time()
            for connection in tuple(self._connections):
                connection.flow.look(now)
        self._watch = loop.call_later(self.config.pressed_stall_ms_max / 4000, self._look_after)


def _keep_alive(transport: asyncio.Transport, idle_s: int) -> None:
    """Let TCP detect a peer that vanished; a simulated transport has no socket."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        probe_s = max(1, idle_s // 6)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, idle_s))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
