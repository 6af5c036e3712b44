"""Check a batch's header against its records before the batch is stored.

There must be as many records as the header says, numbered in order, and nothing else: so sixty
bytes cannot pass for a million messages. Large compressed batches are decompressed in a thread, one
at a time; peers take turns.
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
WAITING_MAX = 256


class _Line:
    def __init__(self) -> None:
        self._taken = False
        self._waiting: FairQueue[str, asyncio.Future[None]] = FairQueue()

    def describe(self) -> dict[str, int]:
        return {"turns": int(self._taken), "waiting": len(self._waiting)}

    async def enter(self, peer: str) -> None:
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
        """Check a batch; `hold` gets the bytes in memory besides it, at the end 0."""
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
    proved = 0
    for count in proofs:
        proved += count
        if proved > STEP_RECORDS:
            proved = 0
            await asyncio.sleep(0)


async def _measure(windows: BatchWindows, bytes_max: int | None) -> None:
    if bytes_max is None or windows.records_bytes <= bytes_max:
        return
    for first, records in windows.following(0):
        for number, record in enumerate(records, first):
            size = record_bytes(record.key, record.value, record.headers)
            if size > bytes_max:
                raise MessageTooLong(size, bytes_max, f"message {number} of the batch")
        await asyncio.sleep(0)
