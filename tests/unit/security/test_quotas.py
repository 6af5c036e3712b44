"""The record of quotas: its valid content, its changes, and that brokers hear of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.store import BadRecord
from octavo.security.limits import (
    BURST_S,
    DEBT_S_MAX,
    GO_ON,
    NAMES,
    UNLIMITED,
    Limits,
    Quota,
    Quotas,
)
from octavo.security.quotas import (
    QUOTAS_PATH,
    FollowedQuotas,
    InvalidQuota,
    QuotaRecord,
    QuotasRecord,
    checked_subject,
    parse_amount,
    quota_store,
    quotas_of,
    shown_amount,
    with_quota,
    without_quota,
)
from tests.support.http_api import until
from tests.support.raw_bookie import open_metadata


def test_the_record_has_a_field_for_each_name() -> None:
    assert {*QuotaRecord.__dataclass_fields__} == {"subject", *NAMES, "extra"}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("100", 100),
        ("10MB", 10_000_000),
        ("64KiB", 65_536),
        ("64kB", 64_000),
        ("5k", 5_000),
        ("1GiB", 2**30),
        ("0", 0),
        ("unlimited", UNLIMITED),
    ],
)
def test_amounts_are_written_as_people_do(text: str, amount: int) -> None:
    assert parse_amount(text) == amount
    assert parse_amount(shown_amount(amount)) == amount


@pytest.mark.parametrize("text", ["", "-1", "ten", "1.5MB", "10 MB/s", "9" * 16 + "TB", "1e3"])
def test_what_is_no_amount_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(InvalidQuota, match="whole number"):
        parse_amount(text)


@pytest.mark.parametrize(
    "text", ["user:alice", "user:*", "anonymous", "namespace:a", "namespace:*"]
)
def test_subjects(text: str) -> None:
    assert checked_subject(text) == text


@pytest.mark.parametrize(
    "text", ["", "*", "alice", "group:staff", "role:admin", "node:b", "namespace:", "namespace:a/b"]
)
def test_what_can_have_no_quota(text: str) -> None:
    with pytest.raises(InvalidQuota):
        checked_subject(text)


def test_a_change_leaves_the_rest_as_it_was() -> None:
    record = with_quota(QuotasRecord(), "user:alice", {"requests": 5, "streams": 2})
    record = with_quota(record, "namespace:a", {"topics": 0})
    record = with_quota(record, "user:alice", {"requests": UNLIMITED})
    assert quotas_of(record).of("user:alice") == Quota(requests=UNLIMITED, streams=2)
    assert without_quota(record, "user:bob") == record
    record = without_quota(record, "user:alice", ["requests"])
    assert quotas_of(record).of("user:alice") == Quota(streams=2)
    record = without_quota(record, "user:alice")
    assert [one.subject for one in record.quotas] == ["namespace:a"]


@pytest.mark.parametrize(
    ("subject", "amounts", "told"),
    [
        ("user:alice", {"topics": 1}, "is a user: set it for namespace:NS or namespace:"),
        ("user:*", {"subscriptions": 1}, "is a user: set it for namespace:NS or namespace:"),
        ("anonymous", {"subscriptions": 1}, "is a user: set it for namespace:NS or namespace:"),
        ("namespace:a", {"streams": 1}, "is a namespace: set it for user:NAME, user:"),
        ("user:alice", {"requests": 0}, "at least 1"),
        ("user:alice", {"request": 1}, "no 'request'; it has requests,"),
        ("team:red", {"requests": 1}, "a quota is for"),
    ],
)
def test_what_cannot_be_set_is_refused(subject: str, amounts: dict[str, int], told: str) -> None:
    with pytest.raises(InvalidQuota, match=told):
        with_quota(QuotasRecord(), subject, amounts)
    if subject.startswith(("user", "namespace")) and "request" not in amounts:
        stored = QuotasRecord((replace(QuotaRecord(subject=subject), **cast(Any, amounts)),))
        with pytest.raises(BadRecord):
            quotas_of(stored)


async def test_whoever_follows_hears_of_a_change_and_keeps_the_last_that_made_sense(
    tmp_path: Path,
) -> None:
    seen: list[Quotas] = []
    async with open_metadata(tmp_path) as store:
        following = FollowedQuotas(store, seen.append)
        await following.start()
        try:
            assert not seen[0]
            await quota_store(store).change(lambda r: with_quota(r, "anonymous", {"requests": 3}))
            await until(lambda: len(seen) == 2)
            assert seen[1].of("anonymous") == Quota(requests=3)
            _, version = await store.get(QUOTAS_PATH)
            await store.put(QUOTAS_PATH, b"\xff", version)
            await store.put(QUOTAS_PATH, b"\x00", version + 1)
            await quota_store_repaired(store, version + 2)
            await until(lambda: len(seen) == 3)
            assert seen[2].of("anonymous") == Quota(), "what made no sense changed nothing"
        finally:
            await following.close()


async def test_a_record_that_makes_no_sense_keeps_nobody_from_starting(tmp_path: Path) -> None:
    seen: list[Quotas] = []
    async with open_metadata(tmp_path) as store:
        await store.create(QUOTAS_PATH, b"\xff")
        following = FollowedQuotas(store, seen.append)
        await following.start()
        try:
            assert [bool(found) for found in seen] == [False]
            _, version = await store.get(QUOTAS_PATH)
            await store.put(QUOTAS_PATH, b"\x00", version)
            await quota_store_repaired(
                store, version + 1, QuotaRecord(subject="anonymous", requests=3)
            )
            await until(lambda: len(seen) == 2)
            assert seen[1].of("anonymous") == Quota(requests=3)
        finally:
            await following.close()


async def quota_store_repaired(store, version: int, *quotas: QuotaRecord) -> None:
    from octavo.metadata.topic_records import encode_record

    await store.put(QUOTAS_PATH, encode_record(QuotasRecord(quotas)), version)


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
