"""Tasks of a stream's run share a connection to a live cluster, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from octavo.spark import kept, sink_task
from octavo.spark.cluster import Cluster as Connected
from octavo.spark.kept import READERS, WRITERS
from octavo.spark.sink import batch_writer
from octavo.spark.sink_rows import BadRow
from tests.support.cluster import Cluster, running_cluster
from tests.support.sink_tasks import SCHEMA, TOPIC, messages, options, rows, task
from tests.support.spark_place import reader_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        yield found
        for slot in (READERS, WRITERS):
            await asyncio.to_thread(slot.take, "another run")


class Run:
    """The stream's run that tasks say they belong to, and the connections that were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name: str | None = "run"
        self.connections = 0
        start = Connected.start

        async def counted(connected: Connected) -> None:
            self.connections += 1
            await start(connected)

        for module in (kept, sink_task):
            monkeypatch.setattr(module, "run_of_task", lambda: self.name)
        monkeypatch.setattr(Connected, "start", counted)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


async def test_tasks_that_write_share_it(cluster: Cluster, run: Run) -> None:
    writer = batch_writer(options(cluster), SCHEMA, overwrite=False)
    told: list[Any] = [await task(writer, rows(0, 10)), await task(writer, rows(10, 20))]
    assert run.connections == 1
    assert WRITERS._held is not None
    connection = WRITERS._held[1]
    await asyncio.to_thread(connection.thread.call, connection.cluster.store.close())
    told.append(await task(writer, rows(20, 30)))  # it has broken: the task connects anew
    assert run.connections == 2
    run.name = "another run"
    told.append(await task(writer, rows(30, 40)))
    assert run.connections == 3
    run.name = None  # no stream's task
    told += [await task(writer, rows(40, 50)), await task(writer, rows(50, 60))]
    assert run.connections == 5
    await asyncio.to_thread(writer.commit, told)
    assert sorted(int(one) for part in await messages(cluster) for one in part) == list(range(60))


async def test_a_task_that_fails_gives_it_up(cluster: Cluster, run: Run) -> None:
    writer = batch_writer(options(cluster), SCHEMA, overwrite=False)
    await task(writer, rows(0, 10))
    bad = rows(10, 20).append_column("partition", pa.array([9] * 10, pa.int32()))
    with pytest.raises(BadRow, match="partitions 0 to 1, not 9"):
        await task(writer, bad)
    assert WRITERS._held is None
    await task(writer, rows(10, 20))
    assert run.connections == 2


async def test_tasks_that_read_the_same_ledgers_share_it(cluster: Cluster, run: Run) -> None:
    run.name = None
    writer = batch_writer(options(cluster), SCHEMA, overwrite=False)
    await asyncio.to_thread(writer.commit, [await task(writer, rows(0, 30))])
    reader = reader_of(cluster.api.url, subscribe="flights")
    (split,) = await asyncio.to_thread(reader.partitions)
    run.name, run.connections = "run", 0

    def read() -> int:
        return sum(batch.num_rows for batch in reader.read(split))

    for _ in range(3):
        assert await asyncio.to_thread(read) == 30
    assert run.connections == 1
    split.records["/more"] = b""  # type: ignore[attr-defined]
    assert await asyncio.to_thread(read) == 30
    assert run.connections == 2

    def begin() -> None:
        next(iter(reader.read(split)))  # and no more: the task was cancelled

    await asyncio.to_thread(begin)
    assert await asyncio.to_thread(read) == 30
