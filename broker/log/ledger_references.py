"""Drive the reference counts of ledgers that several partitions name (rules: orphan_ledgers.py).

Release here every ledger that leaves a partition's record: deleting it directly might delete a
fork's ledger. A crash leaves outdated referrers, or an undeleted ledger without referrers; the
sweep finds both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import structlog

from octavo.broker.log.orphan_ledgers import is_gone, joined, left
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.gather_all import gather_each
from octavo.metadata.one_record import ABSENT
from octavo.metadata.shares import ShareStore
from octavo.metadata.store import BadRecord, RecordExists, RecordNotFound, VersionConflict
from octavo.metadata.topic_records import PartitionRecord, Referrer, TopicRecord
from octavo.metadata.topics import TopicStore
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_AT_ONCE = 16
_LOOKED_AT_MAX = 2_000
_CHANGED = (RecordExists, RecordNotFound, VersionConflict)
"""Another process changed the record first: read it again."""


def referrer_of(name: PartitionName, incarnation: str) -> Referrer:
    return Referrer(name.namespace, name.topic, name.partition, incarnation)


class SharedLedgers:
    def __init__(
        self, shares: ShareStore, topics: TopicStore, ledgers: LedgerClient, shares_max: int
    ) -> None:
        self._shares = shares
        self._topics = topics
        self._ledgers = ledgers
        self._shares_max = shares_max
        self._to_look_at: list[int] = []
        self.released = 0

    async def refer(self, ledger_id: int, referrers: Iterable[Referrer]) -> None:
        """Note the ledger's referrers.

        Raises `LEDGER_GOING`, `TOO_MANY_FORKS`, or `MetadataUnavailable`: they may be stored.
        """
        wanted = tuple(referrers)
        while True:
            record, version = await self._shares.read(ledger_id)
            after = joined(ledger_id, record, wanted, self._shares_max)
            if after == record:
                return
            with contextlib.suppress(*_CHANGED):
                await self._shares.write(ledger_id, after, version)
                return

    async def referrers(self, ledger_id: int) -> tuple[Referrer, ...]:
        """Return the partitions that refer to the ledger; some may be outdated.

        Empty if the ledger was never shared.
        """
        record, _ = await self._shares.read(ledger_id)
        return () if record is None else record.referrers

    async def is_shared(self, ledger_id: int) -> bool:
        return (await self._shares.read(ledger_id))[1] != ABSENT

    async def release(self, ledger_id: int, referrer: Referrer) -> bool:
        """Return whether the ledger is deleted; may be repeated."""
        while True:
            record, version = await self._shares.read(ledger_id)
            if record is None:
                await self._delete(ledger_id)
                return True
            after = left(record, referrer)
            with contextlib.suppress(*_CHANGED):
                if after != record:
                    version = await self._shares.write(ledger_id, after, version)
                if after.referrers:
                    return False
                await self._end(ledger_id, version)
                return True

    async def release_quietly(self, ledger_id: int, referrer: Referrer) -> None:
        """Release the ledger and only log a failure: it costs space, not safety."""
        try:
            await self.release(ledger_id, referrer)
        except OctavoError as error:
            _log.warning("ledger_not_deleted", ledger_id=ledger_id, reason=str(error))

    async def _end(self, ledger_id: int, version: int) -> None:
        await self._delete(ledger_id)
        with contextlib.suppress(RecordNotFound):
            await self._shares.delete(ledger_id, version)

    async def _delete(self, ledger_id: int) -> None:
        with contextlib.suppress(LedgerNotFound):
            await self._ledgers.delete(ledger_id)

    async def sweep(self, mine: Callable[[TopicName], bool]) -> None:
        if not self._to_look_at:
            self._to_look_at = await self._shares.list()
        turn = self._to_look_at[:_LOOKED_AT_MAX]
        del self._to_look_at[:_LOOKED_AT_MAX]
        await gather_each(turn, lambda ledger_id: self._look_at(ledger_id, mine), _AT_ONCE)

    async def _look_at(self, ledger_id: int, mine: Callable[[TopicName], bool]) -> None:
        try:
            record, version = await self._shares.read(ledger_id)
        except BadRecord:
            return
        if record is None:
            return
        if not record.referrers:
            with contextlib.suppress(VersionConflict):
                await self._end(ledger_id, version)
            return
        # Topics and records read next are at least as new as the referrers.
        await self._topics.sync()
        for referrer in record.referrers:
            if mine(TopicName(referrer.namespace, referrer.topic)) and await self._is_gone(
                ledger_id, referrer
            ):
                await self.release(ledger_id, referrer)
                self.released += 1
                _log.info(
                    "referrer_removed", ledger_id=ledger_id, partition=_shown(referrer),
                    incarnation=referrer.incarnation,
                )  # fmt: skip

    async def _is_gone(self, ledger_id: int, referrer: Referrer) -> bool:
        topic: TopicRecord | None = None
        record: PartitionRecord | None = None
        name = (referrer.namespace, referrer.topic)
        try:
            with contextlib.suppress(RecordNotFound):
                topic, _ = await self._topics.read_topic(*name)
            with contextlib.suppress(RecordNotFound):
                record, _ = await self._topics.read_partition(*name, referrer.partition)
        except BadRecord:
            return False
        return is_gone(ledger_id, referrer, topic, record)


def _shown(referrer: Referrer) -> str:
    return f"{referrer.namespace}/{referrer.topic}/{referrer.partition}"
