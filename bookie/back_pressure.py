"""Back-pressure: decide when a client's socket is not read. The only place that decides it.

Under load nothing is dropped, and almost nothing is refused. When a client sends too much, or does
not take its answers, its socket is left unread, and TCP slows the client down. `Flow` controls a
single connection; `Pause` lists the reasons. Memory shared by all connections is bounded in total,
because a bound for each connection is worth nothing with ten thousand of them:

- `AddPressure`: what adds occupy until they are in their final place, that is, bytes and objects
  that wait for the journal, and what the write cache holds above its bound while the other memtable
  is still being flushed. First the clients that send most are not read any more, then all clients
  that add. Adds that still arrive are answered with TOO_MANY_REQUESTS.
- `Budget`: answers that clients have not taken.
- `FrameRoom`: frames that have arrived in part.
- `Turns`: requests handled in a turn of the loop.

`AddBurst` pauses no client that adds: during a burst of adds it makes cold reads wait.

So memory is bounded whatever the number of clients, and a client that sends little is served while
others flood the bookie. A peer that takes no answer for long, or leaves half a frame here while
others wait for room, is cut off. Used on the loop only; no state outlives the connections.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import structlog

from octavo.bookie.write.cache import WriteCache

if TYPE_CHECKING:
    from prometheus_client import Counter

    from octavo.bookie.config import BookieConfig
    from octavo.protocol.frames import FrameReceiver

CHUNK_BYTES_MIN = 1024
"""The smallest chunk that is read from a socket while memory is short."""
_CHUNK_SHARE = 1024
RUN_BYTES = 700
"""What a waiting batch of adds costs in addition to its frames: objects and its queue place."""
MODEST_BYTES = 64 * 1024
"""At `Pressure.GREEDY`, a client with fewer bytes on their way to the disk may send on."""
_CHUNK_BYTES = (sys.maxsize, 32 * 1024, 1024, 1024)
"""The largest chunk at each level of pressure: thousands of clients may still be read."""
REQUESTS_PER_TURN = 2_000
"""Tens of milliseconds of work; the last chunk of a turn may exceed it."""
REQUESTS_PER_CHUNK = 250
"""What a socket should bring at once, estimated from its last chunk."""
_READ_PER_TURN = 16
"""Sockets from the queue that are read in the next turn."""
PEAK_BYTES = 128 * 1024
"""A peak: this many bytes of adds within a millisecond or in one chunk."""
_AT_ONCE_S = 0.001
BURST_S = 0.02
"""Two peaks within this time make a burst, which lasts this long after the last peak."""
_HELD_BYTES_MIN = 4096
"""A connection that holds less of a frame is no burden."""

log = structlog.get_logger()


class Budget:
    """Bytes in use, with an upper bound.

    Work that began below the bound may exceed it: ask `is_spent` before anything new begins.
    """

    __slots__ = ("_listeners", "bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.used = 0
        self.peak = 0
        """The highest use so far."""
        self._listeners: list[Callable[[], None]] = []

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {"bytes": self.used}

    def when_room(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time the use falls below the bound again."""
        self._listeners.append(listener)

    @property
    def is_spent(self) -> bool:
        """Whether nothing new should begin."""
        return self.used >= self.bytes_max

    def change(self, by: int) -> None:
        """Change the bytes in use by `by`."""
        before = self.used
        self.used = before + by
        assert self.used >= 0, "more was given back than was taken"
        if self.used > self.peak:
            self.peak = self.used
        if before >= self.bytes_max > self.used:
            for listener in tuple(self._listeners):
                listener()

    def share(self) -> int:
        """Return what a single user may occupy: half of what is free.

        So users that give nothing back never take everything: a lone user gets half of the bound,
        and after n such users the next user still gets one part in n + 2.
        """
        return max(0, self.bytes_max - self.used) // 2


class FrameRoom:
    """Grants room for frames that have arrived in part.

    A long frame gets its room whole or not at all, so that half frames cannot wait for each other.
    A connection without room waits in a queue, unread, and holds what has arrived so far. That is
    little, because sockets are read in small pieces (`chunk_bytes`) once half the room is taken. At
    least one grant is always given, however much the beginnings of other frames occupy.
    """

    __slots__ = ("_grants", "_waiting", "bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.used = 0
        self.peak = 0
        self._grants = 0
        self._waiting: dict[Flow, int] = {}

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {"bytes": self.used, "grants": self._grants, "waiting": len(self._waiting)}

    def waits_in_vain(self) -> str:
        """Name work that waits although it could run; empty when there is none."""
        if self._waiting and self._fits(next(iter(self._waiting.values()))):
            return "a frame waits, and there is room for it"
        return ""

    @property
    def is_pressed(self) -> bool:
        """Whether sockets should be read in small pieces."""
        return self.used > self.bytes_max // 2

    @property
    def waiting(self) -> int:
        """How many connections wait for room."""
        return len(self._waiting)

    @property
    def chunk_bytes(self) -> int:
        """How much to read from a socket at once while room is short."""
        return max(CHUNK_BYTES_MIN, (self.bytes_max - self.used) // _CHUNK_SHARE)

    def change(self, by: int) -> None:
        """Change the bytes of unfinished frames by `by`."""
        self.used += by
        assert self.used >= 0, "more was given back than was taken"
        if self.used > self.peak:
            self.peak = self.used
        if by < 0 and self._waiting:
            self._grant()

    def ask(self, who: Flow, more: int) -> bool:
        """Reserve `more` bytes for `who` and return true, or queue it and return false."""
        if self._waiting or not self._fits(more):
            self._waiting[who] = more
            return False
        self._grants += 1
        self.change(more)
        return True

    def withdraw(self, who: Flow) -> None:
        """Take `who` out of the queue."""
        self._waiting.pop(who, None)

    def give_back(self, who: Flow, size: int, *, granted: bool) -> None:
        """Take `who` out of the queue, and free the `size` bytes that it holds."""
        self._waiting.pop(who, None)
        self._grants -= granted
        self.change(-size)

    def _fits(self, more: int) -> bool:
        return not self._grants or self.used + more <= self.bytes_max

    def _grant(self) -> None:
        while self._waiting:
            who, more = next(iter(self._waiting.items()))
            if not self._fits(more):
                return
            del self._waiting[who]
            self._grants += 1
            self.change(more)
            who.granted(more)


class Turns:
    """Bounds the requests that a turn of the loop takes from all sockets together.

    A turn reads every socket with data, in chunks that may hold thousands of small requests.
    Without this bound, twenty peers kept a loop from all other work for eight seconds. So a client
    that sends small requests is read in smaller chunks (`Flow`). Once a turn has had its share,
    further sockets are read by a single byte, which is the minimum, and wait for a later turn.
    """

    __slots__ = ("_due", "_loop", "_over_at", "_waiting", "taken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.taken = 0
        """All requests so far."""
        self._over_at = REQUESTS_PER_TURN
        self._waiting: dict[Flow, None] = {}
        self._due = False

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {"waiting": len(self._waiting)}

    def waits_in_vain(self) -> str:
        """Name work that waits although it could run; empty when there is none."""
        return "sockets wait for a turn that is not due" if self._waiting and not self._due else ""

    @property
    def is_over(self) -> bool:
        """Whether this turn has had its share."""
        return self.taken >= self._over_at

    def took(self, requests: int) -> None:
        """Count requests that were taken."""
        self.taken += requests
        self._soon()

    def wait(self, who: Flow) -> None:
        """Let `who` continue in a later turn."""
        self._waiting[who] = None
        self._soon()

    def leave(self, who: Flow) -> None:
        """Drop a connection that is gone."""
        self._waiting.pop(who, None)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._due = False
        self._over_at = self.taken + REQUESTS_PER_TURN
        for who in list(itertools.islice(self._waiting, _READ_PER_TURN)):
            del self._waiting[who]
            who.resume(Pause.TURN)
        if self._waiting:
            self._soon()


class Pressure(enum.IntEnum):
    """Which clients have to wait."""

    NONE = 0
    GREEDY = 1
    """Connections with more than `MODEST_BYTES` on their way."""
    ALL = 2
    """Connections that have ever added, or are receiving a long frame."""
    FULL = 3
    """As `ALL`; adds that still arrive are answered with TOO_MANY_REQUESTS."""


class AddPressure:
    """Compute the level of pressure from the memory that adds occupy; report each change."""

    def __init__(self, cache: WriteCache, queue_bytes_max: int, add_bytes_max: int) -> None:
        assert 0 < queue_bytes_max <= add_bytes_max
        self._cache = cache
        self._queue_bytes_max = queue_bytes_max
        self._all_bytes = queue_bytes_max + (add_bytes_max - queue_bytes_max) // 2
        self._add_bytes_max = add_bytes_max
        self._listeners: list[Callable[[Pressure], None]] = []
        self.level = Pressure.NONE
        self.used = 0
        self.peak = 0
        """The highest use so far."""

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {"level": int(self.level)}

    def on_change(self, listener: Callable[[Pressure], None]) -> None:
        """Call `listener` with each new level."""
        self._listeners.append(listener)

    @property
    def chunk_bytes(self) -> int:
        """How much to read from a socket at once."""
        return _CHUNK_BYTES[self.level]

    @property
    def has_room_for_recovery(self) -> bool:
        """Whether recovery's adds may pass: their bound is a quarter higher."""
        return self.used < self._add_bytes_max + self._add_bytes_max // 4

    def update(self, pending_bytes: int, pending_runs: int) -> None:
        """Compute the level from what waits for the journal now."""
        cache = self._cache
        over = cache.active.bytes - cache.memtable_bytes_max
        used = pending_bytes + RUN_BYTES * pending_runs + max(0, over)
        self.used = used
        if used > self.peak:
            self.peak = used
        # One batch always passes, however small the bounds are.
        if pending_runs <= 1 and over < 0:
            level = Pressure.NONE
        elif used >= self._add_bytes_max:
            level = Pressure.FULL
        elif used > self._all_bytes:
            level = Pressure.ALL
        elif used > (self._queue_bytes_max // 2 if self.level else self._queue_bytes_max) or (
            over >= 0 and cache.flushing is not None
        ):
            level = Pressure.GREEDY
        else:
            level = Pressure.NONE
        if level is not self.level:
            self.level = level
            for listener in tuple(self._listeners):
                listener(level)


class AddBurst:
    """Detects that adds come as fast as the loop takes them, so that other work delays them.

    A loop that keeps up finds little data on each socket, whatever the rate is. A loop that was
    delayed for a moment finds a peak once; a loop that does not keep up finds peaks again and
    again.
    """

    __slots__ = ("_bytes", "_loop", "_much_at", "_since", "_there_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._much_at = self._there_until = float("-inf")
        self._bytes = 0

    def came(self, size: int) -> None:
        """Count `size` bytes of adds that came just now."""
        now = self._loop.time()
        if now - self._since > _AT_ONCE_S:
            self._since, self._bytes = now, 0
        self._bytes += size
        if self._bytes >= PEAK_BYTES:
            self._bytes = 0
            if now - self._much_at <= BURST_S:
                self._there_until = now + BURST_S
            self._much_at = now

    @property
    def is_there(self) -> bool:
        """Whether two peaks came close together, and the last of them a moment ago."""
        return self._loop.time() < self._there_until


class Counted(Protocol):
    """The metrics of pauses and of peers that were cut off."""

    @property
    def pauses(self) -> Counter:
        """By reason."""

    @property
    def stalled(self) -> Counter:
        """By the kind of memory that the peer held."""


class Pause(enum.Flag):
    """Reasons why a socket is not read at present."""

    NONE = 0
    STORAGE = enum.auto()
    ADDS = enum.auto()
    READS = enum.auto()
    ANSWERS = enum.auto()
    FRAMES = enum.auto()
    TURN = enum.auto()
    STOPPING = enum.auto()
    IDENTITY = enum.auto()
    """The peer's certificate is being checked."""


class Flow:
    """The flow control of a connection."""

    def __init__(
        self,
        config: BookieConfig,
        metrics: Counted,
        receiver: FrameReceiver,
        pressure: AddPressure,
        answers: Budget,
        frames: FrameRoom,
        turns: Turns,
        on_hold: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._receiver = receiver
        self._pressure = pressure
        self._answers = answers
        self._frames = frames
        self._turns = turns
        self._on_hold = on_hold
        """Called with true when no further answer should be made, with false when it may."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.pauses = Pause.NONE
        self.peer = ""
        self._chunk_bytes = sys.maxsize
        """How much to read at once, given the number of requests in the last chunk."""
        self._held_bytes = 0
        self._granted = False
        self._held_since = 0.0
        self._written_bytes = 0
        self._counted_bytes = 0
        self._batches: deque[tuple[int, int]] = deque()
        """(end position, length) of each write that the socket has not taken completely.

        The transport keeps all of a write in memory until its last byte is sent.
        """
        self._batch_bytes = 0
        self._stall: asyncio.TimerHandle | None = None
        self._looked_at = (0, 0.0)

    def describe(self) -> dict[str, int]:
        """Count what is in use now; all counts are 0 at rest."""
        return {
            "held_bytes": self._held_bytes,
            "answer_bytes": self._counted_bytes,
            "writes": len(self._batches),
            "pauses": len(self.pauses),
        }

    def attach(self, transport: asyncio.Transport, peer: str) -> None:
        """Take over the socket. The transport then reports when its write buffer holds a byte, and
        when it is empty."""
        self._transport = transport
        self.peer = peer
        transport.set_write_buffer_limits(high=0)

    def release(self) -> None:
        """Free everything that the connection holds, because it is gone."""
        self._transport = None
        self._cancel_stall()
        self._count(0)
        self._frames.give_back(self, self._held_bytes, granted=self._granted)
        self._held_bytes, self._granted = 0, False
        self._turns.leave(self)

    # Reading the socket

    def pause(self, reason: Pause) -> None:
        """Stop reading the socket for this reason."""
        if reason in self.pauses:
            return
        self._metrics.pauses.labels(reason.name).inc()
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.pauses |= reason

    def resume(self, reason: Pause) -> None:
        """Read the socket again, unless another reason remains."""
        if reason not in self.pauses:
            return
        self.pauses &= ~reason
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._held_since = self._loop.time()
            self._transport.resume_reading()

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes of the socket."""
        if self._turns.is_over:
            return self._receiver.get_buffer(1)
        pressed = self._frames.is_pressed
        if not pressed and not self._pressure.level:
            return self._receiver.get_buffer(self._chunk_bytes)
        chunk_bytes = min(self._chunk_bytes, self._pressure.chunk_bytes)
        if pressed:
            chunk_bytes = min(chunk_bytes, self._frames.chunk_bytes)
        if self._granted:
            chunk_bytes = max(chunk_bytes, self._receiver.missing_bytes)
        return self._receiver.get_buffer(chunk_bytes)

    def took(self, chunk_bytes: int, requests: int) -> None:
        """Adapt the chunk size to the requests in the last chunk; yield if the turn is over."""
        if requests > REQUESTS_PER_CHUNK:
            self._chunk_bytes = max(CHUNK_BYTES_MIN, chunk_bytes * REQUESTS_PER_CHUNK // requests)
        elif chunk_bytes >= self._chunk_bytes // 2:
            self._chunk_bytes *= 2
        if self._turns.is_over:
            self.pause(Pause.TURN)
            self._turns.wait(self)

    def kept(self, taken: int) -> None:
        """Account for the unfinished frame that follows the `taken` bytes of whole frames."""
        receiver = self._receiver
        if self._granted:
            if not taken:
                return  # the same frame continues, and all of it is counted already
            self._granted = False
            self._frames.give_back(self, self._held_bytes, granted=True)
            self._held_bytes = 0
        held = receiver.held_bytes
        if held != self._held_bytes:
            self._frames.change(held - self._held_bytes)
            self._held_bytes = held
        if held > _HELD_BYTES_MIN:
            self._held_since = self._loop.time()
        missing = receiver.missing_bytes
        frames = self._frames
        if missing and (receiver.is_large or (frames.is_pressed and missing > frames.chunk_bytes)):
            if frames.ask(self, missing):
                self.granted(missing)
            else:
                self.pause(Pause.FRAMES)
        elif Pause.FRAMES in self.pauses:
            frames.withdraw(self)
            self.resume(Pause.FRAMES)

    def granted(self, size: int) -> None:
        """Receive the rest of the unfinished frame: there is room for it."""
        self._granted = True
        self._held_bytes += size
        self._held_since = self._loop.time()
        self.resume(Pause.FRAMES)

    # Answers

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the socket has not taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def is_held(self) -> bool:
        """Whether the peer must take answers before more are made."""
        return Pause.ANSWERS in self.pauses

    def made(self, size: int) -> None:
        """Count an answer that was made."""
        self._counted_bytes += size
        self._answers.change(size)

    def written(self, size: int) -> None:
        """All `size` bytes of answers are with the transport: count what it still holds."""
        self._written_bytes += size
        self._batches.append((self._written_bytes, size))
        self._batch_bytes += size
        unsent = self.unsent_bytes
        self._count_batches()
        if not unsent or self.is_held:
            return
        if unsent > min(self._config.connection_answer_bytes_max, self._answers.share()):
            self.pause(Pause.ANSWERS)
            self._on_hold(True)

    def sending(self) -> None:
        """The socket takes no more for the moment: watch whether it stalls."""
        if self._stall is None:
            self._watch_stall(self._sent_bytes())

    def sent(self) -> None:
        """The socket took everything: make answers again."""
        self._cancel_stall()
        self._count_batches()
        if self.is_held:
            self.resume(Pause.ANSWERS)
            self._on_hold(False)

    def _count_batches(self) -> None:
        sent = self._sent_bytes()
        while self._batches and self._batches[0][0] <= sent:
            self._batch_bytes -= self._batches.popleft()[1]
        self._count(self._batch_bytes)

    def _count(self, size: int) -> None:
        if size != self._counted_bytes:
            self._answers.change(size - self._counted_bytes)
            self._counted_bytes = size

    def _sent_bytes(self) -> int:
        return self._written_bytes - self.unsent_bytes

    # Peers that stall

    def _watch_stall(self, sent_bytes: int) -> None:
        self._stall = self._loop.call_later(
            self._config.answer_stall_ms_max / 1000, self._check_stall, sent_bytes
        )

    def _check_stall(self, sent_before: int) -> None:
        """Cut off a peer that took nothing in all that time; a slow peer stays."""
        sent = self._sent_bytes()
        if sent > sent_before:
            self._watch_stall(sent)
        else:
            self._stalled("answers", self.unsent_bytes)

    def look(self, now: float) -> None:
        """While memory is short, cut off a peer that holds memory for too long without
        progress."""
        sent = self._sent_bytes()
        if self.unsent_bytes == 0 or sent != self._looked_at[0]:
            self._looked_at = (sent, now)
        limit_s = self._config.pressed_stall_ms_max / 1000
        if self._answers.is_spent and now - self._looked_at[1] > limit_s:
            self._stalled("answers_pressed", self.unsent_bytes)
        elif (
            self._frames.waiting
            and self._held_bytes > _HELD_BYTES_MIN
            and not self.pauses
            and now - self._held_since > limit_s
        ):
            self._stalled("frame_pressed", self._held_bytes)

    def _stalled(self, what: str, size: int) -> None:
        self._stall = None
        self._metrics.stalled.labels(what).inc()
        log.warning("connection_stalled", peer=self.peer, reason=what, held_bytes=size)
        if self._transport is not None:
            self._transport.abort()

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
