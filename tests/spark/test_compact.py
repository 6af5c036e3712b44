"""`compact` on a live cluster: the newest message of each key, whatever dies or follows."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import Client
from octavo.clock import wall_clock_ms
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.compactions import KIND, KIND_KEY, compacted_ledgers
from octavo.metadata.topics import CompactionRecord
from octavo.pipeline import compact as compact_job
from octavo.pipeline.audit import audit
from octavo.pipeline.compact import CompactOptions, compact
from octavo.pipeline.compact_rules import CompactPolicy
from octavo.pipeline.gc import gc
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import Run, run_job
from octavo.pipeline.scrub import ABSENT, ScrubOptions, scrub
from octavo.spark.cluster import connected
from octavo.spark.options import InvalidOption, Selection
from tests.support.processes.standalone import octavo
from tests.support.published import seen_by_readers
from tests.support.spark_place import reader_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
DAY_MS = 24 * 3_600_000
Message = tuple[int, int, bytes | None, bytes | None]


class Topic:
    def __init__(self, spark: SparkSession, service: str, client: Client, name: str) -> None:
        self.spark, self.service, self.client, self.name = spark, service, client, name
        client.create_topic(name, partitions=2, rollover={"entries": 8})

    @property
    def selection(self) -> Selection:
        return Selection(topics=(f"public/{self.name}",))

    def publish(
        self, messages: list[tuple[bytes | None, bytes | None]], time_ms: int | None = None
    ) -> None:
        with (
            seen_by_readers(self.service, self.name, len(messages)),
            self.client.producer(self.name, batch_bytes=400) as producer,
        ):
            for key, value in messages:
                producer.send(
                    value, key=key, headers={"n": "1"}, timestamp_ms=time_ms or wall_clock_ms()
                )

    def compact(self, **policy: Any) -> Outcome:
        options = CompactOptions(self.selection, CompactPolicy(**{"split_bytes": 2_000, **policy}))
        return self.job(partial(compact, options=options))

    def job(self, work: Callable[[Run], Outcome]) -> Outcome:
        return run_job("compact", work, service=self.service, say=lambda _: None)

    def frame(self, **options: Any) -> DataFrame:
        reader = self.spark.read.format("octavo").option("service", self.service)
        return reader.option("subscribe", self.name).options(**options).load()

    def messages(self, **options: Any) -> list[Message]:
        rows = self.frame(columns="partition,offset,key,value", **options).collect()
        return sorted((row.partition, row.offset, row.key, row.value) for row in rows)

    def over_http(self) -> list[Message]:
        return [
            (number, one.offset, one.key, one.value)
            for number in range(2)
            for one in self.client.messages(self.name, partition=number, compacted=True)
        ]

    def views(self) -> dict[int, CompactionRecord | None]:
        async def read() -> dict[int, CompactionRecord | None]:
            async with connected(self.service) as cluster:
                return {
                    number: (await cluster.record(f"public/{self.name}", number)).compaction
                    for number in range(2)
                }

        return asyncio.run(read())


@pytest.fixture
def topic(
    spark: SparkSession, service: str, client: Client, request: pytest.FixtureRequest
) -> Topic:
    return Topic(spark, service, client, request.node.name.replace("[", "-").rstrip("]")[:60])


def newest(messages: list[Message]) -> list[Message]:
    """By the rule: the last message of each key in each partition, and every message without a
    key."""
    last = {(one[0], one[2]): one for one in messages if one[2] is not None}
    return sorted([*last.values(), *(one for one in messages if one[2] is None)])


def some(rng: random.Random, count: int, keys: int) -> list[tuple[bytes | None, bytes | None]]:
    found: list[tuple[bytes | None, bytes | None]] = []
    for number in range(count):
        key = None if rng.random() < 0.05 else b"k%d" % rng.randrange(keys)
        found.append((key, None if rng.random() < 0.1 else b"v%d" % number))
    return found


def ledgers_of_kind(service: str) -> set[int]:
    async def read() -> set[int]:
        found = set()
        async with connected(service) as cluster:
            for ledger_id in await cluster.ledgers.list():
                try:
                    metadata = await cluster.ledgers.metadata(ledger_id)
                except LedgerNotFound:
                    continue
                if metadata.custom.get(KIND_KEY) == KIND:
                    found.add(ledger_id)
        return found

    return asyncio.run(read())


def sound(topic: Topic) -> bool:
    """Check that audit and scrub find no fault but missing third copies: a task's process ends
    when two copies exist."""
    jobs = audit, partial(scrub, options=ScrubOptions())
    return all(one.kind == ABSENT for job in jobs for one in topic.job(job).findings)


def test_the_newest_of_each_key_run_after_run(topic: Topic) -> None:
    rng = random.Random(5)
    for count in (240, 0, 120):
        topic.publish(some(rng, count, keys=40))
        every = topic.messages()
        outcome = topic.compact()
        assert outcome.exit is Exit.OK
        assert outcome.summary["partitions_up_to_date"] == (0 if count else 2)
        found = topic.messages(readCompacted="true")
        assert found == newest(every)
        assert topic.over_http() == found, "without Spark as with it"
        assert len(found) < len(every) == len(topic.messages()), "the topic stays as it is"
        if count:
            assert outcome.summary["messages_kept"] == len(found)
            assert outcome.summary["messages_new"] == count
            assert outcome.summary["ledgers"] >= 2
    topic.publish([(b"k1", b"later"), (b"new", b"n")])
    behind = topic.messages(readCompacted="true")
    assert topic.over_http() == behind
    assert sorted({(one[0], one[2]): one for one in behind if one[2] is not None}.values()) == [
        one for one in newest(topic.messages()) if one[2] is not None
    ]
    rows = topic.frame(readCompacted="true", includeHeaders="true", includeMetadata="true")
    plain = {
        (row.partition, row.offset): row for row in topic.frame(includeHeaders="true").collect()
    }
    for row in rows.collect():
        original = plain[row.partition, row.offset]
        assert (row.headers, row.timestamp) == (original.headers, original.timestamp)


def test_a_stream_begins_with_the_view_and_goes_on_with_every_message(
    topic: Topic, spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(9)
    topic.publish(some(rng, 200, keys=20))
    topic.compact()
    expected = newest(topic.messages())

    def read() -> list[Message]:
        stream = spark.readStream.format("octavo").option("service", topic.service)
        options = {
            "subscribe": topic.name, "readCompacted": "true", "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "10",
        }  # fmt: skip
        query = (
            stream.options(**options).load().writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        assert query.awaitTermination(600)
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted((row.partition, row.offset, row.key, row.value) for row in rows)

    assert read() == expected, "all of the view at once, whatever bounds a batch"
    topic.publish([(b"k1", b"%d" % number) for number in range(25)])
    behind = [one for one in topic.messages() if (one[2], one[3]) in {
        (b"k1", b"%d" % number) for number in range(25)
    }]  # fmt: skip
    topic.compact()
    assert read() == sorted(expected + behind), "a newer view is not for who is amid the topic"


def test_tombstones_stay_for_one_view_and_until_they_are_old(topic: Topic) -> None:
    old_ms = wall_clock_ms() - 2 * DAY_MS
    topic.publish([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], time_ms=old_ms)
    topic.publish([(b"a", None)], time_ms=old_ms)
    topic.publish([(b"b", None)])
    assert topic.compact().summary["tombstones_kept"] == 2
    by_key = {one[2]: one[3] for one in topic.messages(readCompacted="true")}
    assert by_key == {b"a": None, b"b": None, b"c": b"3"}
    again = topic.compact()
    assert again.summary["messages_new"] == 0
    assert again.summary["tombstones_kept"] in (0, 1), "b's, if its partition was due"
    by_key = {one[2]: one[3] for one in topic.messages(readCompacted="true")}
    assert by_key == {b"b": None, b"c": b"3"}
    assert topic.compact().summary["partitions_up_to_date"] == 2
    topic.compact(tombstones_ms=0)
    by_key = {one[2]: one[3] for one in topic.messages(readCompacted="true")}
    assert by_key == {b"c": b"3"}


def test_messages_without_a_key_can_be_left_out(topic: Topic) -> None:
    topic.publish([(None, b"x"), (b"a", b"1"), (None, b"y"), (b"a", b"2")])
    topic.compact(keyless=False)
    assert [one[2:] for one in topic.messages(readCompacted="true")] == [(b"a", b"2")]
    shown = octavo("consume", topic.name, "--compacted", "--json", "--url", topic.service)
    assert [json.loads(line)["value"] for line in shown.stdout.splitlines()] == [2], shown.stderr


def test_killed_before_it_publishes(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.publish(some(random.Random(1), 100, keys=10))
    topic.compact()
    before, kept = topic.views(), topic.messages(readCompacted="true")
    topic.publish([(b"k1", b"newer"), (b"z", b"z")])
    known = ledgers_of_kind(topic.service)

    async def killed(*_: Any, **__: Any) -> None:
        raise ConnectionAbortedError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(compact_job._Compact, "_publish_one", killed)
        with pytest.raises(ConnectionAbortedError):
            topic.compact()
    orphans = ledgers_of_kind(topic.service) - known
    assert orphans, "all was written"
    views = topic.views()
    for number, view in views.items():
        was = before[number]
        assert view is not None
        assert was is not None
        assert (view.horizon, view.ledgers) == (was.horizon, was.ledgers), "the old view stands"
    assert any(view is not None and view.run is not None for view in views.values())
    assert sound(topic), "ledgers of a run that may still publish are no orphans"
    by_key = {one[2]: one[3] for one in topic.messages(readCompacted="true") if one[2]}
    assert by_key == {one[2]: one[3] for one in topic.messages() if one[2]}
    assert len(topic.messages(readCompacted="true")) == len(kept) + 2

    collected = gc(topic.service, lambda _: None, grace_ms=DAY_MS, dry_run=False)
    assert collected.summary["compacted_ledgers"] == 0, "it may still be under way"
    dry = gc(topic.service, lambda _: None, grace_ms=0, dry_run=True)
    assert dry.summary["compacted_ledgers"] >= len(orphans)
    assert orphans <= ledgers_of_kind(topic.service)
    gc(topic.service, lambda _: None, grace_ms=0, dry_run=False)
    left = ledgers_of_kind(topic.service)
    assert not orphans & left
    assert {i for view in topic.views().values() if view for i in _named(view)} <= left
    assert all(view is not None and view.run is None for view in topic.views().values())
    topic.compact()
    assert topic.messages(readCompacted="true") == newest(topic.messages())
    assert sound(topic)


def _named(view: CompactionRecord) -> list[int]:
    from octavo.metadata.topics import PartitionRecord

    return compacted_ledgers(PartitionRecord(compaction=view))


def test_of_two_runs_at_once_the_later_one_publishes(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.publish(some(random.Random(2), 100, keys=10))
    publish = compact_job._Compact._publish
    inner: list[Outcome] = []

    async def late(self: Any, *given: Any) -> None:
        if not inner:
            inner.append(Outcome("begun"))
            inner.append(await asyncio.to_thread(topic.compact))
        await publish(self, *given)

    monkeypatch.setattr(compact_job._Compact, "_publish", late)
    first = topic.compact()
    assert inner[1].summary["partitions_compacted"] == 2
    assert first.summary["partitions_compacted"] == 0
    assert topic.messages(readCompacted="true") == newest(topic.messages())


def test_a_replaced_view_stays_for_its_readers_and_then_goes(topic: Topic) -> None:
    topic.publish(some(random.Random(3), 100, keys=5))
    topic.compact()
    old = {i for view in topic.views().values() if view for i in _named(view)}
    planned = topic.frame(readCompacted="true", columns="partition,offset,key,value")
    rows = planned.rdd
    assert rows.getNumPartitions() > 0
    expected = newest(topic.messages())
    topic.publish([(b"k1", b"1"), (b"k2", b"1"), (b"k3", b"1"), (b"k4", b"1"), (b"k0", b"1")])
    topic.compact()
    assert old <= ledgers_of_kind(topic.service)
    found = sorted((row.partition, row.offset, row.key, row.value) for row in rows.collect())
    assert found == expected
    assert topic.compact(grace_ms=0).summary["ledgers_deleted"] == len(old)
    assert not old & ledgers_of_kind(topic.service)
    assert topic.messages(readCompacted="true") == newest(topic.messages())


def test_a_deleted_topic_takes_its_view_with_it(topic: Topic, client: Client) -> None:
    topic.publish(some(random.Random(4), 60, keys=5))
    topic.compact()
    topic.publish([(b"k1", b"1")])
    topic.compact()
    mine = {i for view in topic.views().values() if view for i in _named(view)}
    assert mine <= ledgers_of_kind(topic.service)
    client.delete_topic(topic.name)
    assert not mine & ledgers_of_kind(topic.service)


def test_what_a_reader_may_not_ask_for(topic: Topic) -> None:
    topic.publish(some(random.Random(6), 60, keys=5))
    dry = topic.job(partial(compact, options=CompactOptions(topic.selection, dry_run=True)))
    assert dry.summary["messages_kept"] == len(newest(topic.messages()))
    assert topic.views() == {0: None, 1: None}, "nothing was written"
    topic.compact()
    ends = json.dumps({topic.name: {"0": 1, "1": 1}})
    amid = reader_of(topic.service, subscribe=topic.name, readCompacted="true", endingOffsets=ends)
    with pytest.raises(InvalidOption, match="is compacted up to offset"):
        amid.partitions()


def test_usage_is_told_without_spark(service: str) -> None:
    wrong = octavo("pipeline", "compact", "--url", service)
    assert (wrong.returncode, "select topics" in wrong.stderr) == (2, True)


def test_a_view_of_append_times_has_them(topic: Topic) -> None:
    topic.client.publish(topic.name, "as its producer says", key="first", timestamp_ms=5)
    begun_ms = wall_clock_ms()
    topic.client.set_topic_policies(topic.name, message_time="append")
    for number in range(2):
        while True:
            switch = topic.client.publish(
                topic.name, "x", key="switch", partition=number, timestamp_ms=6
            )
            read = topic.client.messages(topic.name, partition=number, start=switch.offset)
            if next(iter(read)).timestamp_ms >= begun_ms:
                break
    topic.publish([(b"k%d" % (n % 5), b"v%d" % n) for n in range(40)], time_ms=7)

    def times(**options: Any) -> dict[tuple[int, int], int]:
        rows = topic.frame(columns="partition,offset,timestamp", **options).collect()
        return {(row.partition, row.offset): _ms(row.timestamp) for row in rows}

    def over_http() -> dict[tuple[int, int], int]:
        return {
            (number, one.offset): one.timestamp_ms
            for number in range(2)
            for one in topic.client.messages(topic.name, partition=number, compacted=True)
        }

    stored = times()
    assert topic.compact().exit is Exit.OK
    view = times(readCompacted="true")
    assert len(view) == 8
    assert view.items() <= stored.items(), "each time as it is in the topic"
    assert over_http() == view
    first, *others = sorted(view.values())
    assert first == 5, "of a ledger from before"
    assert begun_ms <= min(others) <= max(others) <= wall_clock_ms()
    # A view of the view keeps them, and tombstones are as old as they are stored.
    topic.publish([(b"k0", None), (b"k1", b"new")], time_ms=9)
    stored = times()
    assert topic.compact(tombstones_ms=DAY_MS).exit is Exit.OK
    again = times(readCompacted="true")
    assert len(again) == 8, "the tombstone is of now, not of 1970"
    assert again.items() <= stored.items()
    assert over_http() == again


def _ms(when: datetime) -> int:
    return int(when.astimezone(UTC).timestamp() * 1000)
