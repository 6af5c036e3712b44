"""The newest batches of all partitions in memory, so that a tailing reader never asks a bookie.

All partitions share the bound; the oldest batch of any is evicted first. A partition's batches are
here from some offset up to the newest confirmed batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from octavo.broker.types import StoredBatch
from octavo.protocol.batch import BatchHeader, with_base_offset

_OVERHEAD_BYTES = 512
"""The cost of a small batch besides its bytes."""
_COMPACT_AFTER = 1024


class CachedBatch:
    """`header` has the append time, if any (protocol/append_time.py)."""

    __slots__ = ("_served", "base_offset", "entry_id", "header", "ledger_id", "stored")

    def __init__(
        self, base_offset: int, ledger_id: int, entry_id: int, header: BatchHeader, stored: bytes
    ) -> None:
        self.base_offset = base_offset
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.header = header
        self.stored = stored
        self._served: StoredBatch | None = None

    @property
    def cost_bytes(self) -> int:
        return len(self.stored) + _OVERHEAD_BYTES

    def served(self) -> StoredBatch:
        if self._served is None:
            header = self.header._replace(base_offset=self.base_offset)
            data = with_base_offset(self.stored, self.base_offset, header.partition_leader_epoch)
            self.stored = data
            self._served = StoredBatch(
                self.base_offset, self.ledger_id, self.entry_id, header, data
            )
        return self._served


class PartitionTail:
    __slots__ = ("_bases", "_batches", "_cache", "_gone", "_start")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._batches: list[CachedBatch | None] = []
        self._start = 0
        self._gone = False

    def __len__(self) -> int:
        return len(self._batches) - self._start

    @property
    def cleared(self) -> bool:
        return self._gone

    @property
    def first_offset(self) -> int | None:
        return self._bases[self._start] if self._start < len(self._bases) else None

    def append(self, batch: CachedBatch) -> None:
        if self._gone:
            return
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self._cache.added(self, batch.cost_bytes)

    def read(self, offset: int, bytes_max: int, count_max: int) -> list[StoredBatch]:
        """Empty if `offset` is not cached."""
        first = self.first_offset
        if first is None or offset < first:
            return []
        found: list[StoredBatch] = []
        taken_bytes = taken = 0
        skip = bisect_right(self._bases, offset, self._start) - 1
        for index in range(skip, len(self._batches)):
            batch = self._batches[index]
            assert batch is not None
            taken_bytes += len(batch.stored)
            if found and (taken_bytes > bytes_max or taken >= count_max):
                break
            served = batch.served()
            taken += served.next_offset - max(offset, served.base_offset)
            found.append(served)
        if found and found[0].next_offset <= offset:
            return []
        return found

    def find(self, ledger_id: int, entry_id: int) -> StoredBatch | None:
        for batch in reversed(self._batches):
            if batch is None:
                break
            if (batch.ledger_id, batch.entry_id) == (ledger_id, entry_id):
                return batch.served()
        return None

    def clear(self) -> None:
        self._gone = True
        left = [batch.cost_bytes for batch in self._batches[self._start :] if batch]
        self._cache.removed(sum(left), len(left))
        self._bases.clear()
        self._batches.clear()
        self._start = 0

    def evict_oldest(self) -> int:
        if self._gone or self._start == len(self._batches):
            return 0
        batch = self._batches[self._start]
        assert batch is not None
        self._batches[self._start] = None
        self._start += 1
        if self._start >= _COMPACT_AFTER and self._start * 2 > len(self._batches):
            del self._bases[: self._start]
            del self._batches[: self._start]
            self._start = 0
        return batch.cost_bytes


class TailCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[PartitionTail] = deque()
        self._cleared = 0
        self.cached_bytes = 0

    def partition(self) -> PartitionTail:
        return PartitionTail(self)

    def added(self, tail: PartitionTail, cost_bytes: int) -> None:
        self._order.append(tail)
        self.cached_bytes += cost_bytes
        while self.cached_bytes > self._bytes_max and self._order:
            oldest = self._order.popleft()
            self._cleared -= oldest.cleared
            self.cached_bytes -= oldest.evict_oldest()

    def removed(self, cost_bytes: int, batches: int) -> None:
        """Drop cleared tails once they are half of the order."""
        self.cached_bytes -= cost_bytes
        self._cleared += batches
        if 2 * self._cleared > len(self._order):
            self._order = deque(tail for tail in self._order if not tail.cleared)
            self._cleared = 0
