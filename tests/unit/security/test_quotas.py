"""The record of quotas: its valid content, its changes, and that brokers hear of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from octavo.metadata.store import BadRecord
from octavo.security.limits import NAMES, UNLIMITED, Quota, Quotas
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
