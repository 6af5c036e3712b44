"""A client that was closed while an owner was silent began to ask the other brokers afterwards.

The silence was timed by a timer that outlived `close`; whoever it then asked, over a session that
was closed as well, was waited for by nobody.
"""

from __future__ import annotations

import asyncio

import pytest

from octavo.client import doubt
from octavo.client.doubt import Doubts, PartitionKey


async def test_nobody_is_asked_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "SILENCE_S", 0.01)
    asked: list[str] = []

    async def ask(partition: PartitionKey, url: str) -> str | None:
        asked.append(url)
        return None

    silent = asyncio.Event()

    async def attempt() -> str:
        await silent.wait()
        return "late"

    doubts = Doubts(ask)
    call = asyncio.create_task(doubts.unless_moved("http://a", ("t", 0), attempt(), 0.0))
    await asyncio.sleep(0)
    await doubts.close()
    await asyncio.sleep(0.1)
    silent.set()
    assert await call == "late"
    assert asked == []
    assert not doubts._tasks
