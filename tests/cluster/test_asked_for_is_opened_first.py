"""Of many partitions to open, a broker opens requested partitions first."""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.cluster import ownership
from octavo.broker.partition.partition import Partition, PartitionOpening
from octavo.broker.types import TopicName
from tests.support.cluster import Cluster, make_topic, owned, until

COUNT = 8


async def test_it_does_not_wait_for_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    names = [await make_topic(one.broker, TopicName("public", f"t{n}")) for n in range(COUNT)]
    for name in names:
        await owned(one.broker, name)
    opened: list[str] = []
    goes_on, real = asyncio.Event(), PartitionOpening.open

    async def slow(opening: PartitionOpening) -> Partition:
        opened.append(opening.name.topic)
        await goes_on.wait()
        return await real(opening)

    monkeypatch.setattr(ownership, "_OPENINGS_AT_ONCE", 1)
    monkeypatch.setattr(PartitionOpening, "open", slow)
    two = await cluster.start("B")
    await one.vanish()
    await until(lambda: two.broker.ownership.held() == COUNT and opened, "all stand in line")
    assert len(opened) == 1
    last = names[-1] if opened != [names[-1].topic] else names[0]
    asked = asyncio.ensure_future(owned(two.broker, last))
    await asyncio.sleep(0.05)
    goes_on.set()
    await asked
    assert opened[1] == last.topic
    await until(lambda: len(two.broker.ownership.open_partitions()) == COUNT, "the others, too")
    assert sorted(opened) == sorted(name.topic for name in names)
