"""Record batches with one odd record, or with impossible times, when they arrive and when read.

One header name with a Latin-1 byte made a whole unpacked batch unreadable, and a packed one was
refused. A time in microseconds was refused in JSON and stored from a record batch; showing it as a
date then ended with an internal error. A batch with damaged records was refused when packed, and
stored when not.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.http.call import RECORD_BATCH
from octavo.protocol.limits import RECORD_HEADERS_MAX, TIMESTAMP_MS_MAX
from octavo.protocol.odd_records import ERROR_HEADER
from octavo.protocol.records import Record, build_batch
from octavo.protocol.windows import STEP_RECORDS, WINDOW_BYTES
from tests.support.damaged_batches import (
    ALL,
    AT,
    COUNT,
    LENIENT,
    batch_of,
    body_of,
    damaged,
    field,
    sound,
    varint,
    whole,
)
from tests.support.memory_cluster import Running
from tests.unit.protocol.test_records import KINDS, odd_batch

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
    assert one.next_offset("public/one") == 0


@pytest.mark.parametrize("time_ms", [-1, 0, NOW_MS, TIMESTAMP_MS_MAX])
async def test_a_time_or_none_is_stored_and_shown_as_the_number(one: Running, time_ms: int) -> None:
    await one.api.put(ONE)
    assert (await publish(one, build_batch([Record(None, b"1", (), time_ms)]))).status == 200
    [found] = (await one.api.get(ONE + "/messages")).json()["messages"]
    assert found["timestamp"] == time_ms


@pytest.mark.parametrize("name", ALL)
async def test_a_damaged_batch_is_refused_and_the_record_named(one: Running, name: str) -> None:
    await one.api.put(ONE)
    for kind in KINDS:
        bad = damaged(name, kind)
        for body, query, place in (
            (bad, "", ""),
            (sound(kind) + bad, "?results=batches", "batch 2 of 2: "),
            (bad + sound(), "", "batch 1 of 2: "),
        ):
            answer = await one.api.post(ONE + "/messages" + query, body, RECORD_BATCH)
            assert (answer.status, answer.json()["code"]) == (422, "invalid-batch"), answer
            said = answer.json()["detail"]
            named = (
                f"record {AT} of 5: ",
                "record 4 of 5: ",
                "record 5 of 6: ",
                "record batch counts",
            )
            assert said.startswith(tuple(place + each for each in named)), said
    assert one.next_offset("public/one") == 0, "nothing was stored"


@pytest.mark.parametrize("name", LENIENT)
async def test_what_every_reader_reads_alike_is_taken(one: Running, name: str) -> None:
    await one.api.put(ONE)
    for kind in KINDS:
        answer = await publish(one, damaged(name, kind))
        assert answer.status == 200, answer
    found = (await one.api.get(ONE + "/messages?limit=100")).json()["messages"]
    assert len(found) == len(KINDS) * COUNT
    assert ERROR_HEADER not in {name for each in found for name in each.get("headers", ())}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", [1, 500, STEP_RECORDS + 700])
async def test_damage_anywhere_in_a_long_batch(one: Running, records: int, kind: int) -> None:
    """Behind the first window, and behind the part that one step walks over."""
    await one.api.put(ONE)
    value = field(b"x" * 300)
    every = [whole(body_of(number, value=value)) for number in range(records)]
    assert records < 500 or sum(map(len, every)) > WINDOW_BYTES
    for at in {0, records // 2, records - 1}:
        for bad in (
            whole(body_of(at, value=field(b"x", 301))),
            whole(body_of(at, offset=varint(at + 1))),
            whole(body_of(at, value=value), -1),
            whole(body_of(at, headers=varint(1) + field(None) + field(b""))),
            varint(1 << 30) + body_of(at, value=value),
        ):
            answer = await publish(one, batch_of([*every[:at], bad, *every[at + 1 :]], kind))
            assert answer.status == 422, answer
            assert f"record {at} of {records}: " in answer.json()["detail"], answer
    assert (await publish(one, batch_of(every, kind))).status == 200


@pytest.mark.parametrize("kind", [0, 4])
@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_most_headers_and_one_more(one: Running, more: int, kind: int) -> None:
    await one.api.put(ONE)
    records = [Record(None, b"1"), Record(None, None, [("", None)] * (RECORD_HEADERS_MAX + more))]
    answer = await publish(one, build_batch([*records, Record(None, b"3")], compression=kind))
    assert answer.status == (422 if more > 0 else 200), answer
    if more > 0:
        assert "record 1 of 3: it has 65537 headers" in answer.json()["detail"]
