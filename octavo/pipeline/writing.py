"""Rows of a job into a topic, once: by the exactly-once sink, under an id made of what is done.

The same work has the same id, so a job that is run again adds nothing that is there already, also
when it died and nobody knows how far it had come. Ids are forgotten a week after they were used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from octavo.client.types import TopicName
from octavo.metadata.bulk_loads import BulkLoadRecord, BulkLoadStore
from octavo.metadata.topics import TopicSettings, TopicStore
from octavo.pipeline.runner import BadUsage, Run
from octavo.spark.cluster import connected
from octavo.spark.options import InvalidOption, Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Wrote(NamedTuple):
    """What a write has added; `repeated`: nothing, for it was there already."""

    rows: int
    repeated: bool


def id_of(job: str, **what: object) -> str:
    """The id of a piece of work: the same for the same work."""
    text = json.dumps(what, sort_keys=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def target_settings(service: str, topic: str) -> tuple[str, TopicSettings]:
    """The topic's whole name and its settings. Raises `BadUsage` when there is no such topic."""
    name = str(TopicName.of(topic))

    async def read() -> TopicSettings:
        async with connected(service) as cluster:
            await cluster.partitions(Selection(topics=(name,)))
            return (await TopicStore(cluster.store).read_topic(*name.split("/")))[0].settings

    try:
        return name, asyncio.run(read())
    except InvalidOption as error:
        raise BadUsage(f"{error}; octavo topic create {topic} makes it") from error


def was_written(service: str, bulk_load: str) -> bool:
    """Whether all rows of this id are in their topic."""
    record = _record(service, bulk_load)
    return record.batch >= 0 and record.complete


def write_once(run: Run, rows: DataFrame, topic: str, bulk_load: str) -> Wrote:
    """Add the rows, unless the id was used before. `rows` has the columns of the sink."""
    before = _record(run.service, bulk_load)
    options = {"service": run.service, "topic": topic, "bulkLoadId": bulk_load}
    rows.write.format("octavo").options(**options).mode("append").save()
    if before.batch >= 0:  # not complete then; the repeated commit has waited until it was
        return Wrote(0, repeated=True)
    parts = _record(run.service, bulk_load).parts
    written = sum(one.count - (one.pieces or 0) for part in parts for one in part.ledgers)
    return Wrote(written, repeated=False)


def read_only(rows: DataFrame) -> int:
    """Make every row and let go of it; how many there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    rows.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode(
        "overwrite"
    ).save()
    return int(seen.get["rows"])


def _record(service: str, bulk_load: str) -> BulkLoadRecord:
    async def read() -> BulkLoadRecord:
        async with connected(service) as cluster:
            return (await BulkLoadStore(cluster.store).read(bulk_load))[0]

    return asyncio.run(read())
