"""When two brokers have one id, the second ends and says why; the first notices nothing."""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.errors import BrokerIdTaken
from tests.support.cluster import Cluster, batch, make_topic, owned


async def test_a_namesake_ends_and_names_the_other(cluster: Cluster) -> None:
    first = await cluster.start("A")
    second = await cluster.start("A")
    async with asyncio.timeout(30):
        with pytest.raises(BrokerIdTaken, match=r"broker id A .* http://A\.test"):
            await asyncio.shield(second.broker.failed)
    assert not first.broker.failed.done()
    partition = await owned(first.broker, await make_topic(first.broker))
    assert (await partition.publish(batch())).first_offset == 0


async def test_what_a_crash_left_behind_is_waited_for(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker)
    await (await owned(first.broker, name)).publish(batch())
    await first.store.close()
    first.gone = True
    again = await cluster.start("A")
    partition = await owned(again.broker, name)
    assert (await partition.publish(batch())).first_offset == 1
    assert not again.broker.failed.done()
