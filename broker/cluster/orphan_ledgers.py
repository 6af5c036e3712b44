"""Remove ledgers that no record names any more (log/orphan_ledgers.py has the rule).

By a ledger's label, each broker removes ledgers of the topics for which it is preferred, also
deleted topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from octavo.broker.config import BrokerConfig
from octavo.broker.log.ledger_references import SharedLedgers
from octavo.broker.log.orphan_ledgers import Label, Suspects, label_of, may_go
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.gather_all import gather_each
from octavo.metadata.store import BadRecord, RecordNotFound
from octavo.metadata.topics import PartitionRecord, TopicRecord, TopicStore

_log = structlog.get_logger()
_AT_ONCE = 16
_LOOKED_AT_MAX = 2_000
_SUSPECTS_MAX = 1_000

_Records = tuple[TopicRecord | None, PartitionRecord | None]


class OrphanLedgers:
    def __init__(
        self,
        records: TopicStore,
        ledgers: LedgerClient,
        config: BrokerConfig,
        shared: SharedLedgers,
    ) -> None:
        self._records = records
        self._ledgers = ledgers
        self._shared = shared
        self._suspects = Suspects(config.leftover_grace_ms / 1000)
        self._to_look_at: list[int] = []
        self.removed = 0

    async def sweep(self, mine: Callable[[TopicName], bool]) -> None:
        """Check the next ledgers of topics that are `mine`; remove those found to be
        orphans twice.
        """
        asked = await self._next()
        labels = zip(asked, await gather_each(asked, self._label, _AT_ONCE), strict=True)
        ours = {one: of for one, of in labels if of is not None and mine(of.partition.topic_name)}
        for other in asked:
            if other not in ours:
                self._suspects.acquitted(other)
        # Later readings of records are at least as new as the ledgers.
        await self._records.sync()
        now_s = asyncio.get_running_loop().time()
        by_partition: dict[PartitionName, list[int]] = {}
        for ledger_id, label in ours.items():
            by_partition.setdefault(label.partition, []).append(ledger_id)
        found = await gather_each(by_partition, self._read, _AT_ONCE)
        going = []
        for records, ids in zip(found, by_partition.values(), strict=True):
            for ledger_id in ids:
                goes = records is not None and may_go(ledger_id, ours[ledger_id], *records)
                if self._suspects.judged(ledger_id, now_s, goes=goes):
                    going.append(ledger_id)
        await gather_each(going, partial(self._remove, ours), _AT_ONCE)

    async def _next(self) -> list[int]:
        suspects = self._suspects.known
        if len(suspects) >= _SUSPECTS_MAX:
            return suspects[:_SUSPECTS_MAX]
        if not self._to_look_at:
            self._to_look_at = await self._ledgers.list()
        turn = self._to_look_at[:_LOOKED_AT_MAX]
        del self._to_look_at[:_LOOKED_AT_MAX]
        return sorted({*suspects, *turn})

    async def _label(self, ledger_id: int) -> Label | None:
        try:
            return label_of((await self._ledgers.metadata(ledger_id)).custom)
        except (LedgerNotFound, BadRecord):
            return None

    async def _read(self, name: PartitionName) -> _Records | None:
        """Read a partition's records; None when one is damaged, which proves nothing."""
        topic = record = None
        try:
            with contextlib.suppress(RecordNotFound):
                topic, _ = await self._records.read_topic(*name.topic_name)
            with contextlib.suppress(RecordNotFound):
                record, _ = await self._records.read_partition(*name)
        except BadRecord:
            return None
        return topic, record

    async def _remove(self, labels: dict[int, Label], ledger_id: int) -> None:
        if await self._shared.is_shared(ledger_id):  # forks have it, whatever its label says
            self._suspects.acquitted(ledger_id)
            return
        try:
            await self._ledgers.delete(ledger_id)
        except LedgerNotFound:  # its maker or another broker has removed the ledger
            self._suspects.acquitted(ledger_id)
            return
        self._suspects.acquitted(ledger_id)
        self.removed += 1
        label = labels[ledger_id]
        _log.info(
            "leftover_removed",
            ledger_id=ledger_id,
            partition=str(label.partition),
            incarnation=label.incarnation,
            epoch=label.epoch,
        )
