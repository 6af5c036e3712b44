"""Append times in Spark, without a JVM: from bookies, from objects, through a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.metadata.topics import Policies
from octavo.protocol.records import open_batch
from octavo.spark.served import served
from octavo.spark.splits import Piece
from tests.spark.test_offload import COPY, DROP, gone_from_bookies, offloaded
from tests.support.cluster import batch, make_topic, owned, running_cluster, until
from tests.support.spark_place import Place

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
APPEND = Policies(message_time="append")
BEGUN_MS = 1_700_000_000_000
WANTED = [BEGUN_MS + 1_000 * n for n in range(10) for _ in range(3)]


async def rows(place: Place, **options: str) -> list[tuple[int, int]]:
    reader, splits = await place.planned(columns="timestamp,timestampType,offset", **options)
    found: list[tuple[int, int]] = []
    for split in splits:
        for some in await asyncio.to_thread(list, reader.read(split)):
            times = some.column("timestamp").cast("int64").to_pylist()
            found += zip(times, some.column("timestampType").to_pylist(), strict=True)
    return [(time_us // 1000, kind) for time_us, kind in found]


async def test_bookies_objects_and_lookups_agree(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", session_timeout_ms=60_000) as cluster:
        running = await cluster.start("A", tail_cache_bytes_max=1)
        name = await make_topic(running.broker, rollover_entries=4, policies=APPEND)
        place = Place(cluster, running, name)
        partition = await owned(running.broker, name)
        for number in range(10):
            await partition.publish(batch(3, time_ms=5))
            ledgers = number // 4 + (2 if number % 4 == 3 else 1)
            await until(lambda n=ledgers: len(partition.ledgers) == n, "a new ledger", 60)
            cluster.clock.now_ms += 1_000
        wanted = [(time_ms, 1) for time_ms in WANTED]
        async with asyncio.timeout(30):
            while len(await rows(place)) < len(wanted):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await rows(place) == wanted
        assert await rows(place, maxRecordsPerPartition="2") == wanted
        for number in (0, 3, 4, 9):
            asked = {"startingTimestamp": str(BEGUN_MS + 1_000 * number - 1)}
            assert await rows(place, **asked) == wanted[3 * number :], number
        await offloaded(place, tmp_path / "out", COPY)
        assert await rows(place, readFrom="offload") == wanted
        await offloaded(place, tmp_path / "out", DROP)
        assert len(await gone_from_bookies(place)) == 2
        assert await rows(place) == wanted
        for number in (0, 3, 4, 9):
            time_ms = BEGUN_MS + 1_000 * number
            assert await rows(place, startingTimestamp=str(time_ms)) == wanted[3 * number :]
            assert await partition.offset_at(time_ms) == 3 * number
            assert await partition.offset_at(time_ms + 1) == min(3 * number + 3, 30)
        found = [
            one.header.max_timestamp
            for one in await partition.read(0, bytes_max=10**6, count_max=10**4)
        ]
        assert found == [BEGUN_MS + 1_000 * n for n in range(len(found))]


async def test_through_a_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        body = {"message_time": "append"}
        assert (await cluster.api.put("/v1/topics/public/t", json=body)).status == 201
        for number in range(3):
            answer = await cluster.api.post(
                "/v1/topics/public/t/messages", json={"value": number, "timestamp": 5}
            )
            assert answer.status == 200
        answer = await cluster.api.get("/v1/topics/public/t/messages")
        wanted = [one["timestamp"] for one in answer.json()["messages"]]
        assert min(wanted) > BEGUN_MS
        piece = Piece("public/t", 0, 0, 0, 0, 3)
        found = []
        async for batches in served(cluster.api.url, piece):
            for one in batches:
                assert one.header.attributes & 8
                found += [record.timestamp for record in open_batch(one.data)]
        assert found == wanted
