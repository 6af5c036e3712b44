"""Rows of large messages through the Spark sink, without Spark: bodies come along."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType

from octavo.spark.columns import EVERY
from octavo.spark.commit import SinkFailed
from octavo.spark.sink import batch_writer
from octavo.spark.sink_ledgers import BodyNotCopied
from octavo.spark.sink_producer import NotSmall
from octavo.spark.sink_rows import BadRow
from tests.cluster.test_large_messages import BODY, ONE, PIECES, body_at, plain, shown, uploaded
from tests.support.cluster import Cluster, running_cluster
from tests.support.sink_tasks import options, task

TWO = "/v1/topics/public/two"
ORIGIN = StructType([StructField(name, EVERY[name]) for name in ("topic", "partition", "offset")])
SCHEMA = StructType(
    [StructField(name, EVERY[name]) for name in ("key", "value", "headers", "timestamp")]
    + [StructField("origin", ORIGIN)]
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        for topic in (ONE, TWO):
            assert (await found.api.put(topic)).status == 201
        yield found


async def rows(cluster: Cluster, *offsets: int, of: str = "one") -> pa.RecordBatch:
    found: list[dict[str, Any]] = []
    for offset in offsets:
        answer = await cluster.api.get(f"{ONE}/messages?from={offset}&limit=1")
        (one,) = answer.json()["messages"]
        assert one["offset"] == offset
        headers = [
            {"key": name, "value": text.encode()} for name, text in one.get("headers", {}).items()
        ]
        found.append(
            {
                "key": one["key"] and one["key"].encode(),
                "value": b"" if "large" in one else json.dumps(one["value"]).encode(),
                "headers": headers or None,
                "timestamp": 1_700_000_000_000_000 + offset,
                "origin": {"topic": of, "partition": 0, "offset": offset},
            }
        )
    columns: dict[str, pa.DataType] = {
        "key": pa.binary(), "value": pa.binary(), "headers": HEADERS,
        "timestamp": pa.timestamp("us", tz="UTC"),
        "origin": pa.struct(
            [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
        ),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in found], kind) for name, kind in columns.items()],
        names=[*columns],
    )


async def test_bodies_are_copied_and_the_order_stays(cluster: Cluster) -> None:
    await plain(cluster, "before")
    await uploaded(cluster, Octavo_Key="k", Octavo_Header_kind="film", Octavo_Upload="u")
    await uploaded(cluster, BODY[:2_000_000])
    await plain(cluster, "behind")
    offsets = [offset for offset, _ in await shown(cluster)]
    batch = await rows(cluster, *offsets)
    writer = batch_writer(
        {**options(cluster), "topic": "two", "bulkLoadId": "n"}, SCHEMA, overwrite=False
    )
    told = await task(writer, batch, batch.slice(0, 2))
    assert [one.pieces for one in told.written] == [0, PIECES, 2, 0, PIECES]
    assert await shown(cluster, TWO) == [], "before the commit nothing is seen"
    await asyncio.to_thread(writer.commit, [told])
    found = await shown(cluster, TWO)
    sizes = [len(BODY), 2_000_000]
    assert [what for _, what in found] == ["before", *sizes, "behind", "before", len(BODY)]
    first = 1 + PIECES
    assert [at for at, _ in found] == [0, first, first + 3, first + 4, first + 5, 2 * first + 5]
    for offset, what in found:
        if isinstance(what, int):
            assert await body_at(cluster, offset, TWO) == BODY[:what]
    copy = (await cluster.api.get(f"{TWO}/messages?from=1&limit=1")).json()["messages"][0]
    assert (copy["key"], copy["headers"]["kind"]) == ("k", "film")
    assert (await cluster.api.call("DELETE", ONE)).status == 204
    assert await body_at(cluster, found[1][0], TWO) == BODY


async def test_a_body_is_never_left_behind(cluster: Cluster) -> None:
    offset = (await uploaded(cluster))["offset"]
    batch = await rows(cluster, offset)
    given = {**options(cluster), "topic": "two"}
    writer = batch_writer(given, SCHEMA, overwrite=False)
    with pytest.raises(BadRow, match="add a column origin"):
        await task(writer, batch.drop_columns(["origin"]))
    with pytest.raises(NotSmall, match="large messages"):
        await task(batch_writer({**given, "commit": "producer"}, SCHEMA, overwrite=False), batch)
    other = (await uploaded(cluster, BODY[::-1]))["offset"]
    where = [{"topic": "one", "partition": 0, "offset": other}]
    swapped = batch.set_column(4, "origin", pa.array(where))
    before = set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])
    with pytest.raises(BodyNotCopied, match=f"offset {other} of one/0 is a large message"):
        await task(writer, swapped)
    # The empty ledger between two bodies is deleted in the background, before or after this.
    assert set((await cluster.api.get("/v1/ledgers")).json()["ledgers"]) <= before
    truncated = await cluster.api.call("DELETE", f"{ONE}/messages?before={other}")
    assert truncated.status == 200
    with pytest.raises(BodyNotCopied, match="was deleted after the row was read"):
        await task(writer, batch)
    assert await shown(cluster, TWO) == []


async def test_topics_that_take_none_refuse_them_and_no_ledger_passes_for_one(
    cluster: Cluster,
) -> None:
    offset = (await uploaded(cluster))["offset"]
    batch = await rows(cluster, offset)
    path = "/v1/topics/public/compacted"
    assert (await cluster.api.put(path, json={"compaction": {}})).status == 201
    writer = batch_writer({**options(cluster), "topic": "compacted"}, SCHEMA, overwrite=False)
    told = await task(writer, batch)
    with pytest.raises(SinkFailed, match="compaction would remove a large message's body"):
        await asyncio.to_thread(writer.commit, [told])
    await plain(cluster, "plain")
    writer = batch_writer({**options(cluster), "topic": "two"}, SCHEMA, overwrite=False)
    for pieces, why in ((1, "with 1 pieces of a large message"), (0, "")):
        told = await task(writer, await rows(cluster, offset + 1))
        (one,) = told.written
        told.written = (one._replace(pieces=pieces),)
        if why:
            with pytest.raises(SinkFailed, match=why):
                await asyncio.to_thread(writer.commit, [told])
        else:
            await asyncio.to_thread(writer.commit, [told])
    assert await shown(cluster, TWO) == [(0, "plain")]
