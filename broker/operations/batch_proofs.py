"""Check the header of a batch against its records before the batch is stored.

The records are decompressed, within a limit, and each is parsed: there must be as many as the
header says, numbered in order, and nothing else. So every accepted batch can be read as single
messages, and sixty bytes cannot pass for a million messages. Kafka's brokers check this too.

Small batches are checked at once, others in steps. Large compressed batches are decompressed in a
thread, one after another, and counted as a body of their sender. Peers (addresses) take turns, so
that a peer with a hundred waiting batches does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from octavo.broker.errors import MessageTooLong, Overloaded
from octavo.ledger.read.open_batch import unpacked, unpacked_if_small, walked
from octavo.protocol.batch import ATTRIBUTE_COMPRESSION, HEADER_BYTES, BatchHeader, InvalidBatch
from octavo.protocol.compression import Compression, compression_of
from octavo.protocol.fair_queue import FairQueue
from octavo.protocol.limits import RECORDS_BYTES_MAX
from octavo.protocol.records import record_bytes
from octavo.protocol.windows import STEP_RECORDS, BatchWindows

TURN_WAIT_S = 10.0
"""How long a large batch waits for its turn before it is refused."""
WAITING_MAX = 256
"""The most waiting large batches of a peer."""


class _Line:
    """The turn to check a large batch, and the batches of each peer that wait for it."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: FairQueue[str, asyncio.Future[None]] = FairQueue()

    def describe(self) -> dict[str, int]:
        return {"turns": int(self._taken), "waiting": len(self._waiting)}

    async def enter(self, peer: str) -> None:
        """Wait for the turn, which lasts until `leave`. Raises `Overloaded`."""
        if not self._taken:
            self._taken = True
            return
        if self._waiting.waiting(peer) >= WAITING_MAX:
            raise Overloaded(
                f"{WAITING_MAX} large compressed batches from {peer} wait to be checked: come back "
                "in a moment, or send smaller batches"
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.push(peer, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                list(self._waiting.take(peer, lambda one: one is turn))
            else:
                self.leave()  # the turn came at this moment
            raise

    def leave(self) -> None:
        """End the turn, and give it to the next batch that waits."""
        while self._waiting:
            _, turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class BatchProofs:
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
        """Return if the records of the batch, which has passed `check_batch`, fit its header.

        `peer`: the sender. `hold`: called with the bytes in memory besides the batch, at the end
        with 0. `message_bytes_max`: limit of each message. Raises `InvalidBatch`,
        `UnsupportedCompression`, `Overloaded`, `MessageTooLong`.
        """
        kind = compression_of(header.attributes & ATTRIBUTE_COMPRESSION)
        packed = batch[HEADER_BYTES:] if kind else b""
        if kind is Compression.NONE:
            plain = BatchWindows(header, batch, HEADER_BYTES)
        elif (small := unpacked_if_small(kind, packed)) is not None:
            plain = BatchWindows(header, small)
        else:
            await self._prove_large(header, kind, packed, peer, hold, message_bytes_max)
            return
        if not plain.prove_at_once():
            await _prove(plain)
        await _measure(plain, message_bytes_max)

    async def _prove_large(
        self,
        header: BatchHeader,
        kind: Compression,
        packed: bytes,
        peer: str,
        hold: Callable[[int], Awaitable[None]],
        message_bytes_max: int | None,
    ) -> None:
        await self._take_turn(peer)
        try:
            await hold(RECORDS_BYTES_MAX)
            windows = BatchWindows(header, await unpacked(kind, packed))
            await _prove(windows)
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
                "this broker checks large compressed batches one after another, and this batch "
                f"waited {TURN_WAIT_S:g} s: come back in a moment, or send smaller batches"
            ) from None


async def _prove(windows: BatchWindows) -> None:
    try:
        await walked(windows)
    except InvalidBatch:
        await _in_steps(windows.prove_walked())
        raise
    await _in_steps(map(windows.prove, range(windows.windows)))


async def _in_steps(proofs: Iterator[int]) -> None:
    """Run all proofs, which yield their numbers of records, and pause for other work."""
    proved = 0
    for count in proofs:
        proved += count
        if proved > STEP_RECORDS:
            proved = 0
            await asyncio.sleep(0)


async def _measure(windows: BatchWindows, bytes_max: int | None) -> None:
    """Check that no message exceeds `bytes_max`. Raises `MessageTooLong`."""
    if bytes_max is None or windows.records_bytes <= bytes_max:
        return
    for first, records in windows.following(0):
        for number, record in enumerate(records, first):
            size = record_bytes(record.key, record.value, record.headers)
            if size > bytes_max:
                raise MessageTooLong(size, bytes_max, f"message {number} of the batch")
        await asyncio.sleep(0)
