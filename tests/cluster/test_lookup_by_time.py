"""Offsets are looked up by time."""

from __future__ import annotations

import io
import random
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.ledger_list import Contents
from octavo.broker.log.reader import LogReader
from octavo.broker.partition.partition import Partition
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.offload.format import GROUP_ENTRIES_MAX, About, ObjectFile, ObjectWriter
from octavo.ledger.offload.offloaded import OffloadedReader
from octavo.ledger.read.entry_source import DISORDER_UNKNOWN, EntrySource
from octavo.ledger.read.open_batch import open_batch, opening
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.metadata.topics import TopicStore
from octavo.protocol.batch import HEADER, check_batch, read_header, with_base_offset
from octavo.protocol.compression import Compression
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch, build_gapped_batch, read_gapped_records
from octavo.spark.cluster import connected
from tests.support.cluster import Cluster, make_topic, owned, running_cluster, until
from tests.support.cluster import batch as meanwhile_batch
from tests.support.cluster import batch as trim_batch
from tests.support.compacted_views import write_view

# The search halved by the batches' timestamps as if they ascended, so lookups were wrong where
# they do not. The rule is Kafka's: the first offset whose message has that timestamp or a newer
# one.

TIMES = (100, 10, 110, 20, 120, 30)
times = st.lists(
    st.lists(st.integers(0, 60) | st.just(10**13), min_size=1, max_size=4), max_size=14
)


def model(batches: list[list[int]], time_ms: int) -> int | None:
    flat = [one for batch in batches for one in batch]
    return next((offset for offset, one in enumerate(flat) if one >= time_ms), None)


def stored(batches: list[list[int]]) -> list[Entry]:
    found, base = [], 0
    for number, batch in enumerate(batches):
        made = build_batch([Record(b"k", b"v", (), time_ms) for time_ms in batch])
        found.append(Entry(1, number, number - 1, 0, with_base_offset(made, base)))
        base += len(batch)
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


@given(times, st.integers(-2, 62))
async def test_the_first_offset_that_is_as_new(batches: list[list[int]], time_ms: int) -> None:
    entries = stored(batches)
    expected = model(batches, time_ms)
    last = len(entries) - 1
    for disorder_ms in (DISORDER_UNKNOWN, contents_of(entries).disorder_ms):
        assert (
            await offset_as_new_as(Ledger(entries), time_ms, last, disorder_ms, opening) == expected
        )


@given(times.filter(bool), st.integers(-2, 62))
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
        await partition.publish(trim_batch(1, time_ms=1_000))
        log: Any = partition._log
        look, looked = log._offset_in, 0
        stored: list[int] = []

        async def slow(link: Any, time_ms: int, least: int) -> int | None:
            nonlocal looked
            looked += 1
            if looked > 1:
                found: int | None = await look(link, time_ms, least)
                return found
            await partition.publish(trim_batch(1, time_ms=2_000))
            await until(lambda: link.ledger_id not in dict(partition.ledgers[-1:]), "rolled over")
            await partition.maintain()
            assert link.ledger_id not in dict(partition.ledgers)
            stored.append((await partition.publish(trim_batch(1, time_ms=5_000))).first_offset)
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
            await partition.publish(trim_batch(1, time_ms=time_ms))
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
    await partition.publish(meanwhile_batch(tag="new", time_ms=9_000))
    await partition.publish(meanwhile_batch(tag="old", time_ms=1_000))
    search = LogReader.offset_at

    async def slow(self: LogReader, *args: Any) -> int | None:
        found = await search(self, *args)
        await partition.publish(meanwhile_batch(tag="meanwhile", time_ms=8_000))
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
