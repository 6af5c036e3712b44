"""Dead letters and retries: copied, with bodies of large messages, whatever their topic
settings, and kept until they are acked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import (
    NOT_ENCRYPTED,
    DueAfterExpiry,
    InvalidSettings,
    SettingsConflict,
    StaleLease,
)
from octavo.broker.partition.large import BodyReader
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.dead_letters import producer_of
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import (
    Delivery,
    Nack,
    PartitionName,
    SubscriptionSettings,
    TopicName,
    TopicSettings,
)
from octavo.metadata.topics import Policies
from octavo.protocol.batch import InvalidBatch
from octavo.protocol.due import due_header, due_of
from octavo.protocol.large import BrokenBody, LargeBody
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch
from tests.cluster.test_large_messages import (
    BODY,
    ONE,
    SUB,
    body_at,
    in_parts,
    ledgers,
    shown,
    uploaded,
)
from tests.cluster.test_large_messages import received as received_large
from tests.cluster.test_policies import committed
from tests.support.cluster import (
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    running_cluster,
    until,
    values,
)
from tests.support.keys import key_file, key_of
from tests.support.kit.refusals import raises_code

DEAD = TopicName("public", "t-s-dlq")


async def deadly(
    running: RunningBroker, name: PartitionName, **settings: Any
) -> tuple[Partition, Subscription]:
    partition = await owned(running.broker, name)
    made = SubscriptionSettings(**{"type": "shared", "max_deliveries": 2, **settings})
    info, _ = await running.broker.topics.create_subscription(name.topic_name, "s", made)
    return partition, await partition.subscribe(info)


async def refuse(subscription: Subscription, offset: int, times: int) -> None:
    for _ in range(times):
        got = await subscription.receive("c", messages_max=100)
        one = [delivery for delivery in got if delivery.offset == offset]
        others = [delivery.ack_id for delivery in got if delivery.offset != offset]
        assert one, f"offset {offset} is not among {got}"
        await subscription.acknowledge(nacks=[Nack(one[0].ack_id, 0)], release=others)


async def dead_letters(running: RunningBroker, count: int) -> list[Delivery]:
    partition = await owned(running.broker, DEAD.partition(0))
    subscription = await partition.subscription("s")
    got: list[Delivery] = []
    async with asyncio.timeout(15):
        while len(got) < count:
            got += await subscription.receive("d", messages_max=10, wait_s=1)
    return got


async def test_a_poison_message_ends_in_its_topic_and_blocks_nobody(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name)
    topics = await one.broker.topics.names_in("public")
    assert DEAD.topic in topics, "made with the subscription, before there is a dead letter"
    await partition.publish(batch(3))
    await refuse(subscription, 1, 2)
    (letter,) = await dead_letters(one, 1)
    assert letter.record.value == b"m-1"
    headers = dict(letter.record.headers)
    assert headers["Octavo-Origin-Topic"] == b"public/t"
    assert (headers["Octavo-Origin-Offset"], headers["Octavo-Origin-Deliveries"]) == (b"1", b"2")
    await until(lambda: subscription.stats().backlog == 2, "the original is acked")
    got = await subscription.receive("c", messages_max=10)
    assert [(d.offset, d.delivery_count) for d in got] == [(0, 1), (2, 1)]
    assert subscription.stats().dead_letters == (0, 1, None)


async def test_without_its_topic_it_stays_and_the_figures_say_why(cluster: Cluster) -> None:
    one = await cluster.start("A", dead_letter_retry_ms=20, dead_letter_retry_ms_max=50)
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name)
    await partition.publish(batch(3))
    await one.broker.topics.delete(DEAD)
    await refuse(subscription, 0, 2)
    await until(lambda: subscription.stats().dead_letters.problem, "a problem is told")
    waiting, sent, problem = subscription.stats().dead_letters
    assert (waiting, sent) == (1, 0)
    assert problem is not None
    assert "there is no topic public/t-s-dlq" in problem
    assert subscription.stats().backlog == 3
    got = await subscription.receive("c", messages_max=10)
    assert [d.offset for d in got] == [1, 2], "the others go on"
    await one.broker.topics.create(DEAD, partition._settings())
    await until(lambda: subscription.stats().dead_letters == (0, 1, None), "it is sent")


async def test_a_lease_that_ends_when_nobody_is_left_counts_too(cluster: Cluster) -> None:
    one = await cluster.start("A", trim_interval_ms=50)
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name, max_deliveries=1, ack_timeout_ms=100)
    await partition.publish(batch(2))
    got = await subscription.receive("vanishes", messages_max=10)
    assert len(got) == 2
    letters = await dead_letters(one, 2)
    assert sorted(one.record.value or b"" for one in letters) == [b"m-0", b"m-1"]
    await until(lambda: subscription.stats().backlog == 0, "both are acked")
    with pytest.raises(StaleLease):
        await subscription.acknowledge([got[0].ack_id])


async def test_a_copy_that_was_stored_before_a_crash_is_not_stored_twice(cluster: Cluster) -> None:
    first = await cluster.start("A")
    name = await make_topic(first.broker, TopicName("public", "t"))
    partition, subscription = await deadly(first, name)
    await partition.publish(batch(2))

    async def crash(offsets: Any) -> None:
        raise OSError("died between copy and ack")

    burying: Any = subscription._dead_letters
    burying._ack = crash
    await refuse(subscription, 0, 2)
    dead = await owned(first.broker, DEAD.partition(0))
    await until(lambda: dead.next_offset == 1, "the copy is stored")
    await first.vanish()

    second = await cluster.start("B")
    partition = await owned(second.broker, name)
    subscription = await partition.subscription("s")
    assert subscription.stats().backlog == 2
    got = await subscription.receive("c", messages_max=10)
    assert [d.offset for d in got] == [1], "the first is spent, here as well"
    await until(lambda: subscription.stats().dead_letters.sent == 1, "it is sent again")
    dead = await owned(second.broker, DEAD.partition(0))
    assert await values(dead) == ["m-0"], "and was known"


async def test_after_a_seek_it_is_another_letter(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name)
    await partition.publish(batch(1))
    for _ in range(2):
        await refuse(subscription, 0, 2)
        (letter,) = await dead_letters(one, 1)
        await until(lambda: subscription.stats().backlog == 0, "the original is acked")
        dead = await owned(one.broker, DEAD.partition(0))
        await (await dead.subscription("s")).acknowledge([letter.ack_id])
        await subscription.seek(0)


async def test_other_settings_of_dead_letters_are_other_settings(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    await deadly(one, name)
    await deadly(one, name, dead_letter_topic="t-s-dlq")
    with pytest.raises(SettingsConflict):
        await deadly(one, name, max_deliveries=3)
    with pytest.raises(SettingsConflict):
        await deadly(one, name, dead_letter_topic="elsewhere")
    assert "elsewhere" not in await one.broker.topics.names_in("public")


async def test_a_late_ack_of_a_dead_letter_is_stale(cluster: Cluster) -> None:
    """It was answered as in time, and another consumer got the letter."""
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name, max_deliveries=1)
    await partition.publish(batch(2))
    late, acked = await subscription.receive("c", messages_max=2)
    assert await subscription.acknowledge([acked.ack_id], nacks=[Nack(late.ack_id, 0)]) == 1
    assert await subscription.acknowledge([acked.ack_id]) == 0, "a repeated ack is none too late"
    await dead_letters(one, 1)
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
    with pytest.raises(StaleLease, match="copied to the dead-letter") as told:
        await subscription.acknowledge([late.ack_id, acked.ack_id])
    assert list(told.value.stale) == [late.ack_id]


async def test_a_letter_of_a_message_for_later_is_there_at_once(cluster: Cluster) -> None:
    """It kept the due time of its original, and was not delivered for an hour."""
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await deadly(one, name, type="failover")
    later = Record(b"k", b"later", [due_header(cluster.clock.now_ms + 3_600_000)], 0)
    await partition.publish(build_batch([later]))
    await refuse(subscription, 0, 2)
    (letter,) = await dead_letters(one, 1)
    assert letter.record.value == b"later"
    assert due_of(letter.record.headers) is None


AGAIN = TopicName("public", "t-s-retry")


async def retried(
    running: RunningBroker, name: PartitionName, sub: str = "s", **settings: Any
) -> tuple[Partition, Subscription]:
    partition = await owned(running.broker, name)
    made = SubscriptionSettings(**{"type": "shared", "retry_deliveries": 1, **settings})
    info, _ = await running.broker.topics.create_subscription(name.topic_name, sub, made)
    return partition, await partition.subscribe(info)


async def received(
    running: RunningBroker, topic: TopicName, sub: str = "s", within_s: float = 15
) -> tuple[Subscription, Delivery]:
    partition = await owned(running.broker, topic.partition(0))
    subscription = await partition.subscription(sub)
    async with asyncio.timeout(within_s):
        while True:
            if got := await subscription.receive("d", messages_max=1, wait_s=1):
                return subscription, got[0]


async def test_from_its_topic_by_way_of_the_retry_topic_to_the_dead_letters(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    partition, subscription = await retried(one, name, max_deliveries=3)
    topics = await one.broker.topics.names_in("public")
    assert {AGAIN.topic, DEAD.topic} <= set(topics), "made with the subscription"
    assert await one.broker.topics.subscription(AGAIN, "s")
    assert await one.broker.topics.subscription(DEAD, "s")
    await partition.publish(batch(2))
    got = await subscription.receive("c", messages_max=10)
    await subscription.acknowledge([got[1].ack_id], nacks=[Nack(got[0].ack_id, 300)])
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
    assert subscription.stats().retries == (0, 1, None)
    assert subscription.stats().dead_letters == (0, 0, None)
    again = await owned(one.broker, AGAIN.partition(0))
    early = await (await again.subscription("s")).receive("d", messages_max=1)
    assert early == [], "it is not due there before it would have been here"
    cluster.clock.now_ms += 2_000
    for expected in (1, 2):
        there, delivery = await received(one, AGAIN)
        assert delivery.record.value == b"m-0"
        assert delivery.delivery_count == expected
        assert dict(delivery.record.headers)["Octavo-Retry-Deliveries"] == b"1"
        await there.acknowledge(nacks=[Nack(delivery.ack_id, 0)])
    _, dead = await received(one, DEAD)
    headers = dict(dead.record.headers)
    assert dead.record.value == b"m-0"
    assert headers["Octavo-Origin-Topic"] == b"public/t-s-retry"
    assert (headers["Octavo-Retry-Topic"], headers["Octavo-Retry-Offset"]) == (b"public/t", b"0")
    await until(lambda: there.stats().backlog == 0, "what its copy is there of is acked")


async def test_subscriptions_that_share_a_retry_topic_get_their_own(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, TopicName("public", "t"))
    shared = TopicName("public", "all-again")
    subs = {}
    for sub in ("s", "u"):
        partition, subs[sub] = await retried(one, name, sub, retry_topic="all-again")
    await partition.publish(batch(1))
    for sub, subscription in subs.items():
        (delivery,) = await subscription.receive("c", messages_max=10)
        await subscription.acknowledge(nacks=[Nack(delivery.ack_id)])
        there, found = await received(one, shared, sub)
        assert dict(found.record.headers)["Octavo-Retry-Subscription"] == sub.encode()
        await there.acknowledge([found.ack_id])
    for sub in subs:
        of = await (await owned(one.broker, shared.partition(0))).subscription(sub)
        assert await of.receive("d", messages_max=10, wait_s=0.2) == [], "each has its own alone"


async def test_a_successor_sends_what_its_predecessor_did_not(cluster: Cluster) -> None:
    first = await cluster.start("A", dead_letter_retry_ms=60_000, dead_letter_retry_ms_max=60_000)
    name = await make_topic(first.broker, TopicName("public", "t"))
    partition, subscription = await retried(first, name, retry_deliveries=2)
    await partition.publish(batch(1))
    await first.broker.topics.delete(AGAIN)
    for _ in range(2):
        (delivery,) = await subscription.receive("c", messages_max=1)
        await subscription.acknowledge(nacks=[Nack(delivery.ack_id, 0)])
    await until(lambda: subscription.stats().retries.problem, "it cannot be copied")
    assert subscription.stats().backlog == 1, "so it is not acked"
    await first.vanish()

    second = await cluster.start("B")
    made = SubscriptionSettings(type="shared", retry_deliveries=2)
    await second.broker.topics.create_subscription(name.topic_name, "s", made)
    partition = await owned(second.broker, name)
    subscription = await partition.subscription("s")
    assert await subscription.receive("c", messages_max=10) == [], "it had its deliveries here"
    _, found = await received(second, AGAIN)
    assert found.record.value == b"m-0"
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")


QUICK = {"dead_letter_retry_ms": 50, "dead_letter_retry_ms_max": 200}
DEAD_LARGE = "/v1/topics/public/dead"


@pytest.fixture
async def cluster_large(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, session_timeout_ms=20_000) as found:
        for name in ("A", "B"):
            await found.start_broker(name, QUICK)
        assert (await found.api.put(ONE)).status == 201
        yield found


async def placed(cluster: Cluster, topic: str, broker: str) -> None:
    name = f"/v1/topics/public/{topic}"
    await cluster.api.put(name)
    if await cluster.owner_of(name + "/partitions/0") != broker:
        answer = await cluster.api.post(f"{name}/unload?to={broker}")
        assert answer.status == 200, answer
    assert await cluster.owner_of(name + "/partitions/0") == broker


async def deadly_large(cluster: Cluster, **settings: Any) -> None:
    made = {"type": "shared", "max_deliveries": 1, "dead_letter_topic": "dead", **settings}
    answer = await cluster.api.put(SUB, json=made)
    assert answer.status == 201, answer


async def given_up(cluster: Cluster, sub: str = SUB, **nack: Any) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while not (got := await received_large(cluster, sub)):
            pass
    (one,) = got
    nacks = [{"ack_id": one["ack_id"], **nack}]
    answer = await cluster.api.post(sub + "/ack", json={"nack": nacks})
    assert answer.status == 200, answer
    return one


async def letter(cluster: Cluster, sub: str = DEAD_LARGE + "/subscriptions/s") -> dict[str, Any]:
    async with asyncio.timeout(20):
        while not (got := await received_large(cluster, sub)):
            pass
    (one,) = got
    return one


async def dies(cluster: Cluster, broker: str) -> None:
    cluster.apis.pop(broker)
    running = cluster.brokers[broker]
    await running.vanish()
    assert running.server is not None
    await running.server._cut_off()


async def all_acked(cluster: Cluster) -> None:
    async with asyncio.timeout(20):
        while (await cluster.api.get(SUB)).json()["backlog"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("where", ["A", "B"])
async def test_a_dead_letter_has_the_body_and_outlives_the_original(
    cluster_large: Cluster, where: str
) -> None:
    await placed(cluster_large, "one", "A")
    await placed(cluster_large, "dead", where)
    await deadly_large(cluster_large)
    original = await uploaded(cluster_large, Octavo_Key="k", Octavo_Header_Kind="film")
    await given_up(cluster_large)
    copy = await letter(cluster_large)
    assert copy["large"] == {"size": len(BODY), "crc32c": original["crc32c"]}
    assert (copy["key"], copy["headers"]["kind"]) == ("k", "film")
    assert copy["headers"]["Octavo-Origin-Offset"] == str(original["offset"])
    assert await body_at(cluster_large, copy["offset"], DEAD_LARGE) == BODY
    assert await shown(cluster_large, DEAD_LARGE) == [(copy["offset"], len(BODY))]
    await all_acked(cluster_large)
    gone = await cluster_large.api.call("DELETE", ONE + "/messages?before=latest")
    assert gone.status == 200, gone
    assert (await cluster_large.api.get(f"{ONE}/messages/{original['offset']}/body")).status == 410
    assert await body_at(cluster_large, copy["offset"], DEAD_LARGE) == BODY
    assert (await cluster_large.api.call("DELETE", ONE)).status == 204
    assert await body_at(cluster_large, copy["offset"], DEAD_LARGE) == BODY


async def test_a_retry_is_due_later_with_its_body_and_so_is_its_dead_letter(
    cluster_large: Cluster,
) -> None:
    await deadly_large(cluster_large, max_deliveries=2, retry_deliveries=1, retry_topic="again")
    await uploaded(cluster_large)
    await given_up(cluster_large, delay=0.5)
    again = "/v1/topics/public/again"
    retried = await given_up(cluster_large, again + "/subscriptions/s")
    assert retried["headers"]["Octavo-Retry-Subscription"] == "s"
    assert await body_at(cluster_large, retried["offset"], again) == BODY
    copy = await letter(cluster_large)
    assert await body_at(cluster_large, copy["offset"], DEAD_LARGE) == BODY
    headers = copy["headers"]
    assert headers["Octavo-Origin-Topic"] == "public/again"
    assert headers["Octavo-Retry-Topic"] == "public/one"


async def test_who_takes_over_between_copy_and_ack_stores_no_second_one(
    cluster_large: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await placed(cluster_large, "one", "B")
    await placed(cluster_large, "dead", "A")
    copied = asyncio.Event()

    ack = Subscription._ack_spent

    async def first_dies(self: Subscription, offsets: Sequence[int]) -> None:
        if not copied.is_set():
            copied.set()
            await asyncio.Event().wait()
        await ack(self, offsets)

    monkeypatch.setattr(Subscription, "_ack_spent", first_dies)
    await deadly_large(cluster_large)
    await uploaded(cluster_large)
    await given_up(cluster_large)
    async with asyncio.timeout(20):
        await copied.wait()
    await dies(cluster_large, "B")
    await given_up(cluster_large)
    await all_acked(cluster_large)
    (copy,) = await shown(cluster_large, DEAD_LARGE)
    assert await body_at(cluster_large, copy[0], DEAD_LARGE) == BODY
    stats = (await cluster_large.api.get(DEAD_LARGE + "/subscriptions/s")).json()
    assert stats["backlog"] == 1


@pytest.mark.parametrize("who", ["source", "target"])
async def test_an_owner_that_dies_amid_a_copy_leaves_nothing_of_it(
    cluster_large: Cluster, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    source, target = ("B", "A") if who == "source" else ("A", "B")
    await placed(cluster_large, "one", source)
    await placed(cluster_large, "dead", target)
    await deadly_large(cluster_large)
    await uploaded(cluster_large)
    amid, go_on = asyncio.Event(), asyncio.Event()
    pieces = BodyReader.pieces

    async def slow(self: BodyReader) -> AsyncGenerator[bytes, None]:
        async for number, piece in _numbered(pieces(self)):
            if number == 2:
                amid.set()
                await go_on.wait()
            yield piece

    monkeypatch.setattr(BodyReader, "pieces", slow)
    await given_up(cluster_large)
    async with asyncio.timeout(20):
        await amid.wait()
    assert await shown(cluster_large, DEAD_LARGE) == [], "nothing of it before all of it"
    await dies(cluster_large, "B")
    go_on.set()
    if who == "source":
        await given_up(cluster_large)
    copy = await letter(cluster_large)
    assert await body_at(cluster_large, copy["offset"], DEAD_LARGE) == BODY
    await all_acked(cluster_large)
    assert len(await shown(cluster_large, DEAD_LARGE)) == 1


async def _numbered(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[tuple[int, bytes], None]:
    number = 0
    async for piece in pieces:
        yield number, piece
        number += 1


async def test_what_cannot_be_copied_stays_and_says_why(cluster_large: Cluster) -> None:
    await deadly_large(cluster_large)
    assert (await cluster_large.api.call("DELETE", DEAD_LARGE)).status == 204
    await uploaded(cluster_large)
    await given_up(cluster_large)
    async with asyncio.timeout(20):
        while not (told := (await cluster_large.api.get(SUB)).json()["dead_letters"])["problem"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "there is no topic public/dead" in told["problem"], told
    assert (told["waiting"], told["sent"]) == (1, 0)
    assert (await cluster_large.api.put(DEAD_LARGE)).status == 201
    reader = {"type": "shared", "start": "earliest"}
    assert (await cluster_large.api.put(f"{DEAD_LARGE}/subscriptions/s", json=reader)).status == 201
    copy = await letter(cluster_large)
    assert await body_at(cluster_large, copy["offset"], DEAD_LARGE) == BODY


async def test_a_copy_that_has_no_body_is_copied_without(cluster_large: Cluster) -> None:
    """Older brokers made them; only the partition's record marks a large message."""
    said = LargeBody(len(BODY), 4, "00000000", "x").header()[1].decode()
    await deadly_large(cluster_large)
    headers = {"Octavo-Header-octavo-large": said}
    answer = await cluster_large.api.post(ONE + "/messages", b"", "text/plain", headers=headers)
    assert answer.status == 200, answer
    await given_up(cluster_large)
    copy = await letter(cluster_large)
    answer = await cluster_large.api.get(f"{DEAD_LARGE}/messages/{copy['offset']}/body")
    assert (answer.status, answer.json()["code"]) == (404, "message-not-found")


async def test_other_bytes_than_the_message_says_are_refused_and_leave_nothing(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        one = await cluster.start("A")
        partition = await owned(one.broker, await make_topic(one.broker, TopicName("public", "t")))
        before = await ledgers(cluster)
        large = LargeBody(len(BODY), 4, "00000000", "x")
        for copy in (Record(None, b"", [large.header()]), Record(None, b"", [])):
            with pytest.raises(BrokenBody):
                await partition.copy_large("letter:1", copy, in_parts(BODY))
        async with asyncio.timeout(15):
            while await ledgers(cluster) != before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert partition.next_offset == 0


async def test_an_upload_of_nothing_has_a_body(cluster_large: Cluster) -> None:
    found = await uploaded(cluster_large, b"", Octavo_Upload="empty")
    assert await body_at(cluster_large, found["offset"]) == b""


NAME = TopicName("public", "t")
UPKEEP: dict[str, Any] = {"trim_interval_ms": 50}
QUICK_KEPT: dict[str, Any] = {"dead_letter_retry_ms": 50, "dead_letter_retry_ms_max": 200}


async def says(broker: Broker, policies: Policies, namespace: str = "public") -> None:
    await broker.topics.set_policies(namespace, lambda record: replace(record, policies=policies))


async def passes(cluster: Cluster, time_ms: int) -> None:
    cluster.clock.now_ms += time_ms
    await cluster.brokers["A"].broker.confirm_clock()


async def test_a_retry_that_waits_outlives_a_time_to_live(cluster: Cluster) -> None:
    """A namespace's ttl removed it, though its original topic has none."""
    one = await cluster.start("A", **UPKEEP)
    await says(one.broker, Policies(ttl_ms=60_000))
    off = TopicSettings(policies=Policies(ttl_ms=-1))
    await one.broker.topics.create(NAME, off)
    partition, subscription = await retried(one, NAME.partition(0), max_deliveries=2)
    await partition.publish(batch(1))
    (got,) = await subscription.receive("c", messages_max=1)
    await subscription.acknowledge(nacks=[Nack(got.ack_id, 300_000)])
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
    again = await owned(one.broker, AGAIN.partition(0))
    await until(lambda: again._backlogs.ages.marks, "its age is known")
    await passes(cluster, 200_000)
    await again.maintain()
    assert committed(again) == 0
    await passes(cluster, 200_000)
    there, delivery = await received(one, AGAIN)
    await there.acknowledge(nacks=[Nack(delivery.ack_id, 0)])
    dead = await owned(one.broker, DEAD.partition(0))
    await until(lambda: dead._backlogs.ages.marks, "its age is known")
    await passes(cluster, 200_000)
    await dead.maintain()
    (letter,) = await dead_letters(one, 1)
    assert letter.record.value == b"m-0"


@pytest.mark.parametrize("policy", ["evict", "reject", "hold"])
async def test_no_backlog_quota_takes_or_refuses_a_letter(cluster: Cluster, policy: str) -> None:
    one = await cluster.start("A", **UPKEEP, **QUICK_KEPT)
    size = len(batch(1))
    await says(one.broker, Policies(backlog_bytes=size, backlog_policy=policy))
    own = TopicSettings(policies=Policies(backlog_bytes=-1))
    await one.broker.topics.create(NAME, own)
    partition, subscription = await deadly(one, NAME.partition(0), max_deliveries=1)
    await partition.publish(batch(5))
    await subscription.receive("c", messages_max=5)
    dead = await owned(one.broker, DEAD.partition(0))
    for at in range(5):
        await subscription.acknowledge(nacks=[Nack(f"0-{at}-{lease_of(subscription)}", 0)])
        await dead.maintain()
    await until(lambda: subscription.stats().backlog == 0, "all five are there")
    await dead.maintain()
    got = sorted(letter.record.value or b"" for letter in await dead_letters(one, 5))
    assert got == [b"m-0", b"m-1", b"m-2", b"m-3", b"m-4"]


def lease_of(subscription: object) -> str:
    dispatcher = subscription._dispatcher  # type: ignore[attr-defined]
    (number,) = {lease.number for lease in dispatcher._lease_of.values()}
    return f"{subscription._lease_epoch}-{number}"  # type: ignore[attr-defined]


async def test_neither_a_schema_nor_an_exclusive_producer_keeps_letters_out(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A", **QUICK_KEPT)
    await make_topic(one.broker, NAME)
    partition, subscription = await deadly(one, NAME.partition(0), max_deliveries=1)
    await one.broker.schemas.register(("public", "numbers"), "json", {"type": "number"})
    found = await one.broker.topics.newest(DEAD)
    await one.broker.topics.update(
        DEAD, replace(found.settings, schema_subject="numbers", schema_validate=True)
    )
    dead = await owned(one.broker, DEAD.partition(0))
    await until(lambda: dead.settings.schema_validate, "it is heard of")
    await dead.acquire_access("somebody", session_ms=600_000, fencing=False)
    await partition.publish(batch(1))
    await refuse(subscription, 0, 1)
    (letter,) = await dead_letters(one, 1)
    assert letter.record.value == b"m-0"


async def test_nobody_can_publish_a_letter_before_its_broker_does(cluster: Cluster) -> None:
    """Its producer id was a hash of public values: a forged one made the letter a duplicate, and
    it was lost."""
    one = await cluster.start("A", **QUICK_KEPT)
    name = await make_topic(one.broker, NAME)
    partition, subscription = await deadly(one, name, max_deliveries=1)
    await partition.publish(batch(1))
    dead = await owned(one.broker, DEAD.partition(0))
    forged = producer_of(subscription._letter_word(), name, subscription.info, 0)
    record = Record(None, b"forged", (), 0)
    numbered = {"producer_epoch": 0, "base_sequence": 0}
    with pytest.raises(InvalidBatch, match="brokers' own"):
        await dead.publish(build_batch([record], producer_id=forged, **numbered))
    as_before = abs(forged) % 2**63
    await dead.publish(build_batch([record], producer_id=as_before, **numbered))
    await refuse(subscription, 0, 1)
    got = await dead_letters(one, 2)
    assert [letter.record.value for letter in got] == [b"forged", b"m-0"]


@pytest.mark.parametrize("where", ["namespace", "topic"])
async def test_what_is_due_after_its_expiry_is_refused(cluster: Cluster, where: str) -> None:
    one = await cluster.start("A")
    said = Policies(ttl_ms=60_000)
    if where == "namespace":
        await says(one.broker, said)
    settings = TopicSettings(policies=said if where == "topic" else Policies())
    await one.broker.topics.create(NAME, settings)
    partition = await owned(one.broker, NAME.partition(0))
    now_ms = cluster.clock.now_ms

    def due_in(delay_ms: int) -> Record:
        return Record(b"k", b"v", [due_header(now_ms + delay_ms)], 0)

    plain = Record(b"k", b"v", (), 0)
    with pytest.raises(DueAfterExpiry, match="due in 60 s, and the topic's ttl"):
        await partition.publish(build_batch([plain, due_in(60_000)]))
    with pytest.raises(DueAfterExpiry, match="due in 3600 s"):
        await partition.publish_single(due_in(3_600_000))
    assert partition.next_offset == 0, "nothing of it is stored"
    await partition.publish(build_batch([plain, due_in(59_999)]))
    numbered = {"producer_id": 7, "producer_epoch": 0}
    first = partition.publish(build_batch([due_in(1_000)], base_sequence=0, **numbered))
    second = partition.publish(build_batch([plain], base_sequence=1, **numbered))
    places = await asyncio.gather(first, second)
    assert [place.first_offset for place in places] == [2, 3]


async def test_letters_of_encrypted_topics_do_not_lie_in_clear_text(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.keys = key_file(tmp_path, key_of(1, "secret"))
    one = await cluster.start("A", **QUICK_KEPT)
    topics = one.broker.topics
    await topics.create_namespace("secret", encrypted=True)
    plans = TopicName("secret", "plans")
    name = await make_topic(one.broker, plans)
    for clear in ({"dead_letter_topic": "public/d"}, {"retry_topic": "public/r"}):
        made = SubscriptionSettings(type="shared", max_deliveries=2, **clear)  # type: ignore[arg-type]
        with pytest.raises(InvalidSettings, match="clear text"):
            await topics.create_subscription(plans, "s", made)
    assert await topics.names_in("public") == []
    partition, subscription = await deadly(one, name, max_deliveries=1)
    await partition.publish(batch(1))
    await topics.create(TopicName("public", "d"), TopicSettings())
    with raises_code(NOT_ENCRYPTED, match="clear text"):
        await one.broker.letters.send(
            plans, TopicName("public", "d"), 0, Record(None, b"", (), 0), -2, subscription.info
        )
    await refuse(subscription, 0, 1)
    await until(lambda: subscription.stats().backlog == 0, "it is copied within its namespace")


async def test_a_subscription_that_stands_there_is_not_taken_where_it_would_lose_letters(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    await make_topic(one.broker, NAME)
    await one.broker.topics.create(DEAD, TopicSettings(policies=Policies(ttl_ms=1_000)))
    await one.broker.topics.create_subscription(DEAD, "s", SubscriptionSettings(type="shared"))
    made = SubscriptionSettings(type="shared", max_deliveries=1)
    with pytest.raises(InvalidSettings, match="ttl would remove them"):
        await one.broker.topics.create_subscription(NAME, "s", made)
    named = replace(made, dead_letter_subscription="letters")
    await one.broker.topics.create_subscription(NAME, "s", named)
    assert (await one.broker.topics.subscription(DEAD, "letters")).has_letters


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, session_timeout_ms=20_000) as found:
        for name in ("A", "B"):
            await found.start_broker(name, QUICK_KEPT)
        yield found


@pytest.mark.parametrize("where", ["A", "B"])
async def test_its_owner_makes_no_difference_to_a_letter(pair: Cluster, where: str) -> None:
    """Over HTTP a namespace's bound refused it for ever, and at the same broker it did not."""
    limits = {"message_bytes_max": 100, "rates": {"publish_messages": 1}}
    answer = await pair.api.put("/v1/namespaces/public", json=limits)
    assert answer.status == 200, answer
    one = "/v1/topics/public/one"
    own = {"message_bytes_max": "off", "rates": {"publish_messages": "off"}}
    assert (await pair.api.put(one, json=own)).status == 201
    await placed(pair, "one", "A")
    await placed(pair, "dead", where)
    sub = f"{one}/subscriptions/s"
    made = {"type": "shared", "max_deliveries": 1, "dead_letter_topic": "dead"}
    assert (await pair.api.put(sub, json=made)).status == 201
    for text in (b"x" * 500, b"y" * 500):
        assert (await pair.api.post(one + "/messages", text, "text/plain")).status == 200
        await given_up(pair)
    async with asyncio.timeout(20):
        while (told := (await pair.api.get(sub)).json())["backlog"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert told["dead_letters"] == {"waiting": 0, "sent": 2, "problem": None}


@pytest.mark.parametrize("retry", [False, True])
async def test_a_message_as_long_as_an_entry_is_copied(cluster: Cluster, *, retry: bool) -> None:
    """The headers that a copy adds pushed it over the bound, and it was refused for ever."""
    one = await cluster.start("A", **QUICK_KEPT)
    name = await make_topic(one.broker, NAME)
    if retry:
        partition, subscription = await retried(one, name)
    else:
        partition, subscription = await deadly(one, name, max_deliveries=1)
    noise = random.Random(3).randbytes(ENTRY_PAYLOAD_BYTES_MAX)
    around = len(build_batch([Record(b"k", noise[: 1 << 22], (), 0)])) - (1 << 22)
    value = noise[: ENTRY_PAYLOAD_BYTES_MAX - around]
    longest = build_batch([Record(b"k", value, (), 0)])
    assert len(longest) == ENTRY_PAYLOAD_BYTES_MAX
    await partition.publish(longest)
    (got,) = await subscription.receive("c", messages_max=1)
    await subscription.acknowledge(nacks=[Nack(got.ack_id, 0)])
    await until(lambda: subscription.stats().backlog == 0, "the original is acked")
    _, letter = await received(one, AGAIN if retry else DEAD)
    target = await owned(one.broker, (AGAIN if retry else DEAD).partition(0))
    body = await target.body(letter.offset)
    assert b"".join([part async for part in body.pieces()]) == value


@pytest.mark.parametrize("retry", [False, True])
async def test_a_topic_that_became_a_stream_does_not_keep_letters_waiting(
    pair: Cluster, *, retry: bool
) -> None:
    """Letters for a topic that takes no copies any more waited for ever. `A` sends, `B` has the
    stream."""
    api, one = pair.api, "/v1/topics/public/one"
    await placed(pair, "one", "A")
    named = {"retry_topic": "put"} if retry else {"dead_letter_topic": "put", "max_deliveries": 1}
    sub = f"{one}/subscriptions/s"
    assert (await api.put(sub, json={"type": "shared", **named})).status == 201
    assert (await api.call("DELETE", "/v1/topics/public/put")).status == 204
    stream = await api.call("PUT", "/v1/durable-streams/public/put")
    assert stream.status == 201, stream
    assert (await api.post("/v1/topics/public/put/unload?to=B")).status == 200
    for text in (b"x", b"y"):
        assert (await api.post(one + "/messages", text, "text/plain")).status == 200
        await given_up(pair)
    beside = f"/v1/topics/public/put-{'retry' if retry else 'dlq'}"
    async with asyncio.timeout(20):
        while (told := (await api.get(sub)).json())["backlog"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    figures = told["retries" if retry else "dead_letters"]
    assert (figures["waiting"], figures["sent"]) == (0, 2)
    assert "copies go to public/put-" in figures["problem"]
    assert (await api.get(beside)).json()["letters"] is True
    got = [(await letter_of(pair, f"{beside}/subscriptions/s"))["value_text"] for _ in "xy"]
    assert sorted(got) == ["x", "y"]
    why = (await api.get("/v1/explain/public/one?subscription=s")).json()
    assert "copies go to public/put-" in str(why), why
    metrics = (await api.get("/metrics")).body.decode()
    problem = "octavo_subscription_dead_letters_problem{"
    assert [line[-4:] for line in metrics.splitlines() if line.startswith(problem)] == [" 1.0"]


async def test_a_large_letter_for_a_compacted_topic_lies_beside_it(pair: Cluster) -> None:
    """A compacted topic takes no large message: its copy waited for ever."""
    api = pair.api
    assert (await api.put(ONE)).status == 201
    await placed(pair, "one", "A")
    await placed(pair, "dead", "B")
    made = {"type": "shared", "max_deliveries": 1, "dead_letter_topic": "dead"}
    assert (await api.put(ONE + "/subscriptions/s", json=made)).status == 201
    changed = await api.call("PATCH", "/v1/topics/public/dead", json={"compaction": {}})
    assert changed.status == 200, changed
    await uploaded(pair, Octavo_Key="k")
    await given_up(pair)
    copy = await letter_of(pair, "/v1/topics/public/dead-dlq/subscriptions/s")
    assert await body_at(pair, copy["offset"], "/v1/topics/public/dead-dlq") == BODY


async def letter_of(cluster: Cluster, sub: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while (answer := await cluster.api.post(f"{sub}/receive?max=1&wait=200ms")).status != 200:
            pass
    (one,) = answer.json()["messages"]
    return dict(one)
