"""Small batches through the idempotent producer: once, whatever is repeated or left half done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from octavo.protocol.batch import split_batches
from octavo.spark import commit as calls
from octavo.spark import sink
from octavo.spark.commit import SinkFailed
from octavo.spark.sink import OctavoStreamWriter, batch_writer, stream_writer
from octavo.spark.sink_producer import NotSmall
from tests.support.cluster import Cluster, running_cluster
from tests.support.sink_tasks import BATCHES, SCHEMA, TOPIC, messages, options, rows, task

BOTH = list(range(40))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        yield found


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
    monkeypatch.setattr(calls, "_AT_ONCE", 1)
    left = {"calls": 10**6}
    ask = calls._Brokers.ask

    async def counted(self: calls._Brokers, *arguments: Any) -> dict[str, Any]:
        left["calls"] -= 1
        if left["calls"] < 0:
            raise Killed
        return await ask(self, *arguments)

    monkeypatch.setattr(calls._Brokers, "ask", counted)
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
    ask, woken, begun = calls._Brokers.ask, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(self: calls._Brokers, path: str, *arguments: Any) -> dict[str, Any]:
        answer = await ask(self, path, *arguments)
        if path.endswith("begin"):
            loop.call_soon_threadsafe(begun.set)
            waits = asyncio.run_coroutine_threadsafe(woken.wait(), loop)
            await asyncio.wrap_future(waits)
        return answer

    monkeypatch.setattr(calls._Brokers, "ask", slow)
    sleeper = asyncio.create_task(commit(writer, 0, late))
    await begun.wait()
    monkeypatch.setattr(calls._Brokers, "ask", ask)
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
