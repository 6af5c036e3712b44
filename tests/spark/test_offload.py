"""Offload without a JVM: the steps, deaths during them, and readers of the offloaded ledgers."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.broker.errors import OffsetTrimmed
from octavo.broker.types import Delivery, MessageId, SubscriptionSettings, TopicSettings
from octavo.clock import wall_clock_ms
from octavo.ledger.errors import OffloadDamaged, OffloadUnavailable
from octavo.metadata.offloads import (
    DROPPED,
    OFFLOADED,
    OffloadLost,
    begun,
    change_partition,
    is_readable,
)
from octavo.metadata.topics import OffloadRecord, PartitionLedger, TopicStore
from octavo.pipeline import offload_copy
from octavo.pipeline.offload import OffloadOptions, begin, drop_ledger, finish, offload
from octavo.pipeline.offload_copy import copy_in_task
from octavo.pipeline.offload_rules import Drop, OffloadPolicy, planned
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import JobFailed, Run
from octavo.pipeline.session import SparkOptions
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import connected
from octavo.spark.options import Selection
from tests.support.cluster import TOPIC, owned, until, values
from tests.support.processes.standalone import environment
from tests.support.spark_place import WHOLE, Place, running_place, values_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
COPY = OffloadPolicy(grace_ms=0, forget_ms=0)
DROP = OffloadPolicy(grace_ms=0, forget_ms=0, drop_lag_ms=0)
NAME = ("public", "flights", 0)
ALL = Selection(topics=(str(TOPIC),))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with running_place(tmp_path / "cluster") as made:
        yield made


class OneTaskAfterAnother:
    """Spark's part in the job: tasks and results are pickled."""

    defaultParallelism = 2  # noqa: N815

    def parallelize(self, items: Iterable[Any], _: int) -> OneTaskAfterAnother:
        self.items = [pickle.loads(pickle.dumps(item)) for item in items]
        return self

    def map(self, work: Callable[[Any], Any]) -> OneTaskAfterAnother:
        self.items = [pickle.loads(pickle.dumps(work(item))) for item in self.items]
        return self

    def collect(self) -> list[Any]:
        return self.items


async def offloaded(place: Place, to: Path | str, policy: OffloadPolicy, **how: Any) -> Outcome:
    url = to if isinstance(to, str) else to.as_uri()
    run = Run("offload", place.service, lambda _: None, SparkOptions())
    run.spark = cast(Any, SimpleNamespace(sparkContext=OneTaskAfterAnother()))
    return await asyncio.to_thread(offload, run, OffloadOptions(ALL, url, policy, **how))


async def links(place: Place) -> list[PartitionLedger]:
    record, _ = await TopicStore(place.cluster.store).read_partition(*place.name)
    return [link for link in record.ledgers if link.count]


async def gone_from_bookies(place: Place) -> list[int]:
    """Wait until all closed ledgers are dropped, and the bookies have collected them."""
    dropped = [link.ledger_id for link in await links(place)]
    for ledger_id in dropped:
        await place.forget(ledger_id)
    return dropped


async def rows_of(place: Place, **options: str) -> list[str]:
    reader, splits = await place.planned(**options)
    found = []
    for split in splits:
        found += await asyncio.to_thread(list, reader.read(split))
    return values_of(found)


def objects_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------------- readers


async def test_closed_ledgers_are_copied_and_everybody_reads_on(
    place: Place, tmp_path: Path
) -> None:
    partition = await owned(place.broker, place.name)
    epoch = partition.epoch
    assert await values(partition) == WHOLE
    outcome = await offloaded(place, tmp_path / "out", COPY)
    assert outcome.exit is Exit.OK
    closed = await links(place)
    assert outcome.summary["copied_ledgers"] == len(closed) == 6
    assert {link.offload.state for link in closed if link.offload} == {OFFLOADED}
    assert len(objects_in(tmp_path / "out")) == len(closed)
    assert outcome.summary["copied_entries"] == sum(
        link.offload.entries for link in closed if link.offload
    )
    # Both places have it; each way gives the same rows.
    for read_from in ("auto", "bookies", "offload"):
        assert await rows_of(place, readFrom=read_from) == WHOLE, read_from
    # The owner writes its record over the job's, and keeps the job's change.
    await place.publish(100, 4)
    await until(lambda: len(partition.ledgers) == 8, "a new ledger", 400)
    assert (await owned(place.broker, place.name)).epoch == epoch, "nobody lost the partition"
    assert all(link.offload for link in (await links(place))[: len(closed)])
    again = await offloaded(place, tmp_path / "out", COPY)
    assert again.summary["offloaded_before"] == len(closed)
    assert again.summary["copied_ledgers"] == 1


async def test_brokers_and_spark_read_what_only_the_objects_have(
    place: Place, tmp_path: Path
) -> None:
    partition = await owned(place.broker, place.name)
    first = (await partition.read(0, bytes_max=1, count_max=1))[0]
    await offloaded(place, tmp_path / "out", COPY)
    outcome = await offloaded(place, tmp_path / "out", DROP)
    dropped = await gone_from_bookies(place)
    assert outcome.summary["dropped_ledgers"] == len(dropped) == 6
    assert not set(dropped) & set(await place.ledgers.list())
    assert {link.offload.state for link in await links(place) if link.offload} == {DROPPED}
    # The owner, whose readers of these ledgers were open; then a new one.
    assert await values(partition) == WHOLE
    assert await partition.position(MessageId(first.ledger_id, first.entry_id, 3)) == 3
    await place.running.close()
    second = await place.cluster.start("B")
    partition = await owned(second.broker, place.name)
    assert await values(partition) == WHOLE
    assert await values(partition, 57) == WHOLE[57:]
    assert await partition.offset_at(1_004) == 4
    info, _ = await second.broker.topics.create_subscription(
        TOPIC, "s", SubscriptionSettings(start="earliest")
    )
    subscription = await partition.subscribe(info)
    got: list[Delivery] = []
    while len(got) < len(WHOLE):
        got += await subscription.receive("c", messages_max=50)
        await subscription.acknowledge([one.ack_id for one in got[-50:]])
    assert [(one.record.value or b"").decode() for one in got] == WHOLE
    # Spark: from any offset, in any splits; but not from bookies alone.
    assert await rows_of(place, maxRecordsPerPartition="7") == WHOLE
    assert await rows_of(place, startingOffsets='{"flights": {"0": 57}}') == WHOLE[57:]
    assert await rows_of(place, startingTimestamp="1009") == WHOLE[9:]
    with pytest.raises(OctavoError, match="no ledger"):
        await rows_of(place, readFrom="bookies")


async def test_a_reader_under_way_follows_to_the_object(place: Place, tmp_path: Path) -> None:
    """Planned while the bookies had it; they collect it before the task comes to it."""
    reader, splits = await place.planned(maxRecordsPerPartition="60")
    rows = iter([reader.read(split) for split in splits])
    found = await asyncio.to_thread(list, next(rows))
    await offloaded(place, tmp_path / "out", COPY)
    await offloaded(place, tmp_path / "out", DROP)
    await gone_from_bookies(place)
    for rest in rows:
        found += await asyncio.to_thread(list, rest)
    assert values_of(found) == WHOLE


async def test_trimmed_and_deleted_ledgers_leave_no_objects(place: Place, tmp_path: Path) -> None:
    await offloaded(place, tmp_path / "out", COPY)
    await offloaded(place, tmp_path / "out", DROP)
    partition = await owned(place.broker, place.name)
    await place.broker.topics.update(TOPIC, TopicSettings(rollover_entries=4, retention_bytes=1))
    await partition.maintain()
    assert partition.earliest_offset > 0
    with pytest.raises(OffsetTrimmed):
        await partition.read(0, bytes_max=1, count_max=1)
    outcome = await offloaded(place, tmp_path / "out", COPY)
    left = await links(place)
    assert outcome.summary["removed_orphans"] == 6 - len(left)
    assert len(objects_in(tmp_path / "out")) == len(left)
    await place.broker.topics.delete(TOPIC)
    await place.broker.topics.create(TOPIC, TopicSettings())
    await offloaded(place, tmp_path / "out", COPY)
    assert objects_in(tmp_path / "out") == []
    assert await TopicStore(place.cluster.store).list_intents() == []


# ---------------------------------------------------------------------- faults


async def nothing_is_left(place: Place, folder: Path) -> None:
    assert not any(link.offload for link in await links(place))
    assert await TopicStore(place.cluster.store).list_intents() == []
    assert objects_in(folder) == []


async def test_a_path_that_cannot_be_written_to(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(JobFailed, match=f"nothing was copied: .*{tmp_path}/file/out"):
        await offloaded(place, tmp_path / "file" / "out", COPY)
    await nothing_is_left(place, tmp_path / "out")
    with pytest.raises(JobFailed, match="not a place for objects"):
        await offloaded(place, "tape://1", COPY)


async def test_a_wrong_checksum_after_a_copy(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system took all bytes and returns others: the ledger stays where it is."""
    write = offload_copy._write

    async def damaging(cluster: Any, task: Any, url: str) -> Any:
        written = await write(cluster, task, url)
        flip(Path(url.removeprefix("file://")), 200)
        return written

    monkeypatch.setattr(offload_copy, "_write", damaging)
    outcome = await offloaded(place, tmp_path / "out", DROP)
    assert outcome.exit is Exit.FINDINGS
    assert outcome.counts == {"copy-failed": len(await links(place))}
    assert all("checksum of bytes" in finding.what for finding in outcome.findings)
    await nothing_is_left(place, tmp_path / "out")
    monkeypatch.undo()
    assert (await offloaded(place, tmp_path / "out", DROP)).exit is Exit.OK
    assert await rows_of(place) == WHOLE


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


async def test_a_damaged_object_is_an_error_that_names_it(place: Place, tmp_path: Path) -> None:
    await offloaded(place, tmp_path / "out", COPY)
    await offloaded(place, tmp_path / "out", DROP)
    await gone_from_bookies(place)
    second = next(link for link in await links(place) if link.base_offset + (link.count or 0) > 70)
    assert second.offload is not None
    path = Path(second.offload.url.removeprefix("file://"))
    flip(path, 300)
    partition = await owned(place.broker, place.name)
    with pytest.raises(OffloadDamaged, match=f"{path.name}: the checksum of bytes .* does not"):
        await values(partition)
    with pytest.raises(OffloadDamaged, match=path.name):
        await rows_of(place)
    assert await rows_of(place, endingOffsets='{"flights": {"0": 20}}') == WHOLE[:20]
    await asyncio.to_thread(path.unlink)
    with pytest.raises(OffloadUnavailable, match=path.name):
        await rows_of(place)


KILLED = """
import asyncio, os, signal, sys
from octavo.ledger.offload import format as offload_format
from octavo.pipeline.offload import begin
from octavo.pipeline.offload_copy import copy_in_task
from octavo.pipeline.offload_rules import OffloadPolicy, planned
from octavo.spark.cluster import connected

service, to, name = sys.argv[1], sys.argv[2], ("public", "flights", 0)

async def task():
    async with connected(service) as cluster:
        record = await cluster.record("public/flights", 0)
        plan = planned({name: record}, OffloadPolicy(), 2**60)
        return await begin(cluster, plan.copies[0], to, service)

offload_format.GROUP_ENTRIES_MAX = 1
write = offload_format.ObjectWriter._write_group

def once(self):
    write(self)
    if len(self._groups) == 2:
        self._sink._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

offload_format.ObjectWriter._write_group = once
copy_in_task(asyncio.run(task()))
"""


async def test_killed_in_the_middle_of_a_copy(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", KILLED, place.service, out.as_uri()],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert killed.returncode == -9, killed.stderr
        (torn,) = objects_in(out)
        assert torn.stat().st_size > 0
        assert not any(is_readable(link.offload) for link in await links(place))
        assert await rows_of(place, readFrom="offload") == WHOLE, "nothing half is visible"
        assert await values(await owned(place.broker, place.name)) == WHOLE
    outcome = await offloaded(place, out, DROP)
    assert outcome.exit is Exit.OK
    assert not torn.exists(), "what was left of it is removed"
    assert len(objects_in(out)) == len(await links(place)) == outcome.summary["copied_ledgers"]
    assert len(await TopicStore(place.cluster.store).list_intents()) == len(objects_in(out))
    assert await rows_of(place, readFrom="offload") == WHOLE


async def test_of_two_runs_one_finishes(place: Place, tmp_path: Path) -> None:
    out = (tmp_path / "out").as_uri()

    async def begun_by(cluster: Any) -> Any:
        record = await cluster.record(str(TOPIC), 0)
        job = planned({NAME: record}, COPY, wall_clock_ms()).copies[0]
        return await begin(cluster, job, out, place.service)

    async with connected(place.service) as one, connected(place.service) as other:
        slow = await asyncio.to_thread(copy_in_task, await begun_by(one))
        quick = await asyncio.to_thread(copy_in_task, await begun_by(other))
        assert slow.failed is quick.failed is None
        with pytest.raises(OffloadLost, match="another process has begun"):
            await finish(one, slow)
        assert await finish(other, quick)
        late = OffloadRecord("late", "copying", "x")
        ledger_id = quick.task.about.ledger_id
        with pytest.raises(OffloadLost, match="offloaded already"):
            await change_partition(one.topics, NAME, lambda record: begun(record, ledger_id, late))
    (left,) = objects_in(tmp_path / "out")
    assert left.as_uri() == quick.url


async def test_a_run_that_died_before_it_deleted_the_ledger(place: Place, tmp_path: Path) -> None:
    await offloaded(place, tmp_path / "out", COPY)
    link = (await links(place))[0]
    assert link.offload is not None
    kept = await place.ledgers.metadata(link.ledger_id)
    async with connected(place.service) as cluster:
        drop = Drop(NAME, link.ledger_id, link.offload.uuid)
        assert await drop_ledger(cluster, drop)
        await cluster.ledgers.records.create(kept)  # as if it had died in between
    await offloaded(place, tmp_path / "out", COPY)
    assert link.ledger_id not in await place.ledgers.list()
    assert await rows_of(place) == WHOLE


async def test_a_dry_run_changes_nothing(place: Place, tmp_path: Path) -> None:
    outcome = await offloaded(place, tmp_path / "out", DROP, dry_run=True)
    assert outcome.summary["would_copy"] == [link.ledger_id for link in await links(place)]
    await nothing_is_left(place, tmp_path / "out")
