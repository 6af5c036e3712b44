"""One partition's part in committed transactions: what is to be spliced in, decided at its turn.

The rule and its reasons are in bulkload/rules.py; how the ledgers get in is rollover.py's. On a
crash nothing is lost: the transaction's record says what is still to be done, the partition's what
was.
"""

from __future__ import annotations

from functools import partial

import structlog

from octavo.broker.bulkload import rules
from octavo.broker.errors import TransactionNotFound
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.rollover import Insertion, Rollover
from octavo.broker.state.log import delete_quietly
from octavo.broker.types import PartitionName
from octavo.metadata.store import RecordNotFound
from octavo.metadata.transactions import TransactionPart, TransactionRecord

_log = structlog.get_logger()


class Splicer:
    """Splices into one partition that is owned here."""

    def __init__(
        self, name: PartitionName, context: PartitionContext, record: PartitionRecordKeeper
    ) -> None:
        self._name = name
        self._context = context
        self._record = record

    async def splice(self, rollover: Rollover, transaction: str, batch: int) -> int | None:
        """See `Partition.splice`."""
        await rollover.splice(partial(self._plan, transaction, batch))
        return await self._first_offset(transaction, batch)

    async def _plan(self, transaction: str, batch: int) -> Insertion | None:
        """What is to be done, now that no other splice is under way in this partition."""
        record = await self._committed(transaction, batch)
        part, mark = rules.part_of(record, batch, *self._name), rules.mark_of(transaction, record)
        if part is None or rules.is_spliced(self._record.value.transactions, mark, batch):
            return None
        if await self._is_void(part):
            _log.info("part_void", partition=str(self._name), transaction=transaction, batch=batch)
            for ledger in part.ledgers:
                self._context.spawn(delete_quietly(self._context.ledgers, ledger.ledger_id))
            return None
        finished = await self._finished()
        _log.info(
            "splicing",
            partition=str(self._name),
            transaction=transaction,
            batch=batch,
            ledgers=[ledger.ledger_id for ledger in part.ledgers],
        )
        return Insertion(
            part.ledgers,
            lambda marks: rules.marking(marks, mark, batch, finished),
        )

    async def _committed(self, transaction: str, batch: int) -> TransactionRecord:
        record, _ = await self._context.transactions.read(transaction)
        if record.batch < batch:
            raise TransactionNotFound(
                f"batch {batch} of transaction {transaction} is not committed; "
                f"the newest one that is: {record.batch if record.batch >= 0 else 'none'}"
            )
        return record

    async def _is_void(self, part: TransactionPart) -> bool:
        """The topic that it was meant for is deleted; this is a namesake."""
        try:
            topic, _ = await self._context.topics.read_topic(*self._name.topic_name)
        except RecordNotFound:
            return True
        return topic.deleting or not part.is_of(topic)

    async def _finished(self) -> set[str]:
        """The marks here that may go, when there are many."""
        marks = self._record.value.transactions
        found: set[str] = set()
        if len(marks) >= rules.MARKS_MAX:
            for mark, batch in marks.items():
                record, _ = await self._context.transactions.read(rules.transaction_of(mark))
                if rules.is_finished(mark, batch, record):
                    found.add(mark)
        return found

    async def _first_offset(self, transaction: str, batch: int) -> int | None:
        record, _ = await self._context.transactions.read(transaction)
        if record.batch != batch:
            return None
        name = tuple(self._name)
        for part in record.parts:
            if (part.namespace, part.topic, part.partition) == name:
                segment = self._record.ledgers.segment_of(part.ledgers[0].ledger_id)
                return None if segment is None else segment.base_offset
        return None
