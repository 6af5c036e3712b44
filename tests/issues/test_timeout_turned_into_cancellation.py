"""A connect that took too long ended its caller's task as cancelled, instead of with an error.

Several reads at once went through `asyncio.TaskGroup`. Up to Python 3.12 a child that fails while
its group is being left cancels the parent and never takes that back (`uncancel`): a later
`asyncio.timeout` around it takes its own cancellation for somebody else's and lets it through.
A reader that looked a bookie's address up while the metadata store failed, and then waited for
the bookie in vain, was cancelled by nobody. Found by the simulation, seed 6241.
"""

from __future__ import annotations

import asyncio

import pytest

from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.together import all_of


async def _fails() -> None:
    await asyncio.sleep(0)
    raise MetadataUnavailable("no answer")


async def _reads_then_waits() -> None:
    async with asyncio.timeout(0.01):
        with pytest.raises(MetadataUnavailable):
            await all_of([_fails(), asyncio.sleep(60)])
        await asyncio.sleep(60)


async def test_a_timeout_is_a_timeout_also_after_a_failed_read() -> None:
    with pytest.raises(TimeoutError):
        await _reads_then_waits()


async def test_the_first_error_ends_the_other_reads() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("waits")

    with pytest.raises(MetadataUnavailable):
        await all_of([waits(), _fails()])
    assert ended == ["waits"]


async def test_cancelled_it_ends_the_reads() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    task = asyncio.ensure_future(all_of([waits(), waits()]))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["waits", "waits"]


async def test_results_come_in_order() -> None:
    async def one(number: int) -> int:
        await asyncio.sleep(0.001 * (3 - number))
        return number

    assert await all_of(one(n) for n in range(3)) == [0, 1, 2]
    assert await all_of([]) == []
