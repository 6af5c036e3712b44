"""Looked up by time, offsets were wrong wherever timestamps do not ascend.

CreateTime 100, 10, 110, 20 …: who asked for 100 was sent to the end, because the search halved by
the batches' timestamps as if they ascended. The same answer comes now from open, closed and
offloaded ledgers, over HTTP, by seek and from Spark: the first offset whose message has that
timestamp or a newer one, as in Kafka. Tried from outside; every test had times that ascend.
"""

from __future__ import annotations

import io
import random
from collections.abc import AsyncGenerator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.ledger_list import Contents
from octavo.broker.partition.partition import Partition
from octavo.ledger.offload.format import GROUP_ENTRIES_MAX, About, ObjectFile, ObjectWriter
from octavo.ledger.offload.offloaded import OffloadedReader
from octavo.ledger.read.entry_source import DISORDER_UNKNOWN, EntrySource
from octavo.ledger.read.open_batch import opening
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.protocol.batch import HEADER, read_header, with_base_offset
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch
from octavo.spark.cluster import connected
from tests.support.cluster import Cluster, make_topic, owned, running_cluster, until

TIMES = (100, 10, 110, 20, 120, 30)
times = st.lists(
    st.lists(st.integers(0, 60) | st.just(10**13), min_size=1, max_size=4), max_size=14
)


def model(batches: list[list[int]], time_ms: int) -> int | None:
    """Kafka's rule: the first offset whose timestamp is at or after the target."""
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
    """A closed ledger in memory that counts what is read."""

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
    """It says 500, its records say 1: the search goes on behind it."""
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
    """The owner's answer and Spark's."""
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
        # What `from=` and a subscription's seek are resolved by.
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
