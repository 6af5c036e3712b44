"""TCP between simulated processes: ordered bytes that arrive in other pieces than they were sent.

A connection has two pipes, each with a window. The writer keeps what its reader does not take, so
`pause_writing` comes when it would. A pipe carries data, the end (FIN) and the reset (RST), all in
order. Each endpoint acts in steps of its process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.handles import SimHandle
    from tests.sim.network import Link, SimNetwork

END = b"\0end"
RESET = b"\0reset"
"""Marks in a pipe, told from data by identity."""
HIGH_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024


class Pipe:
    def __init__(self, network: SimNetwork, link: Link, window_bytes: int) -> None:
        self.network = network
        self.link = link
        self.source: SimTransport
        self.target: SimTransport
        self.silent = False
        """Nothing arrives any more, and no end hears of it."""
        self.unread: deque[tuple[float, bytes]] = deque()
        """(time of arrival, bytes): in flight, or arrived and not taken."""
        self.unread_bytes = 0
        self.unsent: deque[bytes] = deque()
        """The writer's buffer: bytes that do not fit into the window."""
        self.unsent_bytes = 0
        self._window_bytes = window_bytes
        self._last_s = 0.0
        self._timer: SimHandle | None = None
        self._arrival = (self._arrive,)
        self._last: bytes | None = None

    def send(self, data: bytes) -> None:
        if self._last is not None:
            return
        room = self._window_bytes - self.unread_bytes
        if self.unsent or room < len(data):
            part = b"" if self.unsent else data[: max(0, room)]
            if part:
                self._emit(part)
            self.unsent.append(data[len(part) :])
            self.unsent_bytes += len(data) - len(part)
        else:
            self._emit(data)

    def mark(self, mark: bytes) -> None:
        """Add a mark, the last content of this pipe; a reset may follow an end."""
        if self._last is RESET or self._last is mark:
            return
        self._last = mark
        self._put(self.network.loop.now + self.link.delay_s(), mark)

    def drop(self, kept: float) -> None:
        """Lose the bytes in flight except for this share, and all unsent bytes."""
        self.clear_unsent()
        left = int(kept * self.unread_bytes)
        items, self.unread = self.unread, deque()
        self.unread_bytes = 0
        for when, data in items:
            if data is END or data is RESET or left <= 0:
                continue
            self.unread.append((when, data[:left]))
            self.unread_bytes += min(left, len(data))
            left -= len(data)
        self._last = None

    def clear_unsent(self) -> None:
        self.unsent.clear()
        self.unsent_bytes = 0

    def look(self) -> None:
        if self._timer is None and self.unread:
            when = max(self.unread[0][0], self.network.loop.now)
            target = self.target
            self._timer = self.network.loop.put(when, target.context, target.process, self._arrival)

    def look_later(self, delay_s: float) -> None:
        if self._timer is None and self.unread:
            loop = self.network.loop
            when = max(self.unread[0][0], loop.now + delay_s)
            self._timer = loop.call_at(when, self._arrive, context=self.target.context)

    def _emit(self, data: bytes) -> None:
        network = self.network
        options = network.options
        self.unread_bytes += len(data)
        when = network.loop.now + self.link.delay_s()
        if options.fragment_p and len(data) > 1 and network.random() < options.fragment_p:
            network.trace.fault("net fragment")
            for _ in range(int(network.random() * 3) + 1):
                cut = int(network.random() * len(data))
                if cut:
                    self._put(when, data[:cut])
                    data = data[cut:]
                when += self.link.delay_s()
        self._put(when, data)
        if options.reset_p and network.random() < options.reset_p:
            network.trace.fault("net reset")
            network.reset_connection(self.source)
        elif not self.target.process.alive:
            network.sent_to_dead(self)

    def _put(self, when: float, data: bytes) -> None:
        if when < self._last_s:
            when = self._last_s  # in order, and in one piece with earlier bytes
        self._last_s = when
        self.unread.append((when, data))
        if self._timer is None:
            target = self.target
            self._timer = self.network.loop.put(when, target.context, target.process, self._arrival)

    def _arrive(self) -> None:
        """In a step of the target: deliver the first bytes, unless something holds them up."""
        self._timer = None
        now = self.network.loop.now
        link = self.link
        if self.silent or link.cuts:
            link.held[self] = None
            return
        if link.clogged_until > now:
            loop = self.network.loop
            self._timer = loop.call_at(
                link.clogged_until + link.delay_s(), self._arrive, context=self.target.context
            )
            return
        if self.unread and self.target.wants(self):
            self._deliver(now)

    def _deliver(self, now: float) -> None:
        unread = self.unread
        if unread[0][0] > now:
            self.look()
            return
        data = unread.popleft()[1]
        if data is END or data is RESET:
            if data is END:
                self.target.ended()
            else:
                self.target.lose(ConnectionResetError(104, "Connection reset by peer"))
            return
        while unread and unread[0][0] <= now and len(data) < READ_BYTES_MAX:
            more = unread[0][1]
            if more is END or more is RESET:
                break
            unread.popleft()
            data += more
        taken = self.target.take(data)
        if taken < len(data):
            unread.appendleft((now, data[taken:]))
        self.unread_bytes -= taken
        if self.unsent:
            loop = self.network.loop
            loop.call_later(self.link.delay_s(), self._refill, context=self.source.context)
        if unread:
            self.look()

    def _refill(self) -> None:
        """In a step of the source: the window has room again."""
        while self.unsent and self.unread_bytes < self._window_bytes:
            data = self.unsent.popleft()
            self.unsent_bytes -= len(data)
            room = self._window_bytes - self.unread_bytes
            if len(data) > room:
                self.unsent.appendleft(data[room:])
                self.unsent_bytes += len(data) - room
                data = data[:room]
            self._emit(data)
        self.source.sent()


class SimTransport(asyncio.Transport):
    def __init__(
        self,
        network: SimNetwork,
        process: Process,
        context: Context,
        protocol: asyncio.BaseProtocol | None,
        names: tuple[tuple[str, int], tuple[str, int]],
    ) -> None:
        self._network = network
        self._loop = network.loop
        self.process = process
        self.context = context
        self.number = network.next_number()
        self._protocol = protocol
        self._sockname, self._peername = names
        self.incoming: Pipe
        self.outgoing: Pipe
        self._reading = False
        self._closing = False
        self._lost = False
        self._eof_sent = False
        self._eof_wanted = False
        self._paused_writing = False
        self._high = HIGH_BYTES
        self._low = HIGH_BYTES // 4

    @property
    def peer(self) -> SimTransport:
        return self.outgoing.target

    def begin(self, protocol: asyncio.BaseProtocol, waiter: asyncio.Future[None] | None) -> None:
        self._protocol = protocol
        self._call(protocol.connection_made, self)
        if not self._closing:
            self._reading = True
            self.incoming.look()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ------------------------------------------------------------------ what the pipes call

    def wants(self, pipe: Pipe) -> bool:
        """Whether it takes what has arrived; a closed socket answers with a reset."""
        if self._lost or (self._closing and not self.outgoing.unsent):
            if pipe.unread[0][1] is not RESET:
                self.outgoing.mark(RESET)
            pipe.unread.clear()
            return False
        return (self._reading and not self._closing) or pipe.unread[0][1] is RESET

    def take(self, data: bytes) -> int:
        """Hand bytes to the protocol; return how many it took."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer: Any = protocol.get_buffer(-1)
            taken = len(data)
            if len(buffer) < taken:
                taken = len(buffer)
                data = data[:taken]
            buffer[:taken] = data
            self._network.trace.deliver(data)
            try:
                protocol.buffer_updated(taken)
            except Exception as error:
                self._failed(error)
            return taken
        assert isinstance(protocol, asyncio.Protocol)
        self._network.trace.deliver(data)
        self._call(protocol.data_received, data)
        return len(data)

    def ended(self) -> None:
        if not self._call(self._protocol.eof_received):  # type: ignore[union-attr]
            self.close()

    def lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self.outgoing.clear_unsent()
        self._loop.call_soon(self._tell_lost, error, context=self.context)

    def sent(self) -> None:
        if self._lost:
            return
        pipe = self.outgoing
        if self._paused_writing and pipe.unsent_bytes <= self._low:
            self._paused_writing = False
            self._call(self._protocol.resume_writing)  # type: ignore[union-attr]
        if not pipe.unsent:
            if self._eof_wanted:
                self._send_end()
            if self._closing:
                self._close_socket()

    def _call(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:
            self._failed(error)
            return True

    def _failed(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "protocol failed", "exception": error, "transport": self}
        )
        self.abort()

    def _tell_lost(self, error: Exception | None) -> None:
        self._network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # ------------------------------------------------------------------ asyncio's

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"cannot write {type(data).__name__}")
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or not self.process.alive or not data:
            return
        pipe = self.outgoing
        pipe.send(bytes(data))
        if pipe.unsent_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self._call(self._protocol.pause_writing)  # type: ignore[union-attr]

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._closing or self._eof_wanted:
            return
        self._eof_wanted = True
        if not self.outgoing.unsent:
            self._send_end()

    def can_write_eof(self) -> bool:
        return True

    def _send_end(self) -> None:
        self._eof_wanted = False
        self._eof_sent = True
        if self.process.alive:
            self.outgoing.mark(END)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self.outgoing.unsent:
            self._close_socket()

    def _close_socket(self) -> None:
        """Close after the last byte is in flight. Unread bytes make the end a reset, as in
        kernels."""
        self.lose(None)
        if self.process.alive:
            now = self._loop.now
            rest = self.incoming.unread
            unread = bool(rest) and rest[0][0] <= now and rest[0][1] not in (END, RESET)
            self.outgoing.mark(RESET if unread else END)

    def abort(self) -> None:
        if self._lost:
            return
        self.outgoing.clear_unsent()
        self._closing = True
        self._close_socket()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if not self._closing:
            self._reading = False

    def resume_reading(self) -> None:
        if not self._closing and not self._reading:
            self._reading = True
            self.incoming.look()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_BYTES if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.outgoing.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._peername, "sockname": self._sockname}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol
