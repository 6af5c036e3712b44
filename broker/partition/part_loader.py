"""Insert a partition's part of a committed bulk load (rules: bulkload/rules.py).

After a crash the bulk load's record says what to insert, and the partition's record what was
inserted.
"""

from __future__ import annotations

from functools import partial

import structlog

from octavo.broker.bulkload import rules
from octavo.broker.errors import BULK_LOAD_NOT_FOUND
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.rollover import Insertion, Rollover
from octavo.broker.state.log import delete_quietly
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord
from octavo.metadata.store import RecordNotFound

_log = structlog.get_logger()


class PartLoader:
    def __init__(
        self, name: PartitionName, context: PartitionContext, record: PartitionRecordKeeper
    ) -> None:
        self._name = name
        self._context = context
        self._record = record

    async def load(self, rollover: Rollover, bulk_load: str, batch: int) -> int | None:
        await rollover.insert(partial(self._plan, bulk_load, batch))
        return await self._first_offset(bulk_load, batch)

    async def _plan(self, bulk_load: str, batch: int) -> Insertion | None:
        record = await self._committed(bulk_load, batch)
        part, mark = rules.part_of(record, batch, *self._name), rules.mark_of(bulk_load, record)
        if part is None or rules.is_loaded(self._record.value.bulk_loads, mark, batch):
            return None
        if await self._is_void(part):
            _log.info("part_void", partition=str(self._name), bulk_load=bulk_load, batch=batch)
            for ledger in part.ledgers:
                self._context.spawn(delete_quietly(self._context.ledgers, ledger.ledger_id))
            return None
        finished = await self._finished()
        _log.info(
            "part_loading",
            partition=str(self._name),
            bulk_load=bulk_load,
            batch=batch,
            ledgers=[ledger.ledger_id for ledger in part.ledgers],
        )
        return Insertion(
            part.ledgers,
            lambda marks: rules.marking(marks, mark, batch, finished),
        )

    async def _committed(self, bulk_load: str, batch: int) -> BulkLoadRecord:
        record, _ = await self._context.bulk_loads.read(bulk_load)
        if record.batch < batch:
            raise BULK_LOAD_NOT_FOUND(
                f"batch {batch} of bulk load {bulk_load} is not committed; "
                f"the newest committed batch: {record.batch if record.batch >= 0 else 'none'}"
            )
        return record

    async def _is_void(self, part: BulkLoadPart) -> bool:
        try:
            topic, _ = await self._context.topics.read_topic(*self._name.topic_name)
        except RecordNotFound:
            return True
        return not topic.stands or not part.is_of(topic)

    async def _finished(self) -> set[str]:
        marks = self._record.value.bulk_loads
        found: set[str] = set()
        if len(marks) >= rules.MARKS_MAX:
            for mark, batch in marks.items():
                record, _ = await self._context.bulk_loads.read(rules.bulk_load_of(mark))
                if rules.is_finished(mark, batch, record):
                    found.add(mark)
        return found

    async def _first_offset(self, bulk_load: str, batch: int) -> int | None:
        record, _ = await self._context.bulk_loads.read(bulk_load)
        if record.batch != batch:
            return None
        name = tuple(self._name)
        for part in record.parts:
            if (part.namespace, part.topic, part.partition) == name:
                segment = self._record.ledgers.segment_of(part.ledgers[0].ledger_id)
                return None if segment is None else segment.base_offset
        return None
