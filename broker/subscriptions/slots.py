"""Which consumer of a key-shared subscription a key belongs to. Pure.

A key's hash has 64 bits; the first 16 are its slot, one of 65,536. Each consumer stands at `POINTS`
slots that follow from its name alone. A slot belongs to the consumer at the slot, or else at the
next point after it (consistent hashing). So a consumer that comes or leaves moves about its share
of the slots, and every broker computes the same result from the same consumers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

SLOTS = 65_536
POINTS = 64
"""Points per consumer. Shares differ by about an eighth: 1 / √64."""
_POINT_BYTES = 2
_NAMES_REMEMBERED = 4_096


def hash_of(key: bytes) -> int:
    """Return a key's hash of 64 bits. Keys with the same hash are treated as the same key."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def slot_of(key_hash: int) -> int:
    """Return the slot of a key with this hash."""
    return key_hash >> 48


@lru_cache(_NAMES_REMEMBERED)
def _points(name: str) -> tuple[tuple[int, str], ...]:
    """Return a consumer's points on the ring of slots, ascending."""
    digests = b"".join(
        blake2b(name.encode(errors="surrogatepass"), salt=bytes([number])).digest()
        for number in range(POINTS * _POINT_BYTES // 64)
    )
    found = {
        int.from_bytes(digests[at : at + _POINT_BYTES], "big")
        for at in range(0, len(digests), _POINT_BYTES)
    }
    return tuple((slot, name) for slot in sorted(found))


class Slots:
    """The slots of the current consumers."""

    def __init__(self, names: Iterable[str] = (), before: Slots | None = None) -> None:
        """`before`: the slots of the consumers before, to make a small change fast."""
        self.names = frozenset(names)
        old = frozenset[str]() if before is None else before.names
        self._points: list[tuple[int, str]] = [] if before is None else before._points
        if gone := old - self.names:
            self._points = [point for point in self._points if point[1] not in gone]
        new = [point for name in self.names - old for point in _points(name)]
        # If two consumers stand at the same slot, the first by name has it.
        self._points = sorted(self._points + new) if new else self._points
        self._ends = [slot for slot, _ in self._points]
        self._owners = [name for _, name in self._points]

    def owner(self, slot: int) -> str | None:
        """Return the consumer of a slot; None if there are no consumers."""
        if not self._ends:
            return None
        place = bisect_left(self._ends, slot)
        return self._owners[place if place < len(self._ends) else 0]

    def ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Return the slots of each consumer, as ascending (first, last) ranges, both included."""
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}
        if not self._ends:
            return found
        before = -1
        for end, owner in [*zip(self._ends, self._owners, strict=True), (SLOTS - 1, None)]:
            if end > before:
                mine = found[owner or self._owners[0]]
                if mine and mine[-1][1] == before:
                    mine[-1] = (mine[-1][0], end)
                else:
                    mine.append((before + 1, end))
                before = end
        return found
