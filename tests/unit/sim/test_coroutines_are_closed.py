"""The simulator, not the garbage collector, closes a killed process's unfinished coroutines."""

from __future__ import annotations

import asyncio
import gc
import warnings

from tests.sim.loop import SimLoop
from tests.sim.process import Process
from tests.sim.trace import Trace

closed: list[str] = []


async def _close(name: str) -> None:
    closed.append(name)


async def _life() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.gather(*[_close(name) for name in "abc"])


async def _longer_life() -> None:
    try:
        await _life()
    finally:
        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            for name in "de":
                group.create_task(_close(name))


def test_nothing_is_left_that_was_never_awaited() -> None:
    loop = SimLoop(1, trace=Trace())
    process = Process(loop, "killed")
    for life in (_life, _longer_life):
        process.spawn(life(), life.__name__)
    loop.run_until(lambda: loop.steps > 1, virtual_s_max=1.0)
    process.crash(power=False)
    process.spawn(_close("never begun"), "late")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop.close()
        gc.collect()
    assert [str(one.message) for one in said] == []
    assert closed == [], "nobody is there any more to do it"
