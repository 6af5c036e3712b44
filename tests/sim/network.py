"""The simulated network: hosts are processes by name, and the links between them can be disturbed.

Within a connection bytes are neither lost nor reordered, as under TCP. There are delays, resets,
silence and cuts in one direction or both, and connects that hang or are refused. A cut holds bytes
back: after `heal` they arrive, late.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.sim.calls import Calls
from tests.sim.loop import SimLoop
from tests.sim.process import PROCESS, Process
from tests.sim.server import SimServer
from tests.sim.transport import END, RESET, Pipe, SimTransport

T = TypeVar("T")

_OWN_HOST = ("127.0.0.1", "localhost", "0.0.0.0", "::1", "", None)
_SYN_AGAIN_S = 0.2
_FIRST_FREE_PORT = 40_000


@dataclass(slots=True, kw_only=True)
class NetworkOptions:
    """Fault rates of the network; they may change while it runs."""

    latency_s: float = 0.0003
    """Mean of a link; each link draws its own."""
    tail_p: float = 0.01
    tail_s: float = 0.02
    """How often something takes longer, and how much at most."""
    window_bytes: int = 64 * 1024
    fragment_p: float = 0.0
    reset_p: float = 0.0
    call_lost_p: float = 0.0
    reply_lost_p: float = 0.0
    duplicate_p: float = 0.0
    late_p: float = 0.0


class Link:
    __slots__ = ("clogged_until", "cuts", "factor", "held", "latency_s", "name", "network")

    def __init__(self, network: SimNetwork, name: tuple[str, str]) -> None:
        self.network = network
        self.name = name
        self.latency_s = network.options.latency_s * (0.3 + 1.4 * network.random())
        self.factor = 1.0
        self.cuts = 0
        self.clogged_until = 0.0
        self.held: dict[Pipe, None] = {}
        """Pipes with bytes that a cut holds back."""

    def delay_s(self) -> float:
        network = self.network
        drawn = network.random()
        delay_s = self.latency_s * (0.4 + 1.2 * drawn)
        if drawn < network.options.tail_p:
            delay_s += network.random() * network.options.tail_s
        return delay_s * self.factor

    def release(self) -> None:
        held, self.held = self.held, {}
        for pipe in held:
            pipe.look_later(self.delay_s())


class SimNetwork:
    def __init__(self, loop: SimLoop, options: NetworkOptions | None = None) -> None:
        self.loop = loop
        self.trace = loop.trace
        self.options = options or NetworkOptions()
        self.rng = loop.stream("network")
        self.random = self.rng.random
        self.hosts: dict[str, Process] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._transports: dict[SimTransport, None] = {}
        self._refusing: dict[str, float] = {}
        self._numbers = 0
        self._port = _FIRST_FREE_PORT
        self._calls = Calls(self)
        loop.network = self

    def attach(self, process: Process) -> None:
        """Give a process its place in the network; its first use does this too."""
        if self.hosts.get(process.name) is process:
            return
        self.hosts[process.name] = process
        process.on_crash.append(self._crashed)
        for transport in tuple(self._transports):
            if transport.process.name == process.name and transport.incoming.unread:
                self._reset_stranger(transport)

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self, (source, target))
        return found

    # ------------------------------------------------------------------ faults

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Stop all bytes from `a` to `b`, and back unless `one_way`."""
        self.link(a, b).cuts = 1
        if not one_way:
            self.link(b, a).cuts = 1

    def isolate(self, name: str, *, one_way: bool = False) -> None:
        """Cut a host off from all others; with `one_way` it still hears them."""
        for other in self.hosts:
            if other != name:
                self.cut(name, other, one_way=one_way)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        for (source, target), link in self._links.items():
            if a is not None and a not in (source, target):
                continue
            if b is not None and b not in (source, target):
                continue
            link.cuts = 0
            link.clogged_until = 0.0
            link.factor = 1.0
            for pipe in link.held:
                pipe.silent = False
            link.release()
        for transport in self._transports:
            pipe = transport.outgoing
            if (a is None or a in pipe.link.name) and (b is None or b in pipe.link.name):
                pipe.silent = False
        if a is None:
            self._refusing.clear()

    def clog(self, a: str, b: str, s: float) -> None:
        """Deliver bytes from `a` to `b` in `s` seconds at the earliest."""
        link = self.link(a, b)
        link.clogged_until = max(link.clogged_until, self.loop.now + s)

    def slow(self, name: str, factor: float) -> None:
        for other in self.hosts:
            self.link(name, other).factor = factor
            self.link(other, name).factor = factor

    def silence(self, a: str, b: str) -> int:
        """Half-open existing connections: nothing gets from `a` to `b`, and neither end hears of
        it."""
        pipes = [t.outgoing for t in self._transports if t.outgoing.link.name == (a, b)]
        for pipe in pipes:
            pipe.silent = True
        return len(pipes)

    def refuse(self, name: str, s: float) -> None:
        """Refuse all connects to that host for `s` seconds."""
        self._refusing[name] = self.loop.now + s

    def reset(self, a: str, b: str | None = None, *, share: float = 1.0) -> int:
        """Reset connections of a host, or between two; return their number."""
        count = 0
        for transport in tuple(self._transports):
            names = transport.outgoing.link.name
            if names[0] == a and b in (None, names[1]) and self.random() < share:
                self.reset_connection(transport)
                count += 1
        return count

    def reset_connection(self, transport: SimTransport) -> None:
        """End a connection for both ends; some, all or none of the bytes in flight are lost."""
        for pipe in (transport.outgoing, transport.incoming):
            pipe.drop(self.rng.choice((0.0, 1.0, self.random())))
            pipe.mark(RESET)

    async def call(
        self,
        src: Process,
        dst: Process | str,
        coro_fn: Callable[[], Awaitable[T]],
        timeout_s: float,
    ) -> T:
        """Run `coro_fn` in another process and return its result, as HTTP would.
        ConnectionRefusedError: it did not run. TimeoutError, ConnectionResetError: it may have."""
        return await self._calls.call(src, dst, coro_fn, timeout_s)

    # ------------------------------------------------------------------ servers

    async def create_server(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int | None,
        *,
        start_serving: bool = True,
        **_: Any,
    ) -> SimServer:
        """Do as asyncio does: bind at once, and serve unless told otherwise."""
        process = PROCESS.get() or self.loop.world
        self.attach(process)
        key = (process.name, port or self.free_port())
        bound = self._servers.get(key)
        if bound is not None and bound.process.alive and bound.sockets:
            raise OSError(errno.EADDRINUSE, f"address already in use: {key}")
        server = self._servers[key] = SimServer(self, process, factory, key)
        if start_serving:
            await server.start_serving()
        await asyncio.sleep(0)
        return server

    def free_port(self) -> int:
        self._port += 1
        return self._port

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # ------------------------------------------------------------------ connections

    async def create_connection(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        **_: Any,
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        process = PROCESS.get() or self.loop.world
        self.attach(process)
        name = process.name if host in _OWN_HOST else str(host)
        reached: asyncio.Future[SimTransport] = self.loop.create_future()
        self._later(process.name, name, self._syn, process, (name, port), reached, 0)
        try:
            transport = await reached
        except asyncio.CancelledError:
            if reached.done() and not reached.cancelled() and reached.exception() is None:
                reached.result().abort()
            raise
        waiter: asyncio.Future[None] = self.loop.create_future()
        protocol = factory()
        self.loop.call_soon(transport.begin, protocol, waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    def _later(self, source: str, target: str, call: Callable[..., object], *args: Any) -> None:
        link = self.link(source, target)
        delay_s = link.delay_s() + max(0.0, link.clogged_until - self.loop.now)
        self.loop.world_later(delay_s, call, *args)

    def reachable(self, source: str, target: str) -> bool:
        process = self.hosts.get(target)
        if process is not None and not process.alive and process.power_lost:
            return False
        return not self.link(source, target).cuts and not self.link(target, source).cuts

    def _syn(
        self,
        process: Process,
        address: tuple[str, int],
        reached: asyncio.Future[SimTransport],
        tries: int,
    ) -> None:
        if reached.done() or not process.alive:
            return
        name = address[0]
        if not self.reachable(process.name, name):
            again_s = _SYN_AGAIN_S * 2**tries * (0.9 + 0.2 * self.random())
            self.loop.world_later(again_s, self._syn, process, address, reached, tries + 1)
            return
        server = self._servers.get(address)
        refused = self._refusing.get(name, 0.0) > self.loop.now
        if refused or server is None or not server.is_serving() or not server.process.alive:
            if refused:
                self.trace.fault("net refuse")
            self._later(name, process.name, self._refused, reached, address)
            return
        ours = self._connect(process, server)
        self._later(name, process.name, self._established, ours, reached)

    def _refused(self, reached: asyncio.Future[SimTransport], address: tuple[str, int]) -> None:
        if not reached.done():
            reached.set_exception(
                ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")
            )

    def _established(self, ours: SimTransport, reached: asyncio.Future[SimTransport]) -> None:
        if reached.done() or not ours.process.alive:
            ours.abort()
        else:
            reached.set_result(ours)

    def _connect(self, process: Process, server: SimServer) -> SimTransport:
        here, there = (process.name, self.free_port()), server.address
        ours = SimTransport(self, process, process.context, None, (here, there))
        theirs = SimTransport(self, server.process, server.process.context, None, (there, here))
        for source, target in ((ours, theirs), (theirs, ours)):
            link = self.link(source.process.name, target.process.name)
            pipe = Pipe(self, link, self.options.window_bytes)
            pipe.source, pipe.target = source, target
            source.outgoing = target.incoming = pipe
            self._transports[source] = None
        self.loop.call_soon(server.accept, theirs, context=theirs.context)
        return ours

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)

    # ------------------------------------------------------------------ death

    def _crashed(self, process: Process) -> None:
        """End a dead process's connections. Without power: silence. Killed: its kernel ends
        them."""
        for transport in tuple(self._transports):
            if transport.process is not process:
                continue
            transport.outgoing.clear_unsent()
            if process.power_lost:
                continue
            if transport.incoming.unread:
                self._reset_stranger(transport)
            else:
                transport.outgoing.mark(END)
        self._calls.crashed(process)

    def sent_to_dead(self, pipe: Pipe) -> None:
        """Answer bytes for a dead process: its machine sends a reset, if it is up."""
        process = pipe.target.process
        if not process.power_lost or self.hosts.get(process.name) is not process:
            self._reset_stranger(pipe.target)

    def _reset_stranger(self, transport: SimTransport) -> None:
        """Reset the other end of a dead process's connection."""
        self.forget(transport)
        transport.incoming.clear_unsent()
        transport.outgoing.mark(RESET)
