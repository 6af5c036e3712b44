"""Messages of a subscription that are not due: which are, in the order of their due times. Pure.

A message says itself when it is due (protocol/due.py), and is in the log like any other. What is
kept here is only where: it is found again by going over the unacked messages, so a take-over loses
nothing. Times are milliseconds since the epoch.

    due in a minute and later   by minute, each a compact array: 8 bytes a message
    the minute that has begun   a heap of numbers: some 50 bytes a message

Bounded in messages: with `pending_max` of them none is looked for behind them until some are due.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable

_BUCKET_SHIFT = 16
"""A bucket is 65.5 seconds."""
_OFFSET_BITS = 47
_OFFSET_LOW = (1 << _OFFSET_BITS) - 1
_LEFT_SHARE = 16
"""Those that are acked are looked for when the cursor has passed such a part of what is kept."""
_TIME_LOW = (1 << _BUCKET_SHIFT) - 1


class Delays:
    """Offsets by when they are due."""

    def __init__(self, pending_max: int) -> None:
        self._pending_max = pending_max
        self._buckets: dict[int, array[int]] = {}
        self._keys: list[int] = []
        """Of the buckets, as a heap."""
        self._near: list[int] = []
        """`due << bits | offset` of all that is due before `_near_end_ms`, as a heap."""
        self._near_end_ms = 0
        self._count = 0
        self._highest = -1
        """No offset is higher."""
        self._passed = 0
        """Those before it were let go."""
        self.ahead_ms = 0
        """How far the time that due times are of is ahead of the dispatcher's steady clock."""

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """No more are to be looked for."""
        return self._count >= self._pending_max

    def add(self, due_ms: int, offset: int) -> None:
        """A message that is not to be handed out before then."""
        assert 0 <= offset <= _OFFSET_LOW
        self._count += 1
        self._highest = max(self._highest, offset)
        if due_ms < self._near_end_ms:
            heapq.heappush(self._near, due_ms << _OFFSET_BITS | offset)
            return
        key = due_ms >> _BUCKET_SHIFT
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("q")
            heapq.heappush(self._keys, key)
        bucket.append((due_ms & _TIME_LOW) << _OFFSET_BITS | offset)

    def take(self, now_ms: int, count: int, wanted: Callable[[int], bool]) -> list[int]:
        """Up to `count` offsets that are due, the one that is due first foremost.

        Those that are not `wanted` any more are dropped.
        """
        taken: list[int] = []
        while len(taken) < count and self._next_within(now_ms):
            if not self._near or self._near[0] >> _OFFSET_BITS > now_ms:
                break
            offset = heapq.heappop(self._near) & _OFFSET_LOW
            self._count -= 1
            if wanted(offset):
                taken.append(offset)
        return taken

    def next_ms(self, now_ms: int) -> int | None:
        """When to look again: not after the next one is due. None: there are none."""
        if self._next_within(now_ms):
            return self._near[0] >> _OFFSET_BITS
        return self._keys[0] << _BUCKET_SHIFT if self._keys else None

    def passed(self, floor: int) -> None:
        """All before offset `floor` is acked. A few of those may be counted for a while still."""
        if floor > self._highest:
            self.clear()
        if not self._count or (floor - self._passed) * _LEFT_SHARE < self._count:
            return
        self._passed = floor
        self._near = [one for one in self._near if one & _OFFSET_LOW >= floor]
        heapq.heapify(self._near)
        for key, bucket in self._buckets.items():
            left = array("q", [one for one in bucket if one & _OFFSET_LOW >= floor])
            self._buckets[key] = left
        self._keys = [key for key in self._keys if self._buckets[key]]
        heapq.heapify(self._keys)
        self._buckets = {key: self._buckets[key] for key in self._keys}
        self._count = len(self._near) + sum(map(len, self._buckets.values()))

    def clear(self) -> None:
        """They are to be found anew."""
        self._buckets.clear()
        self._keys.clear()
        self._near.clear()
        self._near_end_ms = self._count = self._passed = 0
        self._highest = -1

    def _next_within(self, now_ms: int) -> bool:
        """Open the buckets that have begun; whether anything is left that may be due."""
        while self._keys and self._keys[0] << _BUCKET_SHIFT <= now_ms:
            key = heapq.heappop(self._keys)
            start_ms = key << _BUCKET_SHIFT
            base = start_ms << _OFFSET_BITS
            self._near += [base + packed for packed in self._buckets.pop(key)]
            heapq.heapify(self._near)
            self._near_end_ms = max(self._near_end_ms, start_ms + _TIME_LOW + 1)
        return bool(self._near)
