"""Pauses between attempts that double, up to a bound, and are drawn at random. Pure.

The caller sleeps, and provides the random numbers. When something fails for a process, it fails for
many at the same moment; without randomness they would all return at the same moment. Callers that
wait only for their own resources use no randomness: the bookies of an idle ledger, a background
task of a broker.
"""

from __future__ import annotations

import random


class Backoff:
    """The pauses of a series of attempts, in seconds. For a new series make a new object or
    `reset`."""

    __slots__ = ("_first_s", "_most_s", "_rng", "pause_s")

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None) -> None:
        """Without `rng` each pause has its maximal length."""
        self._first_s = first_s
        self._most_s = most_s
        self._rng = rng
        self.pause_s = first_s
        """The longest that the next pause can be."""

    def at_least(self, asked_s: float) -> None:
        """Make the next pause at least this long, as the server asked, within the bound."""
        self.pause_s = max(self.pause_s, min(asked_s, self._most_s))

    def next_s(self) -> float:
        """Return the next pause; if drawn, it has at least half of its maximal length."""
        pause_s = self.pause_s
        self.pause_s = min(2 * pause_s, self._most_s)
        return pause_s if self._rng is None else pause_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: begin a new series."""
        self.pause_s = self._first_s
