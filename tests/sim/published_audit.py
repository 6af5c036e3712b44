"""The referee of published batches (X10): each row once, a share whole, and only rows that were
begun.

S9 checks that each row is in the log once, and that no forbidden row is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.broker.types import PartitionName, Published
from octavo.metadata.bulk_loads import BULK_LOADS_ROOT, BulkLoadRecord
from octavo.metadata.topic_records import decode_record
from octavo.protocol.records import read_records
from tests.sim.bulk_load_audit import BULK_LOADED
from tests.sim.metadata_tree import Change
from tests.sim.topic_audit import TopicAudit
from tests.sim.trace import Trace


@dataclass(eq=False)
class PublishedBatch:
    """A micro-batch as its checkpoint has it: the values of its rows, by partition."""

    query: str
    number: int
    values: Mapping[PartitionName, list[str]]
    is_done: bool = False

    def __str__(self) -> str:
        return f"{self.query} batch {self.number}"


class PublishedAudit:
    def __init__(self, topics: TopicAudit, trace: Trace, fail: Callable[[str], None]) -> None:
        self._topics = topics
        self._trace = trace
        self.fails = fail
        self._batches: dict[tuple[str, int], PublishedBatch] = {}
        self._records: dict[str, BulkLoadRecord] = {}
        self._committed: dict[str, int] = {}
        """Query → its newest batch, also when its record was forgotten since."""
        self._stored: set[str] = set()
        """Values whose share was answered as stored."""

    # ------------------------------------------------------------------ drivers

    def planned(self, batch: PublishedBatch) -> None:
        self._batches[batch.query, batch.number] = batch
        for name, values in batch.values.items():
            # Their order may differ each time, so the referee of the log gets none.
            self._topics.logs[name].sends(values, batch.query, BULK_LOADED, 0)

    def refused(self, values: Mapping[PartitionName, list[str]]) -> None:
        for name, some in values.items():
            self._topics.logs[name].sends(some, "other rows", BULK_LOADED, 0)
            self._topics.logs[name].refused(some)

    def stored(self, name: PartitionName, data: bytes, published: Published) -> None:
        values = [(record.value or b"").decode() for record in read_records(data)]
        self._stored.update(values)
        if not published.duplicate:
            self._topics.logs[name].stands(values, published.first_offset, "published by a sink")

    def told(self, batch: PublishedBatch) -> None:
        committed = self._committed.get(batch.query, -1)
        if committed < batch.number:
            self.fails(f"X10 {batch} was answered, its record is at {committed}")
        for name, values in batch.values.items():
            self._topics.logs[name].acked(values, -1, duplicate=False)

    def is_begun(self, batch: PublishedBatch) -> bool:
        """Whether its record notes its content, so that other rows are refused from now on."""
        record = self._records.get(batch.query, BulkLoadRecord())
        return record.begun == batch.number

    # ------------------------------------------------------------------ records

    def changed(self, change: Change) -> None:
        name = change.path.removeprefix(BULK_LOADS_ROOT + "/")
        if not any(query == name for query, _ in self._batches):
            return
        if change.value is None:
            gone = self._records.pop(name, BulkLoadRecord())
            if not gone.complete:
                self.fails(f"X10 the record of {name} went before batch {gone.batch} was whole")
            return
        new = decode_record(BulkLoadRecord, change.path, change.value)
        old = self._records.get(name, BulkLoadRecord())
        self._records[name] = new
        if new.batch == old.batch:
            return
        self._trace.probe("published.record")
        self._committed[name] = max(new.batch, self._committed.get(name, -1))
        batch = self._batches.get((name, new.batch))
        if batch is None or new.batch != old.begun or old.begun <= old.batch:
            self.fails(f"X10 {name} is committed at {new.batch}, begun was {old.begun}")
            return
        for where, values in batch.values.items():
            missing = [value for value in values if value not in self._stored]
            if missing:
                self.fails(f"X10 {batch} is committed, and nobody has stored {missing} in {where}")

    # ------------------------------------------------------------------ the end

    def check_whole(self) -> None:
        """Check at the end, when every planned batch is done, that each share stands together.

        In a trimmed share, consumers may have seen only some rows.
        """
        for batch in self._batches.values():
            for name, values in batch.values.items():
                log = self._topics.logs[name]
                at = sorted(log.sent[value].offset for value in values)
                seen = [offset for offset in at if offset >= 0]
                if not seen:
                    continue
                apart = seen[-1] - seen[0] >= len(values)
                if apart or (len(seen) < len(values) and not log.trimmed):
                    self.fails(f"X10 {batch}: its {len(values)} rows for {name} stand at {at}")
