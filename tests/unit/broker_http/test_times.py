"""Times in RFC 3339, and the errors for invalid ones."""

from __future__ import annotations

import pytest

from octavo.broker.http.call import parse_time_ms, time_hint
from tests.support.memory_cluster import Running

NEW_YEAR_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("2026-01-01T00:00:00Z", 0),
        ("2026-01-01t00:00:00z", 0),
        ("2026-01-01 00:00:00Z", 0),
        ("2026-01-01T00:00Z", 0),
        ("2026-01-01T00:00:00.0Z", 0),
        ("2026-01-01T00:00:00.000000000Z", 0),
        ("2026-01-01T00:00:00.5Z", 500),
        ("2026-01-01T00:00:00.001Z", 1),
        ("2026-01-01T00:00:00.1239999999999Z", 123),
        ("2026-01-01T02:00:00.25+02:00", 250),
        ("2026-01-01T02:00:00 02:00", 0),
        ("2025-12-31T19:00:00-05:00", 0),
        ("2025-12-31T23:59:60Z", 0),
        ("1969-12-31T23:59:59.5Z", -NEW_YEAR_MS - 500),
    ],
)
def test_times(text: str, after_ms: int) -> None:
    assert parse_time_ms(text) == NEW_YEAR_MS + after_ms


def test_every_millisecond_is_itself() -> None:
    for millis in range(1000):
        assert parse_time_ms(f"2026-01-01T00:00:00.{millis:03}Z") == NEW_YEAR_MS + millis


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("2026-01-01T00:00:00", "add Z"),
        ("2026-01-01T00:00:00.5", "add Z"),
        ("2026-01-01", "2026-01-01T00:00:00Z is one"),
        ("2026-02-30T00:00:00Z", "no such day"),
        ("2026-01-01T25:00:00Z", "no such day"),
        ("2026-01-01T00:00:61Z", "no such day"),
        ("2026-01-01T00:00:00+25:00", "no such day"),
        ("2026-W01-1T00:00:00Z", ""),
        ("yesterday", ""),
        ("", ""),
    ],
)
def test_what_is_no_time(text: str, hint: str) -> None:
    assert parse_time_ms(text) is None
    assert hint in time_hint(text)
    assert bool(hint) == bool(time_hint(text))


async def test_every_call_that_takes_a_time_says_what_it_lacks(one: Running) -> None:
    topic = "/v1/topics/public/t"
    await one.api.put(topic, json={})
    await one.api.put(f"{topic}/subscriptions/s", json={})
    bare = "2026-01-01T00:00:00"
    answers = [
        await one.api.post(f"{topic}/subscriptions/s/seek", json={"to": bare}),
        await one.api.get(f"{topic}/offsets?at={bare}"),
        await one.api.get(f"{topic}/partitions/0/messages?from={bare}"),
        await one.api.call("DELETE", f"{topic}/messages?before={bare}"),
        await one.api.call(
            "POST", f"{topic}/messages", data=b"x", headers={"Octavo-Deliver-At": bare}
        ),
        await one.api.call(
            "POST", f"{topic}/messages", data=b"x", headers={"Octavo-Timestamp": bare}
        ),
    ]
    for answer in answers:
        assert answer.status in (400, 422), answer
        assert "add Z, or +hh:mm" in answer.json()["detail"]
    for good in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.0z", "2026-01-01T00:00:00.123456Z"):
        seek = await one.api.post(f"{topic}/subscriptions/s/seek", json={"to": good})
        assert seek.status == 200, seek
        assert (await one.api.get(f"{topic}/offsets?at={good}")).status == 200
