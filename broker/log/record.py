"""A partition's record as its owner last wrote it, changed by compare-and-set, one at a time.

The record says which ledgers make up the partition, so whoever changes it decides what is part of
the log. Promise: a change either took effect on exactly the record that this owner knew, or
`OwnershipLost` says that somebody else has changed it since. A lost reply is never guessed: the
record is read again, and tells whether the write was ours: an epoch has one owner, and ledger ids
never repeat. A take-over that names no new ledger might be anybody's, so it counts as lost and
begins anew. Jobs may change beside the owner where closed ledgers lie, and the compacted view
(metadata/offloads.py).

The record belongs to one incarnation of the topic. Whoever deletes a topic marks it first, then its
partitions' records, and then waits until no owner's claim stands; a claim that is newer than that
finds the mark or a later topic when it looks here, and is given up.
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
    """`record` with these ledgers."""
    return replace(record, ledgers=ledger_list.segments, trimmed_offset=ledger_list.earliest_offset)


def _is_nobody_elses(wanted: PartitionRecord, known: PartitionRecord) -> bool:
    """Whether only the owner that knew `known` can have written `wanted`."""
    return wanted.epoch == known.epoch or not _named(wanted) <= _named(known)


def _named(record: PartitionRecord) -> set[int | None]:
    return {record.state_ledger, *(one.ledger_id for one in record.ledgers)}


class OwnershipLost(BrokerError):
    """Another owner has changed the partition's record: this one's view is history."""

    name = "ownership-lost"
    scope = Scope.LEDGER

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """Our change certainly never took effect, so what it would have named may be deleted."""


def was_refused(error: BaseException) -> bool:
    """Whether a change that ended so certainly never took effect."""
    return isinstance(error, OwnershipLost) and error.refused


class PartitionRecordKeeper:
    """`value` is the record as last read or written, `ledgers` its ledgers; `change` sets both."""

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
        """The record as it stands, made by its first owner; to be called under the owner's claim.

        Raises `TopicNotFound` when this incarnation of the topic is no more.
        """
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
            # An older version of the software says no incarnation. Any other one is dead, for ours
            # stands: an opening that was too late for the deletion has left it behind.
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
        """The guard of its records. Raises `TopicNotFound` as `read` does."""
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
        """Set the record to `make(value)`.

        Raises `OwnershipLost`, and `MetadataUnavailable` when the store does not come back in
        time: then the outcome is unknown and the partition has to be opened anew.
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
        """Learn where closed ledgers lie by now. Raises `MetadataUnavailable`.

        `newest`: whatever was written before this call; else perhaps what was true a moment ago.
        Any other change is another owner's: whoever writes next finds out.
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
        """What stands there afterwards, and its version."""
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
                pass  # a job changed its part, or a new owner, or our own first write, late
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
                if tries:  # once again at once: a session that moved to another server has it
                    await asyncio.sleep(_RETRY_DELAY_S)
            except RecordNotFound as error:
                raise OwnershipLost(f"{self._name}: its record was deleted") from error
        raise AssertionError("counting has no end")
