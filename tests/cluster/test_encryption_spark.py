"""Spark's tasks in an encrypted namespace, without Spark: they write, read, and compact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.ledger.client import LedgerClient
from octavo.metadata.topics import TopicSettings
from octavo.pipeline.compact_rules import CompactPolicy
from octavo.pipeline.compact_tasks import Place, Work, copied, keys_of
from octavo.security.keys.errors import KeyMissing
from octavo.security.keys.wrapped import ENCRYPTION_KEY
from octavo.spark import commit as driver
from octavo.spark.options import source_options
from octavo.spark.reading import Split
from octavo.spark.sink import batch_writer
from tests.support.cluster import Cluster, running_cluster
from tests.support.keys import RECHECK_MS, forget, key_file, key_of
from tests.support.sink_tasks import SCHEMA, messages, options, rows, task
from tests.support.spark_place import reader_of, values_of

NAMESPACE = "secret"
NAME = f"{NAMESPACE}/flights"
TOPIC = f"/v1/topics/{NAME}"


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    config = key_file(tmp_path, key_of(1, NAMESPACE))
    async with running_cluster(tmp_path) as found:
        found.keys = config
        for name in ("broker-0", "broker-1"):
            await found.start_broker(name)
        body = {"encrypted": True}
        assert (await found.api.put(f"/v1/namespaces/{NAMESPACE}", json=body)).status == 201
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        monkeypatch.setenv("OCTAVO_KEYS_FILE", config.file)
        monkeypatch.setenv("OCTAVO_KEYS_RECHECK_MS", str(RECHECK_MS))
        yield found


def writer_of(cluster: Cluster, name: str) -> Any:
    given = options(cluster, bulkLoadId=name, batchBytes="200", topic=NAME)
    return batch_writer(given, SCHEMA, overwrite=False)


async def loaded(cluster: Cluster, count: int) -> list[int]:
    writer = writer_of(cluster, "n")
    told = await task(writer, rows(0, count))
    await asyncio.to_thread(writer.commit, [told])
    return [one.ledger_id for one in told.written]


async def test_the_sink_encrypts_and_the_source_reads(cluster: Cluster, tmp_path: Path) -> None:
    made = await loaded(cluster, 60)
    client = await cluster.client()
    for ledger in made:
        assert ENCRYPTION_KEY in (await client.metadata(ledger)).custom
    found = await messages(cluster, TOPIC)
    assert sorted(int(one) for part in found for one in part) == list(range(60))
    reader = reader_of(cluster.api.url, subscribe=NAME)
    splits: Any = await asyncio.to_thread(reader.partitions)
    got = [
        value
        for split in splits
        for value in values_of(list(await asyncio.to_thread(lambda s=split: list(reader.read(s)))))
    ]
    assert sorted(map(int, got)) == list(range(60))
    forget(tmp_path / "keys", NAMESPACE)
    with pytest.raises(KeyMissing, match="k1 of namespace secret"):
        await asyncio.to_thread(lambda: list(reader.read(splits[0])))


async def test_a_task_without_the_key_writes_nothing_in_the_clear(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(cluster, "m")
    with monkeypatch.context() as without:
        without.delenv("OCTAVO_KEYS_FILE")
        without.delenv("OCTAVO_KEYS_RECHECK_MS")
        with pytest.raises(KeyMissing, match="namespace secret are encrypted"):
            await task(writer, rows(0, 10))
    assert await (await cluster.client()).list() == []


async def test_a_load_in_the_clear_is_not_taken_in(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(cluster, "old")
    with monkeypatch.context() as older:
        original = LedgerClient.create

        async def in_the_clear(self: LedgerClient, **how: Any) -> Any:
            return await original(self, **{**how, "encrypted_for": None})

        older.setattr(LedgerClient, "create", in_the_clear)
        told = await task(writer, rows(0, 10))
    with pytest.raises(driver.SinkFailed, match="not encrypted for namespace secret"):
        await asyncio.to_thread(writer.commit, [told])
    assert await messages(cluster, TOPIC) == [[], []]


async def test_a_compacted_ledger_is_encrypted_as_well(cluster: Cluster) -> None:
    await loaded(cluster, 40)
    reader = reader_of(cluster.api.url, subscribe=NAME)
    splits: Any = await asyncio.to_thread(reader.partitions)
    (split,) = [one for one in splits if one.parts[0].partition == 0]
    assert isinstance(split, Split)
    place = Place(NAME, 0, 0, TopicSettings(encrypted=True))
    work = Work(
        "run", source_options({"service": cluster.api.url, "subscribe": NAME}, streaming=False),
        (place,), ((0, split),), CompactPolicy(), 0, None,
    )  # fmt: skip
    offsets = [
        number
        for some in await asyncio.to_thread(lambda: list(keys_of(work, 0)))
        for number in some.column("offset").to_pylist()
    ]
    made = await asyncio.to_thread(copied, work, 0, offsets[::2])
    assert made.messages == len(offsets[::2])
    client = await cluster.client()
    assert ENCRYPTION_KEY in (await client.metadata(made.ledger_id)).custom
    opened = await client.open(made.ledger_id)
    assert len(await opened.read(0, opened.last_add_confirmed)) == opened.last_add_confirmed + 1
