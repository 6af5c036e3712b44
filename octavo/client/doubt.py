"""Ask other brokers whether a silent broker still owns a partition.

Calls to a dead host hang until their deadline, long after a take-over. When an owner is silent for
`SILENCE_S`, the client asks other brokers; once a broker names another owner, the call is given up
(`TimeoutError`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

SILENCE_S = 1.0
PAUSE_S = 0.25
"""The pause between questions. Without an owner, the broker delays its answer itself."""

PartitionKey = tuple[str, int]
Ask = Callable[[PartitionKey, str], Awaitable[str | None]]
Result = TypeVar("Result")


class Doubts:
    """`ask(partition, url)` asks a broker other than `url` for the owner; None: no answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[tuple[PartitionKey, str], set[asyncio.Timeout]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def describe(self) -> dict[str, int]:
        return {"waiting": sum(map(len, self._waiting.values()))}

    async def unless_moved(
        self,
        url: str,
        partition: PartitionKey,
        attempt: Coroutine[Any, Any, Result],
        wait_s: float,
    ) -> Result:
        """Run `attempt` at `url`. Raises `TimeoutError` once another broker is the owner.

        `wait_s`: how long the owner may hold the call.
        """
        key = (partition, url)
        async with asyncio.timeout(None) as limit:
            timer = asyncio.get_running_loop().call_later(
                SILENCE_S + wait_s, self._begin, key, limit
            )
            try:
                return await attempt
            finally:
                timer.cancel()
                if (waiting := self._waiting.get(key)) is not None:
                    waiting.discard(limit)

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, key: tuple[PartitionKey, str], limit: asyncio.Timeout) -> None:
        if self._closed:
            return
        if (waiting := self._waiting.get(key)) is not None:
            waiting.add(limit)
            return
        self._waiting[key] = {limit}
        task = asyncio.create_task(self._doubt(*key), name=f"who owns {key[0]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _doubt(self, partition: PartitionKey, url: str) -> None:
        waiting = self._waiting[partition, url]
        try:
            while waiting:
                owner = None
                with contextlib.suppress(OSError, TimeoutError):
                    owner = await self._ask(partition, url)
                if owner is not None and owner != url:
                    now = asyncio.get_running_loop().time()
                    for limit in waiting:
                        limit.reschedule(now)
                    return
                await asyncio.sleep(PAUSE_S)
        finally:
            del self._waiting[partition, url]
