"""A queue whose keys take turns: a key with many items does not delay the others. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[K, T]):
    __slots__ = ("_lanes", "_length")

    def __init__(self) -> None:
        self._lanes: dict[K, deque[T]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def waiting(self, key: K) -> int:
        return len(self._lanes.get(key, ()))

    def push(self, key: K, item: T) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
        lane.append(item)
        self._length += 1

    def pop(self) -> tuple[K, T]:
        key = next(iter(self._lanes))
        lane = self._lanes.pop(key)
        item = lane.popleft()
        if lane:
            self._lanes[key] = lane
        self._length -= 1
        return key, item

    def push_back(self, key: K, item: T) -> None:
        """Undo a `pop`, except the turn of the key."""
        self._lanes.setdefault(key, deque()).appendleft(item)
        self._length += 1

    def take(self, key: K, wanted: Callable[[T], bool]) -> Iterator[T]:
        lane = self._lanes.pop(key, None)
        if lane is None:
            return
        left = deque(item for item in lane if not wanted(item))
        taken = [item for item in lane if wanted(item)] if len(left) < len(lane) else []
        if left:
            self._lanes[key] = left
        self._length -= len(taken)
        yield from taken

    def clear(self) -> list[T]:
        items: list[T] = []
        while self._length:
            items.append(self.pop()[1])
        return items
