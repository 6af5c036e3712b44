"""A topic that one broker had just made was a 404 at another: whoever asked there joined a reading
that had begun before, for somebody who had come too early (seed 2048 of profile `stream`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.types import TopicName, TopicSettings
from octavo.metadata.topics import TopicStore
from tests.support.cluster import running_cluster, until

NAME = TopicName("public", "flights")


async def test_a_reading_that_began_before_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked, goes_on = TopicStore.read_topic, 0, asyncio.Event()

    async def slow_to_answer(store: TopicStore, *name: str) -> Any:
        nonlocal asked
        asked += 1
        try:
            return await read(store, *name)
        finally:
            if asked == 1:
                await goes_on.wait()

    async with running_cluster(tmp_path) as cluster:
        one, other = await cluster.start("A"), await cluster.start("B")
        monkeypatch.setattr(TopicStore, "read_topic", slow_to_answer)
        too_early = asyncio.create_task(other.broker.topics.get(NAME))
        await until(lambda: asked == 1, "the first has read")
        await asyncio.sleep(0.1)
        made = asyncio.create_task(one.broker.topics.create(NAME, TopicSettings()))
        info, _ = await made
        after = asyncio.create_task(other.broker.topics.get(NAME))
        await asyncio.sleep(0.1)
        goes_on.set()
        assert (await after).incarnation == info.incarnation
        await too_early
