"""Record batches with one odd record, or with times that no calendar has, at the door and read.

One header name with a Latin-1 byte made a whole batch unreadable where it was not packed, and was
refused where it was. A time in microseconds was refused in JSON and stored from a record batch;
what showed it as a date then ended with an internal error.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.http.call import RECORD_BATCH
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.protocol.records import Record, build_batch
from tests.support.fake_broker import Running
from tests.unit.protocol.test_odd_records import KINDS, odd_batch

ONE = "/v1/topics/public/one"
NOW_MS = 1_764_000_000_000


async def publish(one: Running, batch: bytes) -> Any:
    return await one.api.post(ONE + "/messages", batch, RECORD_BATCH)


@pytest.mark.parametrize("kind", KINDS)
async def test_one_odd_record_takes_no_other_along(one: Running, kind: int) -> None:
    await one.api.put(ONE)
    answer = await publish(one, odd_batch(kind))
    assert answer.status == 200, answer
    found = (await one.api.get(ONE + "/messages?limit=10")).json()["messages"]
    assert [one["value_text"] for one in found] == ["v0", "v1", "v2", "v3", "v4"]
    assert [one.get("headers") for one in found] == [
        None, None, {"caf\\xe9 au ": "x"}, None, None
    ]  # fmt: skip


@pytest.mark.parametrize("packing", [0, 4])
@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([NOW_MS * 1_000], "microseconds"),
        ([NOW_MS, NOW_MS * 1_000_000], "nanoseconds"),
        ([TIMESTAMP_MS_MAX + 1], "1970 to 9999"),
        ([-2], "-1 where there is no time"),
    ],
)
async def test_a_time_that_no_calendar_has_is_refused(
    one: Running, times: list[int], says: str, packing: int
) -> None:
    await one.api.put(ONE)
    batch = build_batch([Record(None, b"x", (), time_ms) for time_ms in times], compression=packing)
    for query in ("", "?results=batches"):
        answer = await one.api.post(ONE + "/messages" + query, batch, RECORD_BATCH)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-timestamp"), answer
        assert says in answer.json()["detail"]
    assert one.partition("public/one").next_offset == 0


@pytest.mark.parametrize("time_ms", [-1, 0, NOW_MS, TIMESTAMP_MS_MAX])
async def test_a_time_or_none_is_stored_and_shown_as_the_number(one: Running, time_ms: int) -> None:
    await one.api.put(ONE)
    assert (await publish(one, build_batch([Record(None, b"1", (), time_ms)]))).status == 200
    [found] = (await one.api.get(ONE + "/messages")).json()["messages"]
    assert found["timestamp"] == time_ms
