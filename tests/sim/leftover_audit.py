"""Orphan ledgers: at the end, every existing ledger is named by a record, or may still be.

This check uses the changes in the metadata store, not production's rule. The referee of ledger
lists knows the records, the referee of ledgers each ledger's own metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.broker.types import PartitionName
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.topic_records import PartitionRecord
from tests.sim.chain_audit import Owned
from tests.sim.ledger_audit import LedgerHistory


def left_over(
    ledgers: Mapping[int, LedgerHistory], owned: Mapping[PartitionName, Owned]
) -> list[str]:
    records = {str(name): known.record for name, known in owned.items()}
    named = {one for record in records.values() for one in _named(record)}
    found = []
    for ledger_id, history in sorted(ledgers.items()):
        custom = history.record.custom
        if history.deleted or ledger_id in named or "octavo.incarnation" not in custom:
            continue
        of = custom["octavo.partition"].decode()
        incarnation, epoch = (
            custom["octavo.incarnation"].decode(),
            int(custom.get("octavo.epoch", -1)),
        )
        record = records.get(of)
        if record is None:
            found.append(f"ledger {ledger_id} of {of}, which is gone")
        elif record.incarnation != incarnation:
            found.append(f"ledger {ledger_id} of an earlier {of}")
        elif epoch < 0:
            run = None if record.compaction is None else record.compaction.run
            if run != custom["octavo.compaction"].decode() and not record.deleted:
                found.append(f"ledger {ledger_id} of {of}, of a compaction that has ended")
        elif record.epoch > epoch and not record.deleted:
            found.append(f"ledger {ledger_id} of {of}, made at {epoch} of {record.epoch}")
    return found


def _named(record: PartitionRecord) -> list[int]:
    state = [] if record.state_ledger is None else [record.state_ledger]
    return [*(link.ledger_id for link in record.ledgers), *state, *compacted_ledgers(record)]
