"""A single loop over the deliveries of several topics or partitions.

Each source has its own loop; the body works on the first hand that is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterator

from octavo.client.deliveries import Consumer, DeliveryLoop, hands
from octavo.client.errors import ClientError, InvalidCall
from octavo.client.handing import Hand
from octavo.client.types import Delivery, amount


class Source:
    def __init__(self, key: Hashable, loop: DeliveryLoop, *, auto_ack: bool) -> None:
        self.key = key
        self.loop = loop
        self.auto_ack = auto_ack
        self.leaving = False
        self.in_hand = False
        self.free = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class SourceHand:
    def __init__(self, source: Source, hand: Hand) -> None:
        self.source = source
        self._hand = hand

    def __iter__(self) -> Iterator[Delivery]:
        source = self.source
        try:
            for delivery in iter(self._hand):
                yield delivery
                if source.leaving:
                    if source.auto_ack:
                        self._hand.taken += 1  # the body asked for more, so this message is done
                    return
        except InvalidCall:
            if not source.leaving:  # a leaving source is closed; other consumers get the rest
                raise


class Merged:
    """`on_lost` judges an error that ends a source; True: it is expected."""

    def __init__(
        self,
        loops: dict[DeliveryLoop, None],
        on_lost: Callable[[Hashable, Exception], bool],
        *,
        auto_ack: bool,
        batch: int,
    ) -> None:
        self._loops = loops
        self._on_lost = on_lost
        self._auto_ack = auto_ack
        self._batch = batch
        self._sources: dict[Hashable, Source] = {}
        self._ready: asyncio.Queue[SourceHand | Exception] = asyncio.Queue()

    @property
    def keys(self) -> list[Hashable]:
        return list(self._sources)

    def add(self, key: Hashable, consumer: Consumer, lease_s: float) -> None:
        loop = DeliveryLoop(consumer, lease_s, auto_ack=self._auto_ack, batch=self._batch)
        self._loops[loop] = None
        source = self._sources[key] = Source(key, loop, auto_ack=self._auto_ack)
        source.task = asyncio.create_task(self._run(source), name=f"deliveries of {key}")

    async def remove(self, key: Hashable, within_s: float) -> None:
        """Remove a source: ack finished messages, give back the rest. Wait `within_s` for the body.

        Raises nothing: a message that could not be acked is delivered again.
        """
        source = self._sources.get(key)
        if source is None or source.leaving:
            return
        source.leaving = True
        if source.in_hand:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await source.free.wait()
        with contextlib.suppress(ClientError):
            await self._end(source)

    def fail(self, error: Exception) -> None:
        self._ready.put_nowait(error)

    async def between(self) -> None:
        """Send due acks; a body that may block this event loop calls it between two messages."""
        for source in tuple(self._sources.values()):
            await source.loop.between()

    async def hands(self, idle_s: float | None) -> AsyncIterator[SourceHand]:
        wait_s = None if idle_s is None else amount(idle_s, "idle_s")
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    found = await self._ready.get()
            except TimeoutError:
                return
            if isinstance(found, Exception):
                raise found
            source = found.source
            if not source.leaving:
                source.in_hand = True
                yield found
                source.in_hand = False
            source.free.set()

    async def close(self) -> None:
        failed: Exception | None = None
        for source in tuple(self._sources.values()):
            source.leaving = True
            try:
                await self._end(source)
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _end(self, source: Source) -> None:
        task = source.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await source.loop.close()
        finally:
            self._loops.pop(source.loop, None)
            if self._sources.get(source.key) is source:
                del self._sources[source.key]

    async def _run(self, source: Source) -> None:
        try:
            async for hand in hands(source.loop, None):
                source.free.clear()
                self._ready.put_nowait(SourceHand(source, hand))
                await source.free.wait()
        except Exception as error:
            if source.leaving:
                return
            if not self._on_lost(source.key, error):
                self.fail(error)
                return
            source.leaving = True
            with contextlib.suppress(ClientError):
                await self._end(source)
