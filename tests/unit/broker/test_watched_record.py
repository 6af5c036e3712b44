"""A remembered record is never older than the last alarm, for a caller that needs the newest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.metadata.store import MetadataUnavailable


@pytest.mark.parametrize("seed", range(30))
async def test_the_newest_is_not_older_than_the_last_alarm(seed: int) -> None:
    """Changes come while reads are in flight, whose answers may be older or newer."""
    rng = random.Random(seed)
    stored = 0

    async def read() -> int:
        found = stored
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)
        return found

    record = WatchedRecord(read, asyncio.create_task)

    async def ask() -> None:
        for _ in range(5):
            before = stored
            assert await record.newest() >= before, f"seed {seed}"
            await asyncio.sleep(0)

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    for _ in range(30):
        await asyncio.sleep(0)
        if rng.random() < 0.4:
            stored += 1
            record.alarm()
    await asyncio.gather(*asking)
    assert await record.newest() == stored


@pytest.mark.parametrize("turns", range(4))
async def test_a_reading_that_is_broken_off_is_followed_by_another(turns: int) -> None:
    """Waiting callers get the error; the next caller does not wait for it for ever."""
    tasks: list[asyncio.Task[None]] = []

    async def read() -> int:
        for _ in range(2):
            await asyncio.sleep(0)
        return 7

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    record = WatchedRecord(read, spawn)
    asking = asyncio.create_task(record.newest())
    for _ in range(turns):
        await asyncio.sleep(0)
    if tasks and tasks[0].cancel():
        with pytest.raises(MetadataUnavailable):
            await asking
    assert await asyncio.wait_for(record.newest(), 10) == 7
