"""A batch that starts behind the end of its topic had no rows, and no error.

So a query of offsets that a topic does not have any more, made again as it was, seemed to be done.
Now it is lost data, named, as it would be to Kafka's source, or passed over with
`failOnDataLoss=false`. Bounds that are the wrong way round are refused. Found from outside.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.broker.types import TopicName, TopicSettings
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.runner import run_job
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import InvalidOption, source_options
from octavo.spark.source import OctavoStreamReader
from octavo.spark.splits import DataLost
from tests.support.spark_place import WHOLE, Place, running_place

pytestmark = pytest.mark.timeout(600)
END = len(WHOLE)
SAID = rf"public/flights partition 0: .* offset {END + 1}, but the partition ends at {END}"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path) as found:
        yield found


def at(offset: int) -> str:
    return json.dumps({"flights": {"0": offset}})


async def test_a_batch(place: Place) -> None:
    with pytest.raises(DataLost, match=SAID):
        await place.planned(startingOffsets=at(END + 1))
    for start, options in ((END, {}), (END + 1, {"failOnDataLoss": "false"})):
        _, splits = await place.planned(startingOffsets=at(start), **options)
        assert not any(split.parts for split in splits), "at the end there is nothing, and no error"


async def test_a_stream(place: Place) -> None:
    def initial(**given: str) -> dict[str, object]:
        asked = {"service": place.service, "subscribe": "flights", **given}
        options = source_options(asked, streaming=True)
        stream = OctavoStreamReader(options, checked_schema(schema_of(options), options))
        try:
            return stream.initialOffset()
        finally:
            stream.stop()

    with pytest.raises(DataLost, match=SAID):
        await asyncio.to_thread(initial, startingOffsets=at(END + 1))
    given = {"startingOffsets": at(END + 1), "failOnDataLoss": "false"}
    begin = await asyncio.to_thread(partial(initial, **given))
    assert f'"0": {END}' in json.dumps(begin)


async def test_bounds_that_are_the_wrong_way_round(place: Place) -> None:
    with pytest.raises(InvalidOption, match="starting offset 9 is after the ending offset 3"):
        await place.planned(startingOffsets=at(9), endingOffsets=at(3))
    with pytest.raises(
        InvalidOption, match=r"startingTimestamp \(9\) is after endingTimestamp \(3\)"
    ):
        await place.planned(startingTimestamp="9", endingTimestamp="3")
    _, splits = await place.planned(startingOffsets=at(9), endingOffsets=at(9))
    assert not any(split.parts for split in splits)


async def test_a_replay(place: Place) -> None:
    await place.broker.topics.create(TopicName("public", "again"), TopicSettings(partitions=1))
    options = ReplayOptions("flights", "again", {"startingOffsets": at(END + 1)})
    work = partial(replay, options=options)
    with pytest.raises(DataLost, match=SAID):
        await asyncio.to_thread(run_job, "replay", work, service=place.service, say=print)
