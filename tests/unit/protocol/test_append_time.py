"""Append times in 31 bits: stamped, restored, sent along with batches on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.append_time import (
    SPAN_MS,
    Appended,
    Times,
    readable,
    shown,
    stamp_of,
    stamped,
    time_of,
)
from octavo.protocol.batch import InvalidBatch, check_batch, read_header, with_base_offset
from octavo.protocol.records import Record, build_batch, read_records

NOW = 1_790_000_000_000
TIMES = st.integers(0, 2**45)
BATCH = build_batch([Record(b"k", b"v", (), 5), Record(None, b"w", (), 7)])


@given(TIMES, st.integers(0, SPAN_MS - 1))
def test_a_stamp_is_made_whole_by_any_time_less_than_its_span_before(time_ms: int, by: int) -> None:
    assert 1 <= stamp_of(time_ms) <= 2**31 - 1, "never 0 or −1, and it fits"
    assert time_of(stamp_of(time_ms), time_ms - by) == time_ms


def test_the_checksum_holds_with_a_stamp_and_readers_see_the_append_time() -> None:
    stored = with_base_offset(BATCH, 40, stamp_of(NOW))
    header = shown(check_batch(stored), Appended(NOW - 10))
    assert (header.first_timestamp, header.max_timestamp) == (NOW, NOW)
    assert [one.timestamp_ms for one in read_records(readable(header, stored))] == [NOW, NOW]
    assert [one.timestamp_ms for one in read_records(stored)] == [5, 7], "the producer's, as stored"


def test_what_has_no_append_time_stays_as_it_is() -> None:
    header = read_header(with_base_offset(BATCH, 0, 9))
    assert shown(header, None) == header._replace(partition_leader_epoch=0)
    for none in (0, -1):
        header = read_header(with_base_offset(BATCH, 0, none))
        assert shown(header, Appended(NOW)) == header
        assert Times().shown(header) == header
        assert readable(header, BATCH) is BATCH


def test_what_joined_whole_has_the_time_at_which_it_joined() -> None:
    header = shown(read_header(BATCH), Appended(NOW, together=True))
    assert header.max_timestamp == NOW
    assert header.partition_leader_epoch == stamp_of(NOW)


@given(st.lists(st.one_of(st.none(), TIMES), max_size=12))
def test_the_wire_tells_every_time(times: list[int | None]) -> None:
    """Also when they go back, or are years apart, and where batches without one lie between."""
    plain = [read_header(with_base_offset(BATCH, 10 * n)) for n in range(len(times))]
    sent = [
        one if time_ms is None else stamped(one, time_ms)
        for one, time_ms in zip(plain, times, strict=True)
    ]
    told = Times(Times().tell(sent))
    served = [
        one._replace(partition_leader_epoch=there.partition_leader_epoch)
        for one, there in zip(plain, sent, strict=True)
    ]
    assert [told.shown(one) for one in served] == sent


def test_one_pair_tells_of_all_that_come_within_weeks() -> None:
    heads = [read_header(with_base_offset(BATCH, n)) for n in range(3)]
    sent = [stamped(one, NOW + n * (SPAN_MS - 1)) for n, one in enumerate(heads)]
    assert Times().tell(sent) == f"0={NOW}"
    assert Times().tell([*sent, stamped(heads[2], NOW)]) == f"0={NOW},2={NOW}"
    assert Times().tell(heads) == ""


@pytest.mark.parametrize("told", ["x", "1", "1=", "=1", "1=2,", "1=x"])
def test_a_header_that_makes_no_sense_is_refused(told: str) -> None:
    with pytest.raises(InvalidBatch, match=r"Octavo-Append-Time: .* is not offset=milliseconds"):
        Times(told)


def test_a_stamp_of_which_nothing_is_told_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="offset 4 has an append time, but no header"):
        Times("5=1").shown(read_header(with_base_offset(BATCH, 4, 1)))
