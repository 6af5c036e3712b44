"""A caller that leaves at any await of a call leaves nothing behind, and the next call works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo.broker.partition.partition import Partition
from octavo.broker.types import SubscriptionSettings
from octavo.ledger.client import LedgerClient
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, batch, make_topic, owned, until
from tests.support.kit.cancelling import cancelled_at
from tests.support.kit.quiescence import Unrest

_STEPS_MAX = 60


async def _publish(partition: Partition) -> object:
    return await partition.publish(batch(2))


async def _receive(partition: Partition) -> object:
    subscription = await partition.subscription("s")
    given = await subscription.receive("c", messages_max=5, wait_s=5.0)
    if not given:
        return None
    first, *others = given
    release = [other.ack_id for other in others]
    await subscription.acknowledge([first.ack_id], release=release)
    return given


async def _read(partition: Partition) -> object:
    return await partition.read(
        partition.next_offset, bytes_max=100_000, count_max=100, wait_s=10.0
    )


async def _seek(partition: Partition) -> object:
    subscription = await partition.subscription("s")
    return await subscription.seek(partition.earliest_offset)


CALLS: dict[str, Callable[[Partition], Awaitable[object]]] = {
    "publish": _publish,
    "receive": _receive,
    "read": _read,
    "seek": _seek,
}


async def _comes_to_rest(*parts: object) -> None:
    unrest = Unrest(lambda: parts)
    await until(lambda: not unrest.look(), f"all is given back: {unrest.left()}")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_of_a_partition_is_cancelled_at_each_await(
    cluster: Cluster, name: str, late: bool
) -> None:
    running = await cluster.start("A")
    topic = await make_topic(running.broker)
    info, _ = await running.broker.topics.create_subscription(
        topic.topic_name, "s", SubscriptionSettings(type="shared", ack_timeout_ms=1_000)
    )
    partition = await owned(running.broker, topic)
    await partition.subscribe(info)
    await partition.publish(batch(4))
    work: Any = CALLS[name]
    for step in range(1, _STEPS_MAX):
        published: list[asyncio.Task[object]] = []

        def meanwhile(told: list[asyncio.Task[object]] = published) -> None:
            told.append(asyncio.create_task(_publish(partition)))

        waited = await cancelled_at(lambda: work(partition), step, late=late, meanwhile=meanwhile)
        await asyncio.gather(*published)
        await _comes_to_rest(running.broker, running.ledgers)
        if not waited:
            break
    else:
        pytest.fail("it has no end")
    assert step > 1, "it waits somewhere"
    async with asyncio.timeout(20):
        asked = asyncio.create_task(work(partition))
        await _publish(partition)
        assert await asked is not None


async def _write(client: LedgerClient) -> object:
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    try:
        await writer.append(b"x")
        await writer.drain()
        return await writer.close()
    finally:
        if writer.error is None:
            writer.abandon(OctavoError("given up"))


@pytest.mark.parametrize("late", [False, True])
async def test_a_writer_of_a_ledger_is_cancelled_at_each_await(
    cluster: Cluster, late: bool
) -> None:
    client = await cluster.client()
    for step in range(1, _STEPS_MAX):
        waited = await cancelled_at(lambda: _write(client), step, late=late)
        await _comes_to_rest(client, *cluster.nodes.values())
        if not waited:
            break
    assert 3 < step < _STEPS_MAX - 1
    assert await _write(client) is not None
