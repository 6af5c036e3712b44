"""A driver of bulk loads that remembers its calls, for tests that name ledgers that were never
written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.broker.broker import Broker
from octavo.broker.bulkload.driver import ANYBODY, CheckTaken, Committed, LoadPart, Offer, takes_all
from octavo.broker.bulkload.rules import Caller
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord


class BulkLoadStub:
    """Takes each batch of a bulk load that is newer than the last."""

    def __init__(self) -> None:
        self.records: dict[str, BulkLoadRecord] = {}
        self.asked: list[tuple[str, int, Sequence[Offer]]] = []
        self.begun: list[tuple[str, int, Mapping[str, str]]] = []
        self.callers: list[Caller] = []

    def close(self) -> None: ...

    async def begin(
        self,
        bulk_load: str,
        batch: int,
        content: Mapping[PartitionName, str],
        load_part: LoadPart,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> bool:
        self.callers.append(caller)
        self.begun.append((bulk_load, batch, {str(name): said for name, said in content.items()}))
        return batch > self.records.get(bulk_load, BulkLoadRecord()).batch

    async def commit(
        self,
        bulk_load: str,
        batch: int,
        offers: Sequence[Offer],
        load_part: LoadPart,
        *,
        published: bool = False,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> Committed:
        self.callers.append(caller)
        self.asked.append((bulk_load, batch, offers))
        found = self.records.get(bulk_load, BulkLoadRecord())
        if batch <= found.batch:
            return Committed(found, True, {})
        parts = tuple(BulkLoadPart(*one.name, 0, one.ledgers) for one in offers)
        record = self.records[bulk_load] = BulkLoadRecord(
            batch, parts, begun=batch if published else -1
        )
        return Committed(record, False, {one.name: 0 for one in offers})

    async def abort(
        self, bulk_load: str, batch: int, ledgers: Sequence[int], caller: Caller = ANYBODY
    ) -> list[int]:
        self.callers.append(caller)
        return list(ledgers)

    async def newest(self, bulk_load: str) -> BulkLoadRecord:
        return self.records.get(bulk_load, BulkLoadRecord())


def stub_bulk_loads(broker: Broker) -> BulkLoadStub:
    """Replace the broker's driver of bulk loads; a second call returns the same stub."""
    loose: Any = broker
    if not isinstance(loose.bulk_loads, BulkLoadStub):
        loose.bulk_loads = BulkLoadStub()
    found: BulkLoadStub = loose.bulk_loads
    return found
