"""Planned hand-overs: the successor checks what it is told, and keeps leases; a stopping broker
hands all its partitions on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import NotOwner, PartitionMoving, StaleLease
from octavo.broker.partition.handover_messages import Handover, HandoverNotice, HandoverState
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, PartitionName, SubscriptionSettings
from octavo.metadata.store import RecordNotFound
from tests.cluster.test_balance import SLOW, serve, share, spread
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    running_cluster,
    until,
    values,
)
from tests.support.http_api import Api

Change = Callable[[HandoverState], HandoverState | None]


async def one_partition(cluster: Cluster) -> tuple[RunningBroker, RunningBroker, PartitionName]:
    """A serves it, with two messages, an idempotent producer, and an ack on a subscription."""
    one = await cluster.start("A", **SLOW)
    two = await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "A sees B")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    info, _ = await one.broker.topics.create_subscription(
        name.topic_name, "s", SubscriptionSettings(type="shared", start="earliest")
    )
    subscription = await partition.subscribe(info)
    for number in range(2):
        await partition.publish(
            batch(1, tag=f"{number}", producer_id=7, producer_epoch=0, base_sequence=number)
        )
    taken = await subscription.receive("c", messages_max=2)
    await subscription.acknowledge([taken[1].ack_id])
    return one, two, name


async def whole(two: RunningBroker, name: PartitionName) -> Partition:
    partition = await two.broker.ownership.partition(name)
    assert await values(partition) == ["0-0", "1-0"]
    again = await partition.publish(
        batch(1, tag="1", producer_id=7, producer_epoch=0, base_sequence=1)
    )
    assert again.duplicate
    assert again.first_offset == 1
    found = await partition.publish(
        batch(1, tag="2", producer_id=7, producer_epoch=0, base_sequence=2)
    )
    assert found.first_offset == 2
    subscription = await partition.subscription("s")
    left = await subscription.receive("c", messages_max=9)
    assert [one.offset for one in left] == [2], "the ack of 1 holds, and so does the lease of 0"
    assert subscription.stats().leased == 2
    return partition


def told(one: RunningBroker, change: Change) -> None:
    ask: Any = one.broker.ask_peer

    async def changed(successor: BrokerInfo, name: PartitionName, handed: Handover) -> None:
        assert handed.end is not None
        await ask(successor, name, handed._replace(end=change(handed.end)))

    one.broker.ask_peer = changed


async def test_the_heir_recovers_nothing(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    with capture_logs() as logs:
        await one.broker.balance.unload(name, "B")
    events = [log["event"] for log in logs]
    assert "partition_taken_as_left" in events
    assert not {"ledger_recovered", "partition_taken_over", "not_as_left"} & set(events)
    await whole(two, name)


async def test_who_is_about_to_be_given_it_has_made_its_ledgers(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    before = set(await two.ledgers.list())
    epoch = (await one.broker.ownership.partition(name)).epoch
    incarnation = (await one.broker.topics.get(name.topic_name)).incarnation
    await two.broker.ownership.prepare(name, HandoverNotice(incarnation, epoch, True))
    made = set(await two.ledgers.list()) - before
    assert len(made) == 2
    with pytest.raises(PartitionMoving):
        await one.broker.ownership.prepare(name, HandoverNotice(incarnation, epoch, True))
    async with asyncio.timeout(10):
        while made & set(await two.ledgers.list()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (await values(await one.broker.ownership.partition(name))) == ["0-0", "1-0"]


WRONG: dict[str, Change] = {
    "nothing": lambda end: None,
    "another epoch": lambda end: end._replace(epoch=end.epoch - 1),
    "another ledger": lambda end: end._replace(ledger_id=end.ledger_id + 1),
    "an earlier end": lambda end: end._replace(last_entry=end.last_entry - 1),
    "fewer bytes": lambda end: end._replace(
        contents=end.contents._replace(payload_bytes=end.contents.payload_bytes - 1)
    ),
    "no state": lambda end: end._replace(state_ledger=None),
    "a state that cannot be read": lambda end: end._replace(state=(b"\xc1",)),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_not_so_is_found_out_and_recovered(cluster: Cluster, what: str) -> None:
    one, two, name = await one_partition(cluster)
    told(one, WRONG[what])
    with capture_logs() as logs:
        await one.broker.balance.unload(name, "B")
    events = [log["event"] for log in logs]
    assert "partition_taken_over" in events
    assert "partition_taken_as_left" not in events
    await whole(two, name)


async def test_an_owner_that_has_a_successor_unawares_gives_nothing_wrong(
    cluster: Cluster,
) -> None:
    """C has taken it over, served, and gone; A, which has heard of nothing, hands its state on."""
    one, _, name = await one_partition(cluster)
    mine = await one.broker.ownership.partition(name)
    await one.store.delete("/octavo/owners/public/flights/0")
    three = await cluster.start("C", **SLOW)
    other = await owned(three.broker, name)
    await other.publish(batch(1, tag="theirs"))
    assert mine.state.name in ("OPEN", "CLOSED")
    with pytest.raises(Exception, match=r"not served|not taken|another broker"):
        await one.broker.balance.unload(name, "B")
    assert await values(await owned(three.broker, name)) == ["0-0", "1-0", "theirs-0"]


async def test_nothing_is_closed_for_an_heir_that_cannot_be_reached(cluster: Cluster) -> None:
    one, _, name = await one_partition(cluster)
    mine = await one.broker.ownership.partition(name)

    async def refuses(*_: Any) -> None:
        raise ConnectionRefusedError("no client listens")

    one.broker.announce_to_peer = refuses
    with pytest.raises(Exception, match="was not taken by B"):
        await one.broker.balance.unload(name, "B")
    assert await one.broker.ownership.partition(name) is mine
    await mine.publish(batch(1))


async def test_a_long_state_is_left_in_its_ledger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.partition.partition.STATE_BYTES_MAX", 10)
    one, two, name = await one_partition(cluster)
    with capture_logs() as logs:
        await one.broker.balance.unload(name, "B")
    assert "partition_taken_over" in [log["event"] for log in logs]
    await whole(two, name)


async def test_publishers_amid_a_hand_over_are_stored_once_and_in_order(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    running, over, stored = [one, two], False, ["0-0", "1-0"]

    async def publish() -> None:
        sequence = 0
        while not over:
            tag = f"p{sequence}"
            work = batch(1, tag=tag, producer_id=9, producer_epoch=0, base_sequence=sequence)
            try:
                await cluster.at_owner(running[sequence % 2].broker, name, _publishing(work))
            except (NotOwner, PartitionMoving):
                await asyncio.sleep(0.001)
            else:
                stored.append(f"{tag}-0")
                sequence += 1

    publishing = asyncio.create_task(publish())
    for to in "BABABA":
        await asyncio.sleep(0.05)
        giver = one if to == "B" else two
        await giver.broker.balance.unload(name, to)
    over = True
    await publishing
    assert len(stored) > 10
    assert await values(await owned(one.broker, name)) == stored


def _publishing(work: bytes) -> Callable[[Partition], Any]:
    return lambda partition: partition.publish(work)


async def test_what_a_stopped_broker_serves_is_taken_as_it_left_it(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = [partition.name for partition in one.broker.ownership.open_partitions()]
    for name in mine:
        await (await one.broker.ownership.partition(name)).publish(batch(2))
    with capture_logs() as logs:
        await one.close()
    assert share(two.broker) == 6, "at once: nobody had to find out"
    taken = [log["partition"] for log in logs if log["event"] == "partition_taken_as_left"]
    assert sorted(taken) == sorted(map(str, mine))
    assert not {"partition_taken_over", "not_all_handed_on"} & {log["event"] for log in logs}
    for name in mine:
        assert await values(await two.broker.ownership.partition(name)) == ["m-0", "m-1"]


async def test_cursors_and_producers_go_along(cluster: Cluster) -> None:
    one, two, name = await one_partition(cluster)
    await one.close()
    await whole(two, name)


async def test_publishers_amid_a_stop_are_served_by_it_or_by_the_next(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    stored: dict[int, list[str]] = {number: [] for number in range(6)}
    over = False

    async def publish(number: int) -> None:
        while not over:
            tag = str(len(stored[number]))
            try:
                owner = await serve([one, two], TOPIC.partition(number))
                partition = await owner.broker.ownership.partition(TOPIC.partition(number))
                await partition.publish(
                    batch(1, tag=tag, producer_id=3, producer_epoch=0, base_sequence=int(tag))
                )
            except Exception:
                await asyncio.sleep(0.005)
            else:
                stored[number].append(f"{tag}-0")

    publishers = [asyncio.create_task(publish(number)) for number in range(6)]
    await until(lambda: all(len(found) > 2 for found in stored.values()), "they publish")
    await one.close()
    before = {number: len(found) for number, found in stored.items()}
    await until(lambda: all(len(stored[n]) > before[n] + 2 for n in stored), "they go on")
    over = True
    await asyncio.gather(*publishers)
    for number, found in stored.items():
        assert await values(await owned(two.broker, TOPIC.partition(number))) == found


async def test_an_heir_that_does_not_answer_holds_nobody_up(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0]
    await mine.publish(batch(3))

    async def silent(*_: Any) -> None:
        await asyncio.sleep(600)

    one.broker.announce_to_peer = silent
    with capture_logs() as logs:
        async with asyncio.timeout(15):
            await one.close()
    assert [log["partitions"] for log in logs if log["event"] == "not_all_handed_on"] == [3]
    await until(lambda: share(two.broker) == 6, "B has all of them")
    assert await values(await owned(two.broker, mine.name)) == ["m-0", "m-1", "m-2"]


async def test_cut_off_amid_a_hand_over_it_gives_the_partition_up_all_the_same(
    cluster: Cluster,
) -> None:
    """Its successor does not answer, the time is over, and the claim must not stay."""
    one, two, name = await one_partition(cluster)

    async def silent(successor: BrokerInfo, of: PartitionName, handed: Handover) -> None:
        await asyncio.sleep(600)

    one.broker.ask_peer = silent
    async with asyncio.timeout(15):
        await one.close()
    await whole_again(two, name)


async def whole_again(two: Any, name: PartitionName) -> None:
    await owned(two.broker, name)
    await whole(two, name)


async def test_alone_it_just_closes(cluster: Cluster) -> None:
    one = await cluster.start("A", **SLOW)
    name = await make_topic(one.broker)
    await (await owned(one.broker, name)).publish(batch(2))
    with capture_logs() as logs:
        await one.close()
    assert not {"handover_not_taken", "not_all_handed_on"} & {log["event"] for log in logs}
    with pytest.raises(RecordNotFound):
        await cluster.store.get("/octavo/owners/public/flights/0")
    again = await cluster.start("B", **SLOW)
    assert await values(await owned(again.broker, name)) == ["m-0", "m-1"]


async def test_all_that_are_stopped_at_once_give_each_other_nothing(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    for running in (one, two):
        await running.broker.ownership.open_partitions()[0].publish(batch(1))
    async with asyncio.timeout(20):
        await asyncio.gather(one.close(), two.close())
    three = await cluster.start("C", **SLOW)
    for number in range(6):
        await owned(three.broker, TOPIC.partition(number))
    assert share(three.broker) == 6


async def test_who_leaves_is_given_nothing_and_started_again_it_is_like_any_other(
    cluster: Cluster,
) -> None:
    one, two, name = await one_partition(cluster)
    partition = await one.broker.ownership.partition(name)
    incarnation = (await one.broker.topics.get(name.topic_name)).incarnation
    two.broker.ownership.take_no_more()
    with pytest.raises(PartitionMoving, match="cannot be given"):
        await two.broker.ownership.prepare(name, HandoverNotice(incarnation, partition.epoch, True))
    with pytest.raises(PartitionMoving, match="it stops"):
        await two.broker.ownership.take(name, Handover(incarnation))
    await two.close()
    again = await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "it is back")
    assert "B" not in one.broker.registry.statuses.drained
    await one.broker.balance.unload(name, "B")
    await whole(again, name)


async def test_a_bug_on_the_way_keeps_nothing_from_being_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test's store with an unknown record ended a broker that was asked to stop."""
    one, two = await spread(cluster)

    async def wrong(_: Any) -> None:
        raise KeyError("standings")

    monkeypatch.setattr(one.broker.registry.statuses, "tell", wrong)
    with capture_logs() as logs:
        await one.close()
    told = [log for log in logs if log["event"] == "broker_task_failed"]
    assert [log["task"] for log in told] == ["give_away"]
    await until(lambda: share(two.broker) == 6, "B has all of them")


async def test_without_a_session_nothing_is_waited_for(cluster: Cluster) -> None:
    """It cannot write down its partitions' state: the next owner recovers them."""
    one = await cluster.start("A", handover_timeout_ms=600_000)
    await make_topic(one.broker)
    name = TOPIC.partition(0)
    await (await owned(one.broker, name)).publish(batch(2))
    await one.vanish()
    async with asyncio.timeout(15):
        await one.broker.close()
    assert not one.broker.ownership.held()
    two = await cluster.start("B")
    assert await values(await owned(two.broker, name)) == ["m-0", "m-1"]


TOPIC_LEASES = "/v1/topics/public/orders"
SUB = TOPIC_LEASES + "/subscriptions/s"
WAYS = ("unload", "unload to itself", "drain", "long state")


@pytest.fixture
async def cluster_leases(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(TOPIC_LEASES, json={})).status == 201
        yield found


async def publish(api: Api, *keys: str | None) -> None:
    messages = [{"key": key, "value": number} for number, key in enumerate(keys)]
    assert (await api.post(TOPIC_LEASES + "/messages", json={"messages": messages})).status == 200


async def receive(api: Api, consumer: str, **query: Any) -> list[dict[str, Any]]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    answer = await api.post(f"{SUB}/receive?consumer={consumer}&{asked}")
    assert answer.status in (200, 204), answer
    found: list[dict[str, Any]] = answer.json()["messages"] if answer.status == 200 else []
    return found


async def move(cluster: Cluster, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = cluster.api
    before = await cluster.owner_of(TOPIC_LEASES + "/partitions/0")
    other = next(name for name in cluster.apis if name != before)
    if way == "long state":
        monkeypatch.setattr("octavo.broker.partition.partition.STATE_BYTES_MAX", 10)
    if way == "drain":
        assert (await api.post(f"/v1/brokers/{before}/drain")).status in (200, 202)
    else:
        to = before if way == "unload to itself" else other
        answer = await api.post(f"{TOPIC_LEASES}/unload?to={to}")
        assert answer.status == 200, answer
    moved = before if way == "unload to itself" else other
    async with asyncio.timeout(15):
        while await cluster.owner_of(TOPIC_LEASES + "/partitions/0") != moved:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("type_", ["shared", "key_shared", "failover", "exclusive"])
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_leased_stays_so_and_its_ack_is_good_at_any_broker(
    cluster_leases: Cluster, way: str, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apis = list(cluster_leases.apis.values())
    settings = {"type": type_, "ack_timeout": "10m", "consumer_timeout": "1ms"}
    assert (await cluster_leases.api.put(SUB, json=settings)).status == 201
    await publish(cluster_leases.api, "k", "k", "k", "other")
    held = await receive(apis[0], "a", max=2)
    assert [one["offset"] for one in held] == [0, 1]
    await move(cluster_leases, way, monkeypatch)
    if type_ == "exclusive":
        answer = await apis[1].post(f"{SUB}/receive?consumer=b")
        assert (answer.status, answer.json()["code"]) == (409, "subscription-busy")
    else:
        wanted = {"shared": [2, 3], "key_shared": [3], "failover": []}[type_]
        assert [one["offset"] for one in await receive(apis[1], "b")] == wanted
    for api, one in zip(apis, held, strict=True):
        answer = await api.post(SUB + "/ack", json={"ack_ids": [one["ack_id"]]})
        assert (answer.status, answer.json()) == (200, {"acked": 1}), "whichever broker is asked"
    figures = (await cluster_leases.api.get(SUB)).json()
    assert figures["partitions"][0]["committed_offset"] == 2
    if type_ in ("failover", "key_shared"):
        name = "b" if type_ == "failover" else "c"
        assert (await receive(apis[0], name, wait="5s"))[0]["offset"] == 2


async def test_delays_counts_and_nacks_go_on(
    cluster_leases: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster_leases.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster_leases.api, None, None, None)
    held = await receive(cluster_leases.api, "a")
    body = {"nack": [{"ack_id": held[0]["ack_id"], "delay": "10m"}, held[1]["ack_id"]]}
    assert (await cluster_leases.api.post(SUB + "/ack", json=body)).status == 200
    await move(cluster_leases, "unload", monkeypatch)
    again = await receive(cluster_leases.api, "b")
    assert [(one["offset"], one["delivery_count"]) for one in again] == [(1, 2)]
    figures = (await cluster_leases.api.get(SUB)).json()
    assert (figures["delayed"], figures["leased"]) == (1, 2)
    answer = await cluster_leases.api.post(SUB + "/ack", json={"nack": [held[2]["ack_id"]]})
    assert answer.status == 200, "what was leased before the move can be given back after it"
    again = await receive(cluster_leases.api, "b")
    assert [(one["offset"], one["delivery_count"]) for one in again] == [(2, 2)]


async def test_a_call_whose_answer_was_lost_in_the_move_gets_the_same_again(
    cluster_leases: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster_leases.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster_leases.api, None, None, None)
    first = await receive(cluster_leases.api, "a", max=2, request="r-1")
    await move(cluster_leases, "unload", monkeypatch)
    assert await receive(cluster_leases.api, "a", max=2, request="r-1") == first


async def test_several_moves_one_after_the_other(
    cluster_leases: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster_leases.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster_leases.api, None, None, None)
    held = await receive(cluster_leases.api, "a", max=1)
    for way in ("unload", "unload", "unload to itself"):
        await move(cluster_leases, way, monkeypatch)
    held += await receive(cluster_leases.api, "b", max=1)
    await move(cluster_leases, "unload", monkeypatch)
    held += await receive(cluster_leases.api, "c")
    assert [one["offset"] for one in held] == [0, 1, 2]
    answer = await cluster_leases.api.post(
        SUB + "/ack", json={"ack_ids": [m["ack_id"] for m in held]}
    )
    assert answer.json() == {"acked": 3}


async def test_a_broker_that_is_stopped_leaves_its_leases(cluster_leases: Cluster) -> None:
    await cluster_leases.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster_leases.api, None, None)
    held = await receive(cluster_leases.api, "a", max=1)
    await cluster_leases.stop_broker(
        before := await cluster_leases.owner_of(TOPIC_LEASES + "/partitions/0")
    )
    api = next(api for name, api in cluster_leases.apis.items() if name != before)
    assert [one["offset"] for one in await receive(api, "b", wait="10s")] == [1]
    answer = await api.post(SUB + "/ack", json={"ack_ids": [held[0]["ack_id"]]})
    assert answer.json() == {"acked": 1}


async def test_a_crash_ends_leases_as_docs_say(cluster_leases: Cluster) -> None:
    await cluster_leases.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster_leases.api, None, None)
    held = await receive(cluster_leases.api, "a", max=1)
    before = await cluster_leases.owner_of(TOPIC_LEASES + "/partitions/0")
    crashed = cluster_leases.brokers[before]
    other = next(one for name, one in cluster_leases.brokers.items() if name != before)
    await crashed.vanish()
    await until(lambda: len(other.broker.registry.live) == 1, "it is missed")
    other.broker.ownership.doubt_owner(PartitionName("public", "orders", 0))
    partition = await owned(other.broker, PartitionName("public", "orders", 0))
    subscription = await partition.subscription("s")
    given = await subscription.receive("b", messages_max=10)
    assert [one.offset for one in given] == [0, 1]
    with pytest.raises(StaleLease):
        await subscription.acknowledge([held[0]["ack_id"]])
    await crashed.bury()


async def test_nothing_is_written_while_a_broker_of_before_is_there(
    cluster_leases: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.cluster.registry.reads_leases", lambda value: False)
    await cluster_leases.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster_leases.api, None)
    held = await receive(cluster_leases.api, "a")
    await move(cluster_leases, "unload", monkeypatch)
    assert [one["offset"] for one in await receive(cluster_leases.api, "b")] == [0]
    answer = await cluster_leases.api.post(SUB + "/ack", json={"ack_ids": [held[0]["ack_id"]]})
    assert answer.status == 409
