"""A reconnect to a metadata store that went away again at once stopped all publishing.

Every reconnect sounds the alarm of every watch. A broker then forgot topics, subscriptions and
owners, and had to read them before the next call: with the store away again no partition took
messages, though its ledger was open and its bookies were there. Found by chance: two servers of
three were killed, and the broker reached the third for a tenth of a second.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import TopicNotFound
from octavo.broker.types import SubscriptionSettings, TopicName, TopicSettings
from octavo.metadata.store import MetadataStore, MetadataUnavailable
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    until,
)

READS = ("get", "children", "sync")


def alarm(store: MetadataStore) -> None:
    """What a reconnect does."""
    away: Any = store
    away._watches.notify_all()


def take_away(patch: pytest.MonkeyPatch, running: RunningBroker, *, silent: bool) -> list[str]:
    """The broker's reads fail, or are not answered; what was asked."""
    asked: list[str] = []

    async def no_answer(path: str = "/") -> None:
        asked.append(path)
        if silent:
            await asyncio.Event().wait()
        raise MetadataUnavailable("no answer in time")

    for name in READS:
        patch.setattr(running.store, name, no_answer)
    return asked


@pytest.mark.parametrize("silent", [True, False])
async def test_what_needs_no_change_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    one, two = await cluster.start("A"), await cluster.start("B")
    name = await make_topic(one.broker)
    await one.broker.topics.create_subscription(TOPIC, "readers", SubscriptionSettings())
    partition = await owned(one.broker, name)
    await partition.publish(batch(1, tag="a"))
    readers = await one.broker.topics.subscription(TOPIC, "readers")
    subscription = await partition.subscribe(readers)
    assert (await two.broker.ownership.owner_of(name)).broker_id == "A"
    await two.broker.topics.subscription(TOPIC, "readers")
    with monkeypatch.context() as patch:
        for running in (one, two):
            asked = take_away(patch, running, silent=silent)
            alarm(running.store)
            await until(lambda asked=asked: bool(asked), "the broker reads again")  # type: ignore[misc]
        async with asyncio.timeout(10):
            for tag in "bcd":
                assert (await one.broker.ownership.owner_of(name)).local
                assert (await two.broker.ownership.owner_of(name)).broker_id == "A"
                for running in (one, two):
                    assert (await running.broker.topics.get(TOPIC)).settings == TopicSettings()
                    await running.broker.topics.subscription(TOPIC, "readers")
                await (await one.broker.ownership.partition(name)).publish(batch(1, tag=tag))
        assert await partition.subscription("readers") is subscription
        assert len(await subscription.receive("c", messages_max=10)) >= 3
        with pytest.raises((MetadataUnavailable, TimeoutError)):
            async with asyncio.timeout(1):  # nothing was known of it
                await one.broker.topics.get(TopicName("public", "other"))


async def test_what_changed_meanwhile_is_seen_afterwards(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when no other alarm comes: the store was slow, the session lived."""
    one, two = await cluster.start("A"), await cluster.start("B")
    await make_topic(one.broker)
    gone = TopicName("public", "gone")
    await make_topic(one.broker, gone)
    for topic in (TOPIC, gone):
        assert (await one.broker.topics.get(topic)).settings.partitions == 1
    with monkeypatch.context() as patch:
        take_away(patch, one, silent=False)
        alarm(one.store)
        await two.broker.topics.update(TOPIC, TopicSettings(partitions=3))
        await two.broker.topics.delete(gone)
        await asyncio.sleep(0.2)
        assert (await one.broker.topics.get(TOPIC)).settings.partitions == 1
        with pytest.raises(MetadataUnavailable):  # who deleted it has told us so
            await one.broker.topics.get(gone)

    async def sees() -> bool:
        try:
            await one.broker.topics.get(gone)
        except TopicNotFound:
            return (await one.broker.topics.get(TOPIC)).settings.partitions == 3
        return False

    async with asyncio.timeout(10):
        while not await sees():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
