"""Append times, the same for every reader, and lookups of offsets by time."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.cluster.forks import OwnersPoint
from octavo.broker.errors import PartitionUnavailable
from octavo.broker.log.ledger_list import Contents
from octavo.broker.log.reader import LogReader
from octavo.broker.partition.partition import Partition
from octavo.broker.partition.rollover import Insertion
from octavo.broker.types import PartitionName, SubscriptionSettings, TopicSettings
from octavo.client.client import AsyncClient
from octavo.client.types import decode_deliveries
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.offload.format import GROUP_ENTRIES_MAX, About, ObjectFile, ObjectWriter
from octavo.ledger.offload.offloaded import OffloadedReader
from octavo.ledger.read.entry_source import DISORDER_UNKNOWN, EntrySource
from octavo.ledger.read.open_batch import open_batch, opening
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.metadata.topics import Policies, TopicStore
from octavo.protocol.append_time import (
    APPEND_TIME_HEADER,
    ROLL_AFTER_MS,
    SPAN_MS,
    stamp_of,
    time_of,
)
from octavo.protocol.batch import HEADER, check_batch, read_header, split_batches, with_base_offset
from octavo.protocol.compression import Compression
from octavo.protocol.entry import Entry
from octavo.protocol.records import (
    Record,
    build_batch,
    build_gapped_batch,
    read_gapped_records,
    read_records,
)
from octavo.spark.cluster import connected
from tests.cluster.test_broker_bulk_loads import private
from tests.cluster.test_compaction import horizon_of
from tests.cluster.test_large_messages import uploaded
from tests.support.cluster import TOPIC, Cluster, batch, make_topic, owned, running_cluster, until
from tests.support.compacted_views import write_view

APPEND = Policies(message_time="append")
CREATE = Policies(message_time="create")
HOUR_MS = 3_600_000


async def times(partition: Partition, start: int = 0, *, compacted: bool = False) -> list[int]:
    found: list[int] = []
    offset = start
    opener = partition._context.open_batches
    while offset < partition.next_offset:
        for one in await partition.read(offset, bytes_max=100_000, count_max=10_000):
            check_batch(one.data)
            async with opener.opened(one) as windows:
                records = [record for _, some in windows.following(0) for record in some]
            at = records[offset - one.base_offset : one.header.record_count]
            assert {record.timestamp_ms for record in at} <= {
                one.header.first_timestamp,
                one.header.max_timestamp,
            }
            found += [record.timestamp_ms for record in at]
            offset = one.next_offset
    return found


async def cold(partition: Partition, start: int = 0) -> list[int]:
    partition._log.tail.clear()
    partition._log.tail = partition._log._cache.partition()
    return await times(partition, start)


async def lookups(partition: Partition, found: list[int], before: int) -> None:
    for time_ms in sorted({one + more for one in found for more in (0, 1)}):
        wanted = next((n for n, one in enumerate(found) if one >= time_ms), len(found))
        assert await partition.offset_at(time_ms) == before + wanted, time_ms


async def test_a_batch_has_the_time_at_which_it_is_stored_through_a_take_over(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    await partition.publish(batch(2, time_ms=7))
    clock.now_ms += 5_000
    await partition.publish(batch(1, time_ms=2**50))
    clock.now_ms -= HOUR_MS
    await partition.publish(batch(1))
    wanted = [begun, begun, begun + 5_000, begun + 5_000]
    assert await times(partition) == wanted, "they never go back"
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)
    await one.vanish()
    partition = await owned((await cluster.start("B")).broker, name)
    await partition.publish(batch(1))
    wanted.append(begun + 5_000)
    assert await cold(partition) == wanted, "nor at an owner whose clock is behind"
    clock.now_ms = begun + HOUR_MS
    await partition.publish(batch(3))
    wanted += [begun + HOUR_MS] * 3
    assert await times(partition) == wanted
    await lookups(partition, wanted, 0)
    assert partition._record.ledgers.segments[0].disorder_ms == 0, "known without reading it all"


async def test_the_floor_holds_behind_closed_ledgers_and_after_a_good_hand_over(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND, rollover_entries=2)
    partition = await owned(one.broker, name)
    clock, wanted = cluster.clock, []
    for number in range(7):
        clock.now_ms += 1_000 if number < 4 else -1_000
        await partition.publish(batch(2))
        wanted += [1_700_000_000_000 + 1_000 * min(number + 1, 4)] * 2
        await until(lambda: partition._rollover._task is None, "rolled over")
    assert len(partition._record.ledgers.segments) == 4
    assert await cold(partition) == wanted
    await one.close()
    partition = await owned((await cluster.start("B")).broker, name)
    await partition.publish(batch(1))
    wanted.append(wanted[-1])
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)


async def set_policies(cluster: Cluster, partition: Partition, policies: Policies) -> None:
    broker = cluster.brokers["A"].broker
    before = partition._publisher.segment
    settings = (await broker.topics.get(TOPIC)).settings
    await broker.topics.update(TOPIC, replace(settings, policies=policies))
    wanted = policies.message_time
    await until(lambda: partition._settings().policies.message_time == wanted, "it is known")
    await partition.maintain()
    await until(lambda: partition._publisher.segment is not before, "another ledger")
    await until(lambda: partition._publisher.segment.released, "which the record names")


async def test_a_policy_that_changes_holds_from_the_next_ledger_on(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    await partition.publish(batch(2, time_ms=begun + HOUR_MS))
    await set_policies(cluster, partition, APPEND)
    await partition.publish(batch(2, time_ms=5))
    await set_policies(cluster, partition, CREATE)
    stamped = with_base_offset(batch(1, time_ms=9), 0, 77)
    await partition.publish(stamped)
    clock.now_ms -= HOUR_MS
    await set_policies(cluster, partition, APPEND)
    assert partition._publisher.segment.entries == 0
    await set_policies(cluster, partition, CREATE)
    await set_policies(cluster, partition, APPEND)
    await partition.publish(batch(1, time_ms=6))
    later = begun + HOUR_MS
    wanted = [later, later + 1, begun, begun, 9, begun]
    assert await times(partition) == wanted, "the append times do not go back; the others may"
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)
    await one.vanish()
    partition = await owned((await cluster.start("B")).broker, name)
    assert await cold(partition) == wanted
    await lookups(partition, wanted, 0)


async def test_a_ledger_ends_before_its_stamps_come_round_also_an_empty_one(
    cluster: Cluster,
) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND, rollover_age_ms=400 * 24 * HOUR_MS)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    await partition.publish(batch(1))
    for number in range(3):
        before = partition._publisher.segment.ledger_id
        clock.now_ms += ROLL_AFTER_MS + 1
        await partition.maintain()
        await until(
            lambda ledger=before: partition._publisher.segment.ledger_id != ledger,
            "another ledger",
        )
        await until(lambda: partition._publisher.segment.released, "which the record names")
        if number:
            await partition.publish(batch(1))
    wanted = [begun + n * (ROLL_AFTER_MS + 1) for n in (0, 2, 3)]
    assert await cold(partition) == wanted
    clock.now_ms += SPAN_MS
    with pytest.raises(PartitionUnavailable, match="too old for the current append time"):
        await partition.publish(batch(1))
    await until(lambda: partition._publisher.failed is None, "it opens anew")
    partition = await owned(one.broker, name)
    async with asyncio.timeout(10):
        while True:
            try:
                await partition.publish(batch(1))
            except PartitionUnavailable:
                await asyncio.sleep(0.02)
            else:
                break
    assert await cold(partition) == [*wanted, clock.now_ms]
    await lookups(partition, [*wanted, clock.now_ms], 0)


async def test_what_was_written_beforehand_is_appended_when_it_joins(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    ledger = await private(one, name, "load", 0, [2, 3], time_ms=4)
    clock.now_ms += 1_000
    await partition.publish(batch(1))
    clock.now_ms -= HOUR_MS
    await joined(partition, ledger)
    await partition.publish(batch(1))
    wanted = [begun + 1_000] * 7
    assert await cold(partition) == wanted
    segment = partition._record.ledgers.segment_of(ledger.ledger_id)
    assert segment is not None
    assert (segment.first_ms, segment.last_ms, segment.disorder_ms) == (*wanted[:2], 0)
    await lookups(partition, wanted, 0)
    assert await partition.offset_at(begun + 500) == 0


async def joined(partition: Partition, ledger: Any) -> None:
    async def plan() -> Insertion:
        return Insertion((ledger,))

    await partition._rollover.insert(plan)


async def test_a_view_and_a_fork_have_the_same_times(cluster: Cluster) -> None:
    one = await cluster.start("A", trim_interval_ms=50)
    settings = TopicSettings(
        policies=APPEND,
        rollover_entries=2,
        compaction_after_bytes=1,
        compaction_dirty_ratio=0.0,
    )
    await one.broker.topics.create(TOPIC, settings)
    name = PartitionName(*TOPIC, 0)
    partition = await owned(one.broker, name)
    clock, begun = cluster.clock, cluster.clock.now_ms
    for number in range(6):
        clock.now_ms = begun + number
        rows = [Record(b"%d.%d" % (number, n), b"v", (), 3) for n in range(2)]
        await partition.publish(build_batch(rows))
    wanted = [begun + number for number in range(6) for _ in range(2)]
    await until(lambda: horizon_of(partition) >= 8, "a view of what is closed")
    page = await partition.compacted.read(0, bytes_max=100_000, count_max=100)
    rows_of: dict[int, int] = {}
    for one_batch in page.batches:
        async with partition._context.open_batches.opened(one_batch) as windows:
            for _, records in windows.following(0, gaps=True):
                for record in records:
                    rows_of[one_batch.base_offset + record.offset_delta] = record.timestamp_ms
    assert set(rows_of) >= set(range(horizon_of(partition)))
    assert all(wanted[offset] == time_ms for offset, time_ms in rows_of.items()), rows_of
    found = [await partition.compacted.resolve(time_ms=begun + n) for n in (0, 1)]
    assert found == [0, 2]

    source = await one.broker.topics.get(TOPIC)
    for cut in (3, 4):
        point = OwnersPoint(partition.epoch, await partition.fork_point(cut))
        fork = TOPIC._replace(topic=f"fork{cut}")
        clock.now_ms = begun - HOUR_MS
        await one.broker.forks.make(source, fork, {0: point})
        copy = await owned(one.broker, fork.partition(0))
        await copy.publish(batch(1))
        assert await cold(copy) == [*wanted[:cut], wanted[cut - 1]]
        await lookups(copy, [*wanted[:cut], wanted[cut - 1]], 0)


async def test_retention_goes_by_the_append_time(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND, retention_ms=1_000, rollover_entries=1)
    partition = await owned(one.broker, name)
    for time_ms in (1, 2**50):
        await partition.publish(batch(1, time_ms=time_ms))
    await partition.publish(batch(1))
    await partition.maintain()
    assert partition.earliest_offset == 0
    cluster.clock.now_ms += 2_000
    await until(lambda: partition._rollover._task is None, "rolled over")
    await partition.maintain()
    await until(lambda: partition.earliest_offset == 3, "all is too old")


async def test_a_due_time_is_kept(cluster: Cluster) -> None:
    one = await cluster.start("A")
    name = await make_topic(one.broker, policies=APPEND)
    partition = await owned(one.broker, name)
    info, _ = await one.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(type="shared", start="earliest")
    )
    subscription = await partition.subscribe(info)
    due_ms = cluster.clock.now_ms + HOUR_MS
    headers = [("octavo-deliver-at", b"%d" % due_ms)]
    await partition.publish(build_batch([Record(None, b"later", headers, 1)]))
    await partition.publish(batch(1))
    given = await subscription.receive("c", messages_max=9)
    assert [one.offset for one in given] == [1]
    assert given[0].record.timestamp_ms == cluster.clock.now_ms


BATCHES = "application/vnd.kafka.recordbatch.v2"
LINES = "application/x-ndjson"
NAME = PartitionName("public", "t", 0)
TOPIC_HTTP = "/v1/topics/public/t"
MESSAGES = TOPIC_HTTP + "/partitions/0/messages"


@pytest.fixture
async def cluster_http(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        body = {"message_time": "append"}
        assert (await found.api.put(TOPIC_HTTP, json=body)).status == 201
        yield found


async def filled(cluster: Cluster) -> list[tuple[int, int]]:
    """Publish messages in every way; note for each the times around its storing."""
    between: list[tuple[int, int]] = []

    async def one(count: int, sent: Any) -> None:
        begun = time.time_ns() // 1_000_000
        answer = await sent
        assert answer.status == 200, answer
        between.extend([(begun, time.time_ns() // 1_000_000)] * count)

    api = cluster.api
    rows = [Record(b"k", b'"%d"' % n, (), 5 + n) for n in range(3)]
    await one(3, api.post(TOPIC_HTTP + "/messages", build_batch(rows), BATCHES))
    await asyncio.sleep(0.01)
    packed = build_batch(rows, compression=4)
    await one(3, api.post(TOPIC_HTTP + "/messages", packed, BATCHES))
    await asyncio.sleep(0.01)
    await one(1, api.post(TOPIC_HTTP + "/messages", json={"value": 1, "timestamp": 7}))
    await asyncio.sleep(0.01)
    lines = b'{"value": 1, "timestamp": 8}\n{"value": 2}\n'
    await one(2, api.post(TOPIC_HTTP + "/messages", lines, LINES))
    return between


async def in_json(cluster: Cluster, accept: str = "application/json") -> list[int]:
    answer = await cluster.api.get(MESSAGES, headers={"Accept": accept})
    assert answer.status == 200, answer
    if accept == LINES:
        return [json.loads(line)["timestamp"] for line in answer.body.splitlines()]
    return [one["timestamp"] for one in answer.json()["messages"]]


async def test_every_reader_sees_when_it_was_stored(cluster_http: Cluster) -> None:
    between = await filled(cluster_http)
    wanted = await in_json(cluster_http)
    assert wanted == sorted(wanted)
    assert len(set(wanted)) >= 4
    for time_ms, (since, last) in zip(wanted, between, strict=True):
        assert since <= time_ms <= last
    assert await in_json(cluster_http, LINES) == wanted

    for name, api in cluster_http.apis.items():
        answer = await api.get(MESSAGES, headers={"Accept": BATCHES})
        assert answer.headers[APPEND_TIME_HEADER] == f"0={wanted[0]}", name
        found, last_ms = [], wanted[0]
        for header, data in split_batches(answer.body):
            last_ms = time_of(header.partition_leader_epoch, last_ms)
            found += [last_ms] * header.record_count
            by_producer = next(read_records(bytes(data))).timestamp_ms
            assert by_producer in (5, 7, 8), "as its producer made it"
        assert found == wanted

        async with AsyncClient(api.url) as client:
            messages = await client.read("t", start="earliest")
            assert [one.timestamp_ms for one in messages] == wanted
            async with aclosing(client.pages("t", follow=True, start=4)) as pages:
                page = await anext(pages)
                assert [one.timestamp_ms for one in page] == wanted[4:]
            for accept in (f"{BATCHES}, application/json", "application/json", LINES):
                sub = f"s{len(accept)}{name[-1]}"
                await client.subscribe("t", sub, type="shared", start="earliest")
                answer = await api.post(
                    f"{TOPIC_HTTP}/subscriptions/{sub}/receive?max=99",
                    headers={"Accept": accept},
                )
                if accept == LINES:
                    given = [json.loads(line)["timestamp"] for line in answer.body.splitlines()]
                else:
                    deliveries, _ = decode_deliveries(answer.headers, answer.body)
                    given = [one.timestamp_ms for one in deliveries]
                assert given == wanted, accept

    for time_ms in wanted:
        answer = await cluster_http.api.get(f"{TOPIC_HTTP}/partitions/0/offsets?at={iso(time_ms)}")
        assert answer.json()["offsets"][0]["offset"] == wanted.index(time_ms)


def iso(time_ms: int) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000))
    return f"{when}.{time_ms % 1000:03d}Z"


async def test_streams_and_sockets_tell_it_too(cluster_http: Cluster) -> None:
    await filled(cluster_http)
    wanted = await in_json(cluster_http)
    async with aiohttp.ClientSession() as session:
        for api in cluster_http.apis.values():
            url = f"{api.url}{MESSAGES}?from=0&follow=true"
            for accept in (LINES, "text/event-stream"):
                found: list[int] = []
                async with session.get(url, headers={"Accept": accept}) as answer:
                    async for line in answer.content:
                        text = line.removeprefix(b"data: ").strip()
                        if text.startswith(b"{"):
                            found.append(json.loads(text)["timestamp"])
                        if len(found) == len(wanted):
                            break
                assert found == wanted
    for number, api in enumerate(cluster_http.apis.values()):
        async with AsyncClient(api.url) as client:
            subscription = await client.subscribe("t", f"w{number}", start="earliest")
            given = []
            async with aclosing(subscription.deliveries()) as deliveries:
                async for one in deliveries:
                    given.append(one.timestamp_ms)
                    if len(given) == len(wanted):
                        break
            assert given == wanted


async def test_a_follower_at_the_end_knows_the_time_of_what_comes(
    cluster_http: Cluster,
) -> None:
    """The stream begins before any batch tells the days of the stamps."""
    async with AsyncClient([api.url for api in cluster_http.apis.values()]) as client:
        found: list[int] = []

        async def follow() -> None:
            async with aclosing(client.pages("t", follow=True)) as pages:
                async for page in pages:
                    found.extend(one.timestamp_ms for one in page)

        task = asyncio.create_task(follow())
        for number in range(5):
            await client.publish("t", number, timestamp_ms=3)
            async with asyncio.timeout(10):
                while len(found) <= number:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert found == await in_json(cluster_http)
    assert min(found) > 1_700_000_000_000


async def test_a_stream_ends_where_its_head_does_not_tell_the_next_time(
    cluster_http: Cluster,
) -> None:
    await filled(cluster_http)
    owner = await cluster_http.owner_of(TOPIC_HTTP + "/partitions/0")
    partition = await cluster_http.brokers[owner].broker.ownership.partition(NAME)
    now_ms = partition._publisher.appended_ms
    later_ms = now_ms + 3 * SPAN_MS
    segment = partition._publisher.segment
    partition._publisher._clock = lambda: later_ms
    segment.appended_ms = later_ms
    async with aiohttp.ClientSession() as session:
        url = f"{cluster_http.api.url}{MESSAGES}?from=6&follow=true"
        async with session.get(url, headers={"Accept": BATCHES}) as stream:
            body = await stream.content.readany()
            await cluster_http.api.post(TOPIC_HTTP + "/messages", json={"value": 1})
            body += await stream.read()
    assert [header.base_offset for header, _ in split_batches(body)] == [6, 7]
    assert partition._publisher.appended_ms == later_ms
    assert stamp_of(later_ms) == stamp_of(now_ms), "it looks like no time at all"
    answer = await cluster_http.api.get(MESSAGES, headers={"Accept": BATCHES})
    assert [pair.partition("=")[2] for pair in answer.headers[APPEND_TIME_HEADER].split(",")][
        1:
    ] == [str(later_ms)]
    async with AsyncClient(cluster_http.api.url) as client:
        times = [one.timestamp_ms for one in await client.read("t")]
        assert times[-1] == later_ms
        assert times[-2] == now_ms


async def test_a_large_message_is_stored_when_it_is_there(
    cluster_http: Cluster,
) -> None:
    begun = time.time_ns() // 1_000_000
    await uploaded(cluster_http, path=TOPIC_HTTP, Octavo_Timestamp="5")
    ended = time.time_ns() // 1_000_000
    (found,) = await in_json(cluster_http)
    assert begun <= found <= ended


# The search halved by the batches' timestamps as if they ascended, so lookups were wrong where
# they do not. The rule is Kafka's: the first offset whose message has that timestamp or a newer
# one.

TIMES = (100, 10, 110, 20, 120, 30)
times_to_ask = st.lists(
    st.lists(st.integers(0, 60) | st.just(10**13), min_size=1, max_size=4), max_size=14
)


def model(batches: list[list[int]], time_ms: int) -> int | None:
    flat = [one for batch in batches for one in batch]
    return next((offset for offset, one in enumerate(flat) if one >= time_ms), None)


def stored(batches: list[list[int]]) -> list[Entry]:
    found, base = [], 0
    for number, times_ms in enumerate(batches):
        made = build_batch([Record(b"k", b"v", (), time_ms) for time_ms in times_ms])
        found.append(Entry(1, number, number - 1, 0, with_base_offset(made, base)))
        base += len(times_ms)
    return found


class Ledger(EntrySource):
    """A closed ledger in memory that counts reads."""

    ledger_id = 1
    last_add_confirmed = -1

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self.last_add_confirmed = len(entries) - 1
        self.reads = 0

    async def read(self, first: int, last: int) -> list[Entry]:
        self.reads += last - first + 1
        return self._entries[first : last + 1]

    async def batches(self, first: int, last: int) -> AsyncGenerator[list[Entry]]:
        for at in range(first, last + 1, 3):
            yield await self.read(at, min(last, at + 2))


def contents_of(entries: list[Entry]) -> Contents:
    found = Contents()
    for entry in entries:
        found = found.plus(read_header(entry.payload), len(entry.payload))
    return found


@given(times_to_ask, st.integers(-2, 62))
async def test_the_first_offset_that_is_as_new(batches: list[list[int]], time_ms: int) -> None:
    entries = stored(batches)
    expected = model(batches, time_ms)
    last = len(entries) - 1
    for disorder_ms in (DISORDER_UNKNOWN, contents_of(entries).disorder_ms):
        assert (
            await offset_as_new_as(Ledger(entries), time_ms, last, disorder_ms, opening) == expected
        )


@given(times_to_ask.filter(bool), st.integers(-2, 62))
async def test_an_object_gives_the_same_answer(batches: list[list[int]], time_ms: int) -> None:
    entries, sink = stored(batches), io.BytesIO()
    writer = ObjectWriter(sink, About(1, "u", "public/t", 0, 0, len(entries)))
    for entry in entries:
        writer.add([entry])
        if entry.entry_id % 3 == 2:
            writer._write_group()
    facts = writer.close()
    assert len(entries) < GROUP_ENTRIES_MAX
    file = ObjectFile(sink, "object", facts.bytes, facts.footer_crc)
    reader = OffloadedReader(1, "object", file)
    found = await offset_as_new_as(reader, time_ms, len(entries) - 1, DISORDER_UNKNOWN, opening)
    assert found == model(batches, time_ms)


async def test_a_header_that_lies_misleads_nobody_for_long() -> None:
    """It says 500, its records say 1: the search continues behind it."""
    entries = stored([[1], [2], [3], [600]])
    lie = list(read_header(entries[1].payload))
    lie[8] = 500
    entries[1] = entries[1]._replace(
        payload=HEADER.pack(*lie) + bytes(entries[1].payload)[HEADER.size :]
    )
    for disorder_ms in (DISORDER_UNKNOWN, contents_of(entries).disorder_ms):
        assert await offset_as_new_as(Ledger(entries), 400, 3, disorder_ms, opening) == 3


async def test_little_disorder_costs_little() -> None:
    """Many producers, each a few milliseconds off: some reads by halving, then a short stretch."""
    rng = random.Random(7)
    batches = [[100 * number + rng.randrange(500)] for number in range(5_000)]
    entries = stored(batches)
    disorder_ms = contents_of(entries).disorder_ms
    assert 0 < disorder_ms < 500
    for time_ms in rng.sample(range(500_000), 50):
        ledger = Ledger(entries)
        found = await offset_as_new_as(ledger, time_ms, len(entries) - 1, disorder_ms, opening)
        assert found == model(batches, time_ms)
        assert ledger.reads < 40, f"time {time_ms}"


async def ask_all(brokers: Cluster, partition: Partition, expected: dict[int, int | None]) -> None:
    url = brokers.store.url
    for time_ms, offset in expected.items():
        end = partition.next_offset
        assert await partition.offset_at(time_ms) == (end if offset is None else offset)
        async with connected(url) as cluster:
            view = await cluster.view("public/flights", 0)
            assert await cluster.offset_at(view, time_ms) == offset


async def test_open_rolled_over_and_taken_over(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        first = await brokers.start("A", tail_cache_bytes_max=1)
        name = await make_topic(first.broker, rollover_entries=4)
        partition = await owned(first.broker, name)
        expected = {time_ms: model([list(TIMES)], time_ms) for time_ms in range(-1, 125, 7)}
        expected |= {100: 0, 101: 2, 111: 4, 121: None}
        for number, time_ms in enumerate(TIMES):
            await partition.publish(build_batch([Record(b"k", b"v", (), time_ms)]))
            if number == 3:
                await until(lambda: len(partition._record.ledgers.segments) > 1, "a roll-over")
        await ask_all(brokers, partition, expected)
        await first.vanish()
        taken = await owned((await brokers.start("B")).broker, name)
        assert [link.disorder_ms for link in taken._record.ledgers.segments] == [90, -1, -1]
        await ask_all(brokers, taken, expected)
        assert [await taken.resolve(time_ms=one) for one in (100, 101, 121)] == [0, 2, 6]


async def test_over_http_by_every_way_in(tmp_path: Path) -> None:
    path = "/v1/topics/public/flights"
    async with running_cluster(tmp_path, brokers=1) as cluster:
        api = cluster.api
        assert (await api.put(path, json={"rollover": {"entries": 4}})).status == 201
        assert (await api.put(path + "/subscriptions/s", json={"start": "earliest"})).status == 201
        for seconds in TIMES:
            batch = build_batch([Record(b"k", b"%d" % seconds, (), 1_000 * seconds)])
            kind = "application/vnd.kafka.recordbatch.v2"
            assert (await api.post(path + "/messages", batch, kind)).status == 200
        for seconds in (5, 10, 31, 100, 101, 111):
            expected = model([list(TIMES)], seconds)
            at = f"1970-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"
            answer = await api.get(f"{path}/offsets?at={at}")
            assert answer.status == 200, answer.json()
            (found,) = answer.json()["offsets"]
            assert found["offset"] == expected, at
            read = (await api.get(f"{path}/messages?from={at}&limit=1")).json()["messages"]
            assert read[0]["offset"] == expected, at
            await api.post(path + "/subscriptions/s/seek", json={"to": at})
            given = await api.post(f"{path}/subscriptions/s/receive?max=1&consumer=c")
            assert given.json()["messages"][0]["offset"] == expected, at


# A lookup walked over the ledgers of its beginning: it missed newer ledgers when retention removed
# those meanwhile (seed 26 of `topic`), and returned an offset below the earliest one in the same
# answer.


async def test_ledgers_that_came_meanwhile_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=1, retention_bytes=0)
        partition = await owned(running.broker, name)
        await partition.publish(batch(1, time_ms=1_000))
        log: Any = partition._log
        look, looked = log._offset_in, 0
        stored: list[int] = []

        async def slow(link: Any, time_ms: int, least: int) -> int | None:
            nonlocal looked
            looked += 1
            if looked > 1:
                found: int | None = await look(link, time_ms, least)
                return found
            await partition.publish(batch(1, time_ms=2_000))
            await until(lambda: link.ledger_id not in dict(partition.ledgers[-1:]), "rolled over")
            await partition.maintain()
            assert link.ledger_id not in dict(partition.ledgers)
            stored.append((await partition.publish(batch(1, time_ms=5_000))).first_offset)
            raise LedgerNotFound(f"ledger {link.ledger_id} is gone")

        monkeypatch.setattr(log, "_offset_in", slow)
        assert await partition.offset_at(4_000) == stored[0]
        assert looked > 1


async def test_what_is_removed_meanwhile_is_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        partition = await owned(running.broker, await make_topic(running.broker))
        for time_ms in (1_000, 2_000, 1_500, 3_000):
            await partition.publish(batch(1, time_ms=time_ms))
        log: Any = partition._log
        look = log._offset_in

        async def slow(link: Any, time_ms: int, least: int) -> int | None:
            found: int | None = await look(link, time_ms, least)
            await partition.truncate(2)
            return found

        monkeypatch.setattr(log, "_offset_in", slow)
        assert await partition.offset_at(1_200) == 2
        assert await partition.offset_at(1_800) == 3


async def test_the_end_is_that_of_before_the_search(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all messages are older, the answer is the end: it was read after the search, so that
    newer messages lay before it (seed 1801001 of `topic`)."""
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    await partition.publish(batch(tag="new", time_ms=9_000))
    await partition.publish(batch(tag="old", time_ms=1_000))
    search = LogReader.offset_at

    async def slow(self: LogReader, *args: Any) -> int | None:
        found = await search(self, *args)
        await partition.publish(batch(tag="meanwhile", time_ms=8_000))
        return found

    monkeypatch.setattr(LogReader, "offset_at", slow)
    assert await partition._log.offset_at(5_000, least=1) == 2
    monkeypatch.undo()
    assert await partition._log.offset_at(5_000, least=1) == 2, "where it is"


# A lookup in a compacted view searched the whole log where no message of the view was as new, and
# returned an offset below the horizon that the view leaves out.

COMPACTED_TIMES = (100, 10, 300, 20, 110, 30, 300, 40)
KEYS = "aaabbbcc"


@pytest.mark.parametrize("batch", [1, 3, 8])
async def test_the_first_as_new_that_a_compacted_read_gives(tmp_path: Path, batch: int) -> None:
    """With the horizon anywhere: between ledgers, between batches of a ledger, and within a
    batch."""
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=2)
        partition = await owned(running.broker, name)
        records = [
            Record(key.encode(), b"%d" % offset, (), time_ms)
            for offset, (key, time_ms) in enumerate(zip(KEYS, COMPACTED_TIMES, strict=True))
        ]
        links = partition._record.ledgers.segments
        for at in range(0, len(records), batch):
            await partition.publish(build_batch(records[at : at + batch]))
            if batch == 1 and at % 2:
                before = len(links)
                await until(
                    lambda n=before: len(partition._record.ledgers.segments) > n, "a roll-over"
                )
                links = partition._record.ledgers.segments
        topics = TopicStore(running.store)
        for horizon in range(len(COMPACTED_TIMES) + 1):
            newest = {record.key: offset for offset, record in enumerate(records[:horizon])}
            kept = [(offset, records[offset]) for offset in sorted(newest.values())]
            where = ("public", name.topic, 0)
            await write_view(running.ledgers, topics, where, horizon, [[kept]] if kept else [])
            given = [*newest.values(), *range(horizon, len(COMPACTED_TIMES))]
            for time_ms in (0, *(one + off for one in COMPACTED_TIMES for off in (0, 1))):
                expected = next(
                    (o for o in sorted(given) if COMPACTED_TIMES[o] >= time_ms),
                    len(COMPACTED_TIMES),
                )
                found = await partition.compacted.resolve(time_ms=time_ms)
                assert found == expected, f"{time_ms} ms, horizon {horizon}"


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_as_new_from_an_offset_on(seed: int) -> None:
    rng = random.Random(seed)
    batches = [
        [rng.randrange(60) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 9))
    ]
    entries, flat = stored(batches), [one for batch in batches for one in batch]
    bounds = [0]
    for some in batches:
        bounds.append(bounds[-1] + len(some))
    for least in range(len(flat)):
        first = next(n for n, (_, end) in enumerate(pairwise(bounds)) if least < end)
        for disorder_ms in (DISORDER_UNKNOWN, contents_of(entries).disorder_ms):
            for time_ms in range(-1, 62, 3):
                expected = next((o for o in range(least, len(flat)) if flat[o] >= time_ms), None)
                source: Any = Ledger(entries)
                found = await offset_as_new_as(
                    source, time_ms, len(entries) - 1, disorder_ms, opening,
                    first=first, least=least,
                )  # fmt: skip
                assert found == expected


none_times = st.lists(
    st.sampled_from((-1, 0, 1, 5, 1_767_225_600_488, 10**13)), min_size=1, max_size=6
)


@given(none_times, st.sampled_from(Compression))
async def test_each_keeps_its_own(times_ms: list[int], kind: Compression) -> None:
    """aiokafka's builder takes a first -1 for "none yet", and counts the batch's times from the
    next message, whose time the first one got (seed 11 of `topic`)."""
    records = [Record(b"k", b"v", [], one, 3 * n) for n, one in enumerate(times_ms)]
    batch = build_gapped_batch(records, 7, compression=kind)
    check_batch(batch, gaps=True)
    assert read_header(batch).max_timestamp == max(times_ms)
    assert list(read_gapped_records(batch)) == records
    windows = await open_batch(batch)
    assert [one for _, some in windows.following(0, gaps=True) for one in some] == records
