"""Token buckets and gauges: never more than allowed, independent of each other, bounded debt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.security.limits import (
    BURST_S,
    DEBT_S_MAX,
    GO_ON,
    UNLIMITED,
    Limits,
    Quota,
    Quotas,
)

ALICE, BOB = "user:alice", "user:bob"
STEPS = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 400)), max_size=60)
"""A pause in seconds, and the amount then asked for."""


def limits(**quotas: Quota) -> Limits:
    made = Limits()
    made.use(Quotas({name.replace("_", ":"): quota for name, quota in quotas.items()}))
    return made


@given(rate=st.integers(1, 100), steps=STEPS)
def test_in_no_window_more_than_the_rate_and_a_burst(
    rate: int, steps: list[tuple[float, int]]
) -> None:
    these = limits(user_alice=Quota(publish_bytes=rate))
    burst = max(1.0, rate * BURST_S)
    now_s = 0.0
    taken: list[tuple[float, int]] = []
    for pause_s, amount in steps:
        now_s += pause_s
        if amount <= burst and not these.take(ALICE, bytes_in=amount, now_s=now_s).wait_s:
            taken.append((now_s, amount))
    for first, (from_s, _) in enumerate(taken):
        total = 0
        for until_s, amount in taken[first:]:
            total += amount
            assert total <= rate * (until_s - from_s) + burst + 1e-6


@given(rate=st.integers(1, 100), steps=STEPS)
def test_whoever_waits_as_long_as_told_goes_on_then(
    rate: int, steps: list[tuple[float, int]]
) -> None:
    """Also with more than a burst at once, and after debts: no caller is locked out."""
    these = limits(user_alice=Quota(publish_bytes=rate))
    now_s = 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        these.charge(ALICE, bytes_in=amount * 7, now_s=now_s)
        wait_s = these.take(ALICE, bytes_in=amount, now_s=now_s).wait_s
        assert wait_s <= DEBT_S_MAX + max(BURST_S, 1 / rate) + 1e-6
        if wait_s:
            now_s += wait_s + 1e-6
            assert not these.take(ALICE, bytes_in=amount, now_s=now_s).wait_s


@given(rate=st.integers(1, 100), over=st.integers(1, 3_000))
def test_a_large_request_is_paid_for_by_those_behind_it(rate: int, over: int) -> None:
    these = limits(user_alice=Quota(publish_bytes=rate))
    amount = rate + over
    assert these.take(ALICE, bytes_in=amount, now_s=0.0) == GO_ON
    owed_s = min(over / rate, DEBT_S_MAX)
    found = these.take(ALICE, bytes_in=1, now_s=0.0)
    assert found.wait_s == pytest.approx(owed_s + 1 / rate)
    assert found[1:] == (ALICE, "publish_bytes", rate)


@given(others=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10_000)), max_size=30))
def test_what_one_does_costs_another_nothing(others: list[tuple[float, int]]) -> None:
    """Alice, who keeps to her limit, never waits, whatever Bob asks for in between."""
    these = Limits()
    these.use(Quotas({"user:*": Quota(requests=10, publish_bytes=1000)}))
    now_s = 0.0
    for pause_s, amount in others:
        these.take(BOB, bytes_in=amount, now_s=now_s + pause_s / 2)
        these.charge(BOB, bytes_in=amount, now_s=now_s + pause_s / 2)
        now_s += max(pause_s, 0.1)
        assert these.take(ALICE, bytes_in=100, now_s=now_s) == GO_ON


def test_all_or_nothing_is_taken_and_the_furthest_limit_is_named() -> None:
    these = limits(user_alice=Quota(requests=2, publish_bytes=100))
    assert these.take(ALICE, bytes_in=100, now_s=0.0) == GO_ON
    assert these.take(ALICE, bytes_in=50, now_s=0.0) == (0.5, ALICE, "publish_bytes", 100)
    assert these.take(ALICE, now_s=0.0) == GO_ON  # the call that had to wait took no request
    assert these.take(ALICE, now_s=0.0) == (0.5, ALICE, "requests", 2)


def test_a_namespace_has_its_own_beside_the_principal() -> None:
    these = limits(user_alice=Quota(read_bytes=1000), namespace_payments=Quota(read_bytes=10))
    these.charge(ALICE, "payments", bytes_out=30, now_s=0.0)
    assert these.take(ALICE, "other", bytes_out=0, now_s=0.0) == GO_ON
    found = these.take(ALICE, "payments", bytes_out=0, now_s=0.0)
    assert found == (2.0, "namespace:payments", "read_bytes", 10)
    assert these.take("", "payments", bytes_in=5, now_s=0.0) == GO_ON, "readers' debts are theirs"


def test_what_a_quota_leaves_open_is_the_defaults() -> None:
    quotas = Quotas(
        {
            "user:*": Quota(requests=5, streams=2),
            "user:alice": Quota(requests=UNLIMITED),
            "anonymous": Quota(requests=1),
        }
    )
    assert quotas.of(ALICE).bound("requests") is None
    assert quotas.of(ALICE).bound("streams") == 2
    assert quotas.of(BOB).bound("requests") == 5
    assert quotas.of("anonymous") == Quota(requests=1)
    assert quotas.of("node:broker-1") == Quota(), "the cluster's own processes have none"
    assert not Quotas()


@given(rate=st.integers(1, 100), amount=st.integers(1, 20_000), earlier=st.integers(0, 400))
def test_what_is_given_back_leaves_no_more_than_before(
    rate: int, amount: int, earlier: int
) -> None:
    """Not even if the charge was beyond the largest debt, which is not remembered whole."""
    these, those = (limits(namespace_n=Quota(publish_bytes=rate)) for _ in range(2))
    for one in (these, those):
        one.charge("", "n", bytes_in=min(earlier, round(rate * BURST_S)), now_s=0.0)
    these.charge("", "n", bytes_in=amount, now_s=0.0)
    these.give_back("n", bytes_in=amount, messages_in=1, now_s=0.0)
    for asked in range(1, round(rate * BURST_S) + 1, max(1, rate // 10)):
        wait_s = these.take("", "n", bytes_in=asked, now_s=0.0).wait_s
        assert wait_s >= those.take("", "n", bytes_in=asked, now_s=0.0).wait_s - 1e-9
    if amount <= rate * DEBT_S_MAX:
        assert these.take("", "n", bytes_in=0, now_s=0.0) == those.take(
            "", "n", bytes_in=0, now_s=0.0
        )


def test_what_is_open_is_counted_until_it_is_let_go() -> None:
    these = limits(user_alice=Quota(streams=2))
    assert these.hold(ALICE, "streams") == GO_ON
    assert these.hold(ALICE, "streams") == GO_ON
    assert these.hold(ALICE, "streams")[1:] == (ALICE, "streams", 2)
    assert these.hold(BOB, "streams") == GO_ON
    these.use(Quotas({ALICE: Quota(streams=3)}))
    assert these.hold(ALICE, "streams") == GO_ON, "what is open stays counted when quotas change"
    assert these.hold(ALICE, "streams").wait_s
    for _ in range(3):
        these.let_go(ALICE, "streams")
    with pytest.raises(KeyError):
        these.let_go(ALICE, "streams")
    assert these.hold(ALICE, "streams") == GO_ON


def test_so_many_subjects_are_remembered_and_no_more() -> None:
    these = Limits(subjects_kept=3)
    these.use(Quotas({"user:*": Quota(requests=1)}))
    for number in range(50):
        assert these.take(f"user:{number}", now_s=0.0) == GO_ON
    assert these.take("user:49", now_s=0.0).wait_s
    assert these.take("user:48", now_s=0.0).wait_s
    assert len(these._buckets) == 3
    for number in range(50):
        assert these.take("", f"free-{number}", now_s=0.0) == GO_ON
    assert len(these._free) <= 3
    these.use(Quotas({"namespace:*": Quota(requests=1)}))
    assert these.take("", "free-49", now_s=0.0) == GO_ON
    assert these.take("", "free-49", now_s=0.0).wait_s, "it has a bound from now on"
