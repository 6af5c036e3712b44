"""The time for deletions is never ahead of the truth, as long as one clock is not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.clock.deletion_clock import ClockLimits, DeletionClock, DeletionTime, Reading

LIMITS = ClockLimits(tolerance_ms=300_000, quarantine_ms=600_000)
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 1_700_000_000_000


@dataclass
class Machine:
    """A machine whose clocks are off as the test says."""

    clock: DeletionClock = field(default_factory=lambda: DeletionClock(LIMITS))
    has_store: bool = True
    passed_ms: int = 0
    wall_off: int = 0
    store_off: int = 0

    @property
    def true_ms(self) -> int:
        return START + self.passed_ms

    def after(self, ms: int, *, every: int = MINUTE) -> DeletionTime:
        """Return the time found after that long, with looks in between."""
        end = self.passed_ms + ms
        while True:
            store = self.true_ms + self.store_off if self.has_store else None
            found = self.clock.observe(Reading(self.passed_ms, self.true_ms + self.wall_off, store))
            if self.passed_ms >= end:
                return found
            self.passed_ms = min(end, self.passed_ms + every)


@pytest.mark.parametrize("has_store", [True, False])
def test_clocks_that_agree_are_gone_by(has_store: bool) -> None:
    machine = Machine(has_store=has_store)
    assert machine.after(3 * DAY) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


@pytest.mark.parametrize("has_store", [True, False])
@pytest.mark.parametrize("wrong_ms", [8 * DAY, -8 * DAY, 10 * 365 * DAY])
@pytest.mark.parametrize("for_ms", [2_000, 5 * MINUTE])
def test_a_clock_that_is_wrong_for_a_while(has_store: bool, wrong_ms: int, for_ms: int) -> None:
    machine = Machine(has_store=has_store)
    machine.after(HOUR)
    machine.wall_off = wrong_ms
    found = machine.after(for_ms, every=1_000)
    assert found.now_ms <= machine.true_ms
    assert found.doubt
    machine.wall_off = 0
    found = machine.after(20 * MINUTE)
    assert found == DeletionTime(machine.true_ms, "", 0, machine.true_ms), "it goes on by itself"


def test_one_clock_ahead_for_ever_deletes_by_the_other() -> None:
    machine = Machine(wall_off=8 * DAY)
    found = machine.after(DAY)
    assert found.now_ms == machine.true_ms
    assert "8 d ahead of the metadata store's" in found.doubt
    machine = Machine(store_off=8 * DAY)
    found = machine.after(DAY)
    assert found.now_ms == machine.true_ms
    assert "8 d behind the metadata store's" in found.doubt


def test_one_machine_that_was_off_waits_for_a_person() -> None:
    machine = Machine(DeletionClock(LIMITS, START - 7 * DAY), has_store=False)
    found = machine.after(30 * DAY)
    assert found.now_ms == machine.true_ms - 7 * DAY, "late by as much, and going on"
    assert found.late_ms == 7 * DAY
    assert "POST /v1/cluster/clock" in found.doubt
    machine.clock.confirm(machine.true_ms)
    assert machine.after(HOUR) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


def test_a_cluster_that_was_off_goes_on_when_two_clocks_agree() -> None:
    machine = Machine(DeletionClock(LIMITS, START - 7 * DAY))
    assert machine.after(5 * MINUTE).late_ms == 7 * DAY
    assert machine.after(6 * MINUTE) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


def test_both_clocks_set_at_once_are_not_believed_at_once() -> None:
    """One time server misleads all machines: its first two seconds do no harm."""
    machine = Machine()
    machine.after(HOUR)
    machine.wall_off = machine.store_off = 8 * DAY
    assert machine.after(9 * MINUTE).now_ms == machine.true_ms
    machine.wall_off = machine.store_off = 0
    assert machine.after(MINUTE) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


def test_a_clock_that_runs_too_fast_gains_little() -> None:
    machine = Machine(has_store=False)
    machine.after(0)
    for _ in range(24 * 60):
        machine.wall_off += MINUTE  # twice as fast as it should
        found = machine.after(MINUTE)
        assert found.now_ms - machine.true_ms <= LIMITS.tolerance_ms + machine.passed_ms / 100
    assert found.doubt


steps = st.lists(
    st.tuples(
        st.sampled_from([1_000, MINUTE, 7 * MINUTE, 11 * MINUTE, HOUR]),
        st.sampled_from([0, 0, MINUTE, 8 * DAY, -8 * DAY, -MINUTE, 2 * HOUR]),
    ),
    max_size=25,
)


@given(steps, st.booleans())
def test_never_ahead_while_one_of_two_clocks_is_not(
    story: list[tuple[int, int]], store_is_right: bool
) -> None:
    """Whatever the other clock does."""
    machine = Machine()
    for ms, off in story:
        if store_is_right:
            machine.wall_off = off
        else:
            machine.store_off = off
        assert machine.after(ms).now_ms <= machine.true_ms


@given(steps)
def test_alone_it_is_never_ahead_by_more_than_it_may_wander(story: list[tuple[int, int]]) -> None:
    machine = Machine(has_store=False)
    machine.after(0)
    for ms, off in story:
        machine.wall_off = off
        slack = LIMITS.tolerance_ms + machine.passed_ms / 100 + ms
        assert machine.after(ms).now_ms - machine.true_ms <= slack


@given(steps, st.booleans())
def test_no_date_is_behind_once_time_was_counted_right(
    story: list[tuple[int, int]], has_store: bool
) -> None:
    """Whatever one clock does, also for good: an object that it dated is not old once the time is
    right."""
    machine = Machine(has_store=has_store)
    machine.after(0)
    for ms, off in story:
        machine.wall_off = off
        found = machine.after(ms)
        assert found.date_ms >= machine.true_ms - machine.passed_ms / 100
        assert found.date_ms >= found.now_ms


def test_a_clock_that_is_behind_for_days_lowers_no_date() -> None:
    machine = Machine(has_store=False)
    machine.after(HOUR)
    machine.wall_off = -8 * DAY
    found = machine.after(2 * DAY)
    assert not found.doubt
    assert found.now_ms == machine.true_ms - 8 * DAY
    assert found.date_ms == machine.true_ms
    after = DeletionClock(LIMITS, found.now_ms, found.date_ms)  # another process continues
    assert after.observe(Reading(0, found.now_ms, None)).date_ms == machine.true_ms
    after.date_from(machine.true_ms + HOUR)  # another broker has counted further
    assert after.observe(Reading(0, found.now_ms, None)).date_ms == machine.true_ms + HOUR
    after.confirm(found.now_ms)  # a person knows better
    assert after.observe(Reading(0, found.now_ms, None)).date_ms == found.now_ms


def test_a_steady_clock_that_gains_does_not_add_up() -> None:
    clock = DeletionClock(LIMITS)
    for minute in range(100_000):
        found = clock.observe(Reading(minute * (MINUTE + 30), START + minute * MINUTE, None))
        assert found.date_ms - found.now_ms <= 30


@given(steps, st.booleans())
def test_it_ends_by_itself_where_there_are_two(
    story: list[tuple[int, int]], store_is_right: bool
) -> None:
    machine = Machine()
    for ms, off in story:
        if store_is_right:
            machine.wall_off = off
        else:
            machine.store_off = off
        machine.after(ms)
    machine.wall_off = machine.store_off = 0
    assert machine.after(21 * MINUTE) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)
