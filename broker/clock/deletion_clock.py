"""What time it safely is for deleting by age: several clocks, none of them believed alone. Pure.

A clock that is ahead for two seconds would have retention delete everything. So time is counted
here: from what was known last, by a steady clock that nobody sets, and no faster.

    wall clock  ─┐ the lower  ── the claim ──┐ within what a clock may wander: taken
    store clock ─┘ of both                   │ further off: counted on, until it has been claimed
    known last + steady clock ── counted ────┘ for a quarantine, forwards by two clocks that agree

Deletion goes by the lower of claim and count: of two clocks that differ the slower one, which keeps
more. While the claim is ahead of the count, deletion is late by as much, never early. That ends by
itself where the metadata store has a clock that agrees. Where it has none (one machine, with the
embedded store), nothing tells a machine that was switched off for a week from a clock that is a
week ahead: a person confirms the time.

A ledger is dated when it is found closed, for messages that do not say how old they are. A date
must not be behind: what was dated by a clock that was is old at once when it is right again. So it
is the highest time that was ever counted, and counted on; a clock that stays behind lowers the time
to delete by, and not this one. A person may lower both.

Safe as long as one of wall clock and store clock is not ahead, or time once counted right.
"""

from __future__ import annotations

from typing import NamedTuple


class ClockLimits(NamedTuple):
    """How far clocks may differ, and how long they must agree to be believed."""

    tolerance_ms: int
    quarantine_ms: int


class Reading(NamedTuple):
    """Clocks, read at one moment. `store_ms` is None where the metadata store tells no time."""

    steady_ms: int
    wall_ms: int
    store_ms: int | None


class DeletionTime(NamedTuple):
    """The time to go by. `doubt` says what is the matter; without any it may be written down."""

    now_ms: int
    doubt: str
    late_ms: int
    """How far behind the clocks' claim it is."""
    date_ms: int
    """What a ledger that is found closed now is dated by: never before the truth, if time was once
    counted right."""


_WANDERING = 100
"""A hundredth: a clock that gains more than that on a steady one is wrong."""


class DeletionClock:
    """Counts. `known_ms`: the time that was safe when it was last written down, if ever.

    `highest_ms`: what ledgers were dated by then.
    """

    def __init__(
        self, limits: ClockLimits, known_ms: int | None = None, highest_ms: int = 0
    ) -> None:
        self._limits = limits
        self._highest_ms = max(highest_ms, known_ms or 0)
        self._counted_ms = known_ms
        self._steady_ms: int | None = None
        self._allowance_ms = float(limits.tolerance_ms)
        """What the claim may still gain on the count at once; it grows back slowly."""
        self._claimed_since_ms: int | None = None
        self._claimed_gap_ms = 0
        self._passed_ms = 0

    @property
    def has_begun(self) -> bool:
        """Whether there is a time that it counts on from; the first claim is believed as it is."""
        return self._counted_ms is not None

    def confirm(self, now_ms: int) -> None:
        """Somebody who knows says what time it is."""
        self._believe(now_ms)
        self._highest_ms = now_ms

    def date_from(self, highest_ms: int) -> None:
        """Another broker has counted so far."""
        self._highest_ms = max(self._highest_ms, highest_ms)

    def observe(self, reading: Reading) -> DeletionTime:
        """Look at the clocks; now and then, at the latest when the time is wanted."""
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
            # What a steady clock gains must not add up; a clock that is set back, bit by bit, must.
            self._highest_ms -= min(ahead_ms, self._passed_ms // _WANDERING)
        return DeletionTime(now_ms, doubt, late_ms, self._highest_ms)

    def _believe(self, now_ms: int) -> None:
        self._take(now_ms)
        self._allowance_ms = self._limits.tolerance_ms

    def _take(self, now_ms: int) -> None:
        self._counted_ms = now_ms
        self._claimed_since_ms = None

    def _outlasts(self, gap_ms: int, steady_ms: int, *, may: bool) -> bool:
        """Whether the same was claimed throughout a quarantine, by who may claim it."""
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
        "set the one that is wrong"
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
