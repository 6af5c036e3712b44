"""A stored RecordBatch with its place in a partition. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from octavo.protocol.batch import BatchHeader
from octavo.protocol.windows import all_records


class StoredBatch(NamedTuple):
    """`base` is its first offset in the partition."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    base: int
    header: BatchHeader
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.base + self.header.last_offset_delta + 1

    def numbered(self) -> tuple[Sequence[int], list[Any]]:
        records = all_records(self.data)
        return self.offsets(records, 0), records

    def offsets(self, records: list[Any], first: int) -> Sequence[int]:
        """Return the offsets of `records`, the first of which has index `first` in the batch."""
        if self.header.is_dense:
            return range(self.base + first, self.base + first + len(records))
        shift = self.base - self.header.base_offset
        return [shift + one.offset for one in records]
