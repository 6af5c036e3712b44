"""Make forks: new topics that begin with another topic's ledgers, without copying them.

    1. claim the fork's name                    one broker changes a topic at a time
    2. make its topic record, not yet `made`    the name is taken; no broker opens its partitions.
                                                Runs parallel to 1; checked again under the claim
    3. per partition: read the source's record, and refer to each ledger before the fork's point,
    for the source too                       from here on, deleting one topic keeps the ledgers
    4. read the source's record again           the ledgers are there, so the source has seen the
                                                referrers, or will see them
    5. make the record of the fork's partition
    6. set `made` in the topic's record         from here on it is a topic like any other

The fork has the source's offsets, but not its subscriptions, producers' sequences and compacted
view. A crash before step 6 leaves an incomplete topic, which a sweep or the next creation under
that name deletes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from octavo.broker.cluster.deletion import Deletions
from octavo.broker.cluster.topics import Topics
from octavo.broker.errors import (
    ForkDisturbed,
    InvalidSettings,
    TopicDeleting,
    TopicExists,
    TopicNotFound,
)
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.log.ledger_list import ForkPoint, LedgerList
from octavo.broker.log.ledger_references import SharedLedgers, referrer_of
from octavo.broker.types import TopicInfo, TopicName
from octavo.metadata.gather_all import gather_all, gather_each
from octavo.metadata.offloads import is_only_copy
from octavo.metadata.store import RecordExists, RecordNotFound, VersionConflict
from octavo.metadata.topics import ForkRecord, PartitionRecord, TopicRecord, TopicStore
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_AT_ONCE = 64
_CHANGE_WAIT_S = 10.0


class OwnersPoint(NamedTuple):
    """Valid while the partition's record is at `epoch`."""

    epoch: int
    point: ForkPoint


class Forks:
    def __init__(
        self,
        records: TopicStore,
        topics: Topics,
        deletions: Deletions,
        shared: SharedLedgers,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._records = records
        self._topics = topics
        self._deletions = deletions
        self._shared = shared
        self._clock = clock
        self._spawn = spawn

    async def make(
        self,
        source: TopicInfo,
        name: TopicName,
        points: Mapping[int, OwnersPoint],
        *,
        for_stream: bool = False,
    ) -> TopicInfo:
        """Fork `source` at these points, one for each partition.

        After `ForkDisturbed` nothing is left, and the client can call again.
        """
        check_not_internal(name)
        if name.namespace != source.name.namespace:
            raise InvalidSettings(
                f"{source.name} cannot be forked as {name}: a fork shares ledgers with the topic, "
                "and rights, quotas and keys are its namespace's; name a topic of "
                f"{source.name.namespace}"
            )
        try:
            async with asyncio.timeout(_CHANGE_WAIT_S), contextlib.AsyncExitStack() as stack:
                return await self._make(source, name, points, stack, for_stream)
        except TimeoutError as error:
            raise TopicDeleting(
                f"topic {name} is being made, changed or deleted by another broker; ask again"
            ) from error

    async def _make(
        self,
        source: TopicInfo,
        name: TopicName,
        points: Mapping[int, OwnersPoint],
        stack: contextlib.AsyncExitStack,
        for_stream: bool,
    ) -> TopicInfo:
        fork = ForkRecord(
            source.name.topic,
            source.incarnation,
            {number: one.point.offset for number, one in points.items()},
        )
        incarnation = self._topics.new_incarnation()
        began_s = asyncio.get_running_loop().time()
        record = TopicRecord(
            source.settings, self._clock(), incarnation=incarnation, guarded=True,
            fork=fork, stream=for_stream or None,
        )  # fmt: skip
        try:
            check = await self._begin(name, record, stack)
            await gather_each(
                points,
                lambda number: self._share(source, name, incarnation, number, points[number]),
                _AT_ONCE,
            )
            check()
            version = await self._standing(name, incarnation)
            made = replace(record, fork=replace(fork, made=True))
            await self._records.write_topic(*name, made, version)
        except (RecordNotFound, VersionConflict) as error:
            self._spawn(self._give_up(name, incarnation))
            raise ForkDisturbed(f"{name}: {error}; ask again") from error
        except BaseException:
            self._spawn(self._give_up(name, incarnation))
            raise
        self._topics.forget(name)
        _log.info(
            "topic_forked", topic=str(source.name), fork=str(name), incarnation=incarnation,
            duration_ms=round((asyncio.get_running_loop().time() - began_s) * 1000, 1),
        )  # fmt: skip
        return TopicInfo(name, source.settings, made.created_ms, incarnation, made.fork, for_stream)

    async def _begin(
        self, name: TopicName, record: TopicRecord, stack: contextlib.AsyncExitStack
    ) -> Callable[[], None]:
        async def created() -> bool:
            try:
                await self._records.create_topic(*name, record)
            except RecordExists:
                return False
            return True

        claimed = stack.enter_async_context(self._deletions.alone(name))
        works: tuple[Coroutine[Any, Any, Any], ...] = claimed, created()
        check: Callable[[], None]
        check, is_new = await gather_all(works)
        check()
        # The record was made without the claim: another broker may be deleting it.
        if is_new:
            await self._standing(name, record.identity)
        elif not await created():
            await self._check_stands(name)
            raise TopicExists(f"topic {name} is there already; a fork needs a new name")
        return check

    async def _check_stands(self, name: TopicName) -> None:
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound:
            raise TopicDeleting(f"topic {name} has just been deleted; ask again") from None
        if not record.stands:
            self._deletions.take_up(name)
            raise TopicDeleting(
                f"topic {name} is being deleted, or a fork of that name is incomplete; ask "
                "again in a moment"
            )

    async def _standing(self, name: TopicName, incarnation: str) -> int:
        """Return the fork record's version, or raise `ForkDisturbed`."""
        found, version = await self._records.read_topic(*name)
        if found.identity != incarnation or found.deleting:
            raise ForkDisturbed(f"topic {name} was deleted while it was being made; ask again")
        return version

    async def _give_up(self, name: TopicName, incarnation: str) -> None:
        with contextlib.suppress(OctavoError):
            record, version = await self._records.read_topic(*name)
            if record.identity == incarnation and not record.stands:
                with contextlib.suppress(VersionConflict):
                    gone = replace(record, deleting=True)
                    await self._records.write_topic(*name, gone, version)
                await self._deletions.finish(name, incarnation)

    async def _share(
        self, source: TopicInfo, name: TopicName, incarnation: str, number: int, at: OwnersPoint
    ) -> None:
        """Do steps 3 to 5 for one partition."""
        ledger_list = await self._source(source, number, at)
        pair = (
            referrer_of(source.name.partition(number), source.incarnation),
            referrer_of(name.partition(number), incarnation),
        )
        ids = [segment.ledger_id for segment in ledger_list.segments]
        await gather_each(ids, lambda ledger_id: self._shared.refer(ledger_id, pair), _AT_ONCE)
        await self._records.sync()
        again = await self._source(source, number, at)
        if [segment.ledger_id for segment in again.segments] != ids:
            raise ForkDisturbed(f"{source.name}: its ledgers changed meanwhile; ask again")
        record = PartitionRecord(
            tuple(replace(one, offload=None) for one in again.segments),
            trimmed_offset=again.earliest_offset,
            incarnation=incarnation,
        )
        partition = name.partition(number)
        try:
            await self._records.create_partition(*partition, record)
        except RecordExists:  # left by an opening that outlived an earlier topic
            _, version = await self._records.read_partition(*partition)
            await self._records.write_partition(*partition, record, version, guard=incarnation)

    async def _source(self, source: TopicInfo, number: int, at: OwnersPoint) -> LedgerList:
        try:
            record, _ = await self._records.read_partition(*source.name.partition(number))
        except RecordNotFound:
            record = PartitionRecord(deleted=True)
        if record.deleted or record.incarnation != source.incarnation:
            raise TopicNotFound(f"topic {source.name} was deleted while it was being forked")
        where = f"{source.name}/{number}"
        if record.epoch != at.epoch:
            raise ForkDisturbed(f"{where} was taken over by another owner meanwhile; ask again")
        ledger_list = LedgerList(record.ledgers, record.trimmed_offset)
        try:
            found = ledger_list.forked(at.point, self._clock())
        except ValueError as error:
            raise ForkDisturbed(f"{where} changed while it was being forked: {error}") from error
        for segment in found.segments:
            if is_only_copy(segment.offload):
                raise InvalidSettings(
                    f"{where}: ledger {segment.ledger_id}, with the offsets from "
                    f"{segment.base_offset} on, is offloaded and no longer on the bookies: "
                    "a fork shares ledgers, and objects are not shared"
                )
        return found
