"""What the source gave could not be written: `offset` and `timestampType` were unknown to the sink.

The topic came back as `public/mixed` to who had subscribed to `mixed`; `headers` was `[]` where
Kafka's source gives null; and a target that does not exist failed in the tasks, with pages of two
languages' traces. Found from outside, by a query that had worked with Kafka. The tests selected key
and value before they wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from octavo.client.types import TopicName
from octavo.protocol.batch import read_header
from octavo.protocol.records import build_batch, read_records
from octavo.spark.columns import EVERY, ArrowBuilder, StoredBatch, shown
from octavo.spark.options import InvalidOption
from octavo.spark.sink_options import checked_columns, sink_options
from octavo.spark.sink_rows import RowRouter, Target
from octavo.spark.source import OctavoDataSource
from tests.support.spark_place import Place, running_place

ALL = StructType([StructField(*one) for one in EVERY.items()])
VALUE = StructType([StructField("value", BinaryType())])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path) as found:
        yield found


def test_every_column_of_the_source_may_come() -> None:
    options = sink_options({"service": "http://x"}, streaming=False)
    checked_columns(ALL, options)
    with pytest.raises(InvalidOption, match=r"unknown column ofset: the sink knows"):
        checked_columns(StructType([*ALL.fields, StructField("ofset", LongType())]), options)


@pytest.mark.parametrize(("topic", "name"), [("public/mixed", "mixed"), ("lab/a", "lab/a")])
def test_a_message_comes_back_as_it_went(topic: str, name: str) -> None:
    records: list[Any] = [(b"k", b"v", [("h", b"1")], 7, 0), (b"", None, [], 8, 1)]
    data = build_batch(records)
    builder = ArrowBuilder(tuple(EVERY))
    builder.add(StoredBatch(topic, 2, 5, 0, 100, read_header(data), data), 100, 102)
    rows = builder.take()
    assert rows.column("topic").to_pylist() == [name, name] == 2 * [shown(topic)]
    assert str(TopicName.of(name)) == topic, "the same topic to whoever writes it"
    assert rows.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None]
    options = sink_options({"service": "http://x"}, streaming=False)
    router = RowRouter(options, lambda _: 3, 0, 0)
    router.add(rows)
    ((target, again),) = router.rest()
    assert target == Target(topic, 2)
    told = [
        (one.key, one.value, list(one.headers), one.timestamp_ms) for one in read_records(again)
    ]
    assert told == [tuple(one[:4]) for one in records]


async def test_a_missing_target_is_told_by_the_driver(place: Place) -> None:
    """Before any task runs, in a batch as in a stream."""

    async def made(topic: str, **options: str) -> None:
        sink = OctavoDataSource({"service": place.service, "topic": topic, **options})
        await asyncio.to_thread(sink.writer, VALUE, overwrite=False)
        await asyncio.to_thread(sink.streamWriter, VALUE, overwrite=False)

    await made("flights")
    await made("flights", partition="0")
    with pytest.raises(
        InvalidOption, match="no topic public/nix; PUT /v1/topics/public/nix creates"
    ):
        await made("nix")
    with pytest.raises(InvalidOption, match="topic public/flights has partitions 0 to 0"):
        await made("flights", partition="1")


def test_a_cluster_that_does_not_answer_is_not_one_without_the_topic() -> None:
    """The tasks ask again; it may be there by then."""
    sink = OctavoDataSource({"service": "http://127.0.0.1:1", "topic": "flights"})
    sink.streamWriter(VALUE, overwrite=False)
