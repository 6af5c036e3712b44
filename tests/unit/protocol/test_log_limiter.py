"""A repeated event makes one line a minute for each subject, however often it comes."""

from __future__ import annotations

import random

import pytest

from octavo.protocol.log_limiter import _SUBJECTS_MAX, TOLD_EVERY_S, LogLimiter, host_of


def test_it_is_told_of_once_a_minute_with_how_often_it_came() -> None:
    limiter = LogLimiter()
    told = [limiter.count(100 + number / 100) for number in range(15_000)]
    assert [times for times in told if times] == [1, 6000, 6000]
    assert limiter.count(100 + 4 * TOLD_EVERY_S) == 3000


def test_a_clock_that_begins_at_zero_tells_the_first_time_at_once() -> None:
    assert LogLimiter().count(0.0) == 1


def test_each_subject_has_its_own_line() -> None:
    limiter = LogLimiter()
    hosts = ("10.0.0.7", "10.0.0.8", "::1", "?", "")
    assert [limiter.count(5, host) for host in hosts] == [1, 1, 1, 1, 1]
    assert not any(limiter.count(6, host) for host in hosts)


@pytest.mark.parametrize("seed", range(5))
def test_all_that_came_is_told_in_the_end(seed: int) -> None:
    rng, limiter, now_s = random.Random(seed), LogLimiter(), 0.0
    came = dict.fromkeys("abc", 0)
    told = dict.fromkeys("abc", 0)
    lines: dict[str, list[float]] = {subject: [] for subject in "abc"}
    for _ in range(5000):
        now_s += rng.expovariate(1) * rng.choice((0.01, 1))
        subject = rng.choice("abc")
        came[subject] += 1
        if times := limiter.count(now_s, subject):
            told[subject] += times
            lines[subject].append(now_s)
    now_s += TOLD_EVERY_S
    for subject in came:
        assert limiter.count(now_s, subject) + told[subject] == came[subject] + 1, f"seed {seed}"
        pairs = zip(lines[subject], lines[subject][1:], strict=False)
        assert all(later - sooner >= TOLD_EVERY_S for sooner, later in pairs)


def test_what_is_remembered_is_bounded() -> None:
    limiter, rng = LogLimiter(), random.Random(1)
    for number in range(5 * _SUBJECTS_MAX):
        assert limiter.count(rng.random(), f"host{number}") == 1
        assert len(limiter._told) <= _SUBJECTS_MAX
    assert limiter.count(1, f"host{5 * _SUBJECTS_MAX - 1}") == 0


def test_the_port_is_no_part_of_who_it_is() -> None:
    assert [host_of(peer) for peer in ("10.0.0.7:1", "::1:9", "[::1]:9", "?")] == [
        "10.0.0.7",
        "::1",
        "[::1]",
        "?",
    ]
