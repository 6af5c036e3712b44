"""Dead letters and retries are stored whatever their topic's settings, and kept until they are
acked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import NOT_ENCRYPTED, DueAfterExpiry, InvalidSettings
from octavo.broker.subscriptions.dead_letters import producer_of
from octavo.broker.types import Nack, SubscriptionSettings, TopicName, TopicSettings
from octavo.metadata.topics import Policies
from octavo.protocol.batch import InvalidBatch
from octavo.protocol.due import due_header
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch
from tests.cluster.test_dead_letters import DEAD, dead_letters, deadly, refuse
from tests.cluster.test_large_copies import given_up, placed
from tests.cluster.test_large_messages import BODY, ONE, body_at, uploaded
from tests.cluster.test_policies import committed
from tests.cluster.test_retry_topic import AGAIN, received, retried
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until
from tests.support.keys import key_file, key_of
from tests.support.kit.refusals import raises_code

NAME = TopicName("public", "t")
UPKEEP: dict[str, Any] = {"trim_interval_ms": 50}
QUICK: dict[str, Any] = {"dead_letter_retry_ms": 50, "dead_letter_retry_ms_max": 200}


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
    one = await cluster.start("A", **UPKEEP, **QUICK)
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
    one = await cluster.start("A", **QUICK)
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
    one = await cluster.start("A", **QUICK)
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
    one = await cluster.start("A", **QUICK)
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
            await found.start_broker(name, QUICK)
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
    one = await cluster.start("A", **QUICK)
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
