"""A subscription's messages that are not due yet, in the order of their due times. Pure.

Keeps offsets only; after a take-over a scan of the unacked messages finds them again. Times are
milliseconds since the epoch.

The newest messages are in a heap; the others in sorted runs, compact arrays of 8 bytes a message. A
run with few messages left is dissolved into the heap. Every call does a bounded amount of work and
leaves the rest to later calls (`is_behind`). Memory is bounded: with `pending_max` messages here,
the subscription reads no more messages until some are due.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator

_OFFSET_BITS = 47
_OFFSET_LOW = (1 << _OFFSET_BITS) - 1
_WORD_BITS = 64
_RUN_MESSAGES = 4_096
_FEW = 4
_CUT_MESSAGES = 512
_LEFT_SHARE = 16
_STEP_MESSAGES = 16_384


class _Run:
    __slots__ = ("at", "base_due", "base_offset", "highest", "shift", "size", "words")

    def __init__(self, packed: list[int], shift: int, base_offset: int, highest: int) -> None:
        self.base_due = base_due = packed[0] >> _OFFSET_BITS
        self.base_offset = base_offset
        self.highest = highest
        self.shift = shift
        self.words = array(
            "Q",
            [
                ((one >> _OFFSET_BITS) - base_due) << shift | ((one & _OFFSET_LOW) - base_offset)
                for one in packed
            ],
        )
        self.size = len(packed)
        self.at = 0

    def __len__(self) -> int:
        return len(self.words) - self.at

    @property
    def head(self) -> int:
        return self._unpacked(self.words[self.at])

    def pop(self) -> None:
        self.at += 1
        if self.at >= _CUT_MESSAGES:
            del self.words[: self.at]
            self.at = 0

    def left(self) -> list[int]:
        return [self._unpacked(self.words[at]) for at in range(self.at, len(self.words))]

    def drop_before(self, floor: int) -> int:
        low, first = (1 << self.shift) - 1, floor - self.base_offset
        words = self.words if not self.at else self.words[self.at :]
        kept = array("Q", [word for word in words if word & low >= first])
        dropped = len(words) - len(kept)
        self.words, self.at = kept, 0
        return dropped

    def _unpacked(self, word: int) -> int:
        due = self.base_due + (word >> self.shift)
        return due << _OFFSET_BITS | (self.base_offset + (word & ((1 << self.shift) - 1)))


def _runs_of(packed: list[int]) -> Iterator[_Run]:
    """Make a run, or several if a word would be too short."""
    offsets = [one & _OFFSET_LOW for one in packed]
    base, highest = min(offsets), max(offsets)
    shift = (highest - base).bit_length()
    due_bits = ((packed[-1] >> _OFFSET_BITS) - (packed[0] >> _OFFSET_BITS)).bit_length()
    if shift + due_bits <= _WORD_BITS:
        yield _Run(packed, shift, base, highest)
    else:
        middle = len(packed) // 2
        yield from _runs_of(packed[:middle])
        yield from _runs_of(packed[middle:])


class Delays:
    def __init__(self, pending_max: int) -> None:
        self._pending_max = pending_max
        self._newest: list[int] = []
        """`due << bits | offset` of the newest messages, as a heap."""
        self._runs: dict[int, _Run] = {}
        self._made = 0
        self._heads: list[tuple[int, int]] = []
        """First message and number of each run, as a heap; some entries are outdated."""
        self._unswept: list[int] = []
        self._count = 0
        self._highest = -1
        self._passed = 0
        """Messages before this offset are dropped, or about to be."""
        self._has_unwanted = False
        self.ahead_ms = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._pending_max

    @property
    def is_behind(self) -> bool:
        return self._has_unwanted or bool(self._unswept)

    def add(self, due_ms: int, offset: int) -> None:
        assert 0 <= offset <= _OFFSET_LOW
        self._count += 1
        self._highest = max(self._highest, offset)
        self._push(due_ms << _OFFSET_BITS | offset)

    def take(self, now_ms: int, count: int, wanted: Callable[[int], bool]) -> list[int]:
        """Take due offsets, earliest due time first, and drop some that are not `wanted`."""
        self._sweep()
        taken: list[int] = []
        room = _STEP_MESSAGES
        self._has_unwanted = False
        while len(taken) < count:
            first = self._first()
            if first is None or first >> _OFFSET_BITS > now_ms:
                break
            if not room:
                self._has_unwanted = True
                break
            self._pop(first)
            self._count -= 1
            offset = first & _OFFSET_LOW
            if wanted(offset):
                taken.append(offset)
            else:
                room -= 1
        return taken

    def next_ms(self) -> int | None:
        first = self._first()
        return None if first is None else first >> _OFFSET_BITS

    def passed(self, floor: int) -> None:
        """Drop acked messages before `floor`."""
        if floor > self._highest:
            self.clear()
        elif not self._unswept and (floor - self._passed) * _LEFT_SHARE >= self._count > 0:
            self._passed = floor
            kept = [one for one in self._newest if one & _OFFSET_LOW >= floor]
            self._count -= len(self._newest) - len(kept)
            heapq.heapify(kept)
            self._newest = kept
            self._unswept = list(self._runs)
        self._sweep()

    def clear(self) -> None:
        self._newest.clear()
        self._runs.clear()
        self._heads.clear()
        self._unswept.clear()
        self._count = self._passed = 0
        self._highest = -1
        self._has_unwanted = False

    def _sweep(self) -> None:
        room = _STEP_MESSAGES
        while self._unswept and room > 0:
            number = self._unswept.pop()
            run = self._runs.get(number)
            if run is None or run.base_offset >= self._passed:
                continue
            if run.highest < self._passed:
                self._count -= len(run)
                del self._runs[number]
                continue
            room -= len(run)
            self._count -= run.drop_before(self._passed)
            self._changed(number, run)

    def _push(self, packed: int) -> None:
        heapq.heappush(self._newest, packed)
        if len(self._newest) >= _RUN_MESSAGES:
            self._newest.sort()
            for run in _runs_of(self._newest):
                self._made += 1
                self._runs[self._made] = run
                heapq.heappush(self._heads, (run.head, self._made))
            self._newest = []

    def _first(self) -> int | None:
        heads = self._heads
        while heads:
            head, number = heads[0]
            run = self._runs.get(number)
            if run is not None and run.head == head:
                break
            heapq.heappop(heads)
        if not heads:
            return self._newest[0] if self._newest else None
        return min(heads[0][0], self._newest[0]) if self._newest else heads[0][0]

    def _pop(self, first: int) -> None:
        if self._newest and self._newest[0] == first:
            heapq.heappop(self._newest)
            return
        _, number = heapq.heappop(self._heads)
        run = self._runs[number]
        run.pop()
        self._changed(number, run)

    def _changed(self, number: int, run: _Run) -> None:
        if len(run) and len(run) * _FEW >= run.size:
            heapq.heappush(self._heads, (run.head, number))
            if len(self._heads) > 2 * len(self._runs) + _RUN_MESSAGES:
                self._heads = [(one.head, at) for at, one in self._runs.items()]
                heapq.heapify(self._heads)
            return
        del self._runs[number]
        for one in run.left():
            self._push(one)
