"""Pauses after failures: growing, without effect on other callers, in bounded memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from octavo.security.identity.failed_logins import (
    FORGOTTEN_S,
    FREE_TRIES,
    PAUSE_S_MAX,
    USERS_OF_ADDRESS_MAX,
    FailedLogins,
    LoginsPaused,
    source_of,
)


def pause(failures: FailedLogins, address: str, user: str, now_s: float) -> float:
    try:
        failures.check(address, user, now_s)
    except LoginsPaused as error:
        return error.retry_after_s
    return 0.0


def test_pauses_grow_up_to_a_minute_and_are_forgotten():
    here, now_s, pauses = FailedLogins(100), 1000.0, []
    for _ in range(FREE_TRIES + 10):
        here.failed("10.0.0.1", "alice", now_s)
        pauses.append(pause(here, "10.0.0.1", "alice", now_s))
        now_s += pauses[-1]
        assert not pause(here, "10.0.0.1", "alice", now_s)
    assert pauses == [0] * (FREE_TRIES - 1) + [1, 2, 4, 8, 16, 32, *[PAUSE_S_MAX] * 5]
    now_s += FORGOTTEN_S
    here.failed("10.0.0.1", "alice", now_s)
    assert not pause(here, "10.0.0.1", "alice", now_s)


def test_nobody_else_has_to_wait():
    here = FailedLogins(100)
    for _ in range(20):
        here.failed("10.0.0.1", "alice", 0)
    assert pause(here, "10.0.0.1", "alice", 0)
    assert not pause(here, "10.0.0.2", "alice", 0)
    assert not pause(here, "10.0.0.1", "bob", 0)


def test_who_gets_in_begins_anew():
    here = FailedLogins(100)
    for _ in range(20):
        here.failed("10.0.0.1", "alice", 0)
    here.succeeded("10.0.0.1", "alice")
    assert not len(here)
    here.failed("10.0.0.1", "alice", 0)
    assert not pause(here, "10.0.0.1", "alice", 0)


def test_who_tries_many_names_has_one_pause_for_all_new_ones():
    here = FailedLogins(1000)
    for number in range(USERS_OF_ADDRESS_MAX + 20):
        here.failed("10.0.0.1", f"user{number}", 0)
    assert len(here) == USERS_OF_ADDRESS_MAX + 1
    assert pause(here, "10.0.0.1", "yet another", 0)
    assert not pause(here, "10.0.0.1", "user0", 0)  # has its own
    assert not pause(here, "10.0.0.2", "yet another", 0)


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:443", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:443", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_whom_an_address_stands_for(peer, source):
    assert source_of(peer) == source


def tried(here, count):
    """Try from as many addresses as there are, each with another name; return processor seconds."""
    begun = time.process_time()
    for number in range(count):
        here.failed(f"10.{number % 251}.{number % 241}.{number % 239}", f"u{number}", number)
    return time.process_time() - begun


def test_failures_cost_bounded_memory():
    here = FailedLogins(2_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tried(here, 10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 2 << 20
    finally:
        tracemalloc.stop()
    for number in range(10_000):  # all from the same address
        here.failed("10.0.0.1", f"v{number}", 10_000)
    assert len(here) <= 2_000


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_failure_costs_microseconds_whatever_came_before(count):
    here = FailedLogins(2_000)
    assert tried(here, count) / count < 0.001
    assert len(here) == 2_000
    assert len(here._users) <= 2_000
