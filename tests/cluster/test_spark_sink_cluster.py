"""The Spark sink against a live cluster, without Spark: the work of tasks and driver."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType

from octavo.broker.errors import DueAfterExpiry
from octavo.clock import wall_clock_ms
from octavo.metadata.secret import cluster_secret
from octavo.pipeline.gc import gc
from octavo.protocol.due import due_header
from octavo.spark import commit as driver
from octavo.spark import sink
from octavo.spark.columns import EVERY
from octavo.spark.orphans import collect_orphans
from octavo.spark.sink import batch_writer, stream_writer
from tests.support.cluster import Cluster, running_cluster
from tests.support.sink_tasks import SCHEMA, TOPIC, messages, options, rows, task


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        yield found


async def test_tasks_write_and_the_driver_commits_once(cluster: Cluster) -> None:
    writer = batch_writer(
        options(cluster, bulkLoadId="n", batchBytes="200"), SCHEMA, overwrite=False
    )
    told: list[Any] = [
        await task(writer, rows(0, 30), rows(30, 50)),
        await task(writer, rows(50, 60)),
    ]
    assert await messages(cluster) == [[], []]
    nothing = await task(writer)
    assert nothing.written == ()
    await asyncio.to_thread(writer.commit, [*told, nothing])
    found = await messages(cluster)
    assert sorted(int(one) for part in found for one in part) == list(range(60))
    assert all([int(one) for one in part] == sorted(map(int, part)) for part in found)
    await asyncio.to_thread(writer.commit, told)
    await asyncio.to_thread(writer.abort, [*told, None])
    again: list[Any] = [await task(writer, rows(0, 60))]
    before = set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])
    await asyncio.to_thread(writer.commit, again)
    assert await messages(cluster) == found
    after = set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])
    assert {one.ledger_id for one in again[0].written} == before - after


async def test_what_is_stored_has_the_words_of_0_1(cluster: Cluster) -> None:
    """Literally, whatever the code's names: the stored objects of 0.1 keep their meaning."""
    writer = batch_writer(options(cluster, bulkLoadId="n"), SCHEMA, overwrite=False)
    told = await task(writer, rows(0, 10))
    await asyncio.to_thread(writer.commit, [told])
    node = next(iter(cluster.brokers.values()))

    async def stored(path: str) -> dict[str, Any]:
        found: dict[str, Any] = msgpack.unpackb((await node.store.get(path))[0])
        return found

    record = await stored("/octavo/transactions/n")
    secret = await cluster_secret(node.store, rng=node.ledgers.rng)
    token = secret.key("transaction n").hex()
    assert record["token_digest"] == hashlib.sha256(token.encode()).hexdigest()
    for one in told.written:
        partition = await stored(f"/octavo/{TOPIC.removeprefix('/v1/')}/partitions/{one.partition}")
        assert partition["transactions"] == {f"n@{record['since_ms']}": 0}
        spliced = {segment["ledger_id"]: segment["spliced"] for segment in partition["ledgers"]}
        assert spliced[one.ledger_id] is True
        assert list(spliced.values()).count(True) == 1
        custom = (await node.ledgers.metadata(one.ledger_id)).custom
        assert custom["octavo.kind"] == b"transaction"
        assert (custom["octavo.transaction"], custom["octavo.batch"]) == (b"n", b"0")


async def test_what_is_aborted_is_deleted_and_cannot_be_committed(cluster: Cluster) -> None:
    writer = batch_writer(options(cluster), SCHEMA, overwrite=False)
    told: list[Any] = [await task(writer, rows(0, 10))]
    await asyncio.to_thread(writer.abort, [*told, None])
    ids = {one.ledger_id for one in told[0].written}
    assert ids
    assert not ids & set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])
    with pytest.raises(driver.SinkFailed, match=r"no ledger|given up"):
        await asyncio.to_thread(writer.commit, told)
    assert await messages(cluster) == [[], []]


async def test_a_stream_knows_its_query_and_batch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stream_writer(options(cluster, compression="zstd"), SCHEMA)
    found: dict[str, str] = {"sql.streaming.queryId": "7d1c-9"}
    context = SimpleNamespace(
        getLocalProperty=found.get, partitionId=lambda: 0, taskAttemptId=lambda: 1
    )
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    with pytest.raises(driver.SinkFailed, match="batchId"):
        await task(writer, rows(0, 1))
    for batch in (0, 1, 1, 0, 2):
        found["streaming.sql.batchId"] = str(batch)
        told = await task(writer, rows(10 * batch, 10 * batch + 10))
        await asyncio.to_thread(writer.commit, [told], batch)
    values = [int(one) for part in await messages(cluster) for one in part]
    assert sorted(values) == list(range(30))
    shown = (await cluster.api.get("/v1/bulk-loads/7d1c-9")).json()
    assert (shown["batch"], shown["complete"]) == (2, True)


async def test_a_task_that_fails_takes_its_ledgers_back(cluster: Cluster) -> None:
    writer = batch_writer(options(cluster), SCHEMA, overwrite=False)
    before = set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])

    def breaks() -> Any:
        yield rows(0, 10)
        raise ValueError("a row that breaks the query")

    small = batch_writer(options(cluster, batchBytes="16"), SCHEMA, overwrite=False)
    with pytest.raises(ValueError, match="breaks the query"):
        await asyncio.to_thread(small.write, breaks())
    assert set((await cluster.api.get("/v1/ledgers")).json()["ledgers"]) == before
    # Only the grace time distinguishes the leftovers of a dead task from a live one's.
    told = await task(writer, rows(0, 10))
    service = cluster.api.url
    assert await collect_orphans(service) == []
    (seen,) = await collect_orphans(service, grace_ms=-1000, dry_run=True)
    assert (seen.batch, seen.deleted) == (0, ())
    ids = {one.ledger_id for one in told.written}
    assert set(seen.looked_at) == ids
    (seen,) = await collect_orphans(service, grace_ms=-1000)
    assert set(seen.deleted) == ids
    with pytest.raises(driver.SinkFailed):
        await asyncio.to_thread(writer.commit, [told])


async def test_a_task_that_fails_after_its_ledger_is_closed_is_run_again(
    cluster: Cluster,
) -> None:
    """Spark takes the message of the second attempt; the first one's ledgers are orphans."""
    writer = batch_writer(options(cluster, bulkLoadId="retried"), SCHEMA, overwrite=False)
    lost = await task(writer, rows(0, 20))
    told = await task(writer, rows(0, 20))
    await asyncio.to_thread(writer.commit, [told])
    found = await messages(cluster)
    assert sorted(int(one) for part in found for one in part) == list(range(20))
    for dry_run, deleted in ((True, 0), (False, len(lost.written))):
        done = await asyncio.to_thread(
            gc, cluster.api.url, lambda _: None, grace_ms=-1000, dry_run=dry_run
        )
        assert (done.summary["ledgers"], done.summary["ledgers_deleted"]) == (
            len(lost.written),
            deleted,
        )
    assert await collect_orphans(cluster.api.url, grace_ms=-1000) == []
    assert await messages(cluster) == found


@pytest.fixture
def running_batch(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"sql.streaming.queryId": "q-1"}
    context = SimpleNamespace(
        getLocalProperty=found.get, partitionId=lambda: 0, taskAttemptId=lambda: 1
    )
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    return found


async def test_two_drivers_on_one_checkpoint_commit_each_batch_once(
    cluster: Cluster, running_batch: dict[str, str]
) -> None:
    """Both write each batch and commit at the same time; one of them comes again later."""
    drivers = [stream_writer(options(cluster), SCHEMA) for _ in range(2)]
    late = []
    for batch in range(3):
        running_batch["streaming.sql.batchId"] = str(batch)
        told: list[Any] = [await task(one, rows(10 * batch, 10 * batch + 10)) for one in drivers]
        late.append(await task(drivers[0], rows(10 * batch, 10 * batch + 10)))
        commits = [
            asyncio.to_thread(one.commit, [message], batch)
            for one, message in zip(drivers, told, strict=True)
        ]
        await asyncio.gather(*commits)
    for batch in (2, 0, 1):
        await asyncio.to_thread(drivers[0].commit, [late[batch]], batch)
    values = [int(one) for part in await messages(cluster) for one in part]
    assert sorted(values) == list(range(30))
    assert await collect_orphans(cluster.api.url, grace_ms=-1000) == []


async def test_partitions_added_amid_a_query(
    cluster: Cluster, running_batch: dict[str, str]
) -> None:
    """Keys move to other partitions from the next batch on; a batch run again moves nothing."""
    writer = stream_writer(options(cluster), SCHEMA)
    running_batch["streaming.sql.batchId"] = "0"
    await asyncio.to_thread(writer.commit, [await task(writer, rows(0, 40))], 0)
    before = await messages(cluster, partitions=2)
    assert (await cluster.api.call("PATCH", TOPIC, json={"partitions": 5})).status == 200
    again = await task(writer, rows(0, 40))
    assert {one.partition for one in again.written} > {0, 1}
    await asyncio.to_thread(writer.commit, [again], 0)
    assert await messages(cluster, partitions=5) == [*before, [], [], []]
    running_batch["streaming.sql.batchId"] = "1"
    await asyncio.to_thread(writer.commit, [await task(writer, rows(40, 80))], 1)
    after = await messages(cluster, partitions=5)
    assert sorted(int(one) for part in after for one in part) == list(range(80))
    assert all(after[2:])


async def test_a_topic_deleted_before_the_commit_is_an_error_that_says_so(
    cluster: Cluster,
) -> None:
    writer = batch_writer(options(cluster), SCHEMA, overwrite=False)
    told: list[Any] = [await task(writer, rows(0, 10))]
    assert (await cluster.api.call("DELETE", TOPIC)).status in (200, 202, 204)
    with pytest.raises(driver.SinkFailed, match="there is no topic public/flights"):
        await asyncio.to_thread(writer.commit, told)
    await asyncio.to_thread(writer.abort, told)
    left = set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])
    assert not left & {one.ledger_id for one in told[0].written}


async def test_a_commit_goes_on_at_another_broker(cluster: Cluster) -> None:
    store = next(iter(cluster.brokers.values())).store.url
    writer = batch_writer({**options(cluster), "service": store}, SCHEMA, overwrite=False)
    told: list[Any] = [await task(writer, rows(0, 20))]
    await cluster.stop_broker(next(iter(cluster.brokers)))
    await asyncio.to_thread(writer.commit, told)
    found = [int(one) for part in await messages(cluster) for one in part]
    assert sorted(found) == list(range(20))


async def test_a_topic_that_is_not_there(cluster: Cluster) -> None:
    writer = batch_writer({**options(cluster), "topic": "nowhere"}, SCHEMA, overwrite=False)
    with pytest.raises(Exception, match="there is no topic public/nowhere"):
        await asyncio.to_thread(writer.write, iter([rows(0, 3)]))


@pytest.mark.parametrize("speaker", ["topic", "namespace"])
@pytest.mark.parametrize(("due_in_s", "is_taken"), [(0, True), (3_000, True), (3_601, False)])
async def test_a_row_that_is_due_after_its_expiry_is_not_written(
    cluster: Cluster, speaker: str, due_in_s: int, is_taken: bool
) -> None:
    """Bulk loads are not examined, so it would be taken, acked unread by the ttl, and lost."""
    if speaker == "topic":
        assert (await cluster.api.call("PATCH", TOPIC, json={"ttl": "1h"})).status == 200
    else:
        assert (await cluster.api.put("/v1/namespaces/public", json={"ttl": "1h"})).status == 200
    schema = StructType([StructField(name, EVERY[name]) for name in ("value", "headers")])
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    due_ms = wall_clock_ms() + due_in_s * 1000
    name, text = due_header(due_ms)
    table = pa.RecordBatch.from_arrays(
        [
            pa.array([b"plain", b"delayed"], pa.binary()),
            pa.array([None, [{"key": name, "value": text}]], pairs),
        ],
        names=["value", "headers"],
    )
    writer = batch_writer(options(cluster, bulkLoadId="n"), schema, overwrite=False)
    if is_taken:
        told = await task(writer, table)
        await asyncio.to_thread(writer.commit, [told])
        found = [value for part in await messages(cluster) for value in part]
        assert sorted(found) == ["delayed", "plain"]
        return
    with pytest.raises(DueAfterExpiry, match=r"due in 3[0-9]+.* s, and the topic's ttl"):
        await task(writer, table)
