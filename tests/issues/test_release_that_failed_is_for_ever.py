"""A partition that a broker had lost, and whose claim it could not release, was served by nobody.

The record still named the broker, whose session lived: the others sent everybody to it, and it
answered that the partition was being released, for as long as the process ran. Found by the
simulator, seed 20017 of the profile `both`: replies of the metadata store were cut for a while.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import PartitionMoving
from octavo.broker.types import PartitionName
from octavo.metadata.election import Ownership
from octavo.metadata.store import MetadataUnavailable, RecordNotFound
from octavo.metadata.topics import owner_path
from tests.support.cluster import Cluster, batch, make_topic, owned, until, values


async def lost_and_not_released(
    broker: Broker, name: PartitionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker serves the partition no more; its record stands, and it does not know that."""
    asked: list[str] = []

    async def fail(ownership: Ownership, path: str) -> None:
        asked.append(path)
        ownership._held.discard(path)
        ownership._sent.pop(path)
        raise MetadataUnavailable("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(Ownership, "release", fail)
        (await broker.ownership.partition(name)).abandon("somebody else is said to write it")
        await until(lambda: bool(asked), "the broker tried to release its claim")


@pytest.mark.parametrize("alone", [True, False])
async def test_the_broker_of_a_claim_that_could_not_be_released_serves_again(
    alone: bool, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is not preferred: whoever is sees that it is owned, and sends all to it."""
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    await partition.publish(batch(2, tag="a"))
    if not alone:
        registry = one.broker.registry
        await cluster.start("B")
        await until(lambda: len(registry.live) == 2, "A knows of B")
        monkeypatch.setattr(registry, "preferred", lambda *_: (registry.live["B"],))
    await lost_and_not_released(one.broker, name, monkeypatch)
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(PartitionMoving):
                if (await one.broker.ownership.owner_of(name)).local:
                    break
            await asyncio.sleep(0.01)
    again = await one.broker.ownership.partition(name)
    assert (await again.publish(batch(1, tag="b"))).first_offset == 2
    assert await values(again) == ["a-0", "a-1", "b-0"]


async def test_a_topic_is_deleted_though_a_claim_of_it_could_not_be_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes waits until nobody holds a claim; this one is released when it is told."""
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    await owned(one.broker, name)
    await lost_and_not_released(one.broker, name, monkeypatch)
    async with asyncio.timeout(10):
        await one.broker.topics.delete(name.topic_name)
    with pytest.raises(RecordNotFound):
        await one.store.get(owner_path(*name))
