"""Write rows into a topic exactly once, with an id made from the work itself.

A repeated job adds no row twice, even if it died at an unknown point. The cluster forgets an id a
week after its last use.
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
    """The number of rows added. `repeated`: none, because they were there already."""

    rows: int
    repeated: bool


def id_of(job: str, **what: object) -> str:
    text = json.dumps(what, sort_keys=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def target_settings(service: str, topic: str) -> tuple[str, TopicSettings]:
    name = str(TopicName.of(topic))

    async def read() -> TopicSettings:
        async with connected(service) as cluster:
            await cluster.partitions(Selection(topics=(name,)))
            return (await TopicStore(cluster.store).read_topic(*name.split("/")))[0].settings

    try:
        return name, asyncio.run(read())
    except InvalidOption as error:
        raise BadUsage(f"{error}; create it with: octavo topic create {topic}") from error


def was_written(service: str, bulk_load: str) -> bool:
    record = _record(service, bulk_load)
    return record.batch >= 0 and record.complete


def write_once(run: Run, rows: DataFrame, topic: str, bulk_load: str) -> Wrote:
    before = _record(run.service, bulk_load)
    options = {"service": run.service, "topic": topic, "bulkLoadId": bulk_load}
    rows.write.format("octavo").options(**options).mode("append").save()
    if before.batch >= 0:  # the earlier commit was unfinished; this save has waited for its end
        return Wrote(0, repeated=True)
    parts = _record(run.service, bulk_load).parts
    written = sum(one.count - (one.pieces or 0) for part in parts for one in part.ledgers)
    return Wrote(written, repeated=False)


def read_only(rows: DataFrame) -> int:
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
