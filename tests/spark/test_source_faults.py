"""The Spark source when its ledgers go, break or move: planned and read without a JVM, by the
objects of Spark's driver and tasks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo import Client
from octavo.broker.types import TopicSettings
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT, Fragment, LedgerMetadata, LedgerState
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.topic_records import encode_record
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicRecord, TopicStore
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import DigestType
from octavo.spark import reading, stored
from octavo.spark.cluster import Cluster as SparkCluster
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import InvalidOption, source_options
from octavo.spark.planning import planned, views_of
from octavo.spark.readers import OctavoReader, OctavoStreamReader
from octavo.spark.reading import Split
from octavo.spark.splits import DataLost, ends_of
from tests.spark.test_source import publish
from tests.support.cluster import TOPIC, owned
from tests.support.spark_place import ROWS, WHOLE, Place, reader_of, running_place, values_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path) as made:
        yield made


class Halfway:
    def __init__(self, reader: OctavoReader, split: Split) -> None:
        self._rows: Iterator[Any] = reader.read(split)

    async def first(self) -> list[str]:
        return values_of([await asyncio.to_thread(next, self._rows)])

    async def rest(self) -> list[str]:
        return values_of(await asyncio.to_thread(list, self._rows))


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ROWS_MAX", ROWS)
    monkeypatch.setattr(stored, "_PAUSE_S", 0.01)


async def trim(place: Place) -> int:
    partition = await owned(place.broker, place.name)
    before = {ledger_id for ledger_id, _ in partition.ledgers}
    await place.broker.topics.update(TOPIC, TopicSettings(rollover_entries=4, retention_bytes=1))
    await partition.maintain()
    stats = await partition.stats()
    assert stats.earliest_offset > 0
    for ledger_id in before - {ledger_id for ledger_id, _ in stats.ledgers}:
        await place.forget(ledger_id)
    return stats.earliest_offset


@pytest.mark.usefixtures("small_pages")
async def test_a_ledger_trimmed_under_a_running_query(place: Place) -> None:
    reader, (split,) = await place.planned()
    query = Halfway(reader, split)
    assert await query.first() == WHOLE[:ROWS]
    earliest = await trim(place)
    with pytest.raises(DataLost) as lost:
        await query.rest()
    said = str(lost.value)
    assert "topic public/flights partition 0" in said
    assert f"were trimmed by retention; the earliest is {earliest}" in said
    assert "failOnDataLoss=false" in said


@pytest.mark.usefixtures("small_pages")
async def test_without_fail_on_data_loss_what_is_left_is_read(place: Place) -> None:
    reader, (split,) = await place.planned(failOnDataLoss="false")
    query = Halfway(reader, split)
    first = await query.first()
    earliest = await trim(place)
    rest = await query.rest()
    assert rest[-(len(WHOLE) - earliest) :] == WHOLE[earliest:]
    assert [*first, *rest] == WHOLE[: len(first) + len(rest) - len(WHOLE[earliest:])] + WHOLE[
        earliest:
    ], "each at most once, in order"


@pytest.mark.usefixtures("small_pages")
async def test_a_topic_deleted_under_a_running_query(place: Place) -> None:
    reader, (split,) = await place.planned()
    query = Halfway(reader, split)
    await query.first()
    ledgers = {part.ledger_id for part in split.parts}
    await place.broker.topics.delete(TOPIC)
    for ledger_id in ledgers:
        await place.forget(ledger_id)
    with pytest.raises(DataLost, match=r"topic public/flights partition 0: .* was deleted"):
        await query.rest()


async def test_a_stream_on_a_deleted_topic_says_so(place: Place) -> None:
    given = {"service": place.service, "subscribe": "flights", "startingOffsets": "earliest"}
    options = source_options(given, streaming=True)
    stream = OctavoStreamReader(options, checked_schema(schema_of(options), options))
    try:
        begin = await asyncio.to_thread(stream.initialOffset)
        limit = stream.getDefaultReadLimit()
        end = await asyncio.to_thread(stream.latestOffset, begin, limit)
        incarnation = (await place.broker.topics.get(TOPIC)).incarnation
        assert end == {"public/flights": {"0": len(WHOLE), "incarnation": incarnation}}
        await place.broker.topics.delete(TOPIC)
        with pytest.raises(Exception, match="there is no topic public/flights"):
            await asyncio.to_thread(stream.latestOffset, begin, limit)
        with pytest.raises(DataLost, match="was deleted"):
            await asyncio.to_thread(stream.partitions, begin, end)
    finally:
        await asyncio.to_thread(stream.stop)


@pytest.mark.usefixtures("small_pages")
async def test_a_bookie_that_goes_while_it_is_read(place: Place) -> None:
    reader, splits = await place.planned(maxRecordsPerPartition="80")
    assert len(splits) == 3
    queries = [Halfway(reader, split) for split in splits]
    found = [await query.first() for query in queries]
    await place.cluster.stop_bookie("b2")
    for number, query in enumerate(queries):
        found[number] += await query.rest()
    assert list(itertools.chain(*found)) == WHOLE


def flips_bits(node: Any) -> None:
    """Flip one bit in this bookie's reads: a fault of the disk that the bookie's checks miss."""
    storage = node.storage
    read, read_many = storage.reads.read, storage.reads.read_many

    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    async def damaged_read(*where: int, **how: bool) -> bytes:
        return flip(await read(*where, **how))

    async def damaged_read_many(*where: int, **how: bool) -> list[bytes]:
        return [flip(data) for data in await read_many(*where, **how)]

    storage.reads.read, storage.reads.read_many = damaged_read, damaged_read_many
    storage.reads.read_now = lambda *_: None


async def test_a_replica_with_a_flipped_bit_is_passed_over_and_told(place: Place) -> None:
    flips_bits(place.cluster.nodes["b1"])
    flips_bits(place.cluster.nodes["b3"])
    reader, splits = await place.planned(maxRecordsPerPartition="40")
    with capture_logs() as logs:
        found = [await asyncio.to_thread(list, reader.read(split)) for split in splits]
    assert list(itertools.chain(*map(values_of, found))) == WHOLE
    told = [log for log in logs if log["event"] == "replica_damaged"]
    assert {log["log_level"] for log in told} == {"warning"}
    assert {log["bookie"] for log in told} <= {"b1", "b3"}
    assert all("digest does not match" in log["reason"] for log in told)


async def test_every_replica_damaged_is_an_error_not_silence(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_PAUSE_S", 0.01)
    for node in place.cluster.nodes.values():
        flips_bits(node)
    reader = reader_of(place.service, endingOffsets='{"flights": {"0": 20}}')
    (split,) = await asyncio.to_thread(reader.partitions)
    with pytest.raises(Exception, match="no replica returned it"):
        await asyncio.to_thread(list, reader.read(split))


@pytest.mark.usefixtures("small_pages")
async def test_a_ledger_replaced_by_a_copy_under_a_running_query(place: Place) -> None:
    """As when small ledgers are merged, or a ledger is written again elsewhere."""
    reader, (split,) = await place.planned()
    query = Halfway(reader, split)
    first = await query.first()
    topics = TopicStore(place.cluster.store)
    record, version = await topics.read_partition(*place.name)
    old = [link for link in record.ledgers if link.count is not None][-1].ledger_id
    client = await place.cluster.client()
    copy = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    for payload in await read_all(client, old):
        await copy.append(payload)
    await copy.close()
    links = tuple(
        replace(link, ledger_id=copy.ledger_id) if link.ledger_id == old else link
        for link in record.ledgers
    )
    await topics.write_partition(*place.name, replace(record, ledgers=links), version)
    await client.delete(old)
    await place.forget(old)
    assert [*first, *await query.rest()] == WHOLE


async def read_all(client: Any, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    found = await reader.read(0, reader.last_add_confirmed)
    await reader.close()
    return [bytes(entry.payload) for entry in found]


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("http://127.0.0.1:1", "no broker answers at http://127.0.0.1:1"),
        ("zk://127.0.0.1:1", "no ZooKeeper"),
        ("file:///nix/metadata.db", "/nix/metadata.db"),
        ("flights", "flights"),
    ],
)
def test_no_cluster_is_said(service: str, said: str) -> None:
    with pytest.raises(OctavoError, match=said):
        reader_of(service).partitions()


def test_the_same_rows_through_a_broker(service: str) -> None:
    columns = "value,key,partition,offset,timestamp,ledger,index,producer,sequence"
    with Client(service) as client:
        client.create_topic("served", partitions=2, rollover={"entries": 2})
        publish(client, service, "served", range(300))
    found = []
    for read_from in ("bookies", "broker"):
        reader = reader_of(
            service,
            subscribe="served",
            columns=columns,
            readFrom=read_from,
            maxRecordsPerPartition="70",
        )
        rows = [some.to_pylist() for split in reader.partitions() for some in reader.read(split)]
        found.append(
            sorted(itertools.chain(*rows), key=lambda row: (row["partition"], row["offset"]))
        )
    assert len(found[0]) == 300
    assert found[0] == found[1]
    with pytest.raises(InvalidOption, match="column entry cannot be read with readFrom=broker"):
        reader_of(service, subscribe="served", columns="value,entry", readFrom="broker")


LEDGERS = 10_000


async def test_ten_thousand_small_ledgers_are_planned_in_seconds(
    record_property: Callable[[str, object], None],
) -> None:
    """Planned against a store whose every read takes 5 ms."""
    store = far_store()
    cluster = SparkCluster(store)
    await cluster.start()
    options = source_options({"service": "file:///x", "subscribe": "many"}, streaming=False)
    try:
        started = time.monotonic()
        wanted = await cluster.partitions(options.selection)
        views = await views_of(cluster, wanted)
        splits = await planned(cluster, options, views, {}, ends_of(views))
        took_s = time.monotonic() - started
    finally:
        await cluster.close()
    record_property("took_s", took_s)
    print(f"10,000 ledgers: {len(splits)} splits planned in {took_s:.1f} s")
    parts = [part for split in splits for part in split.parts]
    assert len(parts) == LEDGERS
    assert sum(part.end - part.start for part in parts) == 2 * LEDGERS
    for split in splits:
        assert {f"/L{part.ledger_id % 10_000:04d}" for part in split.parts} <= {
            path[path.rindex("/") :] for path in split.records
        }
    assert len(splits) < 50, "small ledgers share splits"
    assert store.at_once_max > 16, "records are read together"
    assert store.at_once_max <= 64, "but not all at once"


class FarStore(SnapshotStore):
    at_once = at_once_max = 0

    async def get(self, path: str) -> Any:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await asyncio.sleep(0.005)
            return await super().get(path)
        finally:
            self.at_once -= 1


def far_store() -> FarStore:
    each = LEDGERS // 4
    records = {
        "/octavo/topics/public/many": encode_record(TopicRecord(StoredSettings(partitions=4)))
    }
    for partition in range(4):
        links = tuple(
            PartitionLedger(partition * each + number, 2 * number, 2, 200, 1, 2, 3)
            for number in range(each)
        )
        records[f"/octavo/topics/public/many/partitions/{partition}"] = encode_record(
            PartitionRecord(links)
        )
    for ledger_id in range(LEDGERS):
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            fragments=(Fragment(0, ("b1", "b2", "b3")),),
            state=LedgerState.CLOSED,
            last_entry=0,
            length=200,
            digest_type=DigestType.CRC32C,
        )
        records[ledger_path(LEDGERS_ROOT, ledger_id)] = encode_ledger_metadata(metadata)
    return FarStore(records, "far")
