"""A Spark stream at offset 20 of a deleted topic took the new one of the name for its own.

With 12 messages in the new topic it gave 0 rows and no error, with 25 it gave 5; a running query
saw 52 of 72. Offsets in checkpoints carry the topic's incarnation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.types import TopicSettings
from octavo.spark.cluster import connected
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import source_options
from octavo.spark.reading import Split
from octavo.spark.source import OctavoStreamReader
from octavo.spark.splits import DataLost
from tests.support.cluster import TOPIC, batch, make_topic, owned, running_cluster
from tests.support.spark_place import Place, values_of


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Twenty messages."""
    async with running_cluster(tmp_path, session_timeout_ms=60_000) as cluster:
        broker = await cluster.start("A")
        name = await make_topic(broker.broker)
        made = Place(cluster, broker, name)
        await publish(made, 20, "old")
        yield made


async def publish(place: Place, count: int, tag: str) -> None:
    partition = await owned(place.broker, place.name)
    await partition.publish(batch(count, tag=tag))
    async with asyncio.timeout(15), connected(place.service) as cluster:
        # What is confirmed, bookies learn a moment later.
        while (await cluster.view(str(TOPIC), 0)).end < partition.next_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def made_anew(place: Place, count: int) -> None:
    await place.broker.topics.delete(TOPIC)
    await place.broker.topics.create(TOPIC, TopicSettings())
    await publish(place, count, "new")


class Stream:
    """What Spark's driver and tasks call."""

    def __init__(self, place: Place, **given: str) -> None:
        options = source_options(
            {
                "service": place.service, "subscribe": "flights", "columns": "value,offset",
                "startingOffsets": "earliest", **given,
            },
            streaming=True,
        )  # fmt: skip
        self.reader = OctavoStreamReader(options, checked_schema(schema_of(options), options))

    async def first(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.reader.initialOffset)

    async def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit()
        found = await asyncio.to_thread(self.reader.latestOffset, start, limit)
        return json.loads(json.dumps(found))  # as a checkpoint keeps it

    async def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        def read() -> list[str]:
            splits = self.reader.partitions(start, end)
            return [one for split in splits for one in values_of(list(self.reader.read(split)))]

        return await asyncio.to_thread(read)

    async def stop(self) -> None:
        await asyncio.to_thread(self.reader.stop)


@pytest.mark.parametrize("count", [12, 25])
async def test_it_fails_and_says_why(place: Place, count: int) -> None:
    stream = Stream(place)
    try:
        begin = await stream.first()
        seen = await stream.latest(begin)
        assert len(await stream.rows(begin, seen)) == 20
        await made_anew(place, count)
        with pytest.raises(DataLost, match="deleted and created again; it was at offset 20"):
            await stream.latest(seen)
        with pytest.raises(DataLost, match="deleted and created again"):
            await stream.rows(begin, seen)  # a batch that was planned before and not committed
    finally:
        await stream.stop()


@pytest.mark.parametrize("count", [12, 25])
async def test_without_fail_on_data_loss_it_begins_anew(place: Place, count: int) -> None:
    stream = Stream(place, failOnDataLoss="false")
    try:
        begin = await stream.first()
        seen = await stream.latest(begin)
        await made_anew(place, count)
        after = await stream.latest(seen)
        assert await stream.rows(seen, after) == [f"new-{n}" for n in range(count)]
        assert await stream.rows(begin, seen) == [], "nothing is left of the old one"
        await publish(place, 7, "more")
        more = await stream.latest(after)
        assert await stream.rows(after, more) == [f"more-{n}" for n in range(7)]
    finally:
        await stream.stop()


async def test_a_checkpoint_of_an_older_version_is_read(place: Place) -> None:
    stream = Stream(place)
    try:
        old = {"public/flights": {"0": 15}}
        after = await stream.latest(old)
        assert await stream.rows(old, after) == [f"old-{n}" for n in range(15, 20)]
        assert await stream.rows(old, {"public/flights": {"0": 18}}) == [
            "old-15",
            "old-16",
            "old-17",
        ]
    finally:
        await stream.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_a_batch_read_that_was_planned_before(
    place: Place, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.spark.reading._PAUSE_S", 0.01)
    async with asyncio.timeout(15):
        while True:
            reader, splits = await place.planned(failOnDataLoss=fail)
            if sum(piece.end - piece.start for split in splits for piece in split.parts) == 20:
                break
    ledgers = [piece.ledger_id for split in splits for piece in split.parts]
    await made_anew(place, 25)
    for ledger_id in ledgers:
        await place.forget(ledger_id)

    def read(split: Split) -> list[str]:
        return values_of(list(reader.read(split)))

    if fail == "false":
        assert [await asyncio.to_thread(read, split) for split in splits] == [[]]
    else:
        with pytest.raises(DataLost, match="deleted and created again"):
            await asyncio.to_thread(read, splits[0])
