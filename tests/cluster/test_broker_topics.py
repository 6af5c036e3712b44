"""Namespaces, topics and subscriptions by two brokers over one metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import (
    NAMESPACE_NOT_EMPTY,
    TOO_MANY_SUBSCRIPTIONS,
    InvalidName,
    InvalidSettings,
    NamespaceNotFound,
    PartitionNotFound,
    SettingsConflict,
    SubscriptionNotFound,
    TopicNotFound,
)
from octavo.broker.types import PartitionState, SubscriptionSettings, TopicName, TopicSettings
from octavo.cli.main import run
from tests.support.cluster import Cluster, batch, owned, running_cluster, until
from tests.support.kit.refusals import raises_code

NAME = TopicName("public", "flights")


async def test_namespaces(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    assert await a.topics.list_namespaces() == ["public"]
    assert await a.topics.create_namespace("air")
    assert not await b.topics.create_namespace("air")
    assert await b.topics.list_namespaces() == ["air", "public"]
    await b.topics.create(TopicName("air", "t"), TopicSettings())
    with raises_code(NAMESPACE_NOT_EMPTY):
        await a.topics.delete_namespace("air")
    await a.topics.delete(TopicName("air", "t"))
    await a.topics.delete_namespace("air")
    with pytest.raises(NamespaceNotFound, match="no namespace 'air'"):
        await b.topics.names_in("air")
    with pytest.raises(NamespaceNotFound):
        await b.topics.create(TopicName("air", "t"), TopicSettings())
    with pytest.raises(InvalidName):
        await a.topics.create_namespace("../x")


async def test_creating_twice(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    info, new = await a.topics.create(NAME, TopicSettings(partitions=2))
    assert (new, info.settings.partitions) == (True, 2)
    assert await b.topics.create(NAME, TopicSettings(partitions=2)) == (info, False)
    with pytest.raises(SettingsConflict, match="exists with other settings") as conflict:
        await b.topics.create(NAME, TopicSettings(partitions=3))
    assert conflict.value.found == TopicSettings(partitions=2)
    assert conflict.value.wanted == TopicSettings(partitions=3)
    assert await b.topics.get(NAME) == info
    assert await a.topics.names_in("public") == ["flights"]
    with pytest.raises(TopicNotFound, match="no topic public/none"):
        await a.topics.get(TopicName("public", "none"))


async def test_partitions_grow_and_settings_reach_the_owner(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings())
    partition = await owned(a, NAME.partition(0))
    with pytest.raises(PartitionNotFound, match="partitions 0 to 0, not 1"):
        await a.ownership.owner_of(NAME.partition(1))
    grown = TopicSettings(partitions=3, rollover_entries=2)
    await b.topics.update(NAME, grown)
    with pytest.raises(InvalidSettings, match="not fewer"):
        await b.topics.update(NAME, TopicSettings(partitions=2))
    assert (await b.topics.get(NAME)).settings == grown
    for _ in range(200):
        await partition.publish(batch(1))
        if len(partition.ledgers) > 1:
            break
    assert len(partition.ledgers) > 1, "the new roll-over reached the open partition"
    assert (await owned(a, NAME.partition(2))).next_offset == 0


async def test_a_deletion_is_seen_everywhere(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings())
    await b.topics.get(NAME)
    await a.topics.delete(NAME)
    with pytest.raises(TopicNotFound):
        await a.topics.get(NAME)
    with pytest.raises(TopicNotFound):
        await a.topics.delete(NAME)

    async with asyncio.timeout(15):
        with pytest.raises(TopicNotFound):
            await get_until_it_fails(b)


async def get_until_it_fails(broker: Broker) -> None:
    while True:
        await broker.topics.get(NAME)
        await asyncio.sleep(0.01)


async def test_subscriptions(cluster: Cluster) -> None:
    a, b = (await cluster.start("A")).broker, (await cluster.start("B")).broker
    await a.topics.create(NAME, TopicSettings(partitions=2))
    shared = SubscriptionSettings(type="shared", ack_timeout_ms=500)
    info, new = await a.topics.create_subscription(NAME, "s", shared)
    assert (new, info.settings, info.partitions) == (True, shared, 2)
    assert await b.topics.create_subscription(NAME, "s", shared) == (info, False)
    with pytest.raises(SettingsConflict, match="exists with other settings"):
        await b.topics.create_subscription(NAME, "s", SubscriptionSettings())
    assert await b.topics.list_subscriptions(NAME) == [info]
    with pytest.raises(InvalidName):
        await a.topics.create_subscription(NAME, "..", shared)
    with pytest.raises(TopicNotFound):
        await a.topics.create_subscription(TopicName("public", "none"), "s", shared)
    await b.topics.delete_subscription(NAME, "s")
    with pytest.raises(SubscriptionNotFound):
        await b.topics.subscription(NAME, "s")
    with pytest.raises(SubscriptionNotFound):
        await b.topics.delete_subscription(NAME, "s")


async def test_a_partition_added_later_is_read_from_its_beginning(cluster: Cluster) -> None:
    a = (await cluster.start("A")).broker
    await a.topics.create(NAME, TopicSettings())
    await a.topics.create_subscription(NAME, "s", SubscriptionSettings(start="latest"))
    await a.topics.update(NAME, TopicSettings(partitions=2))
    for number in range(2):
        partition = await owned(a, NAME.partition(number))
        await partition.publish(batch(4))
        backlog = (await partition.subscription("s")).stats().backlog
        assert backlog == (0 if number == 0 else 4)


async def test_a_namesake_made_at_once_is_another_topic(cluster: Cluster) -> None:
    first, second = await cluster.start("A"), await cluster.start("B")
    await first.broker.topics.create(NAME, TopicSettings())
    old = await owned(first.broker, NAME.partition(0))
    await old.publish(batch(3))
    await second.broker.topics.delete(NAME)
    cluster.clock.now_ms += 1
    await second.broker.topics.create(NAME, TopicSettings())
    await until(lambda: old.state is PartitionState.CLOSED, "A has dropped the old topic's")
    new = await owned(first.broker, NAME.partition(0))
    assert new.next_offset == 0


async def test_a_topic_has_a_bounded_number_of_subscriptions(cluster: Cluster) -> None:
    a = (await cluster.start("A", subscriptions_max=2)).broker
    await a.topics.create(NAME, TopicSettings())
    settings = SubscriptionSettings(type="shared")
    for name in ("s0", "s1", "s1"):
        await a.topics.create_subscription(NAME, name, settings)
    with raises_code(TOO_MANY_SUBSCRIPTIONS, match="has 2 subscriptions, and may have 2"):
        await a.topics.create_subscription(NAME, "s2", settings)
    await a.topics.delete_subscription(NAME, "s0")
    await a.topics.create_subscription(NAME, "s2", settings)


# Error texts showed the program's own objects, all settings, not just the differing settings, and
# units that the caller had not used.

TOPIC = "/v1/topics/public/orders"


@pytest.fixture
async def conflict_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def test_a_conflict_names_the_settings_that_differ(conflict_cluster: Cluster) -> None:
    await conflict_cluster.api.put(TOPIC, json={"ttl": "7d", "backlog_quota": {"size": "1GB"}})
    answer = await conflict_cluster.api.put(
        TOPIC, json={"partitions": 2, "backlog_quota": {"size": "1GB"}}
    )
    assert (answer.status, answer.json()["code"]) == (409, "settings-conflict")
    assert answer.json()["detail"] == (
        "topic public/orders exists with other settings: partitions is 1, not 2, "
        "ttl is 604800, not null; an update changes them (octavo topic update, or PATCH)"
    )
    await conflict_cluster.api.put(f"{TOPIC}/subscriptions/s", json={"type": "shared"})
    answer = await conflict_cluster.api.put(
        f"{TOPIC}/subscriptions/s", json={"type": "exclusive", "filter": {"key_prefix": "eu-"}}
    )
    assert answer.json()["detail"] == (
        "subscription 's' of public/orders exists with other settings: type is \"shared\", not "
        '"exclusive", filter is null, not {"headers":{},"key_prefix":"eu-"}; a '
        "subscription's settings never change: use it as it is, or another name, or delete it"
    )


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ({"typo": 1}, "type, start, ack_timeout, "),
        ({"filter": {"key": "x"}}, "headers, key_prefix"),
        ({"retry_backoff": {"max": "1m"}}, "first, most, factor"),
    ],
)
async def test_a_field_of_another_name_is_answered_with_those_there_are(
    conflict_cluster: Cluster, body: dict[str, object], known: str
) -> None:
    await conflict_cluster.api.put(TOPIC, json={})
    answer = await conflict_cluster.api.put(f"{TOPIC}/subscriptions/s", json=body)
    assert (answer.status, answer.json()["code"]) == (422, "invalid-body")
    assert f"; known here: {known}" in answer.json()["detail"]


async def test_also_in_a_list(conflict_cluster: Cluster) -> None:
    await conflict_cluster.api.put(TOPIC, json={})
    await conflict_cluster.api.put(f"{TOPIC}/subscriptions/s", json={"type": "shared"})
    nack = {"nack": [{"ack_id": "0-0-1-1", "after": 3}]}
    answer = await conflict_cluster.api.post(f"{TOPIC}/subscriptions/s/ack", json=nack)
    assert answer.json()["detail"].endswith("; known here: ack_id, delay"), answer


@pytest.mark.parametrize(
    ("where", "body", "told"),
    [
        ("", {"ttl": 0}, "ttl is 0 s; it must be between 0.001 and "),
        ("", {"backlog_quota": {"policy": "drop"}}, "backlog_quota.policy is 'drop'; it must be"),
        ("", {"compaction": {"dirty_ratio": 7}}, "compaction.dirty_ratio is 7.0; it must be"),
        (
            "/subscriptions/s",
            {"ack_timeout": "0s"},
            "ack_timeout is 0 s; it must be between 0.001 and 86400 s",
        ),
    ],
)
async def test_a_setting_is_called_as_it_was_given(
    conflict_cluster: Cluster, where: str, body: dict[str, object], told: str
) -> None:
    await conflict_cluster.api.put(TOPIC, json={})
    answer = await conflict_cluster.api.put(f"{TOPIC}{where}", json=body)
    assert answer.status == 422
    assert answer.json()["detail"].startswith(told), answer


async def test_what_would_help_is_of_the_call_that_was_made(conflict_cluster: Cluster) -> None:
    await conflict_cluster.api.put(TOPIC, json={"partitions": 2, "message_bytes_max": 2_000_000})
    answer = await conflict_cluster.api.call("DELETE", f"{TOPIC}/messages?before=1")
    assert answer.status == 422
    assert "/partitions/0/messages?before=" in answer.json()["detail"], answer
    answer = await conflict_cluster.api.put(f"{TOPIC}/large", data=bytes(3_000_000))
    assert answer.status == 413
    assert "message_bytes_max" in answer.json()["detail"], answer


@pytest.fixture
async def hidden_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def test_all_settings_are_shown_and_can_be_said(
    hidden_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async def octavo(*arguments: str) -> dict[str, str]:
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*arguments, "--url", hidden_cluster.api.url]) == 0
        lines = capsys.readouterr().out.splitlines()
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.split()}

    await octavo("topic", "create", "orders", "--set", 'backlog_quota={"size": "1GB"}')
    await octavo("topic", "update", "orders", "--set", 'compaction={"delete_raw": true}')
    shown = await octavo("topic", "describe", "orders")
    assert shown["backlog_quota"] == "size 1,000,000,000"
    assert shown["compaction"].endswith("delete_raw yes")
    assert "retention" not in shown
    shown = await octavo(
        "subscription", "create", "orders", "eu", "--type", "shared", "--backoff", "1s,5m",
        "--set", 'filter={"key_prefix": "eu-"}', "--set", "durable=false",
    )  # fmt: skip
    assert shown["retry_backoff"] == "first 1, most 300, factor 2.0"
    assert shown["filter"].endswith("key_prefix eu-")
    assert shown["durable"] == "no"
