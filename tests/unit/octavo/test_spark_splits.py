"""Planning of Spark reads, and its view of a partition."""

from __future__ import annotations

import asyncio
import warnings
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.ledger_list import Contents, LedgerList
from octavo.broker.log.retention import RetentionPolicy
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from octavo.spark.cluster import Cluster
from octavo.spark.options import EARLIEST, LATEST, InvalidOption, source_options, warn_if_empty
from octavo.spark.splits import (
    DataLost,
    EndsBeforeStart,
    Span,
    View,
    admitted,
    bytes_per_row,
    checked_range,
    covers,
    later,
    never_backwards,
    pieces,
    shared_out,
    to_json,
)


def view_of(counts: list[int], trimmed: int = 0) -> View:
    spans, base = [], trimmed
    for number, count in enumerate(counts):
        last = number == len(counts) - 1
        spans.append(Span(10 + number, base, base + count, 0 if last else 100 * count, -1))
        base += count
    return View("public/t", 0, tuple(spans), trimmed)


@given(st.integers(0, 12), st.integers(0, 12))
def test_pieces_of_large_messages_are_no_rows(one: int, other: int) -> None:
    spans = (Span(1, 0, 3, 9, 9), Span(2, 3, 8, 9, 9, hidden=4), Span(3, 8, 10, 9, 9, hidden=2))
    start, end = sorted((min(one, 10), min(other, 10)))
    found = pieces(View("public/t", 0, spans), start, end)
    rows = [offset for piece in found for offset in range(piece.start, piece.end)]
    assert rows == [offset for offset in (0, 1, 2, 7) if start <= offset < end]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(0, 50), st.data())
def test_a_range_is_read_whole_and_once(
    counts: list[int], trimmed: int, data: st.DataObject
) -> None:
    view = view_of(counts, trimmed)
    start = data.draw(st.integers(view.earliest, view.end))
    end = data.draw(st.integers(start, view.end))
    rows_max = data.draw(st.none() | st.integers(1, 500))
    splits = shared_out(
        pieces(view, start, end),
        bytes_per_row(view),
        split_bytes_max=data.draw(st.integers(1, 300_000)),
        rows_max=rows_max,
        splits_min=data.draw(st.none() | st.integers(1, 5)),
    )
    every = [piece for split in splits for piece in split]
    assert all(split for split in splits)
    if every:
        assert (every[0].start, every[-1].end) == (start, end)
    else:
        assert start == end
    assert all(before.end == after.start for before, after in pairwise(every))
    ledgers = {span.ledger_id: span for span in view.spans}
    for piece in every:
        span = ledgers[piece.ledger_id]
        assert span.base == piece.base <= piece.start < piece.end <= span.end
    if rows_max is not None:
        assert all(sum(p.end - p.start for p in split) <= rows_max for split in splits)


def test_small_ledgers_share_a_split_and_large_ones_are_cut() -> None:
    view = view_of([10] * 1000)
    wanted = pieces(view, 0, view.end)
    assert len(shared_out(wanted, bytes_per_row(view), split_bytes_max=128 * 2**20)) == 1
    large = view_of([10_000_000, 1])
    cut = shared_out(pieces(large, 0, large.end), bytes_per_row(large), split_bytes_max=100_000_000)
    assert len(cut) == 10 + 1


def test_ledgers_that_are_to_stay_whole_are_packed_and_not_cut() -> None:
    view = view_of([10, 10_000_000, 10, 1])
    wanted = pieces(view, 0, view.end)
    shared = shared_out(wanted, bytes_per_row(view), split_bytes_max=100_000_000, cut=False)
    assert [piece for split in shared for piece in split] == wanted
    assert [len(split) for split in shared] == [2, 2]


def test_splits_min_cuts_what_would_be_one() -> None:
    view = view_of([1000, 1])
    shared = shared_out(
        pieces(view, 0, view.end), bytes_per_row(view), split_bytes_max=2**30, splits_min=4
    )
    assert 4 <= len(shared) <= 5


@pytest.mark.parametrize(
    ("start", "end", "lost"),
    [
        (0, 30, "0 to 19 were trimmed"),
        (5, 10, "5 to 9 were trimmed"),
        (25, 60, "50 to 59 do not exist"),
        (55, 60, "55 to 59 do not exist"),
    ],
)
def test_what_is_lost_is_named_or_passed_over(start: int, end: int, lost: str) -> None:
    view = view_of([30], trimmed=20)
    with pytest.raises(DataLost, match=lost):
        checked_range(view, start, end, fail=True)
    first, last = checked_range(view, start, end, fail=False)
    assert max(20, min(start, 50)) <= first <= last <= 50 or first == last


def test_a_range_that_is_left_is_not_touched() -> None:
    view = view_of([30], trimmed=20)
    for span in ((20, 50), (20, 20), (50, 50), (30, 40)):
        assert checked_range(view, *span, fail=True) == span


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), min_size=1, max_size=6),
    st.none() | st.integers(1, 2000),
    st.none() | st.integers(1, 200_000),
)
def test_admission_keeps_both_bounds_and_goes_on(
    parts: list[tuple[int, int]], rows_max: int | None, bytes_max: int | None
) -> None:
    start = {("t", n): first for n, (first, _) in enumerate(parts)}
    end = {("t", n): first + more for n, (first, more) in enumerate(parts)}
    size = dict.fromkeys(end, 100.0)
    reached = admitted(start, end, size, rows_max=rows_max, bytes_max=bytes_max)
    assert all(start[key] <= reached[key] <= end[key] for key in end)
    rows = sum(reached[key] - start[key] for key in end)
    total = sum(end[key] - start[key] for key in end)
    assert (rows > 0) == (total > 0)
    if rows_max is not None:
        assert rows <= rows_max
    if bytes_max is not None:
        assert rows <= max(1, bytes_max // 100)
    if rows_max is None and bytes_max is None:
        assert reached == end


MINIMAL = {"service": "http://x", "subscribe": "flights, ops/logs"}


def test_options_with_kafkas_names_and_meanings() -> None:
    batch = source_options(MINIMAL, streaming=False)
    assert batch.selection.topics == ("public/flights", "ops/logs")
    assert (batch.starting.offset, batch.ending.offset) == (EARLIEST, LATEST)
    assert source_options(MINIMAL, streaming=True).starting.offset == LATEST
    given = {
        **MINIMAL,
        "STARTINGOFFSETS": '{"flights": {"0": 23, "1": -2}}',
        "maxBytesPerTrigger": "64m",
        "maxTriggerDelay": "30s",
        "failOnDataLoss": "FALSE",
        "columns": "value, offset",
    }
    options = source_options(given, streaming=True)
    assert options.starting.offsets == {"public/flights": {0: 23, 1: EARLIEST}}
    assert options.bytes_per_trigger_max == 64 * 2**20
    assert options.trigger_delay_ms_max == 30_000
    assert not options.fail_on_data_loss
    assert options.columns == ("value", "offset")
    time = {**given, "startingTimestamp": "1700000000000"}
    assert source_options(time, streaming=True).starting.time_ms == 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"service": ""}, "service is missing"),
        ({"subscribe": ""}, "exactly one of subscribe, subscribePattern, assign"),
        ({"assign": '{"a": [0]}'}, "exactly one of"),
        (
            {"startingOffset": "1"},
            "unknown option startingoffset (meant: startingOffsets?); the options of",
        ),
        ({"kafka.bootstrap.servers": "h:9092"}, "kafka.bootstrap.servers (did you mean service?"),
        ({"kafka.group.id": "g"}, "kafka.group.id (a query belongs to no consumer group"),
        ({"groupIdPrefix": "g"}, "groupidprefix (a query belongs to no consumer group"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "(credentials come from OCTAVO_TOKEN"),
        ({"kafka.fetch.max.bytes": "1"}, "(a setting of Kafka's client, which is not used here"),
        ({"kafkaConsumer.pollTimeoutMs": "1"}, "(reads are repeated by themselves"),
        ({"fetchOffset.numRetries": "1"}, "(reads are repeated by themselves"),
        ({"service.url": "pulsar://h"}, "service.url (did you mean service?"),
        ({"topicsPattern": "a.*"}, "topicspattern (did you mean subscribePattern?)"),
        ({"topic": "a"}, "topic (an option of the sink: use subscribe here)"),
        ({"commit": "auto"}, "commit (an option of the sink: leave it out)"),
        ({"startingOffsets": "first"}, "startingOffsets is not JSON"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-2 is earliest"),
        ({"endingOffsets": "earliest"}, "nothing would be read"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number, 1 or more"),
        ({"maxBytesPerTrigger": "many"}, "a size such as"),
        ({"maxTriggerDelay": "soon"}, "a time such as"),
        ({"failOnDataLoss": "yes"}, "one of true, false"),
        ({"readFrom": "tape"}, "one of auto, bookies"),
        ({"subscribe": "a/b/c"}, "write topic or namespace/topic"),
        ({"subscribe": "", "subscribePattern": "("}, "subscribePattern"),
        ({"startingTimestamp": "now"}, "milliseconds since 1970"),
    ],
)
def test_a_bad_option_says_what_would_be_right(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        source_options({**MINIMAL, **given}, streaming=False)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "limit",
    [
        {"maxOffsetsPerTrigger": "5"}, {"maxBytesPerTrigger": "1m"},
        {"minOffsetsPerTrigger": "5"}, {"maxTriggerDelay": "1s"},
    ],
)  # fmt: skip
def test_a_limit_is_refused_by_a_spark_that_would_not_apply_it(limit: dict[str, str]) -> None:
    said = f"option {next(iter(limit))} needs Spark 4.2 or newer. This is Spark 4.1.4"
    with pytest.raises(InvalidOption, match=said):
        source_options(MINIMAL | limit, streaming=True, unlimited="4.1.4")
    source_options(MINIMAL | limit, streaming=True)
    source_options(MINIMAL | limit, streaming=False)


def test_a_micro_batch_that_ends_before_its_start_is_refused() -> None:
    """Spark 4.0 and 4.1 do not tell a source where a query is when it starts again. If a
    bookie then reports an earlier end, a batch that repeats rows would follow an empty batch."""

    def at(offset: int, incarnation: str = "a") -> dict[str, Any]:
        return to_json({("public/t", 0): offset}, {"public/t": incarnation})

    with pytest.raises(EndsBeforeStart, match=r"partition 0: .* offset 4, before its start 7"):
        never_backwards(at(7), at(4))
    never_backwards(at(7), at(7))
    never_backwards(at(7, "a"), at(4, "b"))  # another topic of the same name
    never_backwards({}, at(4))
    assert later(at(7), at(4)) == at(7)
    assert later(at(4), at(7)) == at(7)
    assert later(at(7, "a"), at(4, "b")) == at(4, "b")
    assert later({}, at(4)) == at(4)


def test_a_batch_that_starts_where_it_ends_warns() -> None:
    def warned(**given: str) -> bool:
        options = source_options(MINIMAL | given, streaming=False)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            warn_if_empty(options)
        return any("startingOffsets=latest in a batch query" in str(one.message) for one in found)

    assert warned(startingOffsets="latest")
    assert not warned()
    assert not warned(startingOffsets='{"flights": {"0": -1, "1": 3}}')


def test_offsets_may_name_the_incarnation_that_they_belong_to() -> None:
    """As in a stream's checkpoint, from which people paste them."""
    text = '{"flights": {"0": 5, "incarnation": "ab"}, "ops/logs": {"0": 7}}'
    found = source_options(MINIMAL | {"startingOffsets": text}, streaming=False).starting
    assert found.offsets == {"public/flights": {0: 5}, "ops/logs": {0: 7}}
    assert found.incarnations == {"public/flights": "ab"}


def test_views_of_a_moment_ago_plan_a_batch_only_if_they_hold_it() -> None:
    views = [view_of([5, 5])]
    assert covers(views, {("public/t", 0): 10})
    assert covers(views, {("public/t", 0): 3})
    assert not covers(views, {("public/t", 0): 11})
    assert not covers(views, {("public/t", 0): 10, ("public/t", 1): 0})
    assert not covers(views, {})


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidOption, match="a stream has no end"):
        source_options({**MINIMAL, "endingOffsets": "latest"}, streaming=True)


# A partition's first and last offset: Spark's view of the record agrees with its owner's on
_SOON = st.tuples(st.sampled_from(["roll over", "write", "trim", "truncate"]), st.integers(0, 9))


def spark_view(ledger_list: LedgerList, confirmed: int) -> View:
    """Return Spark's view when bookies know `confirmed` messages of the open ledger."""

    async def end_of(link: PartitionLedger) -> int:
        return link.base_offset + confirmed

    record = PartitionRecord(ledger_list.segments, trimmed_offset=ledger_list.trimmed_to)
    fake = SimpleNamespace(_end_of=end_of, _read_from="bookies")
    return asyncio.run(Cluster.view_of(cast(Any, fake), "public/t", 0, record))


@given(st.lists(_SOON, max_size=12), st.booleans(), st.data())
def test_the_view_and_the_owner_agree(
    history: list[tuple[str, int]], is_closed: bool, data: st.DataObject
) -> None:
    ledger_list, written, ledger_id = LedgerList().appending(0), 0, 0
    for what, number in history:
        match what:
            case "roll over":
                ledger_list = ledger_list.closing_last(
                    ledger_list.segments[-1].ledger_id, Contents(written, written, 5, 9), 7
                )
                written, ledger_id = 0, ledger_id + 1
                ledger_list = ledger_list.appending(ledger_id)
            case "write":
                written += number
            case "trim":
                ledger_list = RetentionPolicy(None, number).trimming(ledger_list, 100)
            case _:
                last = ledger_list.segments[-1].base_offset + written
                ledger_list = ledger_list.truncating(max(0, last - number))
    end = ledger_list.segments[-1].base_offset + written
    confirmed = data.draw(st.integers(0, written), label="what bookies tell of the open ledger")
    if is_closed:
        ledger_list = ledger_list.closing_last(
            ledger_list.segments[-1].ledger_id, Contents(written, written, 5, 9), 7
        )
        assert ledger_list.end_offset == end
    view = spark_view(ledger_list, confirmed)
    assert view.earliest == ledger_list.earliest_offset
    assert view.earliest <= view.end <= end, "what is trimmed was confirmed"
    if is_closed or confirmed == written:
        assert view.end == end
    assert checked_range(view, view.earliest, view.end, fail=True) == (view.earliest, view.end)
    rows = [o for one in pieces(view, view.earliest, view.end) for o in range(one.start, one.end)]
    assert rows == list(range(view.earliest, view.end))


def test_a_truncation_at_an_end_that_bookies_do_not_tell_yet_ends_no_query() -> None:
    """The last entry's confirmation travels with the next entry, so the view ended before it
    began."""
    ledger_list = LedgerList().appending(1).truncating(10)
    view = spark_view(ledger_list, confirmed=9)
    assert (view.earliest, view.end) == (10, 10)
