"""A stored time becomes a date only if a calendar has it (decision 63)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.consume import plain_message
from octavo.cli.ledger import _time
from octavo.client.types import Message
from octavo.ledger.read.entry_source import DISORDER_UNKNOWN
from octavo.ledger.read.open_batch import open_batch
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.calendar import in_calendar, iso_of
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.protocol.records import Record, build_batch, build_gapped_batch, read_records
from octavo.spark.arrow import ArrowBuilder
from octavo.spark.batches import StoredBatch

NOW_MS = 1_764_000_000_000
ODD = [-1, -5, NOW_MS * 1_000, NOW_MS * 1_000_000, 2**63 - 1, -(2**63), TIMESTAMP_MS_MAX + 1]


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_is_a_date_or_none(time_ms: int) -> None:
    assert (iso_of(time_ms) is not None) == in_calendar(time_ms)
    assert _time(time_ms) is not None


def test_the_ends_of_the_calendar() -> None:
    assert iso_of(0) == "1970-01-01T00:00:00+00:00"
    assert str(iso_of(TIMESTAMP_MS_MAX)).startswith("9999-12-31T23:59:59.999")


@pytest.mark.parametrize("time_ms", ODD)
def test_consume_shows_the_number(time_ms: int) -> None:
    found = plain_message(Message(0, 7, "1:2:3", None, b"x", (), time_ms))
    assert (found["time"], found["timestamp"]) == (None, time_ms)


def test_consume_shows_a_date() -> None:
    found = plain_message(Message(0, 7, "1:2:3", None, b"x", (), NOW_MS))
    assert found["time"] == "2025-11-24T16:00:00+00:00"
    assert "timestamp" not in found


def test_spark_reads_null_and_keeps_the_number() -> None:
    times = [NOW_MS, -1, NOW_MS * 1_000, NOW_MS * 1_000_000, -5, TIMESTAMP_MS_MAX]
    batch = build_batch([Record(None, b"x", (), time_ms) for time_ms in times])
    builder = ArrowBuilder(("timestamp", "timestampMillis"))
    builder.add(StoredBatch("public/t", 0, 1, 0, 0, read_header(batch), batch), 0, len(times))
    found = builder.take()
    assert found.column("timestampMillis").to_pylist() == times
    dates = found.column("timestamp").cast("int64").to_pylist()
    assert dates == [NOW_MS * 1_000, None, None, None, None, TIMESTAMP_MS_MAX * 1_000]


@given(st.lists(st.sampled_from([-1, 0, -5, NOW_MS, NOW_MS * 1_000, NOW_MS * 10**6]), min_size=1))
def test_a_batch_is_built_with_the_times_that_were_given(times: list[int]) -> None:
    """A first record without a time got the time of the next one."""
    records = [Record(None, b"x", (), time_ms, n) for n, time_ms in enumerate(times)]
    for batch in (build_batch(records), build_gapped_batch(records, 0)):
        assert [one.timestamp_ms for one in read_records(batch)] == times
        check_batch(batch)


async def test_a_time_is_looked_up_beside_those_that_are_none() -> None:
    batch = build_batch(
        [Record(None, b"x", (), t) for t in (NOW_MS * 1_000, NOW_MS - 5, 2**62, NOW_MS, NOW_MS)]
    )

    class Source:
        async def as_new_as(self, time_ms: int, start: int, *_: Any) -> Any:
            return SimpleNamespace(entry_id=0, payload=batch) if start == 0 else None

    @asynccontextmanager
    async def opening(given: Any) -> Any:
        yield await open_batch(given)

    source: Any = Source()
    opener: Any = opening
    found = await offset_as_new_as(source, NOW_MS, 0, DISORDER_UNKNOWN, opener)
    assert found == 3
    assert await offset_as_new_as(source, NOW_MS + 1, 0, DISORDER_UNKNOWN, opener) is None
