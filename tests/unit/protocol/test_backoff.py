"""Pauses double up to their bound, and callers that failed together do not come back together."""

from __future__ import annotations

import random

from octavo.protocol.backoff import Backoff


def test_pauses_double_up_to_the_bound() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    for most_s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert backoff.pause_s == most_s
        assert most_s / 2 <= backoff.next_s() <= most_s


def test_without_chance_each_is_as_long_as_it_may_be_and_a_row_may_begin_anew() -> None:
    backoff = Backoff(0.05, 1.0, None)
    assert [backoff.next_s() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.05


def test_a_longer_pause_may_be_asked_for_within_the_bound() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    backoff.at_least(0.5)
    assert 0.25 <= backoff.next_s() <= 0.5
    backoff.at_least(30.0)
    assert backoff.pause_s == 1.0
    backoff.at_least(0.1)
    assert backoff.pause_s == 1.0


def test_those_who_failed_together_come_back_apart() -> None:
    chance = random.Random(1)
    row = [Backoff(1.0, 8.0, chance) for _ in range(100)]
    for _ in range(4):
        pauses = sorted(one.next_s() for one in row)
    assert pauses[-1] - pauses[0] > 3.0
    assert len(set(pauses)) == 100
