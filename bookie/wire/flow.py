"""What one client occupies of a bookie's memory, and why its socket is not read at present.

Counts the client's half-arrived frame and its unsent answers in the budgets that all connections
share (admission/budget.py), and leaves the socket unread when either asks for it: TCP passes the
pressure on. A peer that takes no answer for long, or leaves half a frame here while others wait for
the room, is cut off. Used on the loop only; nothing of it outlives the connection.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import TYPE_CHECKING

import structlog

from octavo.bookie.admission.budget import Budget, FrameRoom
from octavo.bookie.admission.pressure import AddPressure

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.bookie.config import BookieConfig
    from octavo.bookie.metrics.bookie import BookieMetrics
    from octavo.protocol.frames import FrameReceiver

log = structlog.get_logger()

_HELD_BYTES_MIN = 4096
"""Who holds less of a frame is no burden."""


class Pause(enum.Flag):
    """Why a socket is not read at present."""

    NONE = 0
    STORAGE = enum.auto()
    ADDS = enum.auto()
    READS = enum.auto()
    ANSWERS = enum.auto()
    FRAMES = enum.auto()
    STOPPING = enum.auto()


class Flow:
    """The flow control of one connection."""

    def __init__(
        self,
        config: BookieConfig,
        metrics: BookieMetrics,
        receiver: FrameReceiver,
        pressure: AddPressure,
        answers: Budget,
        frames: FrameRoom[Flow],
        on_hold: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._receiver = receiver
        self._pressure = pressure
        self._answers = answers
        self._frames = frames
        self._on_hold = on_hold
        """Told true when no further answer should be made, false when again."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.pauses = Pause.NONE
        self.peer = ""
        self._held_bytes = 0
        self._granted = False
        self._held_since = 0.0
        self._written_bytes = 0
        self._counted_bytes = 0
        self._batches: deque[tuple[int, int]] = deque()
        """Where each write ends and how long it is, of those that the socket has not taken whole:
        so long all of it is held, however much of it has gone out."""
        self._batch_bytes = 0
        self._stall: asyncio.TimerHandle | None = None
        self._looked_at = (0, 0.0)

    def attach(self, transport: asyncio.Transport, peer: str) -> None:
        """The socket is there. Its buffer is told of as soon as it holds a byte, and when empty."""
        self._transport = transport
        self.peer = peer
        transport.set_write_buffer_limits(high=0)

    def release(self) -> None:
        """The connection is gone: give everything back."""
        self._transport = None
        self._cancel_stall()
        self._count(0)
        self._frames.give_back(self, self._held_bytes, granted=self._granted)
        self._held_bytes, self._granted = 0, False

    # Reading the socket

    def pause(self, reason: Pause) -> None:
        """Stop reading the socket, for one more reason."""
        if reason in self.pauses:
            return
        self._metrics.pauses.labels(reason.name).inc()
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.pauses |= reason

    def resume(self, reason: Pause) -> None:
        """Read on, unless another reason stands."""
        if reason not in self.pauses:
            return
        self.pauses &= ~reason
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._held_since = self._loop.time()
            self._transport.resume_reading()

    def get_buffer(self) -> memoryview:
        """Room for what the socket delivers next."""
        pressed = self._frames.is_pressed
        if not pressed and not self._pressure.level:
            return self._receiver.get_buffer()
        chunk_bytes = self._pressure.chunk_bytes
        if pressed:
            chunk_bytes = min(chunk_bytes, self._frames.chunk_bytes)
        if self._granted:
            chunk_bytes = max(chunk_bytes, self._receiver.missing_bytes)
        return self._receiver.get_buffer(chunk_bytes)

    def kept(self, taken: int) -> None:
        """`taken` bytes of what was there were whole frames; the receiver keeps the rest."""
        receiver = self._receiver
        if self._granted:
            if not taken:
                return  # the same frame, and it counts whole
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
        """There is room for what its unfinished frame lacks."""
        self._granted = True
        self._held_bytes += size
        self._held_since = self._loop.time()
        self.resume(Pause.FRAMES)

    # Answers

    @property
    def unsent_bytes(self) -> int:
        """Answers that the socket has not taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def is_held(self) -> bool:
        """Whether the peer should take answers before more are made."""
        return Pause.ANSWERS in self.pauses

    def made(self, size: int) -> None:
        """An answer was made; it counts from now on."""
        self._counted_bytes += size
        self._answers.change(size)

    def written(self, size: int) -> None:
        """All that was made, `size` bytes, is with the transport: count what it still holds."""
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
        """The socket takes no more for the moment."""
        if self._stall is None:
            self._watch_stall(self._sent_bytes())

    def sent(self) -> None:
        """The socket took everything."""
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
        """Cut off a peer that took nothing in all that time; a slow one may go on."""
        sent = self._sent_bytes()
        if sent > sent_before:
            self._watch_stall(sent)
        else:
            self._stalled("answers", self.unsent_bytes)

    def look(self, now: float) -> None:
        """Memory is short: cut off a peer that has held some for `pressed_stall_ms_max` in vain."""
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
