"""The pace of a compaction, on a settable clock."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from octavo.broker.partition import compactor as module
from octavo.broker.partition.compactor import Pace


class Clock:
    """The clock of an otherwise idle loop: it moves by work and by sleeping."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0
        self.turns = 0

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.turns += 1
        self.slept_s += max(0.0, seconds)
        self.now_s += max(0.0, seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module.asyncio, "sleep", found.sleep)  # type: ignore[attr-defined]
    return found


def pace_of(clock: Clock, bytes_per_s: float, share: float) -> Pace:
    return Pace(cast(asyncio.AbstractEventLoop, cast(Any, clock)), bytes_per_s, share)


async def work(clock: Clock, pace: Pace, steps: int, step_s: float, read: int = 0) -> None:
    for _ in range(steps):
        clock.now_s += step_s
        await pace.step(read)


async def test_it_reads_no_faster_than_it_is_told_and_faster_when_it_is_urgent(
    clock: Clock,
) -> None:
    pace = pace_of(clock, 1_000, 1.0)
    await work(clock, pace, 100, 0.001, read=100)
    assert clock.now_s - 100 == pytest.approx(10, rel=0.02)
    pace.urgency = 10.0
    began_s = clock.now_s
    await work(clock, pace, 100, 0.001, read=100)
    assert clock.now_s - began_s == pytest.approx(1, rel=0.1)


async def test_it_works_for_its_share_at_most(clock: Clock) -> None:
    pace = pace_of(clock, 1e12, 0.25)
    await work(clock, pace, 1_000, 0.0001)
    assert clock.slept_s == pytest.approx(0.3, rel=0.02)
    assert clock.turns == pytest.approx(100, abs=5), "a turn every millisecond"


async def test_a_late_turn_is_made_up_for_and_a_long_wait_is_not(clock: Clock) -> None:
    pace = pace_of(clock, 1e12, 0.25)
    clock.now_s += 10.0  # for a read
    pace.resume()
    await work(clock, pace, 1_000, 0.0001)
    assert clock.slept_s == pytest.approx(0.3 - module._LATE_S_MAX, rel=0.02)


async def test_others_get_their_turn_where_the_clock_stands(clock: Clock) -> None:
    pace = pace_of(clock, 1e12, 0.25)
    await work(clock, pace, 3 * module._TURN_STEPS, 0)
    assert clock.turns == 3
