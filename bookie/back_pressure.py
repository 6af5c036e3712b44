"""Back-pressure: decide when a client's socket is not read.

A client that sends too much, or does not take its answers, is left unread, and TCP slows it down;
almost nothing is refused. Memory is bounded for all connections together:

- `AddPressure`: adds on their way to the disk. First the clients that send most are not read, then
  all that add; adds that still arrive get TOO_MANY_REQUESTS.
- `Budget`: answers that clients have not taken.
- `FrameRoom`: frames that have arrived in part.
- `Turns`: requests handled in a turn of the loop.

A peer that takes no answer for long, or leaves half a frame while others wait for room, is cut off.
Used on the loop only.
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
"""The smallest chunk that is read while memory is short."""
_CHUNK_SHARE = 1024
RUN_BYTES = 700
"""The cost of a waiting batch in addition to its frames."""
MODEST_BYTES = 64 * 1024
"""At `Pressure.GREEDY`, a client with fewer bytes on their way may send on."""
_CHUNK_BYTES = (sys.maxsize, 32 * 1024, 1024, 1024)
"""Bytes for each read, by level of pressure: thousands of clients may still be read."""
REQUESTS_PER_TURN = 2_000
"""Tens of milliseconds of work; the last chunk of a turn may exceed it."""
REQUESTS_PER_CHUNK = 250
_READ_PER_TURN = 16
PEAK_BYTES = 128 * 1024
"""Bytes of adds within a millisecond or in one chunk."""
_AT_ONCE_S = 0.001
BURST_S = 0.02
"""Two peaks within this time make a burst."""
_HELD_BYTES_MIN = 4096
"""A connection that holds less of a frame is no burden."""

log = structlog.get_logger()


class Budget:
    """A bound of bytes; ask `is_spent` before new work: work under way may exceed it."""

    __slots__ = ("_listeners", "bytes_max", "peak", "used")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.used = 0
        self.peak = 0
        self._listeners: list[Callable[[], None]] = []

    def describe(self) -> dict[str, int]:
        return {"bytes": self.used}

    def when_room(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def is_spent(self) -> bool:
        return self.used >= self.bytes_max

    def change(self, by: int) -> None:
        before = self.used
        self.used = before + by
        assert self.used >= 0, "more was given back than was taken"
        if self.used > self.peak:
            self.peak = self.used
        if before >= self.bytes_max > self.used:
            for listener in tuple(self._listeners):
                listener()

    def share(self) -> int:
        """Return half of what is free: users that give nothing back never take everything."""
        return max(0, self.bytes_max - self.used) // 2


class FrameRoom:
    """A long frame gets its room whole or not at all: half frames must not wait for each other.

    At least one grant is always given.
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
        return {"bytes": self.used, "grants": self._grants, "waiting": len(self._waiting)}

    def waits_in_vain(self) -> str:
        if self._waiting and self._fits(next(iter(self._waiting.values()))):
            return "a frame waits, and there is room for it"
        return ""

    @property
    def is_pressed(self) -> bool:
        return self.used > self.bytes_max // 2

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def chunk_bytes(self) -> int:
        return max(CHUNK_BYTES_MIN, (self.bytes_max - self.used) // _CHUNK_SHARE)

    def change(self, by: int) -> None:
        self.used += by
        assert self.used >= 0, "more was given back than was taken"
        if self.used > self.peak:
            self.peak = self.used
        if by < 0 and self._waiting:
            self._grant()

    def ask(self, who: Flow, more: int) -> bool:
        if self._waiting or not self._fits(more):
            self._waiting[who] = more
            return False
        self._grants += 1
        self.change(more)
        return True

    def withdraw(self, who: Flow) -> None:
        self._waiting.pop(who, None)

    def give_back(self, who: Flow, size: int, *, granted: bool) -> None:
        """Take `who` out of the queue, and free its `size` bytes."""
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

    Without it, twenty peers kept a loop from other work for eight seconds. After its share, further
    sockets are read by a single byte, the minimum, and wait for a later turn.
    """

    __slots__ = ("_due", "_loop", "_over_at", "_waiting", "taken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.taken = 0
        self._over_at = REQUESTS_PER_TURN
        self._waiting: dict[Flow, None] = {}
        self._due = False

    def describe(self) -> dict[str, int]:
        return {"waiting": len(self._waiting)}

    def waits_in_vain(self) -> str:
        return "sockets wait for a turn that is not due" if self._waiting and not self._due else ""

    @property
    def is_over(self) -> bool:
        return self.taken >= self._over_at

    def took(self, requests: int) -> None:
        self.taken += requests
        self._soon()

    def wait(self, who: Flow) -> None:
        self._waiting[who] = None
        self._soon()

    def leave(self, who: Flow) -> None:
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
    NONE = 0
    GREEDY = 1
    """Connections with more than `MODEST_BYTES` on their way."""
    ALL = 2
    """Stop clients that have ever added, or are receiving a long frame."""
    FULL = 3
    """As `ALL`, and answer adds that still arrive with TOO_MANY_REQUESTS."""


class AddPressure:
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

    def describe(self) -> dict[str, int]:
        return {"level": int(self.level)}

    def on_change(self, listener: Callable[[Pressure], None]) -> None:
        self._listeners.append(listener)

    @property
    def chunk_bytes(self) -> int:
        return _CHUNK_BYTES[self.level]

    @property
    def has_room_for_recovery(self) -> bool:
        """Whether recovery's adds have room: their bound is a quarter higher."""
        return self.used < self._add_bytes_max + self._add_bytes_max // 4

    def update(self, pending_bytes: int, pending_runs: int) -> None:
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
    """Detects that adds come as fast as the loop takes them.

    A loop that keeps up finds a peak once, after a delay; otherwise peaks come again and again.
    """

    __slots__ = ("_bytes", "_loop", "_much_at", "_since", "_there_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._much_at = self._there_until = float("-inf")
        self._bytes = 0

    def came(self, size: int) -> None:
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
        """Whether two peaks came close together, the last a moment ago."""
        return self._loop.time() < self._there_until


class Counted(Protocol):
    @property
    def pauses(self) -> Counter: ...

    @property
    def stalled(self) -> Counter: ...


class Pause(enum.Flag):
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
        """Gets true when no further answer should be made, false when it may."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.pauses = Pause.NONE
        self.peer = ""
        self._chunk_bytes = sys.maxsize
        self._held_bytes = 0
        self._granted = False
        self._held_since = 0.0
        self._written_bytes = 0
        self._counted_bytes = 0
        self._batches: deque[tuple[int, int]] = deque()
        """(end position, length) of writes that the socket has not taken.

        The transport keeps all of a write until its last byte is sent.
        """
        self._batch_bytes = 0
        self._stall: asyncio.TimerHandle | None = None
        self._looked_at = (0, 0.0)

    def describe(self) -> dict[str, int]:
        return {
            "held_bytes": self._held_bytes,
            "answer_bytes": self._counted_bytes,
            "writes": len(self._batches),
            "pauses": len(self.pauses),
        }

    def attach(self, transport: asyncio.Transport, peer: str) -> None:
        """Count for this transport, which reports a filled and an empty write buffer."""
        self._transport = transport
        self.peer = peer
        transport.set_write_buffer_limits(high=0)

    def release(self) -> None:
        self._transport = None
        self._cancel_stall()
        self._count(0)
        self._frames.give_back(self, self._held_bytes, granted=self._granted)
        self._held_bytes, self._granted = 0, False
        self._turns.leave(self)

    # Reading the socket

    def pause(self, reason: Pause) -> None:
        if reason in self.pauses:
            return
        self._metrics.pauses.labels(reason.name).inc()
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.pauses |= reason

    def resume(self, reason: Pause) -> None:
        if reason not in self.pauses:
            return
        self.pauses &= ~reason
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._held_since = self._loop.time()
            self._transport.resume_reading()

    def get_buffer(self) -> memoryview:
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
        """Adapt the chunk size; yield if the turn is over."""
        if requests > REQUESTS_PER_CHUNK:
            self._chunk_bytes = max(CHUNK_BYTES_MIN, chunk_bytes * REQUESTS_PER_CHUNK // requests)
        elif chunk_bytes >= self._chunk_bytes // 2:
            self._chunk_bytes *= 2
        if self._turns.is_over:
            self.pause(Pause.TURN)
            self._turns.wait(self)

    def kept(self, taken: int) -> None:
        receiver = self._receiver
        if self._granted:
            if not taken:
                return  # all of this frame is counted already
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
        self._granted = True
        self._held_bytes += size
        self._held_since = self._loop.time()
        self.resume(Pause.FRAMES)

    # Answers

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def is_held(self) -> bool:
        return Pause.ANSWERS in self.pauses

    def made(self, size: int) -> None:
        self._counted_bytes += size
        self._answers.change(size)

    def written(self, size: int) -> None:
        """Count what the transport still holds of these answers."""
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
        if self._stall is None:
            self._watch_stall(self._sent_bytes())

    def sent(self) -> None:
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
        """Cut the peer off if it took nothing in all that time; a slow peer stays."""
        sent = self._sent_bytes()
        if sent > sent_before:
            self._watch_stall(sent)
        else:
            self._stalled("answers", self.unsent_bytes)

    def look(self, now: float) -> None:
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
