"""How much may be read ahead. Pure."""

from __future__ import annotations


class ReadAheadBudget:
    """Bytes that all partitions together may hold read ahead."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, amount: int) -> bool:
        """True when there was room."""
        if amount > self._left:
            return False
        self._left -= amount
        return True

    def give_back(self, amount: int) -> None:
        """What `take` has given."""
        self._left += amount
