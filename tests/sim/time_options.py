"""Times in the topics of a seed: stamps, retention, lookups, clocks that jump. All are drawn.

They come from a separate stream, so seeds without them stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_YEAR_MS = 365 * 24 * 3_600_000
FAR_MS = 10 * _YEAR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOptions:
    stamps: str
    """`clock`: they follow their producers' clocks; `near`: in any order; `wild`: also from the far
    past and future, or missing."""
    retention_ms: int | None
    """By time alone; None leaves the topic's setting as it is."""
    lookups: int
    """Clients that ask where a time begins."""
    jump_mean_s: float | None
    """Mean time between two jumps of a broker's clock, by more than any retention."""

    def stamps_of(self, rng: random.Random, now_ms: int, count: int) -> list[int]:
        """Draw the timestamps of a batch. A header cannot mark a single message as without time, so
        none of a batch has one, or all."""
        if self.stamps == "clock":
            return [now_ms] * count
        if self.stamps == "wild" and rng.random() < 0.15:
            return [-1] * count
        return [now_ms + self._off_ms(rng) for _ in range(count)]

    def _off_ms(self, rng: random.Random) -> int:
        if self.stamps == "near" or rng.random() < 0.5:
            return rng.randint(-300, 300)
        return rng.choice((-_YEAR_MS, -_YEAR_MS, FAR_MS))


def draw(rng: random.Random) -> TimeOptions:
    return TimeOptions(
        stamps=rng.choices(("clock", "near", "wild"), (3, 1, 2))[0],
        retention_ms=rng.choice((None, 400, 2_000)),
        lookups=rng.choice((0, 1)),
        jump_mean_s=rng.choice((None, 0.3)),
    )
