"""What a packed batch says of itself is proved before it is stored.

Its records are unpacked, within a bound, and each is taken apart: they are as many as the header
says, numbered one after the other, and nothing else is there. So a batch that was accepted can be
read as single messages, and sixty bytes cannot stand for a million. Kafka's brokers do the same.
A batch that is not packed is not looked into: its count is bounded by its bytes, and walking over
them costs as much as all the rest of a publish; where its records are damaged, readers are told.

Small batches are proved at once. Of the others one is in memory at a time, counted as a body of
whoever sent it, unpacked in a thread and taken apart in steps. Peers (addresses) take turns: who
has a hundred of them waiting keeps nobody else from theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.broker.errors import Overloaded
from octavo.broker.http.problems import Problem
from octavo.ledger.read.open_batch import unpacked, unpacked_if_small, walked
from octavo.protocol.batch import ATTRIBUTE_COMPRESSION, HEADER_BYTES, BatchHeader
from octavo.protocol.compression import Compression, compression_of
from octavo.protocol.fair_queue import FairQueue
from octavo.protocol.limits import RECORDS_BYTES_MAX
from octavo.protocol.records import record_bytes
from octavo.protocol.windows import STEP_RECORDS, BatchWindows

TURN_WAIT_S = 10.0
"""How long a large batch waits for those before it until its sender is told to come back."""
WAITING_MAX = 256
"""Large batches of one peer that may wait."""


class _Line:
    """Who proves a large batch, and those of each peer that wait to be next."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: FairQueue[str, asyncio.Future[None]] = FairQueue()

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"turns": int(self._taken), "waiting": len(self._waiting)}

    async def enter(self, peer: str) -> None:
        """Return when it is one's turn, until `leave`. Raises `Overloaded`."""
        if not self._taken:
            self._taken = True
            return
        if self._waiting.waiting(peer) >= WAITING_MAX:
            raise Overloaded(
                f"{WAITING_MAX} large packed batches from {peer} wait to be proved: come back in a "
                "moment, or send smaller ones"
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.push(peer, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                list(self._waiting.take(peer, lambda one: one is turn))
            else:
                self.leave()  # it had come at this very moment
            raise

    def leave(self) -> None:
        """Whose turn is next may begin."""
        while self._waiting:
            _, turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class BatchProofs:
    """The proofs of one broker."""

    def __init__(self) -> None:
        self._line = _Line()

    async def prove(
        self,
        header: BatchHeader,
        batch: bytes,
        peer: str,
        hold: Callable[[int], Awaitable[None]],
        message_bytes_max: int | None = None,
    ) -> None:
        """Return when this batch, which `check_batch` has passed, holds what its header says.

        `peer`: who sent it. `hold`: called with the bytes that are in memory beside the batch, at
        last with 0. `message_bytes_max`: of each of its messages. Raises `InvalidBatch`,
        `UnsupportedCompression`, `Overloaded`, a 413 `Problem`.
        """
        kind = compression_of(header.attributes & ATTRIBUTE_COMPRESSION)
        if kind is Compression.NONE:
            if message_bytes_max is not None and len(batch) - HEADER_BYTES > message_bytes_max:
                windows = BatchWindows(header, batch, HEADER_BYTES)
                await walked(windows)
                await _measure(windows, message_bytes_max)
            return
        packed = batch[HEADER_BYTES:]
        small = unpacked_if_small(kind, packed)
        if small is not None:
            windows = BatchWindows(header, small)
            if not windows.prove_at_once():
                await _prove(windows)
            if message_bytes_max is not None and len(small) > message_bytes_max:
                await _measure(windows, message_bytes_max)
            return
        await self._take_turn(peer)
        try:
            await hold(RECORDS_BYTES_MAX)
            windows = BatchWindows(header, await unpacked(kind, packed))
            await _prove(windows)
            if message_bytes_max is not None:
                await _measure(windows, message_bytes_max)
        finally:
            self._line.leave()
            await hold(0)

    async def _take_turn(self, peer: str) -> None:
        try:
            async with asyncio.timeout(TURN_WAIT_S):
                await self._line.enter(peer)
        except TimeoutError:
            raise Overloaded(
                f"this broker proves large packed batches one after the other, and this one waited "
                f"{TURN_WAIT_S:g} s for its turn: come back in a moment, or send smaller ones"
            ) from None


async def _prove(windows: BatchWindows) -> None:
    await walked(windows)
    proved = 0
    for number in range(windows.windows):
        proved += windows.prove(number)
        if proved > STEP_RECORDS:
            proved = 0
            await asyncio.sleep(0)


async def _measure(windows: BatchWindows, bytes_max: int) -> None:
    """No message is longer than that. Raises a 413 `Problem`."""
    for first, records in windows.following(0):
        for number, record in enumerate(records, first):
            size = record_bytes(record.key, record.value, record.headers)
            if size > bytes_max:
                raise message_too_long(size, bytes_max, f"message {number} of the batch")
        await asyncio.sleep(0)


def message_too_long(size: int, bytes_max: int, what: str = "this one") -> Problem:
    """The 413."""
    return Problem(
        413,
        "message-too-long",
        f"a message may have {bytes_max} bytes of key, value and headers, {what} has {size}; a "
        "longer one goes by PUT …/large (octavo publish --large), where the topic takes it",
        extra={"bytes_max": bytes_max},
    )
