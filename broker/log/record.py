"""A partition's record as its owner last wrote it, changed by compare-and-set, one at a time.

Promise: a change takes effect on exactly the record that this owner knew, or raises
`OwnershipLost`. After a lost reply the record is read again, and tells whether the write was ours:
an epoch has one owner, and ledger ids never repeat. A take-over that names no new ledger might be
another broker's, so it counts as lost. Besides the owner, jobs may change where closed ledgers lie,
and the compacted view.

The record belongs to one incarnation. A deletion marks the topic, then the records, then waits for
claims to end; so a newer claim finds the mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace

from octavo.broker.errors import BrokerError, TopicNotFound
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.types import PartitionName
from octavo.metadata.offloads import same_to_owner, with_jobs_part_of
from octavo.metadata.store import MetadataUnavailable, RecordExists, RecordNotFound, VersionConflict
from octavo.metadata.topics import PartitionRecord, TopicStore
from octavo.protocol.codes import Scope

_RETRY_DELAY_S = 0.1


def with_ledgers(record: PartitionRecord, ledger_list: LedgerList) -> PartitionRecord:
    return replace(record, ledgers=ledger_list.segments, trimmed_offset=ledger_list.earliest_offset)


def _is_nobody_elses(wanted: PartitionRecord, known: PartitionRecord) -> bool:
    """Return whether only the owner that knew `known` can have written `wanted`."""
    return wanted.epoch == known.epoch or not _named(wanted) <= _named(known)


def _named(record: PartitionRecord) -> set[int | None]:
    return {record.state_ledger, *(one.ledger_id for one in record.ledgers)}


class OwnershipLost(BrokerError):
    """Another owner changed the record: our view is outdated."""

    name = "ownership-lost"
    scope = Scope.LEDGER

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """Our change certainly never took effect: its new ledgers may be deleted."""


def was_refused(error: BaseException) -> bool:
    return isinstance(error, OwnershipLost) and error.refused


class PartitionRecordKeeper:
    def __init__(
        self, topics: TopicStore, name: PartitionName, timeout_ms: int, incarnation: str
    ) -> None:
        self._topics = topics
        self._name = name
        self._incarnation = incarnation
        self._timeout_s = timeout_ms / 1000
        self._turn = asyncio.Lock()
        self._version = 0
        self._guard: str | None = None
        self.value = PartitionRecord()
        self.ledgers = LedgerList()

    async def read(self) -> PartitionRecord:
        self._guard = await self.check_topic()
        while True:
            try:
                value, self._version = await self._topics.read_partition(*self._name)
            except RecordNotFound:
                with contextlib.suppress(RecordExists):
                    await self._topics.create_partition(
                        *self._name, PartitionRecord(incarnation=self._incarnation)
                    )
                continue
            if value.incarnation == self._incarnation:
                break
            # Without an incarnation: of an older version. With another: a late opening recreated a
            # deleted topic's record.
            mine = PartitionRecord() if value.incarnation else value
            with contextlib.suppress(VersionConflict):
                mine = replace(mine, incarnation=self._incarnation)
                await self._topics.write_partition(
                    *self._name, mine, self._version, guard=self._guard
                )
        if value.deleted:
            raise TopicNotFound(f"topic {self._name.topic_name} is being deleted")
        self._set(value)
        return value

    async def check_topic(self) -> str | None:
        topic = self._name.topic_name
        try:
            record, _ = await self._topics.read_topic(*topic)
        except RecordNotFound as error:
            raise TopicNotFound(f"there is no topic {topic}") from error
        if not record.stands:
            what = "being deleted" if record.deleting else "not yet forked"
            raise TopicNotFound(f"topic {topic} is {what}")
        if record.identity != self._incarnation:
            raise TopicNotFound(f"topic {topic} was deleted, and another one made in its place")
        return record.guard

    async def change(self, make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        """Change the record.

        Raises `OwnershipLost`, or `MetadataUnavailable`: the outcome is unknown, and the partition
        must be opened again.
        """
        try:
            async with self._turn, asyncio.timeout(self._timeout_s):
                wanted, self._version = await self._put(make(self.value))
                self._set(wanted)
                return wanted
        except TimeoutError as error:
            raise MetadataUnavailable(
                f"{self._name}: its record could not be changed within {self._timeout_s:g} s"
            ) from error

    async def look(self, *, newest: bool = False) -> None:
        """Learn where closed ledgers are now; `newest`: see all earlier writes.

        Ignores another owner's change: the next write fails.
        """
        with contextlib.suppress(RecordNotFound):
            async with self._turn:
                if newest:
                    await self._topics.sync()
                found, version = await self._topics.read_partition(*self._name)
                if same_to_owner(found, self.value):
                    self._version = version
                    self._set(found)

    def _set(self, value: PartitionRecord) -> None:
        self.value = value
        self.ledgers = LedgerList(value.ledgers, value.trimmed_offset)

    async def _put(self, wanted: PartitionRecord) -> tuple[PartitionRecord, int]:
        known, version = self.value, self._version
        unsure = False
        while True:
            try:
                return wanted, await self._topics.write_partition(
                    *self._name, wanted, version, guard=self._guard
                )
            except MetadataUnavailable:
                unsure = True
            except VersionConflict:
                pass  # a job or a new owner changed the record, or our first write was late
            except RecordNotFound as error:
                raise OwnershipLost(
                    f"{self._name}: its record was deleted", refused=not unsure
                ) from error
            found, version = await self._found()
            if unsure and same_to_owner(found, wanted) and _is_nobody_elses(wanted, known):
                return found, version
            if not same_to_owner(found, known):
                raise OwnershipLost(
                    f"{self._name}: its record was changed elsewhere", refused=not unsure
                )
            wanted = with_jobs_part_of(wanted, found)

    async def _found(self) -> tuple[PartitionRecord, int]:
        for tries in itertools.count():
            try:
                return await self._topics.read_partition(*self._name)
            except MetadataUnavailable:
                if tries:  # retry at once first: a session that moved to another server succeeds
                    await asyncio.sleep(_RETRY_DELAY_S)
            except RecordNotFound as error:
                raise OwnershipLost(f"{self._name}: its record was deleted") from error
        raise AssertionError("the loop ends only by return or raise")
