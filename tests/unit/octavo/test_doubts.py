"""Silent owners: the other brokers are asked as long as a call waits, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from octavo.client import doubt
from octavo.client.doubt import Doubts, PartitionKey
from tests.support.kit.quiescence import in_use


@pytest.mark.parametrize("ends", ["answered", "failed", "cancelled"])
@pytest.mark.parametrize("calls", [1, 3])
async def test_others_are_asked_no_more_when_the_calls_have_ended(
    monkeypatch: pytest.MonkeyPatch, ends: str, calls: int
) -> None:
    monkeypatch.setattr(doubt, "SILENCE_S", 0.0)
    monkeypatch.setattr(doubt, "PAUSE_S", 0.0)
    asked, is_asked, goes_on = 0, asyncio.Event(), asyncio.Event()

    async def ask(_: PartitionKey, __: str) -> str | None:
        nonlocal asked
        asked += 1
        is_asked.set()
        return None

    async def attempt() -> None:
        await goes_on.wait()
        if ends == "failed":
            raise ConnectionError

    doubts = Doubts(ask)
    waiting = [
        asyncio.create_task(doubts.unless_moved("http://a", ("t", 0), attempt(), 0.0))
        for _ in range(calls)
    ]
    async with asyncio.timeout(10):
        await is_asked.wait()
        if ends == "cancelled":
            for one in waiting:
                one.cancel()
        goes_on.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*doubts._tasks)
    assert in_use(doubts) == {}
    assert not doubts._tasks
    before = asked
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked == before
    await doubts.close()
