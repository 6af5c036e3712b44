"""Which broker gives which partition to which: never back and forth, never without end. By load."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.cluster.load import (
    GAIN,
    MEASURED_EVERY_S,
    SMOOTHED_OVER_S,
    TOLD_WITHIN_S,
    Giving,
    LoadRules,
    Loads,
    LoadTurns,
    choose,
    worth_telling,
)
from octavo.broker.types import PartitionName, Work

RULES = LoadRules(floor=100.0, above_mean=1.25, pause_s=60.0, rest_s=600.0)

Lying = dict[str, dict[PartitionName, float]]
"""Broker → its partitions, with their loads."""


def part(number: int) -> PartitionName:
    return PartitionName("public", "t", number)


@st.composite
def clusters(draw: st.DrawFn) -> Lying:
    ids = [f"b{number}" for number in range(draw(st.integers(1, 6)))]
    # A load whose half is 0 as a float counts as no load.
    loads = draw(st.lists(st.just(0.0) | st.floats(1e-6, 50_000), max_size=40))
    lying: Lying = {one: {} for one in ids}
    for number, load in enumerate(loads):
        lying[draw(st.sampled_from(ids))][part(number)] = load
    return lying


def totals(lying: Lying) -> dict[str, float]:
    return {one: sum(loads.values()) for one, loads in lying.items()}


def distance(lying: Lying) -> float:
    """Return all brokers' distance from their mean."""
    found = totals(lying)
    mean = sum(found.values()) / len(found)
    return sum(abs(load - mean) for load in found.values())


def moves_until_rest(lying: Lying, rules: LoadRules) -> list[Giving]:
    """Return the moves while loads stay constant, and no pause is needed."""
    most = round(2 * len(lying) / GAIN)
    made: list[Giving] = []
    while True:
        now = totals(lying)
        found = [one for own in sorted(lying) if (one := choose(own, now, lying[own], rules))]
        assert len(found) <= 1, "only the most loaded gives"
        if not found:
            return made
        giving = found[0]
        giver = next(one for one, loads in lying.items() if giving.partition in loads)
        lying[giving.to][giving.partition] = lying[giver].pop(giving.partition)
        made.append(giving)
        assert len(made) <= most, "it does not come to rest"


@given(clusters())
def test_with_constant_loads_it_comes_to_rest_and_each_move_brings_something(
    lying: Lying,
) -> None:
    seen = {_state(lying)}
    mean = sum(totals(lying).values()) / len(lying)
    while True:
        before = distance(lying)
        now = totals(lying)
        found = [one for own in sorted(lying) if (one := choose(own, now, lying[own], RULES))]
        if not found:
            return
        giving = found[0]
        giver = next(one for one, loads in lying.items() if giving.partition in loads)
        assert now[giver] == max(now.values())
        assert now[giver] > max(RULES.floor, RULES.above_mean * mean)
        assert now[giving.to] == min(now.values())
        lying[giving.to][giving.partition] = lying[giver].pop(giving.partition)
        assert distance(lying) <= before - GAIN * mean + 1e-6 * max(1.0, mean)
        assert max(totals(lying).values()) <= now[giver] + 1e-6 * now[giver]
        assert _state(lying) not in seen, "to and fro"
        seen.add(_state(lying))


def _state(lying: Lying) -> tuple[tuple[str, tuple[PartitionName, ...]], ...]:
    return tuple((one, tuple(sorted(loads))) for one, loads in sorted(lying.items()))


@given(clusters())
def test_moves_are_bounded(lying: Lying) -> None:
    moves_until_rest(lying, RULES)
    assert not moves_until_rest(lying, RULES), "at rest it stays"


@given(clusters(), st.floats(1.01, 3.0), st.floats(0, 10_000))
def test_at_rest_nobody_is_far_above_the_mean_unless_nothing_can_go(
    lying: Lying, above: float, floor: float
) -> None:
    rules = LoadRules(floor, above, 60.0, 600.0)
    moves_until_rest(lying, rules)
    now = totals(lying)
    mean = sum(now.values()) / len(now)
    most = max(sorted(now), key=now.__getitem__)
    if now[most] > max(floor, above * mean) and len(now) > 1:
        least = min(now.values())
        for load in lying[most].values():
            gain = now[most] - least - abs(now[most] - mean - load) - abs(mean - least - load)
            assert gain < GAIN * mean + 1e-6 * max(1.0, mean)


def test_one_partition_that_is_all_the_load_stays() -> None:
    """A move would only load another broker."""
    loads = {"A": 50_000.0, "B": 0.0}
    assert choose("A", loads, {part(0): 50_000.0}, RULES) is None


def test_what_brings_both_nearest_to_the_mean_goes() -> None:
    movable = {part(0): 100.0, part(1): 2_900.0, part(2): 9_000.0}
    found = choose("A", {"A": 12_000.0, "B": 6_000.0, "C": 9_000.0}, movable, RULES)
    assert found == Giving(part(1), "B", 2_900.0, 12_000.0, 6_000.0, 9_000.0)


@pytest.mark.parametrize(
    ("own", "loads", "why"),
    [
        ("A", {"A": 90.0, "B": 0.0}, "below the floor"),
        ("A", {"A": 1_240.0, "B": 760.0}, "a quarter above the mean it may be"),
        ("B", {"A": 9_000.0, "B": 8_000.0, "C": 0.0}, "another has more to do"),
        ("A", {"A": 9_000.0}, "alone"),
        ("D", {"A": 9_000.0, "B": 0.0}, "it may be given nothing itself: it is drained"),
    ],
)
def test_who_gives_nothing(own: str, loads: Mapping[str, float], why: str) -> None:
    movable = {part(0): 50.0, part(1): 1_000.0}
    assert choose(own, loads, movable, RULES) is None, why


def test_a_move_that_brings_little_is_not_worth_it() -> None:
    loads = {"A": 2_000.0, "B": 0.0}
    assert choose("A", loads, {part(0): 49.0}, RULES) is None
    assert choose("A", loads, {part(0): 51.0}, RULES) is not None


def test_a_pause_follows_each_move_and_each_change_of_brokers() -> None:
    turns = LoadTurns(RULES)
    assert turns.may_move(1_000.0, changed_s=940.0)
    assert not turns.may_move(1_000.0, changed_s=941.0)
    turns.tried(1_000.0)
    assert not turns.may_move(1_059.0, changed_s=0.0)
    assert turns.may_move(1_060.0, changed_s=0.0)


# Measuring


def measured(loads: Loads, rate: float, s: float, start: tuple[float, int]) -> tuple[float, int]:
    """Measure this many messages of 1 KiB a second, for this long."""
    now_s, done = start
    until_s = now_s + s
    while now_s < until_s:
        now_s += MEASURED_EVERY_S
        done += round(rate * MEASURED_EVERY_S)
        loads.measure([(part(0), Work(done, done * 1024))], now_s)
    return now_s, done


def test_a_message_of_a_kib_counts_two() -> None:
    loads = Loads()
    measured(loads, 100, 60, (0.0, 0))
    assert loads.of(part(0)) == pytest.approx(200)
    assert loads.of(part(1)) == 0


def test_a_burst_is_smoothed_and_what_lasts_is_believed() -> None:
    loads = Loads()
    at = measured(loads, 100, 120, (0.0, 0))
    at = measured(loads, 1_000, MEASURED_EVERY_S, at)
    assert 200 < loads.of(part(0)) < 600
    at = measured(loads, 1_000, 5 * SMOOTHED_OVER_S, at)
    assert loads.of(part(0)) == pytest.approx(2_000, rel=0.02)


def test_what_has_gone_counts_no_more_at_once() -> None:
    loads = Loads()
    measured(loads, 100, 60, (0.0, 0))
    assert loads.total(lambda _: True) == pytest.approx(200)
    assert loads.total(lambda name: name != part(0)) == 0
    loads.measure([], 200.0)
    assert loads.of(part(0)) == 0


def test_opened_anew_it_is_measured_anew() -> None:
    """Its counters begin at 0, and no load is negative."""
    loads = Loads()
    measured(loads, 100, 60, (0.0, 0))
    loads.measure([(part(0), Work(5, 5_120))], 65.0)
    assert loads.of(part(0)) == 0
    loads.measure([(part(0), Work(505, 505 * 1024))], 70.0)
    assert loads.of(part(0)) == pytest.approx(200)


def test_small_changes_are_not_told() -> None:
    assert worth_telling(None, 0.4, 10_000) == 0
    assert worth_telling(0, 999.0, 10_000) == 0
    assert worth_telling(0, 1_001.0, 10_000) == 1_001
    assert worth_telling(50_000, 54_999.0, 10_000) == 50_000
    assert worth_telling(50_000, 44_000.0, 10_000) == 44_000


def test_a_load_that_falls_to_nothing_is_told_at_once() -> None:
    """Another broker showed 397 for minutes, for a broker that had nothing to do."""
    assert worth_telling(397, 0.0, 10_000) == 0
    assert worth_telling(397, 0.4, 10_000) == 0


def test_small_changes_are_told_within_seconds_and_not_each_time() -> None:
    assert worth_telling(397, 200.0, 10_000, TOLD_WITHIN_S - 0.1) == 397
    assert worth_telling(397, 200.0, 10_000, TOLD_WITHIN_S) == 200
    assert worth_telling(0, 5.0, 10_000, TOLD_WITHIN_S) == 5
    assert worth_telling(397, 380.0, 10_000, 3_600) == 397, "less than a tenth"
    assert worth_telling(0, 0.4, 10_000, 3_600) == 0
