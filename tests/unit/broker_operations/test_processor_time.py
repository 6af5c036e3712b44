"""The steps of a call's work are measured, its waits are not, and its behaviour stays the same."""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.operations.processor_time import Measured


class Clock:
    """A settable processor-time clock."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_each_step_counts_and_waiting_does_not() -> None:
    clock, spent = Clock(), list[float]()
    waits = asyncio.get_running_loop().create_future()

    async def work() -> str:
        clock.now_s += 1
        await asyncio.sleep(0)
        clock.now_s += 2
        found: str = await waits
        clock.now_s += 4
        return found

    task = asyncio.ensure_future(_driven(Measured(work(), clock, spent.append)))
    for _ in range(3):
        await asyncio.sleep(0)
    clock.now_s += 100  # another task's
    waits.set_result("done")
    assert await task == "done"
    assert sum(spent) == 7


async def _driven(measured: Measured[str]) -> str:
    return await measured


async def test_an_error_and_its_time_come_through() -> None:
    clock, spent = Clock(), list[float]()

    async def work() -> str:
        await asyncio.sleep(0)
        clock.now_s += 3
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Measured(work(), clock, spent.append)
    assert sum(spent) == 3


async def test_a_cancellation_reaches_the_work_and_may_be_outlived() -> None:
    clock, seen = Clock(), list[str]()

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    task = asyncio.ensure_future(_driven(Measured(work(), clock, lambda _: None)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]

    async def stays() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "last word"
        return "never"

    task = asyncio.ensure_future(_driven(Measured(stays(), clock, lambda _: None)))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "last word"
