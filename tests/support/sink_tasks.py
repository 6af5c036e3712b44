"""The sink's part of a Spark job, without Spark: tasks, their messages, and the output."""

from __future__ import annotations

import asyncio
import pickle

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from octavo.protocol.batch import split_batches
from octavo.protocol.records import read_records
from octavo.spark.sink import OctavoStreamWriter, OctavoWriter
from octavo.spark.sink_message import Message
from tests.support.cluster import Cluster

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
TOPIC = "/v1/topics/public/flights"
BATCHES = "application/vnd.kafka.recordbatch.v2"


def rows(first: int, last: int) -> pa.RecordBatch:
    numbers = [str(number).encode() for number in range(first, last)]
    return pa.RecordBatch.from_pydict({"key": numbers, "value": numbers})


async def task(writer: OctavoWriter | OctavoStreamWriter, *batches: pa.RecordBatch) -> Message:
    """Run a task as Spark does: a copy of the writer, in a thread of another process. Return
    its message."""
    copy = pickle.loads(pickle.dumps(writer))
    message = await asyncio.to_thread(copy.write, iter(batches))
    found = pickle.loads(pickle.dumps(message))
    assert isinstance(found, Message)
    return found


async def messages(cluster: Cluster, topic: str = TOPIC, partitions: int = 2) -> list[list[str]]:
    found: list[list[str]] = []
    for number in range(partitions):
        values: list[str] = []
        while True:
            answer = await cluster.api.get(
                f"{topic}/partitions/{number}/messages?from={len(values)}",
                headers={"Accept": BATCHES},
            )
            if answer.status == 204:
                break
            assert answer.status == 200, answer
            for header, data in split_batches(answer.body):
                start = len(values) - header.base_offset
                records = list(read_records(data))
                values += [(one.value or b"").decode() for one in records[start:]]
        found.append(values)
    return found


def options(cluster: Cluster, **more: str) -> dict[str, str]:
    return {"service": cluster.api.url, "topic": "flights", "commitTimeout": "60s", **more}
