"""Delete topics: the topic is gone for all brokers before the client gets an answer.

    1. claim the topic's changes             one broker changes a topic at a time
    2. mark the topic's record               from here on no broker opens a partition of it again
    3. mark its partitions' records          from here on no owner can name another ledger
    4. tell all brokers to let it go         without waiting for any watch
    5. recover its open ledgers              an owner that has not heard gets no further ack
    6. wait until no owner's claim stands    it is released, or the owner's session is over
    7. remove ledgers, then records, the topic's own last

If a late writer makes a record below a deleted topic's path, a sweep creates a topic record there,
marked as being deleted, and finishes that deletion like any other. Incomplete forks are deleted in
the same way; ledgers that forks share stay (log/orphan_ledgers.py).

A deletion concerns one incarnation: a later topic of the name is not touched. A crash leaves a
marked topic, whose deletion a later call or sweep finishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import structlog

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import TopicDeleting
from octavo.broker.log.ledger_references import SharedLedgers, referrer_of
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.election import Ownership
from octavo.metadata.gather_all import gather_each
from octavo.metadata.offloads import is_only_copy
from octavo.metadata.store import (
    RecordExists,
    RecordNotFound,
    SessionExpired,
    VersionConflict,
)
from octavo.metadata.topics import (
    PartitionRecord,
    TopicRecord,
    TopicSettings,
    TopicStore,
    changes_path,
    owner_path,
)
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_AT_ONCE = 64
_FENCED_AT_ONCE = 16
"""A fence has a dozen steps on the loop."""
_PAUSE_S = 0.02
_PAUSE_S_MAX = 1.0
_LEFTOVER = "leftover"
"""The incarnation of remains whose topic is unknown; no topic has it."""

TellAll = Callable[[TopicName, str, frozenset[bytes]], Coroutine[Any, Any, frozenset[int]]]
"""Tells every broker, including those with these claims, to let this incarnation go. Returns the
partitions whose owners had served them, within a bounded time.
"""


class _Job:
    def __init__(self) -> None:
        self.waits_for = "it has only just begun"
        self.task: asyncio.Task[None] | None = None


class _Marked(NamedTuple):
    name: PartitionName
    record: PartitionRecord
    version: int


class Deletions:
    def __init__(
        self,
        records: TopicStore,
        ledgers: LedgerClient,
        ownership: Ownership,
        config: BrokerConfig,
        tell_all: TellAll,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        rng: random.Random,
        shared: SharedLedgers,
    ) -> None:
        self._rng = rng
        self._shared = shared
        self._records = records
        self._ledgers = ledgers
        self._ownership = ownership
        self._config = config
        self._tell_all = tell_all
        self._spawn = spawn
        self._value = b""
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._jobs: dict[tuple[TopicName, str], _Job] = {}
        self._taken_up: dict[TopicName, asyncio.Task[None]] = {}

    def start(self, value: bytes) -> None:
        self._value = value

    def _pauses(self) -> Backoff:
        return Backoff(_PAUSE_S, _PAUSE_S_MAX, self._rng)

    @contextlib.asynccontextmanager
    async def alone(self, name: TopicName) -> AsyncIterator[Callable[[], None]]:
        """Let no other broker change or delete the topic meanwhile.

        Without the claim, a topic that is deleted and made again between a read and a write could
        have the same version both times. Call the yielded function before each write: it raises
        `SessionExpired` when the claim is gone.
        """
        path = changes_path(*name)
        lock = self._locks.setdefault(name, asyncio.Lock())
        await lock.acquire()
        try:
            pauses = self._pauses()
            while True:
                if (await self._ownership.claim(path, self._value)).held:
                    break
                await asyncio.sleep(pauses.next_s())

            def check() -> None:
                if not self._ownership.held(path):
                    raise SessionExpired(f"the session ended while {name} was being changed")

            yield check
        finally:
            # A separate task: a cancelled caller leaves no claim behind, and no caller waits for
            # the release.
            self._spawn(self._release(path, lock))

    async def _release(self, path: str, lock: asyncio.Lock) -> None:
        try:
            # A claim whose reply was not awaited may stand, although `held` does not name it.
            if self._ownership.held(path) or (await self._ownership.claim(path, self._value)).held:
                await self._ownership.release(path)
        except OctavoError as error:
            _log.warning("claim_not_released", path=path, reason=str(error))
        finally:
            lock.release()

    async def finish(self, name: TopicName, incarnation: str) -> None:
        """Return when this incarnation is gone."""
        job = self._jobs.get((name, incarnation))
        if job is None:
            job = self._jobs[name, incarnation] = _Job()
            job.task = self._spawn(self._keep_trying(name, incarnation, job))
            job.task.add_done_callback(lambda _: self._jobs.pop((name, incarnation), None))
        assert job.task is not None
        await asyncio.wait((job.task,), timeout=self._config.deletion_wait_ms / 1000)
        if not job.task.done() or job.task.cancelled():
            raise TopicDeleting(
                f"topic {name} is being deleted, and the deletion continues by itself; it waits: "
                f"{job.waits_for}"
            )

    def take_up(self, name: TopicName) -> None:
        """Finish an abandoned deletion, or remove an abandoned fork, in the background."""
        if name not in self._taken_up:
            task = self._taken_up[name] = self._spawn(self._look_after(name))
            task.add_done_callback(lambda _: self._taken_up.pop(name))

    async def _look_after(self, name: TopicName) -> None:
        try:
            await self._look_at(name)
        except OctavoError as error:
            _log.info("deletion_not_taken_up", topic=str(name), reason=str(error))

    async def sweep(self, mine: Callable[[TopicName], bool]) -> None:
        for namespace in await self._records.list_namespaces():
            folders = await self._records.list_owners_folders(namespace)
            topics = await self._records.list_topics(namespace)
            for name in (TopicName(namespace, topic) for topic in topics):
                if mine(name):
                    with contextlib.suppress(TopicDeleting):
                        await self._look_at(name)
            for name in (TopicName(namespace, topic) for topic in folders if topic not in topics):
                if mine(name):
                    await self._records.remove_owners_folder(*name)

    async def _look_at(self, name: TopicName) -> None:
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound:
            found = TopicRecord(TopicSettings(), deleting=True, incarnation=_LEFTOVER)
            wait_s = self._config.deletion_wait_ms / 1000
            with contextlib.suppress(RecordNotFound, RecordExists, VersionConflict, TimeoutError):
                async with asyncio.timeout(wait_s), self.alone(name) as check:
                    check()
                    await self._records.take_up_leftover(*name, found)
                await self.finish(name, _LEFTOVER)
            return
        if record.stands:
            return
        if not record.deleting and not await self._give_up_fork(name, record.identity):
            return
        _log.info("deletion_taken_up", topic=str(name))
        await self.finish(name, record.identity)

    async def _give_up_fork(self, name: TopicName, incarnation: str) -> bool:
        """Mark an incomplete fork whose maker is gone."""
        try:
            wait_s = self._config.deletion_wait_ms / 1000
            async with asyncio.timeout(wait_s), self.alone(name) as check:
                record, version = await self._records.read_topic(*name)
                if record.stands or record.identity != incarnation:
                    return False
                check()
                await self._records.write_topic(*name, replace(record, deleting=True), version)
                return True
        except (RecordNotFound, VersionConflict, TimeoutError):
            return False

    async def _keep_trying(self, name: TopicName, incarnation: str, job: _Job) -> None:
        pauses = self._pauses()
        while True:
            try:
                await self._delete(name, incarnation, job)
                return
            except Exception as error:  # a bug is retried, too, and logged
                reason = str(error) if isinstance(error, OctavoError) else repr(error)
                bug = None if isinstance(error, OctavoError) else error
                job.waits_for = reason
                _log.warning("topic_not_deleted", topic=str(name), reason=reason, exc_info=bug)
            await asyncio.sleep(pauses.next_s())

    async def _delete(self, name: TopicName, incarnation: str, job: _Job) -> None:
        job.waits_for = "another broker is changing the topic"
        async with self.alone(name) as check:
            try:
                record, version = await self._records.read_topic(*name)
            except RecordNotFound:
                return
            if record.identity != incarnation:
                return  # another broker finished the deletion, and a new topic was made
            if not record.deleting:
                check()
                await self._records.write_topic(*name, replace(record, deleting=True), version)
            job.waits_for = "its partitions are being closed"
            numbers = {*range(record.settings.partitions)}
            numbers |= {*await self._records.list_partitions(*name)}
            marked = await gather_each(
                sorted(numbers),
                lambda n: self._mark(name.partition(n), incarnation, check),
                _AT_ONCE,
            )
            # A claim that this sync does not show is newer than the marks.
            await self._records.sync()
            owners = await self._owners(name, numbers)
            served = await self._tell_all(name, incarnation, frozenset(owners.values()))
            await gather_each(marked, lambda one: self._fence(one, served), _FENCED_AT_ONCE)
            await self._until_let_go(name, incarnation, owners, job)
            await gather_each(marked, lambda one: self._remove(one, check), _AT_ONCE)
            check()
            await self._records.remove_owners_folder(*name)
            with contextlib.suppress(RecordNotFound):
                await self._records.delete_topic(*name, record.guard)
            _log.info("topic_deleted", topic=str(name), incarnation=incarnation)

    async def _mark(
        self, name: PartitionName, incarnation: str, check: Callable[[], None]
    ) -> _Marked:
        """Do step 3; also make missing records, which an opening under way would create."""
        while True:
            check()
            try:
                record, version = await self._records.read_partition(*name)
            except RecordNotFound:
                blank = PartitionRecord(incarnation=incarnation, deleted=True)
                with contextlib.suppress(RecordExists):
                    await self._records.create_partition(*name, blank)
                continue
            if record.deleted:
                return _Marked(name, record, version)
            gone = replace(record, incarnation=incarnation, deleted=True)
            with contextlib.suppress(VersionConflict):
                return _Marked(
                    name, gone, await self._records.write_partition(*name, gone, version)
                )

    async def _fence(self, marked: _Marked, served: frozenset[int]) -> None:
        """Do step 5, without failing if the owner no longer serves the partition."""
        wanted = [segment.ledger_id for segment in marked.record.ledgers if segment.count is None]
        if marked.record.state_ledger is not None:
            wanted.append(marked.record.state_ledger)
        for ledger_id in wanted:
            try:
                await self._ledgers.recover(ledger_id)
            except LedgerNotFound:
                continue
            except OctavoError as error:
                if marked.name.partition not in served:
                    raise
                _log.info("ledger_not_fenced", ledger_id=ledger_id, reason=str(error))

    async def _until_let_go(
        self, name: TopicName, incarnation: str, owners: dict[int, bytes], job: _Job
    ) -> None:
        pauses = self._pauses()
        while owners := await self._owners(name, owners):
            job.waits_for = f"the owners of its partitions {[*owners][:8]} have not let go yet"
            await asyncio.sleep(pauses.next_s())
            await self._tell_all(name, incarnation, frozenset(owners.values()))

    async def _owners(self, name: TopicName, numbers: Iterable[int]) -> dict[int, bytes]:
        asked = sorted(numbers)
        paths = [owner_path(*name.partition(number)) for number in asked]
        found = await gather_each(paths, self._ownership.owner, _AT_ONCE)
        return {number: owner for number, owner in zip(asked, found, strict=True) if owner}

    async def _remove(self, marked: _Marked, check: Callable[[], None]) -> None:
        """Do step 7 for a partition."""
        name, record, version = marked
        while True:
            mine = referrer_of(name, record.incarnation)
            for segment in record.ledgers:
                if not is_only_copy(segment.offload):
                    await self._shared.release(segment.ledger_id, mine)
            for ledger_id in _own_ledgers(record):
                with contextlib.suppress(LedgerNotFound):
                    await self._ledgers.delete(ledger_id)
            check()
            try:
                return await self._records.delete_partition(*name, version)
            except VersionConflict:  # a job changed its part of the record meanwhile
                record, version = await self._records.read_partition(*name)
            except RecordNotFound:
                return None


def _own_ledgers(record: PartitionRecord) -> Iterable[int]:
    if record.state_ledger is not None:
        yield record.state_ledger
    yield from compacted_ledgers(record)
