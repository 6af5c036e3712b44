"""Ledgers of all who make some have the cluster's password; Spark's are known to the bookies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerError
from octavo.metadata.frozen import FrozenStore
from octavo.metadata.secret import cluster_secret
from octavo.protocol.codes import OctavoError, Unauthorized
from octavo.protocol.extension import Op
from octavo.spark.cluster import Cluster as SparkCluster
from octavo.spark.cluster import connected
from octavo.spark.sink import batch_writer
from octavo.spark.splits import Piece
from tests.support.cluster import Cluster, add_many, running_cluster
from tests.support.sink_tasks import SCHEMA, TOPIC, messages, options, rows, task


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1, guarded=True) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        await found.secure()
        yield found


async def test_every_ledger_of_the_cluster_has_its_password(cluster: Cluster) -> None:
    """Those of topics, of subscriptions' state, of Spark's tasks, and of `octavo ledger`."""
    writer = batch_writer(options(cluster, bulkLoadId="n"), SCHEMA, overwrite=False)
    told = await task(writer, rows(0, 10))
    await asyncio.to_thread(writer.commit, [told])
    assert sum(map(len, await messages(cluster))) == 10
    api = cluster.api
    assert (await api.post(f"{TOPIC}/messages", json={"value": "a"})).status == 200
    assert (await api.put(f"{TOPIC}/subscriptions/s", json={"start": "earliest"})).status == 201
    received = await api.post(f"{TOPIC}/subscriptions/s/receive", json={"wait_ms": 0, "max": 5})
    assert received.status == 200, received
    ids = [one["ack_id"] for one in received.json()["messages"]]
    assert (await api.post(f"{TOPIC}/subscriptions/s/ack", json={"ack_ids": ids})).status == 200
    client = await cluster.client()
    await add_many(await client.create(), 1)
    password = (await cluster_secret(cluster.store)).ledger_password
    assert len(password) == 64
    ledgers = [await client.metadata(number) for number in await client.list()]
    assert len(ledgers) >= 5
    assert {one.password for one in ledgers} == {password}


async def test_a_client_that_was_not_started_makes_no_ledger_without_a_password(
    cluster: Cluster,
) -> None:
    client = LedgerClient(cluster.store, rng=random.Random(1))
    with pytest.raises(LedgerError, match="start this ledger client"):
        await client.create()
    await client.close()


async def test_a_task_reads_the_ledgers_of_its_records_and_no_others(cluster: Cluster) -> None:
    client = await cluster.client()
    ledgers = []
    for _ in range(2):
        writer = await client.create()
        await add_many(writer, 5)
        await writer.close()
        ledgers.append(writer.ledger_id)
    async with connected(cluster.store.url) as service:
        records = await service.records_for(ledgers)
        only_first = await service.records_for(ledgers[:1])

    async def read(of: dict[str, bytes], ledger_id: int) -> int:
        spark = SparkCluster(FrozenStore(of, "test"))
        await spark.start()
        try:
            reader = await spark.reader(ledger_id)
            return len(await reader.read(0, 4))
        finally:
            await spark.close()

    assert [await read(records, one) for one in ledgers] == [5, 5]
    token = {name: value for name, value in only_first.items() if name.endswith("token")}
    with pytest.raises(OctavoError, match="does not allow this"):
        await read({**records, **token}, ledgers[1])
    without = {name: value for name, value in records.items() if name not in token}
    with pytest.raises(OctavoError, match="prove"):
        await read(without, ledgers[0])


async def test_a_task_cannot_write_by_its_token(cluster: Cluster) -> None:
    async with connected(cluster.store.url) as service:
        records = await service.records_for([1])
    spark = SparkCluster(FrozenStore(records, "test"))
    await spark.start()
    with pytest.raises(Unauthorized):
        await spark.ledgers.request("b1", Op.WRITE_LAC, {"ledger": 1, "key": b"k" * 20, "lac": 0})
    await spark.close()


async def test_the_source_reads_what_a_topic_holds(cluster: Cluster) -> None:
    for number in range(3):
        path = f"{TOPIC}/partitions/0/messages"
        assert (await cluster.api.post(path, json={"value": str(number)})).status == 200
    async with connected(cluster.store.url) as service:
        async with asyncio.timeout(10):
            while True:  # until the last message is known to be confirmed
                view = await service.view(TOPIC.removeprefix("/v1/topics/"), 0)
                (span,) = view.spans
                if span.end == 3:
                    break
                await asyncio.sleep(0.05)
        piece = Piece(view.topic, 0, span.ledger_id, span.base, 0, 3)
        found = [batch async for batch in service.entries(piece)]
        assert found
