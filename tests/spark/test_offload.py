"""Offload without a JVM: the steps, deaths during them, and readers of the offloaded ledgers."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from octavo import Client
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
from octavo.metadata.topics import OffloadRecord, PartitionLedger, Policies, TopicStore
from octavo.pipeline import offload_copy
from octavo.pipeline.offload import OffloadOptions, begin, drop_ledger, finish, offload
from octavo.pipeline.offload_copy import copy_in_task
from octavo.pipeline.offload_rules import Drop, OffloadPolicy, planned
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import JobFailed, Run, run_job
from octavo.pipeline.session import SparkOptions
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import open_batch
from octavo.spark.cluster import connected
from octavo.spark.options import Selection
from octavo.spark.served import served
from octavo.spark.splits import Piece
from tests.spark.test_source import publish, value_of
from tests.support.cluster import TOPIC, batch, make_topic, owned, running_cluster, until, values
from tests.support.processes.standalone import environment, octavo
from tests.support.processes.standalone import until as until_job
from tests.support.spark_place import WHOLE, Place, reader_of, running_place, values_of

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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_path_that_cannot_be_written_to(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(JobFailed, match=f"nothing was copied: .*{tmp_path}/file/out"):
        await offloaded(place, tmp_path / "file" / "out", COPY)
    await nothing_is_left(place, tmp_path / "out")
    with pytest.raises(JobFailed, match="not a place for objects"):
        await offloaded(place, "tape://1", COPY)


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
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


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_dry_run_changes_nothing(place: Place, tmp_path: Path) -> None:
    outcome = await offloaded(place, tmp_path / "out", DROP, dry_run=True)
    assert outcome.summary["would_copy"] == [link.ledger_id for link in await links(place)]
    await nothing_is_left(place, tmp_path / "out")


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
TOPIC_JOB = "public/cold"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
def test_offloaded_by_spark_and_read_over_http(
    spark: SparkSession, service: str, tmp_path: Path
) -> None:
    def run(policy: OffloadPolicy) -> Outcome:
        options = OffloadOptions(Selection(topics=(TOPIC_JOB,)), tmp_path.as_uri(), policy, 50e6)
        return run_job("offload", partial(offload, options=options), service=service, say=print)

    with Client(service) as client:
        client.create_topic("cold", rollover={"entries": 4})
        for first in range(0, 400, 100):
            publish(client, service, "cold", range(first, first + 100))
        subscription = client.subscribe("cold", "s", start="earliest")
        copied = run(OffloadPolicy())
        assert copied.exit is Exit.OK
        assert copied.summary["copied_ledgers"] > 1
        dropped = run(OffloadPolicy(drop_lag_ms=0))
        assert dropped.summary["dropped_ledgers"] == copied.summary["copied_ledgers"]
        stored = [bytes(message.value or b"") for message in client.messages("cold")]
        assert stored == [value_of(number) for number in range(400)]
        got: list[bytes] = []

        def took_all() -> bool:
            found = subscription.receive()
            got.extend(bytes(one.value or b"") for one in found)
            subscription.ack(found)
            return len(got) >= 400

        until_job(took_all, "all deliveries", 400)
        assert got == stored
    rows = spark.read.format("octavo").options(service=service, subscribe="cold").load()
    assert sorted(row.value for row in rows.select("value").collect()) == stored
    reader = reader_of(service, subscribe="cold", readFrom="offload")
    found = [some for split in reader.partitions() for some in reader.read(split)]  # type: ignore[arg-type]
    assert sorted(values_of(found)) == [value.decode() for value in stored]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the target folder"),
        (("--to", "tape://1"), "--to tape://1: tape://1: not a place for objects"),
        (("--to", "out", "--all", "cold"), "not both"),
    ],
)
def test_usage_is_told_without_spark(service: str, arguments: tuple[str, ...], said: str) -> None:
    topics = () if "--all" in arguments else ("cold",)
    done = octavo("pipeline", "offload", *topics, "--url", service, *arguments)
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_dry_run_as_json(service: str, tmp_path: Path) -> None:
    with Client(service) as client:
        client.create_topic("dry")
    done = octavo(
        "pipeline", "offload", "dry", "--to", str(tmp_path), "--dry-run", "--json", "--url",
        service, timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["job"], found["result"]) == ("offload", "ok")
    assert found["summary"]["would_copy"] == []
    assert list(tmp_path.iterdir()) == []


APPEND = Policies(message_time="append")
BEGUN_MS = 1_700_000_000_000
WANTED = [BEGUN_MS + 1_000 * n for n in range(10) for _ in range(3)]


async def rows(place: Place, **options: str) -> list[tuple[int, int]]:
    reader, splits = await place.planned(columns="timestamp,timestampType,offset", **options)
    found: list[tuple[int, int]] = []
    for split in splits:
        for some in await asyncio.to_thread(list, reader.read(split)):
            times = some.column("timestamp").cast("int64").to_pylist()
            found += zip(times, some.column("timestampType").to_pylist(), strict=True)
    return [(time_us // 1000, kind) for time_us, kind in found]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_bookies_objects_and_lookups_agree(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", session_timeout_ms=60_000) as cluster:
        running = await cluster.start("A", tail_cache_bytes_max=1)
        name = await make_topic(running.broker, rollover_entries=4, policies=APPEND)
        place = Place(cluster, running, name)
        partition = await owned(running.broker, name)
        for number in range(10):
            await partition.publish(batch(3, time_ms=5))
            ledgers = number // 4 + (2 if number % 4 == 3 else 1)
            await until(lambda n=ledgers: len(partition.ledgers) == n, "a new ledger", 60)
            cluster.clock.now_ms += 1_000
        wanted = [(time_ms, 1) for time_ms in WANTED]
        async with asyncio.timeout(30):
            while len(await rows(place)) < len(wanted):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await rows(place) == wanted
        assert await rows(place, maxRecordsPerPartition="2") == wanted
        for number in (0, 3, 4, 9):
            asked = {"startingTimestamp": str(BEGUN_MS + 1_000 * number - 1)}
            assert await rows(place, **asked) == wanted[3 * number :], number
        await offloaded(place, tmp_path / "out", COPY)
        assert await rows(place, readFrom="offload") == wanted
        await offloaded(place, tmp_path / "out", DROP)
        assert len(await gone_from_bookies(place)) == 2
        assert await rows(place) == wanted
        for number in (0, 3, 4, 9):
            time_ms = BEGUN_MS + 1_000 * number
            assert await rows(place, startingTimestamp=str(time_ms)) == wanted[3 * number :]
            assert await partition.offset_at(time_ms) == 3 * number
            assert await partition.offset_at(time_ms + 1) == min(3 * number + 3, 30)
        found = [
            one.header.max_timestamp
            for one in await partition.read(0, bytes_max=10**6, count_max=10**4)
        ]
        assert found == [BEGUN_MS + 1_000 * n for n in range(len(found))]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_through_a_broker(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        body = {"message_time": "append"}
        assert (await cluster.api.put("/v1/topics/public/t", json=body)).status == 201
        for number in range(3):
            answer = await cluster.api.post(
                "/v1/topics/public/t/messages", json={"value": number, "timestamp": 5}
            )
            assert answer.status == 200
        answer = await cluster.api.get("/v1/topics/public/t/messages")
        wanted = [one["timestamp"] for one in answer.json()["messages"]]
        assert min(wanted) > BEGUN_MS
        piece = Piece("public/t", 0, 0, 0, 0, 3)
        found = []
        async for batches in served(cluster.api.url, piece):
            for one in batches:
                assert one.header.attributes & 8
                found += [record.timestamp for record in open_batch(one.data)]
        assert found == wanted
