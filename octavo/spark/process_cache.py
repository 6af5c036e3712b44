"""A bounded cache that a Python process keeps between Spark's calls.

For each micro-batch Spark makes new objects of a source or a sink, in the same process.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ProcessCache(Generic[K, V]):
    """Keeps the newest `entries_max` values."""

    _all: ClassVar[list[ProcessCache[Any, Any]]] = []

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._values: dict[K, V] = {}
        self._all.append(self)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, if it is kept."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Keep the value; the oldest makes room."""
        self._values.pop(key, None)
        if len(self._values) >= self._entries_max:
            del self._values[next(iter(self._values))]
        self._values[key] = value

    def drop(self, key: K) -> None:
        """Forget the value of `key`, if any."""
        self._values.pop(key, None)

    @classmethod
    def forget_all(cls) -> None:
        """Empty all caches: a simulated process begins with none."""
        for cache in cls._all:
            cache._values.clear()
