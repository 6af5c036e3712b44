"""A topic is deleted at one broker and made again at the other, without a pause. Later acked
messages were lost a second afterwards, so each topic is checked again after a round of all
others. `OCTAVO_ROUNDS=500` makes it longer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from octavo import AsyncClient
from tests.support.processes.standalone import standalone

ROUNDS = int(os.environ.get("OCTAVO_ROUNDS", "12"))
TOPICS = 5
MESSAGES = 10


@pytest.mark.long
@pytest.mark.timeout(60 + 6 * ROUNDS)
def test_nothing_is_lost_and_nothing_old_is_seen(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--session-timeout-ms", "2000") as one:
        urls = one.cluster.urls
        assert len(urls) == 2
        asyncio.run(rounds(urls))


async def rounds(urls: list[str]) -> None:
    stored: dict[str, list[str]] = {}
    for turn in range(ROUNDS + TOPICS):
        topic = f"t{turn % TOPICS}"
        here, there = urls[turn % 2], urls[1 - turn % 2]
        if topic in stored:
            for url in urls:
                assert await found(url, topic) == stored[topic], (turn, topic, "by and by")
        # New clients, which know no owner yet; they connect before the deletion begins.
        async with AsyncClient([here]) as deleter, AsyncClient([there]) as maker:
            await asyncio.gather(deleter.topics(), maker.topics())
            if topic in stored:
                await deleter.delete_topic(topic)
            await maker.create_topic(topic)
            texts = [f"{turn}-{number}" for number in range(MESSAGES)]
            publisher = (deleter, maker)[turn // 2 % 2]
            await publisher.publish_many(topic, [(None, text) for text in texts])
        stored[topic] = texts
        for url in urls:
            assert await found(url, topic) == texts, (turn, topic)


async def found(url: str, topic: str) -> list[str]:
    async with AsyncClient([url]) as client:
        return [message.text() async for message in client.messages(topic)]
