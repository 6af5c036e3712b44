"""How many calls a store of ZooKeeper has on the way, and what becomes of the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.zookeeper import CALLS_IN_FLIGHT_MAX, ZooKeeperStore


class Slow:
    """A store that is connected to a server that answers by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = ZooKeeperStore(["127.0.0.1:1"], call_timeout_ms=200)
        self.sent: list[asyncio.Future[Any]] = []
        monkeypatch.setattr(self.store, "_bridge", self._bridge)
        self.store._connected.set()

    async def _bridge(self, made: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.sent.append(future)
        return await future

    def ask(self, count: int) -> list[asyncio.Task[Any]]:
        store = self.store
        deadline = asyncio.get_running_loop().time() + 60
        return [
            asyncio.create_task(store._call("read", f"/{n}", lambda path: path, deadline=deadline))
            for n in range(count)
        ]


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_as_many_as_may_be_are_on_the_way(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    slow = Slow(monkeypatch)
    calls = slow.ask(CALLS_IN_FLIGHT_MAX + more)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == min(len(calls), CALLS_IN_FLIGHT_MAX)
    slow.sent[0].set_result("first")
    assert await calls[0] == "first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == len(calls), "its place was given to the next"
    for future in slow.sent[1:]:
        future.set_result("later")
    await asyncio.gather(*calls)


async def test_calls_that_ended_otherwise_give_their_places_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled, too late, and refused: as many go on the way afterwards as before."""
    slow = Slow(monkeypatch)
    for _ in range(3):
        calls = slow.ask(CALLS_IN_FLIGHT_MAX + 2)
        for _ in range(3):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    late = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable, match="in time"):
        await slow.store._call("read", "/late", lambda path: path, deadline=late)
    slow.sent.clear()
    calls = slow.ask(CALLS_IN_FLIGHT_MAX)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == CALLS_IN_FLIGHT_MAX
    for future in slow.sent:
        future.set_result(None)
    await asyncio.gather(*calls)
