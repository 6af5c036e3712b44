"""A partition that a broker had lost, and whose claim it could not release, was served by nobody.

The record still named the broker, whose session lived: the others sent everybody to it, and it
answered that the partition was being released, for as long as the process ran. Found by the
simulator, seed 20017 of the profile `both`: replies of the metadata store were cut for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.errors import PartitionMoving
from metadata.election import Ownership
from metadata.store import MetadataUnavailable
from tests.broker_cluster import (
    BrokerCluster,
    batch,
    make_topic,
    owned,
    running_brokers,
    until,
    values,
)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with running_brokers(tmp_path) as cluster:
        yield cluster


async def test_the_broker_of_a_claim_that_could_not_be_released_serves_again(
    brokers: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await brokers.start("A")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    await partition.publish(batch(2, tag="a"))
    asked: list[str] = []

    async def fail(ownership: Ownership, path: str) -> None:
        asked.append(path)
        ownership._held.discard(path)
        ownership._sent.pop(path)
        raise MetadataUnavailable("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(Ownership, "release", fail)
        partition.abandon("somebody else is said to write it")
        await until(lambda: bool(asked), "the broker tried to release its claim")
    async with asyncio.timeout(10):
        while True:
            try:
                assert (await one.broker.owner_of(name)).local
                break
            except PartitionMoving:
                await asyncio.sleep(0.01)
    again = await one.broker.partition(name)
    assert (await again.publish(batch(1, tag="b"))).first_offset == 2
    assert await values(again) == ["a-0", "a-1", "b-0"]
