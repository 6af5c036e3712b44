"""The safe time for deletions by age: from several clocks, none of them trusted alone. Pure.

A clock that is ahead for two seconds could make retention delete everything. So time is counted
from the last known time, at the speed of a steady clock:

    wall clock  ─┐ the lower  ── the claim ──┐ claim near the count: the claim is taken
    store clock ─┘ of both                   │ claim far off: ignored until it has lasted for a
    last known time + steady clock ─ count ──┘ quarantine (if it is ahead: two clocks must agree)

Deletion uses the lower of claim and count, so it is late, never early. Without a second clock, a
machine that was off for a week looks like a clock a week ahead: an operator must confirm the time.

A ledger found closed whose messages have no age gets a date: the highest time ever counted, because
an early date would make it old once the clock is right.
"""

from __future__ import annotations

from typing import NamedTuple


class ClockLimits(NamedTuple):
    tolerance_ms: int
    quarantine_ms: int


class Reading(NamedTuple):
    """`store_ms` is None if the store has no clock."""

    steady_ms: int
    wall_ms: int
    store_ms: int | None


class DeletionTime(NamedTuple):
    """`doubt` says what is wrong; empty: the time may be written down."""

    now_ms: int
    doubt: str
    late_ms: int
    """How far deletions lag behind the claim."""
    date_ms: int
    """The date for a ledger found closed now."""


_WANDERING = 100
"""One per cent: a clock that gains more on a steady clock is wrong."""


class DeletionClock:
    """`known_ms`: the last time written down. `highest_ms`: the highest date given."""

    def __init__(
        self, limits: ClockLimits, known_ms: int | None = None, highest_ms: int = 0
    ) -> None:
        self._limits = limits
        self._highest_ms = max(highest_ms, known_ms or 0)
        self._counted_ms = known_ms
        self._steady_ms: int | None = None
        self._allowance_ms = float(limits.tolerance_ms)
        """How much the claim may still gain at once; grows back slowly."""
        self._claimed_since_ms: int | None = None
        self._claimed_gap_ms = 0
        self._passed_ms = 0

    @property
    def has_begun(self) -> bool:
        """Whether there is a time to count from; the first claim is believed."""
        return self._counted_ms is not None

    def confirm(self, now_ms: int) -> None:
        self._believe(now_ms)
        self._highest_ms = now_ms

    def date_from(self, highest_ms: int) -> None:
        self._highest_ms = max(self._highest_ms, highest_ms)

    def observe(self, reading: Reading) -> DeletionTime:
        tolerance_ms = self._limits.tolerance_ms
        store_ms = reading.wall_ms if reading.store_ms is None else reading.store_ms
        claimed_ms = min(reading.wall_ms, store_ms)
        apart = abs(reading.wall_ms - store_ms) > tolerance_ms
        passed_ms = 0 if self._steady_ms is None else reading.steady_ms - self._steady_ms
        self._steady_ms = reading.steady_ms
        if self._counted_ms is None:
            self._counted_ms = claimed_ms
        self._counted_ms += passed_ms
        self._highest_ms += passed_ms
        self._passed_ms = passed_ms
        self._allowance_ms = min(tolerance_ms, self._allowance_ms + passed_ms / _WANDERING)
        gap_ms = claimed_ms - self._counted_ms
        if -tolerance_ms <= gap_ms <= self._allowance_ms:
            self._allowance_ms -= max(0, gap_ms)
            self._take(claimed_ms)
            return self._found(claimed_ms, _apart(reading) if apart else "", 0)
        witnessed = reading.store_ms is not None and not apart
        if self._outlasts(gap_ms, reading.steady_ms, may=witnessed or gap_ms < 0):
            self._believe(claimed_ms)
            return self._found(claimed_ms, _apart(reading) if apart else "", 0)
        now_ms = min(claimed_ms, self._counted_ms)
        doubt = _apart(reading) if apart else _off(gap_ms, witnessed)
        return self._found(now_ms, doubt, max(0, gap_ms))

    def _found(self, now_ms: int, doubt: str, late_ms: int) -> DeletionTime:
        ahead_ms = self._highest_ms - now_ms
        if ahead_ms < 0:
            self._highest_ms = now_ms
        elif not doubt and ahead_ms <= self._limits.tolerance_ms:
            # The date follows drift, but not a clock that is set back bit by bit.
            self._highest_ms -= min(ahead_ms, self._passed_ms // _WANDERING)
        return DeletionTime(now_ms, doubt, late_ms, self._highest_ms)

    def _believe(self, now_ms: int) -> None:
        self._take(now_ms)
        self._allowance_ms = self._limits.tolerance_ms

    def _take(self, now_ms: int) -> None:
        self._counted_ms = now_ms
        self._claimed_since_ms = None

    def _outlasts(self, gap_ms: int, steady_ms: int, *, may: bool) -> bool:
        """Return whether an allowed claim has lasted for a quarantine."""
        same = abs(gap_ms - self._claimed_gap_ms) <= self._limits.tolerance_ms
        if not may:
            self._claimed_since_ms = None
        elif self._claimed_since_ms is None or not same:
            self._claimed_since_ms, self._claimed_gap_ms = steady_ms, gap_ms
        return (
            self._claimed_since_ms is not None
            and steady_ms - self._claimed_since_ms >= self._limits.quarantine_ms
        )


def _apart(reading: Reading) -> str:
    assert reading.store_ms is not None
    ahead_ms = reading.wall_ms - reading.store_ms
    return (
        f"this broker's clock is {_length(ahead_ms)} {_side(ahead_ms)} the metadata store's; "
        "set the wrong clock"
    )


def _off(gap_ms: int, witnessed: bool) -> str:
    what = f"the clock is {_length(gap_ms)} {_side(gap_ms)} the time that was counted"
    if gap_ms < 0 or witnessed:
        return f"{what}; it will be believed if it stays so"
    return (
        f"{what}, and no second clock agrees: it was set, or no broker ran for so long. "
        "If it is right now, confirm it: POST /v1/cluster/clock"
    )


def _side(ms: int) -> str:
    return "ahead of" if ms > 0 else "behind"


def _length(ms: int) -> str:
    seconds = abs(ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
