"""What waits for the journal, in a fair order. Pure.

Adds wait in lanes, one for each connection. A lane that was empty goes before those that were not,
so who sends little waits for the group under way and not for what others have piled up; the others
take turns by bytes. Within a lane the order of arrival holds. What comes without a lane (a fence, a
deletion) keeps its place: all that came before goes before it, all that comes later after it. So
an add that was let in before a fence is never reported after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

QUANTUM_BYTES = 64 * 1024
"""What a lane may have at its turn; a longer item makes it wait for more turns."""

T = TypeVar("T")


class _Lane(Generic[T]):
    """What one connection has waiting."""

    __slots__ = ("credit_bytes", "items")

    def __init__(self) -> None:
        self.items: deque[tuple[T, int]] = deque()
        self.credit_bytes = QUANTUM_BYTES


class _Stretch(Generic[T]):
    """Lanes between two items that keep their place."""

    __slots__ = ("_lanes", "_new", "_old")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane[T]] = {}
        self._new: deque[Hashable] = deque()
        self._old: deque[Hashable] = deque()

    def push(self, item: T, size: int, key: Hashable) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            self._new.append(key)
        lane.items.append((item, size))

    def next(self) -> tuple[Hashable, _Lane[T]] | None:
        """Whose turn it is. None when nothing waits any more."""
        while True:
            turns = self._new or self._old
            if not turns:
                return None
            key = turns[0]
            lane = self._lanes[key]
            if not lane.items and turns is self._old:
                turns.popleft()
                del self._lanes[key]
            elif not lane.items or lane.credit_bytes <= 0:
                # Emptied at its first turn, or its share is used up: the others come first.
                lane.credit_bytes = min(QUANTUM_BYTES, lane.credit_bytes + QUANTUM_BYTES)
                turns.popleft()
                self._old.append(key)
            else:
                return key, lane


class JournalQueue(Generic[T]):
    """Items with their sizes, lined up."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch[T] | tuple[T, int]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, item: T, size: int, lane: Hashable | None) -> None:
        """Line an item up, in its lane, or behind all that is there when it has none."""
        self._count += 1
        if lane is None:
            self._stretches.append((item, size))
            return
        last = self._stretches[-1] if self._stretches else None
        if not isinstance(last, _Stretch):
            last = _Stretch()
            self._stretches.append(last)
        last.push(item, size, lane)

    def pop(self, bytes_max: int) -> T | None:
        """The next item, unless it is longer than `bytes_max` or there is none."""
        while self._stretches:
            first = self._stretches[0]
            if not isinstance(first, _Stretch):
                item, size = first
                if size > bytes_max:
                    return None
                self._stretches.popleft()
                self._count -= 1
                return item
            found = first.next()
            if found is None:
                if len(self._stretches) == 1:
                    return None  # it is empty, and takes what comes next
                self._stretches.popleft()
                continue
            _, lane = found
            item, size = lane.items[0]
            if size > bytes_max:
                return None
            lane.items.popleft()
            lane.credit_bytes -= size
            self._count -= 1
            return item
        return None
