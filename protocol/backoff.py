"""How long to wait before a thing is tried again: pauses that double, up to a bound, and are drawn.

Pure: whoever waits does the sleeping and hands in the chance. What failed for one process failed
for many at that moment; without chance they would all come back at the same ones. Without it is who
waits for what is its own: an idle ledger's bookies, a chore of one broker.
"""

from __future__ import annotations

import random


class Backoff:
    """The pauses of one row of attempts, in seconds. A new row gets a new object, or `reset`."""

    __slots__ = ("_first_s", "_most_s", "_rng", "pause_s")

    def __init__(self, first_s: float, most_s: float, rng: random.Random | None) -> None:
        """Without `rng` each pause is as long as it may be."""
        self._first_s = first_s
        self._most_s = most_s
        self._rng = rng
        self.pause_s = first_s
        """The next one lasts no longer."""

    def at_least(self, asked_s: float) -> None:
        """Whoever refused has asked for so long a pause; the bound holds all the same."""
        self.pause_s = max(self.pause_s, min(asked_s, self._most_s))

    def next_s(self) -> float:
        """The next pause: with chance half of what it may be, or more."""
        pause_s = self.pause_s
        self.pause_s = min(2 * pause_s, self._most_s)
        return pause_s if self._rng is None else pause_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: the next row begins."""
        self.pause_s = self._first_s
