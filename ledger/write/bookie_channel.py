"""One position of a ledger's ensemble: what its bookie was sent, and what comes next.

Behind a missing, full or busy connection it sends from `Pending` at its own pace; its window of
unacked entries halves after `TooManyRequests`, and grows with every ack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.ledger.bookies.bookies import Bookie
from octavo.ledger.bookies.connection import AddSink, BookieConnection
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.pending import Chunk, Pending
from octavo.ledger.write.writer_state import WriterState
from octavo.protocol.backoff import Backoff
from octavo.protocol.entry import Buffer

_WINDOW_MIN = 16
_WINDOW_MAX = 65_536


class BookieChannel:
    def __init__(
        self,
        sink: AddSink,
        core: WriterState,
        pending: Pending,
        position: int,
        bookie: Bookie,
        options: LedgerOptions,
    ) -> None:
        self.bookie = bookie
        self._sink = sink
        self._core = core
        self._acked_to = core.received.acked_to
        self._pending = pending
        self._position = position
        self._options = options
        self._next = core.lac + 1
        self._again: list[tuple[int, int]] = []
        self._window: int | None = None
        first_ms = min(options.busy_backoff_ms_min, options.busy_backoff_ms_max)
        self._pauses = Backoff(first_ms / 1000, options.busy_backoff_ms_max / 1000, None)
        self._pause: asyncio.TimerHandle | None = None
        self._connection: BookieConnection | None = None
        self._heard_at = 0.0

    def describe(self) -> dict[str, int]:
        return {"again": len(self._again)}

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        connection = self._connection
        if connection is None or not connection.writable or self.down or self._pause is not None:
            return ""
        return "entries wait, and the bookie could take them" if self._due() is not None else ""

    @property
    def down(self) -> bool:
        """Whether the bookie is down: entries that it missed may be released.

        Ask the core: it learns of failures without telling this channel.
        """
        return self._position in self._core.down

    def attach(self, now: float) -> None:
        self._heard_at = now
        self._connection = self.bookie.connection
        if self._connection is not None:
            self._connection.attach(self._core.metadata.ledger_id, self._sink)

    def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._connection is not None:
            self._connection.detach(self._core.metadata.ledger_id, self._sink)
            self._connection = None

    def restart(self, first_entry: int, now: float) -> None:
        """Send, or send again, everything from `first_entry` on."""
        self._next = first_entry
        self._again.clear()
        self._heard_at = now
        self.pump()

    # ------------------------------------------------------------------ sending

    def push(self, chunk: Chunk, frames: tuple[Sequence[Buffer], int] | None, now: float) -> None:
        """Send a new chunk; `frames` is given if every bookie gets the whole chunk."""
        if self._owed >= chunk.first_entry:
            self._heard_at = now  # the time-out starts now
        connection = self._connection
        if (
            frames is not None
            and self._next == chunk.first_entry
            and connection is not None
            and connection.writable
            and not self.down
            and self._pause is None
            and self._window is None
            and not self._again
        ):
            connection.send_adds(frames[0], frames[1])
            self._next = chunk.last_entry + 1
        else:
            self.pump()

    def pump(self) -> None:
        connection = self._connection
        if connection is None or self.down or self._pause is not None:
            return
        while connection.writable:
            due = self._due()
            if due is None:
                return
            first, last, again = due
            frames, size, following = self._pending.frames_for(self._position, first, last)
            if again:
                self._again[0] = (following, self._again[0][1])
                if following > self._again[0][1]:
                    del self._again[0]
            else:
                self._next = following
            if size:
                connection.send_adds(frames, size)

    def _due(self) -> tuple[int, int, bool] | None:
        """Return (first, last, whether the bookie refused them once)."""
        owed = self._owed  # entries before it may have been released
        self._next = max(self._next, owed)
        while self._again and self._again[0][1] < owed:
            del self._again[0]
        if self._again:
            first, last = self._again[0]
            return max(first, owed), last, True
        if self._next > self._core.lap:
            return None
        room = self._core.lap + 1
        if self._window is not None:
            room = self._window - (self._next - owed)
            if room <= 0:
                return None
        return self._next, min(self._core.lap, self._next + room - 1), False

    # ------------------------------------------------------------------ answers of the bookie

    def heard(self, now: float, count: int) -> None:
        self._heard_at = now
        if self._window is None:
            return
        self._pauses.reset()
        self._window += max(1, count // 4)
        if self._window > _WINDOW_MAX:
            self._window = None
        self.pump()

    def busy(self, now: float, first: int, last: int) -> None:
        """Pause, narrow the window and resend."""
        self._heard_at = now
        self._again.append((first, last))
        self._again = _merged(self._again)
        if self._pause is not None:
            return
        in_flight = self._next - self._owed
        self._window = max(_WINDOW_MIN, in_flight // 2)
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(self._pauses.next_s(), self._resume)

    def _resume(self) -> None:
        self._pause = None
        self.pump()

    def owes(self) -> bool:
        return not self.down and self._owed <= self._core.lap

    @property
    def _owed(self) -> int:
        return self._core.quorum.next_held(self._position, self._acked_to[self._position])

    def overdue(self, now: float) -> bool:
        """Whether the bookie owes acks and has sent nothing for `add_timeout_s`."""
        return self.owes() and now - self._heard_at >= self._options.add_timeout_s


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
