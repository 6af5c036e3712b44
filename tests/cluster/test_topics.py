"""Namespaces, topics and subscriptions by two brokers over one metadata store, and explanations
of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient
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
from octavo.cli.explained import show_explained
from octavo.cli.main import run
from octavo.client.errors import NotFound
from tests.cluster.test_balance import SLOW, share, spread
from tests.support.cluster import TOPIC as TOPIC_EXPLAIN
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until
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


TOPIC_PATH = "/v1/topics/public/orders"
EXPLAIN = "/v1/explain/public/orders"


async def explained(cluster: Cluster, query: str = "") -> dict[str, Any]:
    """Return the explanation; check that every broker gives the same."""
    found = []
    for api in cluster.apis.values():
        answer = await api.get(EXPLAIN + query)
        assert answer.status == 200, answer
        found.append(answer.json())
    for one in found[1:]:
        assert [p["owner"] for p in one["partitions"]] == [
            p["owner"] for p in found[0]["partitions"]
        ]
    first: dict[str, Any] = found[0]
    return first


async def test_who_serves_what_and_why_is_said_alike_by_every_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        names = set(cluster.apis)
        await cluster.api.put(TOPIC_PATH, json={"partitions": 4})
        found = await explained(cluster)
        assert found["topic"] == "public/orders"
        assert {one["id"] for one in found["brokers"]} == names
        assert [part["partition"] for part in found["partitions"]] == [0, 1, 2, 3]
        for part in found["partitions"]:
            assert part["owner"] == part["preferred"]
            assert "even spread" in part["why"]
            assert not part["placed"]
            assert part["ledgers"] == [], "none is made before something is published"
            assert part["publishing"]["held_back"] == []
            assert "subscription" not in part
        owner = found["partitions"][0]["owner"]
        other = (names - {owner}).pop()
        moved = await cluster.api.post(f"{TOPIC_PATH}/partitions/0/unload?to={other}")
        assert moved.status == 200, moved
        part = (await explained(cluster))["partitions"][0]
        assert (part["owner"], part["preferred"], part["placed"]) == (other, owner, True)
        assert part["epoch"] == found["partitions"][0]["epoch"] + 1
        assert f"it was put on {other}" in part["why"]
        one = await cluster.api.get(f"{TOPIC_PATH}/partitions/0/explain")
        assert one.json()["why"] == part["why"]


async def test_what_holds_consumers_back_is_named_with_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC_PATH, json={"partitions": 2})
        sub = f"{TOPIC_PATH}/subscriptions/s"
        made = await cluster.api.put(sub, json={"type": "key_shared", "max_unacked": 3})
        assert made.status == 201, made
        for number in range(40):
            await cluster.api.post(
                TOPIC_PATH + "/messages", b"x", "text/plain", headers={"Octavo-Key": f"k{number}"}
            )
        for consumer in ("one", "two"):
            got = await cluster.api.post(f"{sub}/receive?consumer={consumer}&max=20&wait=1")
            assert got.status == 200, got
        found = await explained(cluster, "?subscription=s")
        assert (found["subscription"], found["type"]) == ("s", "key_shared")
        held = [why for p in found["partitions"] for why in p["subscription"]["held_back"]]
        assert any("at most 3 out" in why for why in held), held
        for part in found["partitions"]:
            told = part["subscription"]
            assert told["unacked_max"] == 3
            assert told["figures"]["leased"] <= 3
            slots = {one["name"]: one["slots"] for one in told["figures"]["consumers"]}
            assert sum(slots.values()) == 65_536, slots
            assert all(one["slot_ranges"] for one in told["figures"]["consumers"] if one["slots"])
        async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
            again = await client.explain_topic("orders", subscription="s")
            with pytest.raises(NotFound):
                await client.explain_topic("orders", subscription="nobody")
            with pytest.raises(NotFound):
                await client.explain_topic("nothing")
        show_explained(again)
        said = capsys.readouterr().out
        assert "subscription s (key_shared)" in said
        assert "of 65536 slots" in said
        assert "at most 3 out in one partition" in said
        assert "is on" in said
        assert json.dumps(again)


async def test_what_holds_publishers_back_is_named_with_its_limit(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        rates = {"rates": {"publish_messages": 1}}
        made = await cluster.api.put(TOPIC_PATH, json={"partitions": 1, **rates})
        assert made.status == 201, made
        body = b"".join(b'{"value": %d}\n' % number for number in range(100))
        stored = await cluster.api.post(TOPIC_PATH + "/messages", body, "application/x-ndjson")
        assert stored.status == 200, stored
        access = await cluster.api.post(
            f"{TOPIC_PATH}/partitions/0/producer-access", json={"producer": "loader"}
        )
        assert access.status == 200, access
        found = (await explained(cluster))["partitions"][0]["publishing"]
        assert found["producer"] == "loader"
        assert any("publish_messages is 1 a second" in why for why in found["held_back"]), found
        assert any("'loader' has exclusive access" in why for why in found["held_back"]), found


async def test_a_broker_that_is_emptied_says_so(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    assert "even spread" in one.broker.balance.place_of(mine).why

    async def never(*_: Any) -> None:
        await asyncio.sleep(600)

    one.broker.announce_to_peer = never
    await one.broker.drain()
    held = one.broker.ownership.open_partitions()
    await until(
        lambda: one.broker.ownership.describe()["offered"] == len(held), "all are on their way"
    )
    assert "being handed on" in one.broker.balance.place_of(mine).why
    assert "even spread" in two.broker.balance.place_of(
        two.broker.ownership.open_partitions()[0].name
    ).why  # fmt: skip


async def test_who_should_have_it_and_why_it_has_not_yet(cluster: Cluster) -> None:
    one = await cluster.start("A", **SLOW)
    await make_topic(one.broker, partitions=8)
    for number in range(8):
        await owned(one.broker, TOPIC_EXPLAIN.partition(number))
    await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "A sees B")
    told = [one.broker.balance.place_of(TOPIC_EXPLAIN.partition(number)) for number in range(8)]
    later = [place for place in told if place.preferred == "B"]
    assert len(later) == 4
    for place in later:
        assert "B should have it" in place.why
        assert "stays for 600 s" in place.why


async def test_what_waits_is_named_with_its_consumer_and_until_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said `nothing is held back` of messages that were filtered, delayed, or leased by a
    silent consumer."""
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC_PATH, json={"partitions": 1})
        sub = f"{TOPIC_PATH}/subscriptions/s"
        settings = {"type": "shared", "filter": {"key_prefix": "eu-"}, "ack_timeout": "30s"}
        assert (await cluster.api.put(sub, json=settings)).status == 201
        messages = [{"key": "us-1", "value": 0}, {"key": "us-2", "value": 1}]
        messages += [{"key": f"eu-{number}", "value": number} for number in range(6)]
        body = "\n".join(json.dumps(one) for one in messages).encode()
        stored = await cluster.api.post(TOPIC_PATH + "/messages", body, "application/x-ndjson")
        assert stored.status == 200, stored
        later = {"Octavo-Deliver-After": "1h", "Octavo-Key": "eu-late"}
        stored = await cluster.api.post(TOPIC_PATH + "/messages", b"x", "text/plain", headers=later)
        assert stored.status == 200, stored
        got = await cluster.api.post(f"{sub}/receive?consumer=silent&max=5&wait=1")
        assert len(got.json()["messages"]) == 5, got
        got = await cluster.api.post(f"{sub}/receive?consumer=other&max=5&wait=1")
        assert got.status == 200, (got, got.json())
        (one,) = got.json()["messages"]
        back = {"nack": [{"ack_id": one["ack_id"], "delay": "10m"}]}
        answer = await cluster.api.post(f"{sub}/ack", json=back)
        assert answer.status == 200, answer
        assert (await cluster.api.post(f"{sub}/receive?consumer=other&wait=0")).status == 204
        found = await explained(cluster, "?subscription=s")
        waiting = found["partitions"][0]["subscription"]["waiting"]
        leased, delayed, not_due, refused = waiting
        assert leased.startswith("5 messages are leased to consumer 'silent' (offsets 2 to 6)")
        assert "the first of its leases ends in " in leased
        assert delayed.startswith("1 message is to be delivered again after a delay: offset 7")
        assert "in 59" in delayed or "in 600" in delayed
        assert not_due.startswith("1 message is not due yet: the first is due in")
        assert refused.startswith("the filter does not pass 2 messages")
        show_explained(found)
        said = capsys.readouterr().out
        assert "nothing is held back" not in said
        assert "leased to consumer 'silent'" in said


async def test_a_drain_is_told_as_the_reason_of_a_move(cluster: Cluster) -> None:
    """It named the even spread, which follows only because the drained broker does not count."""
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    first = one.broker.balance.place_of(mine).why
    assert first.startswith("A should have it by the even spread"), first
    await one.broker.drain()
    await until(lambda: share(two.broker) == 6, "A is empty")
    why = two.broker.balance.place_of(mine).why
    assert why.startswith("A handed it over: A is being drained; "), why


async def test_a_stop_is_told_as_the_reason_of_a_move(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    await one.broker.give_away()
    await until(lambda: share(two.broker) == 6, "A is empty")
    why = two.broker.balance.place_of(mine).why
    assert why.startswith("A handed it over: A stops; "), why


async def test_a_killed_broker_is_told_as_the_reason_of_a_move(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0].name
    assert (await two.broker.ownership.owner_of(mine)).broker_id == "A"
    await one.vanish()
    async with asyncio.timeout(30):
        while not (await two.broker.ownership.owner_of(mine)).local:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    why = two.broker.balance.place_of(mine).why
    told = "B took it over, because A, which served it before, ended or lost its session; "
    assert why.startswith(told), why
    again = await cluster.start("A", **SLOW)
    await until(lambda: "A" in two.broker.registry.live, "A is back")
    assert two.broker.balance.place_of(mine).why.startswith(told), "it is another A"
    assert again.broker.broker_id == "A"
