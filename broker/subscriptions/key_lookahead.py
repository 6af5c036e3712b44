"""Read messages before they are handed out, to learn their keys and apply the filter.

Reads one stretch at a time, and only when a consumer asks and no known message is for it. Messages
that the filter refuses are acked durably; after a crash, stretches whose acks were not written are
read again.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from octavo.broker.log.open_batches import ReadableBatch
from octavo.broker.state.cursor import Cursor, Range, ranges_of
from octavo.broker.subscriptions.filters import Filter
from octavo.broker.subscriptions.key_shared import LOOK_MESSAGES, KeyOrder, Known, Look, hash_of
from octavo.broker.types import StoredBatch

_READ_BYTES = 1024 * 1024


class LookedLog(Protocol):
    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]: ...

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]: ...


class Seen(NamedTuple):
    known: list[Known]
    refused: list[Range]
    stop: int


class KeyLookAhead:
    def __init__(self, cursor: Cursor, filter_: Filter, keys: KeyOrder | None) -> None:
        self._cursor = cursor
        self._filter = filter_
        self._keys = keys
        self._front = cursor.committed_offset
        self._resets = 0
        self.refused = 0

    def end(self, end: int) -> int:
        if self._keys is not None or self._filter.passes_all:
            return end
        return min(end, max(self._front, self._cursor.committed_offset))

    def wanted(self, consumer: str, end: int) -> Look | None:
        if self._keys is not None:
            return self._keys.wanted(consumer, end)
        if self._filter.passes_all:
            return None
        self._front = max(self._front, min(self._cursor.next_unacked(self._front), end))
        if self._front >= end:
            return None
        return Look(self._front, min(end, self._front + LOOK_MESSAGES), self._resets)

    async def see(self, log: LookedLog, look: Look) -> Seen:
        start, stop = look.start, look.stop
        known: list[Known] = []
        refused: list[int] = []
        batches = await log.read(start, bytes_max=_READ_BYTES, count_max=stop - start)
        at = start
        for batch in batches:
            async with log.readable(batch) as records:
                for offset in range(max(at, batch.base_offset), min(stop, batch.next_offset)):
                    at = offset + 1
                    if self._cursor.is_acked(offset):
                        continue
                    index = offset - batch.base_offset
                    if not records.holds(index):
                        await records.turn_to(index)
                    record = records[index]
                    if not self._filter.passes(record.key, record.headers):
                        refused.append(offset)
                    elif self._keys is not None:
                        key = record.key
                        known.append((offset, None if key is None else hash_of(key)))
            if at >= stop:
                break
        return Seen(known, ranges_of(refused), at)

    def learn(self, look: Look, seen: Seen) -> bool:
        """Take a result; return False if a seek has made it void."""
        if self._keys is not None:
            is_learnt = self._keys.learn(look, seen.known, seen.stop)
        elif is_learnt := look.since == self._resets:
            self._front = max(self._front, seen.stop)
        if is_learnt:
            self.refused += sum(stop - start for start, stop in seen.refused)
        return is_learnt

    def reset(self) -> None:
        self._front = self._cursor.committed_offset
        self._resets += 1
