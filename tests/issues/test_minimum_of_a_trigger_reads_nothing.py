"""`minOffsetsPerTrigger` alone did nothing; with a maximum, AvailableNow ended with 0 of 20 rows.

Now as in Kafka's source: a micro-batch waits for so many rows, at most `maxTriggerDelay` after the
one before; the first does not wait, nor does what AvailableNow found when it began. Found from
outside. The option had been tested as text, and in no query.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import InvalidOption, source_options
from octavo.spark.source import OctavoStreamReader
from octavo.spark.splits import Minimum
from tests.support.published import seen_by_readers
from tests.support.spark_place import ROWS, WHOLE, Place, running_place

pytestmark = pytest.mark.timeout(600)
MORE = str(2 * len(WHOLE))
"""A minimum that is not met."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path) as found:
        yield found


def stream_of(place: Place, **given: str) -> OctavoStreamReader:
    asked = {"service": place.service, "subscribe": "flights", "startingOffsets": "earliest"}
    options = source_options({**asked, **given}, streaming=True)
    return OctavoStreamReader(options, checked_schema(schema_of(options), options))


async def batches(stream: OctavoStreamReader, *, now: bool) -> list[int]:
    """The sizes of the micro-batches, as Spark asks for them, until there is no new offset."""

    def all_of_them() -> list[int]:
        if now:
            stream.prepareForTriggerAvailableNow()
        begin = stream.initialOffset()
        sizes = []
        while (end := stream.latestOffset(begin, stream.getDefaultReadLimit())) != begin:
            sizes.append(sum_of(end) - sum_of(begin))
            begin = end
        return sizes

    try:
        return await asyncio.to_thread(all_of_them)
    finally:
        await asyncio.to_thread(stream.stop)


def sum_of(offsets: dict[str, Any]) -> int:
    (by_partition,) = offsets.values()
    return int(by_partition["0"])


async def test_available_now_reads_to_its_end(place: Place) -> None:
    both = stream_of(place, minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    assert await batches(both, now=True) == [100, 100, len(WHOLE) - 200]
    alone = stream_of(place, minOffsetsPerTrigger=MORE)
    assert await batches(alone, now=True) == [len(WHOLE)]


async def test_the_first_does_not_wait_and_the_next_does(place: Place) -> None:
    stream = stream_of(place, minOffsetsPerTrigger="15")

    def step(begin: dict[str, Any]) -> dict[str, Any]:
        return stream.latestOffset(begin, stream.getDefaultReadLimit())

    try:
        begin = await asyncio.to_thread(stream.initialOffset)
        end = await asyncio.to_thread(step, begin)
        assert sum_of(end) == len(WHOLE)
        for due in (False, True):
            seen = seen_by_readers(place.service, "flights", ROWS)
            await asyncio.to_thread(seen.__enter__)
            await place.publish(100, 1)
            await asyncio.to_thread(seen.__exit__, None, None, None)
            reached = await asyncio.to_thread(step, end)
            assert (reached != end) is due, "10 rows are too few, 20 are not"
            everything = await asyncio.to_thread(stream.latestOffset, end, ReadAllAvailable())
            assert sum_of(everything) > sum_of(end), "Trigger.Once takes what there is"
    finally:
        await asyncio.to_thread(stream.stop)


async def test_a_bound_is_what_spark_is_told(place: Place) -> None:
    assert stream_of(place, minOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMinRows(7)
    both = stream_of(place, minOffsetsPerTrigger="7", maxOffsetsPerTrigger="9")
    assert both.getDefaultReadLimit() == ReadMaxRows(9)
    with pytest.raises(InvalidOption, match="is 9, above maxOffsetsPerTrigger, 7"):
        stream_of(place, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="7")


def test_a_delay_counts_from_the_batch_before() -> None:
    minimum = Minimum(10, 1000)
    asked = [(0, 5), (100, 5), (999, 9), (1000, 1), (1500, 9), (1600, 10), (2599, 9), (2600, 9)]
    met = [now for now, rows in asked if minimum.is_met(rows, now)]
    assert met == [0, 1000, 1600, 2600]
    assert all(Minimum(None, 1000).is_met(0, now) for now in range(3)), "without one: always"
