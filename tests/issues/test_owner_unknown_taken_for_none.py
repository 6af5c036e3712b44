"""Whoever asked for a partition's owner while another call was reading it was told "nobody".

The lookup counted as known from the moment when the read began. The second caller then claimed a
partition that another broker served, or sent its request to the wrong one. Found by reading.
"""

from __future__ import annotations

import asyncio

from tests.support.cluster import TOPIC, Cluster, make_topic, owned

_PARTITIONS = 6
"""Enough that the second broker is preferred for some."""


async def test_callers_at_the_same_time_learn_the_same_owner(cluster: Cluster) -> None:
    first = (await cluster.start("A")).broker
    await make_topic(first, partitions=_PARTITIONS)
    for number in range(_PARTITIONS):
        await owned(first, TOPIC.partition(number))
    second = (await cluster.start("B")).broker
    asked = [TOPIC.partition(number) for number in range(_PARTITIONS) for _ in range(3)]
    found = await asyncio.gather(
        *(second.ownership.owner_of(name, forwarded=True) for name in asked)
    )
    assert {owner.broker_id for owner in found} == {"A"}
