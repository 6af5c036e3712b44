"""A call that named its topic was served by the one that was made after it, and counted there.

A broker that nobody had asked yet looks who owns the partition, and claims it when nobody does.
While it looked, the topic was deleted and made again, and another call had the partition of the new
one opened: the claim found that under way and took it for its own. A numbered message for the old
topic was stored in the new one, and its repeat answered "stored before". Found by the simulator
(seed 1800551 of `recreate`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import PartitionMoving, TopicChanged
from tests.support.cluster import Cluster, make_topic


async def test_no_partition_of_a_later_topic_is_given_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    first = (await broker.topics.get(name.topic_name)).incarnation
    lookups = broker.ownership._lookups.of(name)
    looks, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> None:
        looks.set()
        await may_answer.wait()

    with monkeypatch.context() as patch:
        patch.setattr(type(lookups.owner), "value", slow)
        asked = asyncio.create_task(broker.ownership.owner_of(name, incarnation=first))
        await looks.wait()
    await broker.topics.delete(name.topic_name)
    await make_topic(broker)
    later = await broker.ownership.owner_of(name)
    assert later.local
    assert later.incarnation != first
    may_answer.set()
    with pytest.raises((PartitionMoving, TopicChanged)):
        await asked
    with pytest.raises(TopicChanged):
        await broker.ownership.owner_of(name, incarnation=first)
