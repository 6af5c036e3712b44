"""The job `offload`: copy closed ledgers to an object store, and later drop them from bookies.

    1. write an intent: which copy of which ledger goes where   no object can be forgotten
    2. the partition's record: copying (uuid)                   only one of two runs can finish
    3. write the object, read it back, compare                  in Spark tasks, ledger by ledger
    4. the partition's record: offloaded (uuid, object)         readers may use it from here on
    5. after a lag, the record: dropped; then the ledger is deleted

If a run dies, the cluster reads as before; the next run finishes, or removes what is left, and
copies that no record names any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid as uuids
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from octavo.client.types import TopicName
from octavo.clock import wall_clock_ms
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.offload.format import About
from octavo.ledger.offload.object_store import joined
from octavo.metadata.offloads import (
    COPYING,
    OFFLOADED,
    OffloadLost,
    begun,
    change_partition,
    dropped,
    finished,
    given_up,
)
from octavo.metadata.shares import ShareStore
from octavo.metadata.store import MetadataUnavailable, RecordNotFound
from octavo.metadata.topics import OffloadIntent, OffloadRecord, PartitionRecord, TopicStore
from octavo.pipeline.interrupt import told
from octavo.pipeline.offload_copy import (
    Copied,
    CopyTask,
    check_writable,
    copy_in_task,
    remove_all,
    stem_of,
)
from octavo.pipeline.offload_rules import (
    OFFLOADS_MAX,
    Drop,
    Job,
    OffloadPolicy,
    PartitionKey,
    Plan,
    is_forgotten,
    orphans,
    planned,
    waves,
)
from octavo.pipeline.offload_table import register
from octavo.pipeline.outcome import Finding, Outcome
from octavo.pipeline.runner import JobFailed, Run
from octavo.pipeline.table_iceberg import Place, away
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import Cluster, connected
from octavo.spark.options import Selection


@dataclass(frozen=True)
class OffloadOptions:
    """`to` is a URL. `bytes_per_s` limits all tasks together."""

    selection: Selection
    to: str
    policy: OffloadPolicy
    bytes_per_s: float | None = None
    dry_run: bool = False
    place_of: Callable[[TopicName], Place] | None = None
    """Where a topic's table of its objects is; None: no tables."""


def offload(run: Run, options: OffloadOptions) -> Outcome:
    return _Offload(run, options).carry_out()


class _Offload:
    def __init__(self, run: Run, options: OffloadOptions) -> None:
        self.run = run
        self.selection = options.selection
        self.to = options.to
        self.policy = options.policy
        self.bytes_per_s = options.bytes_per_s
        self.dry_run = options.dry_run
        self.place_of = options.place_of
        self.done: Counter[str] = Counter()

    def carry_out(self) -> Outcome:
        outcome = Outcome("offload")
        plan = asyncio.run(self._plan())
        size = sum(job.link.bytes for job in plan.copies)
        self.run.say(
            f"{len(plan.copies)} ledgers with {size / 1e6:,.1f} MB to copy, "
            f"{len(plan.drops)} to drop from bookies, {plan.offloaded} offloaded, {plan.kept} kept"
        )
        outcome.found([_full(name) for name in plan.full])
        if not self.dry_run:
            self._check_writable()  # also when nothing is due: report a bad target today
        with told(outcome, lambda: self._sum_up(plan, outcome)):
            if not self.dry_run:
                self._copy_all(plan, outcome)
                asyncio.run(self._tidy(plan, outcome))
        return outcome

    def _copy_all(self, plan: Plan, outcome: Outcome) -> None:
        if plan.copies:
            for wave in waves(plan.copies, 2 * self._tasks_at_once()):
                self._copy(wave, outcome)
                self.run.say(f"{self.done['copied']} of {len(plan.copies)} ledgers copied")

    def _sum_up(self, plan: Plan, outcome: Outcome) -> None:
        outcome.summary = {
            "copied_ledgers": self.done["copied"],
            "copied_entries": self.done["entries"],
            "object_bytes": self.done["bytes"],
            "dropped_ledgers": self.done["dropped"],
            "removed_orphans": self.done["orphans"],
            "offloaded_before": plan.offloaded,
            "kept_ledgers": plan.kept,
        }
        if self.place_of is not None:
            outcome.summary |= {
                "table_objects_added": self.done["table_added"],
                "table_objects_removed": self.done["table_removed"],
                "table_objects_skipped": self.done["table_skipped"],
            }
        if self.dry_run:
            outcome.summary |= {
                "would_copy": [job.link.ledger_id for job in plan.copies],
                "would_drop": [drop.ledger_id for drop in plan.drops],
            }

    def _check_writable(self) -> None:
        try:
            check_writable(self.to)
        except OctavoError as error:
            raise JobFailed(f"nothing was copied: {error}") from error

    def _tasks_at_once(self) -> int:
        found = self.run.spark.sparkContext.defaultParallelism
        assert isinstance(found, int)
        return found

    async def _plan(self) -> Plan:
        async with connected(self.run.service) as cluster:
            wanted = await cluster.partitions(self.selection)
            records = {
                _key(topic, number): await cluster.record(topic, number)
                for topic, numbers in sorted(wanted.items())
                for number in numbers
            }
        return planned(records, self.policy, wall_clock_ms())

    def _copy(self, wave: list[Job], outcome: Outcome) -> None:
        tasks = asyncio.run(self._begin(wave))
        at_once = max(1, min(len(tasks), self._tasks_at_once()))
        rate = None if self.bytes_per_s is None else self.bytes_per_s / at_once
        paced = [task._replace(bytes_per_s=rate) for task in tasks]
        if paced:
            spark = self.run.spark.sparkContext
            found = spark.parallelize(paced, len(paced)).map(copy_in_task).collect()
            asyncio.run(self._finish(found, outcome))

    async def _begin(self, wave: list[Job]) -> list[CopyTask]:
        """Do steps 1 and 2. Skip ledgers that are trimmed or taken by another run meanwhile."""
        tasks = []
        async with connected(self.run.service) as cluster:
            for job in wave:
                try:
                    tasks.append(await begin(cluster, job, self.to, self.run.service))
                except (OffloadLost, RecordNotFound, LedgerNotFound) as error:
                    self.run.say(f"skipped: {error}")
        return tasks

    async def _finish(self, found: list[Copied], outcome: Outcome) -> None:
        """Do step 4 for whole copies; undo step 2 for the others."""
        async with connected(self.run.service) as cluster:
            for one in found:
                try:
                    if await finish(cluster, one):
                        assert one.written is not None
                        self.done += Counter(
                            copied=1, entries=one.written.entries, bytes=one.written.bytes
                        )
                    else:
                        outcome.found([_failure(one)])
                except (OffloadLost, RecordNotFound) as error:
                    self.run.say(f"not needed any more: {error}")

    async def _tidy(self, plan: Plan, outcome: Outcome) -> None:
        async with connected(self.run.service) as cluster:
            for drop in plan.drops:
                try:
                    self.done["dropped"] += await drop_ledger(cluster, drop)
                except (OffloadLost, RecordNotFound) as error:
                    self.run.say(f"skipped: {error}")
            # Before objects are removed that a table may still have.
            await self._register(cluster, outcome)
            try:
                self.done["orphans"] = await remove_orphans(cluster, self.policy)
            except (OctavoError, OSError) as error:
                if isinstance(error, MetadataUnavailable):
                    raise
                outcome.found([Finding("orphan-left", self.to, str(error))])

    async def _register(self, cluster: Cluster, outcome: Outcome) -> None:
        """Make each topic's table one of the objects that its records name."""
        if self.place_of is None:
            return
        for topic, numbers in sorted((await cluster.partitions(self.selection)).items()):
            place = self.place_of(TopicName.of(topic))
            incarnation = await cluster.incarnation(topic)
            records = [await cluster.record(topic, number, incarnation) for number in numbers]
            try:
                found = await asyncio.to_thread(register, place, topic, incarnation, records)
            except Exception as error:
                why = str(error) if isinstance(error, OctavoError) else away(error)
                if why is None:
                    raise
                outcome.found([Finding("table-not-changed", topic, why)])
                continue
            self.done += Counter(
                table_added=found.added, table_removed=found.removed, table_skipped=found.skipped
            )
            self.run.say(
                f"table {place.namespace}.{place.name}: {found.added} objects more, "
                f"{found.removed} fewer, {found.skipped} that engines cannot read"
            )


def _full(name: PartitionKey) -> Finding:
    what = f"{OFFLOADS_MAX:,} of its ledgers are offloaded: its record has no room for more"
    return Finding("record-full", "/".join(map(str, name)), what)


def _failure(one: Copied) -> Finding:
    about = one.task.about
    where = f"{about.topic}/{about.partition}"
    return Finding("copy-failed", where, f"ledger {about.ledger_id}: {one.failed}")


def _key(topic: str, partition: int) -> PartitionKey:
    namespace, _, name = topic.partition("/")
    return namespace, name, partition


async def begin(cluster: Cluster, job: Job, to: str, service: str) -> CopyTask:
    namespace, topic, partition = job.name
    ledger_id = job.link.ledger_id
    metadata = await cluster.ledgers.metadata(ledger_id)
    uuid = uuids.uuid4().hex
    folder = _folder(to, job.name)
    intent = OffloadIntent(
        namespace, topic, partition, ledger_id, folder, stem_of(ledger_id, uuid), wall_clock_ms()
    )
    await cluster.topics.create_intent(uuid, intent)
    copying = OffloadRecord(uuid, COPYING, folder, wall_clock_ms())
    try:
        await change_partition(
            cluster.topics, job.name, lambda record: begun(record, ledger_id, copying)
        )
    except (OffloadLost, RecordNotFound):
        await cluster.topics.delete_intent(uuid)
        raise
    if job.before is not None:  # the record names this copy now: the earlier cannot be finished
        await _remove_copy(cluster.topics, job.before)
    about = About(
        ledger_id, uuid, f"{namespace}/{topic}", partition, job.link.base_offset,
        metadata.last_entry + 1, pieces=job.link.pieces or 0,
    )  # fmt: skip
    records = await cluster.records_for([ledger_id])
    appended = job.link.appended
    return CopyTask(about, folder, intent.stem, records, service, None, appended)


async def finish(cluster: Cluster, one: Copied) -> bool:
    """Do step 4. Returns True when the copy is whole and the record names it.

    Otherwise its objects are removed, also on `OffloadLost` or `RecordNotFound`. The intent stays:
    an attempt that Spark has given up may still be writing its object.
    """
    about = one.task.about
    name = _key(about.topic, about.partition)
    topics = cluster.topics
    try:
        if one.written is None:
            await change_partition(
                topics, name, lambda record: given_up(record, about.ledger_id, about.uuid)
            )
        else:
            whole = OffloadRecord(
                about.uuid, OFFLOADED, one.url, wall_clock_ms(), one.written.entries,
                one.written.bytes, one.written.crc, one.written.footer_crc,
                encryption=one.encryption,
            )  # fmt: skip
            await change_partition(
                topics, name, lambda record: finished(record, about.ledger_id, whole)
            )
            return True
    except (OffloadLost, RecordNotFound):
        await asyncio.to_thread(remove_all, one.task.folder, {one.task.stem})
        raise
    await asyncio.to_thread(remove_all, one.task.folder, {one.task.stem})
    return False


async def drop_ledger(cluster: Cluster, drop: Drop) -> bool:
    """Do step 5. Returns True if the ledger was still there. Raises `OffloadLost`,
    `RecordNotFound`.

    A ledger that a fork shares stays on the bookies: the fork's record does not name the object.
    """
    await _check_not_shared(cluster, drop)
    await change_partition(
        cluster.topics,
        drop.name,
        lambda record: dropped(record, drop.ledger_id, drop.uuid, wall_clock_ms()),
    )
    # Check again: a fork made meanwhile has either read the changed record, or is seen now
    # (broker/log/orphan_ledgers.py).
    await _check_not_shared(cluster, drop)
    try:
        await cluster.ledgers.delete(drop.ledger_id)
    except LedgerNotFound:
        return False
    return True


async def _check_not_shared(cluster: Cluster, drop: Drop) -> None:
    shares, _ = await ShareStore(cluster.store).read(drop.ledger_id)
    others = [
        f"{one.namespace}/{one.topic}/{one.partition}"
        for one in (shares.referrers if shares else ())
        if (one.namespace, one.topic, one.partition) != drop.name
    ]
    if others:
        raise OffloadLost(f"ledger {drop.ledger_id} stays on the bookies for {', '.join(others)}")


async def _remove_copy(topics: TopicStore, uuid: str) -> None:
    """Remove the objects of a copy that no record names.

    Its intent stays: the run that makes the copy may still write its object, and die before it
    learns that it lost.
    """
    with contextlib.suppress(RecordNotFound):
        intent = await topics.read_intent(uuid)
        await asyncio.to_thread(remove_all, intent.folder, {intent.stem})


async def remove_orphans(cluster: Cluster, policy: OffloadPolicy) -> int:
    """Remove the objects of copies that no record names, then the intents that no run can still
    use.

    Returns how many of these copies had objects.
    """
    topics = cluster.topics
    intents = {}
    for uuid in await topics.list_intents():
        try:
            intents[uuid] = await topics.read_intent(uuid)
        except RecordNotFound:
            continue
    records: dict[PartitionKey, PartitionRecord] = {}
    for intent in intents.values():
        name = (intent.namespace, intent.topic, intent.partition)
        if name not in records:
            try:
                records[name] = (await topics.read_partition(*name))[0]
            except RecordNotFound:
                records[name] = PartitionRecord()
    now_ms = wall_clock_ms()
    by_folder: dict[str, list[str]] = {}
    for uuid in orphans(intents, records, policy, now_ms):
        by_folder.setdefault(intents[uuid].folder, []).append(uuid)
    removed = 0
    for folder, those in by_folder.items():
        stems = {intents[uuid].stem for uuid in those}
        removed += len(await asyncio.to_thread(remove_all, folder, stems))
        for uuid in those:
            if is_forgotten(intents[uuid], policy, now_ms):
                await topics.delete_intent(uuid)
    return removed


def _folder(to: str, name: PartitionKey) -> str:
    namespace, topic, partition = name
    return joined(to, namespace, topic, str(partition))
