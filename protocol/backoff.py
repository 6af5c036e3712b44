"""Pauses between attempts that double up to a bound, with random jitter. Pure.

One failure hits many processes at once; without jitter, all would return at once.
"""

from __future__ import annotations

import random


class Backoff:
    __slots__ = ("_first_s", "_most_s", "_rng", "pause_s")

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None) -> None:
        """Make growing pauses; without `rng` each has its maximal length."""
        self._first_s = first_s
        self._most_s = most_s
        self._rng = rng
        self.pause_s = first_s

    def at_least(self, asked_s: float) -> None:
        """Make the next pause at least this long, within the bound."""
        self.pause_s = max(self.pause_s, min(asked_s, self._most_s))

    def next_s(self) -> float:
        """Return the next pause; a random pause has at least half of its maximal length."""
        pause_s = self.pause_s
        self.pause_s = min(2 * pause_s, self._most_s)
        return pause_s if self._rng is None else pause_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.pause_s = self._first_s
