"""A caller that is cancelled while a thread writes waits for the thread. A bookie's stop and its
cancelled task renamed one draft in two threads, and the stop failed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.disk.files import RealDisk, SyncFailed
from octavo.bookie.disk.finishing import finished
from octavo.bookie.ledgers.high_water import HighWaterMark, read_high_water
from octavo.metadata.high_water import HighWater


async def test_a_cancellation_is_raised_when_the_change_has_ended() -> None:
    gate, ended = threading.Event(), threading.Event()

    def write() -> int:
        gate.wait(60)
        ended.set()
        return 7

    caller = asyncio.create_task(finished(asyncio.to_thread(write)))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0.01)
    assert not caller.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
    assert await finished(asyncio.to_thread(write)) == 7


async def test_a_failure_is_raised_also_to_a_cancelled_caller() -> None:
    gate = threading.Event()

    def write() -> None:
        gate.wait(60)
        raise SyncFailed("fdatasync: input/output error")

    caller = asyncio.create_task(finished(asyncio.to_thread(write)))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(SyncFailed):
        await caller


class Records:
    """The metadata calls of `HighWaterMark`."""

    url = "memory:"

    def __init__(self) -> None:
        self.mark: HighWater | None = None

    async def read(self, bookie_id: str) -> tuple[HighWater | None, int]:
        return self.mark, 0

    async def write(self, bookie_id: str, mark: HighWater, version: int) -> None:
        self.mark = mark

    async def stretch(self) -> int:
        return 0


async def test_a_stop_raises_the_mark_behind_a_rise_that_it_cancelled(tmp_path: Path) -> None:
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    under_way: list[int] = [0]

    async def blocking(call: Any, *args: Any) -> Any:
        def held() -> Any:
            loop.call_soon_threadsafe(begun.set)
            gate.wait(60)
            under_way[0] += 1
            assert under_way[0] == 1, "two threads write the same file"
            try:
                return call(*args)
            finally:
                under_way[0] -= 1

        return await asyncio.to_thread(held)

    records: Any = Records()
    mark = HighWaterMark("b1", records, records, RealDisk(), [str(tmp_path)], blocking)
    rising = asyncio.create_task(mark.rise())
    await begun.wait()
    rising.cancel()
    loop.call_later(0.05, gate.set)
    await asyncio.gather(rising, return_exceptions=True)
    await mark.rise()
    assert records.mark == read_high_water(RealDisk(), [str(tmp_path)]) == HighWater(2, 0)
