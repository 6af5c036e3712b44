"""The Spark sink against a live cluster, without Spark: ledgers, small batches, large messages."""

from __future__ import annotations

import asyncio
import hashlib
import json
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
from octavo.protocol.batch import split_batches
from octavo.protocol.due import due_header
from octavo.spark import commit as driver
from octavo.spark import sink
from octavo.spark.columns import EVERY
from octavo.spark.commit import SinkFailed
from octavo.spark.orphans import collect_orphans
from octavo.spark.sink import OctavoStreamWriter, batch_writer, stream_writer
from octavo.spark.sink_ledgers import BodyNotCopied
from octavo.spark.sink_producer import NotSmall
from octavo.spark.sink_rows import BadRow
from tests.cluster.test_large_messages import BODY, ONE, PIECES, body_at, plain, shown, uploaded
from tests.support.cluster import Cluster, running_cluster
from tests.support.sink_tasks import BATCHES, SCHEMA, TOPIC, messages, options, rows, task


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


BOTH = list(range(40))


class Task:
    def __init__(self) -> None:
        self.batch = "0"
        self.number = 0

    def getLocalProperty(self, name: str) -> str:
        return {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": self.batch}[name]

    def partitionId(self) -> int:
        return self.number

    def taskAttemptId(self) -> int:
        return 1


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Task:
    context = Task()
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    return context


async def written(
    running: Task, writer: OctavoStreamWriter, batch: int, *tasks: pa.RecordBatch
) -> list[Any]:
    running.batch = str(batch)
    told = []
    for running.number, one in enumerate(tasks):
        told.append(await task(writer, one))
    return told


async def commit(writer: OctavoStreamWriter, batch: int, told: list[Any]) -> None:
    await asyncio.to_thread(writer.commit, told, batch)


def numbers(found: list[list[str]]) -> list[int]:
    return sorted(int(one) for part in found for one in part)


async def bulk_load(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = (await cluster.api.get("/v1/bulk-loads/q-1")).json()
    return found


async def ledgers(cluster: Cluster) -> set[int]:
    return set((await cluster.api.get("/v1/ledgers")).json()["ledgers"])


class Killed(BaseException):
    pass


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """`calls`: the driver dies in place of its call of this number; partitions take turns."""
    monkeypatch.setattr(driver, "_AT_ONCE", 1)
    left = {"calls": 10**6}
    ask = driver._Brokers.ask

    async def counted(self: driver._Brokers, *arguments: Any) -> dict[str, Any]:
        left["calls"] -= 1
        if left["calls"] < 0:
            raise Killed
        return await ask(self, *arguments)

    monkeypatch.setattr(driver._Brokers, "ask", counted)
    return left


async def test_a_batch_is_one_entry_in_each_partition_and_no_ledger(
    cluster: Cluster, running: Task
) -> None:
    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    told = await written(running, writer, 0, rows(0, 30), rows(30, 40))
    assert await messages(cluster) == [[], []]
    before = await ledgers(cluster)
    await commit(writer, 0, told)
    found = await messages(cluster)
    assert numbers(found) == BOTH
    assert all([int(one) for one in part] == sorted(map(int, part)) for part in found)
    shown = await bulk_load(cluster)
    assert (shown["batch"], shown["complete"], shown["published"]) == (0, True, True)
    assert len(await ledgers(cluster) - before) <= 4
    for number in range(2):
        path = f"{TOPIC}/partitions/{number}/messages?from=0"
        answer = await cluster.api.get(path, headers={"Accept": BATCHES})
        ((header, _),) = split_batches(answer.body)
        assert (header.producer_epoch, header.base_sequence) == (0, 0)


async def test_repeats_of_tasks_batches_and_commits_add_nothing(
    cluster: Cluster, running: Task
) -> None:
    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    for batch in (0, 1):
        first, last = 40 * batch, 40 * batch + 40
        told = await written(running, writer, batch, rows(first, last))
        again = await written(running, writer, batch, rows(first + 9, last), rows(first, first + 9))
        for one in (told, again, told):
            await commit(writer, batch, one)
    await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    assert numbers(await messages(cluster)) == list(range(80))


async def test_a_committed_batch_that_has_other_rows_by_now_adds_nothing(
    cluster: Cluster, running: Task
) -> None:
    """Only this check holds these rows back: their partitions do not know such a producer yet."""
    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    await commit(writer, 0, await written(running, writer, 0, rows(0, 1)))
    first = await messages(cluster)
    await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    assert await messages(cluster) == first


@pytest.mark.parametrize("call", range(4), ids=["begin", "publish", "publish-2", "commit"])
async def test_a_driver_killed_at_any_call_is_gone_on_with(
    cluster: Cluster, running: Task, dying: dict[str, int], call: int
) -> None:
    """The next one gets the rows in another order, from other tasks: each counts once."""
    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    told = await written(running, writer, 0, rows(0, 25), rows(25, 40))
    dying["calls"] = call
    with pytest.raises(Killed):
        await commit(writer, 0, told)
    seen = numbers(await messages(cluster))
    assert (seen == []) == (call < 2), "what a reader sees of a half published batch"
    dying["calls"] = 10**6
    again = await written(running, writer, 0, rows(30, 40), rows(0, 30))
    await commit(writer, 0, again)
    assert numbers(await messages(cluster)) == BOTH


async def test_a_batch_begun_with_other_rows_is_refused_by_name(
    cluster: Cluster, running: Task, dying: dict[str, int]
) -> None:
    writer = stream_writer(options(cluster, commit="auto"), SCHEMA)
    dying["calls"] = 2
    with pytest.raises(Killed):
        await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    dying["calls"] = 10**6
    seen = await messages(cluster)
    with pytest.raises(SinkFailed, match=r"begun with other messages for public/flights/\d"):
        await commit(writer, 0, await written(running, writer, 0, rows(0, 41)))
    by_ledgers = stream_writer(options(cluster), SCHEMA)
    for batch in (0, 1):
        with pytest.raises(SinkFailed, match="finish it the same way"):
            await commit(by_ledgers, batch, await written(running, by_ledgers, batch, rows(0, 40)))
    assert await messages(cluster) == seen
    with pytest.raises(SinkFailed, match="batch 0 is, unfinished"):
        await commit(writer, 1, await written(running, writer, 1, rows(0, 3)))
    await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    assert numbers(await messages(cluster)) == BOTH


async def test_partitions_added_to_a_half_published_batch_are_told(
    cluster: Cluster, running: Task, dying: dict[str, int]
) -> None:
    """Its keys would go elsewhere now: rows could come twice, and are refused."""
    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    dying["calls"] = 2
    with pytest.raises(Killed):
        await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    dying["calls"] = 10**6
    assert (await cluster.api.call("PATCH", TOPIC, json={"partitions": 5})).status == 200
    with pytest.raises(SinkFailed, match="begun with other messages"):
        await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))


async def test_a_driver_that_was_left_behind_publishes_nothing(
    cluster: Cluster, running: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    late = await written(running, writer, 0, rows(0, 40))
    ask, woken, begun = driver._Brokers.ask, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(self: driver._Brokers, path: str, *arguments: Any) -> dict[str, Any]:
        answer = await ask(self, path, *arguments)
        if path.endswith("begin"):
            loop.call_soon_threadsafe(begun.set)
            waits = asyncio.run_coroutine_threadsafe(woken.wait(), loop)
            await asyncio.wrap_future(waits)
        return answer

    monkeypatch.setattr(driver._Brokers, "ask", slow)
    sleeper = asyncio.create_task(commit(writer, 0, late))
    await begun.wait()
    monkeypatch.setattr(driver._Brokers, "ask", ask)
    for batch in (0, 1):
        told = await written(running, writer, batch, rows(40 * batch, 40 * batch + 40))
        await commit(writer, batch, told)
    woken.set()
    with pytest.raises(SinkFailed, match="older instance"):
        await sleeper
    assert numbers(await messages(cluster)) == list(range(80))


async def test_auto_takes_ledgers_for_what_is_not_small(cluster: Cluster, running: Task) -> None:
    writer = stream_writer(options(cluster, commit="auto", batchBytes="400"), SCHEMA)
    ways, end = [], 0
    for batch, sizes in enumerate([(8,), (90, 2), (20, 20, 20), (3, 3)]):
        tasks = []
        for size in sizes:
            tasks.append(rows(end, end + size))
            end += size
        told = await written(running, writer, batch, *tasks)
        await commit(writer, batch, told)
        await commit(writer, batch, told)
        ways.append((await bulk_load(cluster))["published"])
    assert ways == [True, False, False, True]
    assert numbers(await messages(cluster)) == list(range(end))


async def test_the_producer_refuses_what_is_not_small(cluster: Cluster, running: Task) -> None:
    writer = stream_writer(options(cluster, commit="producer", batchBytes="400"), SCHEMA)
    with pytest.raises(NotSmall, match="set commit to auto or bulk-load"):
        await written(running, writer, 0, rows(0, 90))
    told = await written(running, writer, 0, rows(0, 20), rows(20, 40))
    with pytest.raises(NotSmall, match=r"bytes for public/flights partition \d"):
        await commit(writer, 0, told)
    assert await messages(cluster) == [[], []]


async def test_rows_without_a_key_go_where_they_went_whichever_task_has_them(
    cluster: Cluster, running: Task, dying: dict[str, int]
) -> None:
    def plain(first: int, last: int) -> pa.RecordBatch:
        return rows(first, last).select(["value"])

    writer = stream_writer(options(cluster, commit="producer"), SCHEMA)
    dying["calls"] = 2
    with pytest.raises(Killed):
        await commit(writer, 0, await written(running, writer, 0, plain(0, 20), plain(20, 40)))
    dying["calls"] = 10**6
    await commit(writer, 0, await written(running, writer, 0, plain(30, 40), plain(0, 30)))
    assert sorted(map(len, await messages(cluster))) == [0, 40]


async def test_a_batch_write_has_its_bulk_load_id(cluster: Cluster) -> None:
    given = options(cluster, commit="producer", bulkLoadId="nightly")
    for _ in range(2):
        writer = batch_writer(given, SCHEMA, overwrite=False)
        told: list[Any] = [await task(writer, rows(0, 40)), await task(writer)]
        await asyncio.to_thread(writer.commit, told)
    assert numbers(await messages(cluster)) == BOTH


async def test_the_brokers_go_on_knowing_a_producer_after_a_take_over(
    cluster: Cluster, running: Task, dying: dict[str, int]
) -> None:
    store = next(iter(cluster.brokers.values())).store.url
    writer = stream_writer({**options(cluster, commit="producer"), "service": store}, SCHEMA)
    dying["calls"] = 3
    with pytest.raises(Killed):
        await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    dying["calls"] = 10**6
    await cluster.stop_broker(next(iter(cluster.brokers)))
    await commit(writer, 0, await written(running, writer, 0, rows(0, 40)))
    assert numbers(await messages(cluster)) == BOTH


TWO = "/v1/topics/public/two"
ORIGIN = StructType([StructField(name, EVERY[name]) for name in ("topic", "partition", "offset")])
SCHEMA_LARGE = StructType(
    [StructField(name, EVERY[name]) for name in ("key", "value", "headers", "timestamp")]
    + [StructField("origin", ORIGIN)]
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
async def cluster_large(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        for topic in (ONE, TWO):
            assert (await found.api.put(topic)).status == 201
        yield found


async def rows_large(cluster: Cluster, *offsets: int, of: str = "one") -> pa.RecordBatch:
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


async def test_bodies_are_copied_and_the_order_stays(cluster_large: Cluster) -> None:
    await plain(cluster_large, "before")
    await uploaded(cluster_large, Octavo_Key="k", Octavo_Header_kind="film", Octavo_Upload="u")
    await uploaded(cluster_large, BODY[:2_000_000])
    await plain(cluster_large, "behind")
    offsets = [offset for offset, _ in await shown(cluster_large)]
    batch = await rows_large(cluster_large, *offsets)
    writer = batch_writer(
        {**options(cluster_large), "topic": "two", "bulkLoadId": "n"}, SCHEMA_LARGE, overwrite=False
    )
    told = await task(writer, batch, batch.slice(0, 2))
    assert [one.pieces for one in told.written] == [0, PIECES, 2, 0, PIECES]
    assert await shown(cluster_large, TWO) == [], "before the commit nothing is seen"
    await asyncio.to_thread(writer.commit, [told])
    found = await shown(cluster_large, TWO)
    sizes = [len(BODY), 2_000_000]
    assert [what for _, what in found] == ["before", *sizes, "behind", "before", len(BODY)]
    first = 1 + PIECES
    assert [at for at, _ in found] == [0, first, first + 3, first + 4, first + 5, 2 * first + 5]
    for offset, what in found:
        if isinstance(what, int):
            assert await body_at(cluster_large, offset, TWO) == BODY[:what]
    copy = (await cluster_large.api.get(f"{TWO}/messages?from=1&limit=1")).json()["messages"][0]
    assert (copy["key"], copy["headers"]["kind"]) == ("k", "film")
    assert (await cluster_large.api.call("DELETE", ONE)).status == 204
    assert await body_at(cluster_large, found[1][0], TWO) == BODY


async def test_a_body_is_never_left_behind(cluster_large: Cluster) -> None:
    offset = (await uploaded(cluster_large))["offset"]
    batch = await rows_large(cluster_large, offset)
    given = {**options(cluster_large), "topic": "two"}
    writer = batch_writer(given, SCHEMA_LARGE, overwrite=False)
    with pytest.raises(BadRow, match="add a column origin"):
        await task(writer, batch.drop_columns(["origin"]))
    with pytest.raises(NotSmall, match="large messages"):
        await task(
            batch_writer({**given, "commit": "producer"}, SCHEMA_LARGE, overwrite=False), batch
        )
    other = (await uploaded(cluster_large, BODY[::-1]))["offset"]
    where = [{"topic": "one", "partition": 0, "offset": other}]
    swapped = batch.set_column(4, "origin", pa.array(where))
    before = set((await cluster_large.api.get("/v1/ledgers")).json()["ledgers"])
    with pytest.raises(BodyNotCopied, match=f"offset {other} of one/0 is a large message"):
        await task(writer, swapped)
    # The empty ledger between two bodies is deleted in the background, before or after this.
    assert set((await cluster_large.api.get("/v1/ledgers")).json()["ledgers"]) <= before
    truncated = await cluster_large.api.call("DELETE", f"{ONE}/messages?before={other}")
    assert truncated.status == 200
    with pytest.raises(BodyNotCopied, match="was deleted after the row was read"):
        await task(writer, batch)
    assert await shown(cluster_large, TWO) == []


async def test_topics_that_take_none_refuse_them_and_no_ledger_passes_for_one(
    cluster_large: Cluster,
) -> None:
    offset = (await uploaded(cluster_large))["offset"]
    batch = await rows_large(cluster_large, offset)
    path = "/v1/topics/public/compacted"
    assert (await cluster_large.api.put(path, json={"compaction": {}})).status == 201
    writer = batch_writer(
        {**options(cluster_large), "topic": "compacted"}, SCHEMA_LARGE, overwrite=False
    )
    told = await task(writer, batch)
    with pytest.raises(SinkFailed, match="compaction would remove a large message's body"):
        await asyncio.to_thread(writer.commit, [told])
    await plain(cluster_large, "plain")
    writer = batch_writer({**options(cluster_large), "topic": "two"}, SCHEMA_LARGE, overwrite=False)
    for pieces, why in ((1, "with 1 pieces of a large message"), (0, "")):
        told = await task(writer, await rows_large(cluster_large, offset + 1))
        (one,) = told.written
        told.written = (one._replace(pieces=pieces),)
        if why:
            with pytest.raises(SinkFailed, match=why):
                await asyncio.to_thread(writer.commit, [told])
        else:
            await asyncio.to_thread(writer.commit, [told])
    assert await shown(cluster_large, TWO) == [(0, "plain")]
