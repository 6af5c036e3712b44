"""Compaction: which chunks it reads, when it is due, batches whose offsets have gaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs octavo[spark]")
pytest.importorskip("pyspark", reason="needs octavo[spark]")

from octavo.metadata.topics import CompactedLedger, CompactionRecord
from octavo.pipeline.compact_rules import Chunks, CompactPolicy, chunks_of, is_due, lost_before
from octavo.protocol.batch import InvalidBatch, check_batch, read_header, with_base_offset
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch, build_gapped_batch
from octavo.spark.arrow import ArrowBuilder
from octavo.spark.batches import StoredBatch
from octavo.spark.options import InvalidOption, source_options
from octavo.spark.planning import compacted_at_once
from octavo.spark.splits import Span, View

DAY_MS = 24 * 3_600_000
PLAIN = View("public/t", 0, (Span(1, 0, 100, 1000, 5), Span(2, 100, 140, 0, -1)))
OLD = CompactionRecord(
    60, (CompactedLedger(7, 3, 30, 4, 400), CompactedLedger(8, 33, 59, 5, 300, 1, 1_000)), 5
)
VIEWED = replace(PLAIN, compacted=OLD)


def test_a_run_reads_the_old_view_and_what_is_behind_it() -> None:
    (chunk,) = chunks_of(2, VIEWED, CompactPolicy())
    found = [(one.ledger_id, one.base, one.start, one.end, one.compacted) for one in chunk.parts]
    assert found == [
        (7, 3, 3, 31, True),
        (8, 33, 33, 60, True),
        (1, 0, 60, 100, False),
        (2, 100, 100, 140, False),
    ]
    assert (chunk.place, chunk.start, chunk.end) == (2, 3, 140)
    trimmed = replace(VIEWED, spans=VIEWED.spans[1:])
    assert [one.ledger_id for one in chunks_of(0, trimmed, CompactPolicy())[0].parts] == [7, 8, 2]
    assert lost_before(trimmed) == (60, 99)
    assert lost_before(VIEWED) is None
    assert lost_before(replace(trimmed, compacted=None)) is None, "nobody had promised them"


@given(st.integers(1, 2000), st.integers(3, 139))
def test_each_offset_lies_in_the_chunk_that_is_found(size: int, offset: int) -> None:
    every = [
        chunk
        for place, view in enumerate((VIEWED, PLAIN))
        for chunk in chunks_of(place, view, CompactPolicy(split_bytes=size))
    ]
    found = Chunks(every)
    for place in (0, 1):
        chunk = every[found.number_of(place, offset)]
        assert chunk.place == place
        there = [one for one in every if one.place == place and one.start <= offset < one.end]
        assert there in ([chunk], []), "in a gap of the old view is no message"


def test_a_view_is_due_for_new_messages_or_old_tombstones() -> None:
    policy = CompactPolicy(tombstones_ms=DAY_MS)
    assert is_due(PLAIN, policy, 0)
    assert is_due(VIEWED, policy, 0)
    whole = replace(VIEWED, spans=(Span(1, 0, 60, 1000, 5),))
    assert not is_due(whole, policy, 999 + DAY_MS)
    assert is_due(whole, policy, 1_000 + DAY_MS)


def test_the_first_micro_batch_has_the_whole_view() -> None:
    name = VIEWED.name
    assert compacted_at_once({name: 0}, {name: 140}, [VIEWED]) == {name: 60}
    assert compacted_at_once({}, {name: 50}, [VIEWED]) == {name: 50}
    assert compacted_at_once({name: 1}, {name: 140}, [VIEWED]) == {name: 0}


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"startingOffsets": "latest"}, False, "from its beginning"),
        ({"startingTimestamp": "1"}, False, "from its beginning"),
        ({}, True, "from its beginning"),
        ({"readFrom": "broker"}, False, "from the bookies"),
        ({"readCompacted": "maybe"}, False, "one of true, false"),
    ],
)
def test_a_view_is_read_from_its_beginning(
    options: dict[str, str], streaming: bool, said: str
) -> None:
    given_ = {"service": "http://b", "subscribe": "t", "readCompacted": "true", **options}
    with pytest.raises(InvalidOption, match=said):
        source_options(given_, streaming=streaming)


@given(
    st.sets(st.integers(0, 60), min_size=1), st.integers(0, 5), st.integers(0, 90),
    st.integers(0, 90), st.sampled_from([Compression.NONE, Compression.ZSTD]),
)  # fmt: skip
def test_messages_with_gaps_keep_their_offsets(
    deltas: set[int], base: int, start: int, end: int, compression: Compression
) -> None:
    records = [Record(b"k%d" % one, b"v%d" % one, (), one, one) for one in sorted(deltas)]
    batch = build_gapped_batch(records, base, compression=compression)
    header = check_batch(batch, gaps=True)
    if not header.is_dense:
        with pytest.raises(InvalidBatch, match="must be count - 1"):
            check_batch(batch)
    assert header.next_offset == base + max(deltas) + 1
    builder = ArrowBuilder(("offset", "value"))
    builder.add(StoredBatch("t", 0, 1, 0, 10 + base, header, batch), start, end)
    wanted = [one for one in sorted(deltas) if start <= 10 + base + one < end]
    rows = builder.take()
    assert rows.column("offset").to_pylist() == [10 + base + one for one in wanted]
    assert rows.column("value").to_pylist() == [b"v%d" % one for one in wanted]


def test_a_dense_batch_is_read_as_ever() -> None:
    batch = with_base_offset(build_batch([Record(b"k", b"%d" % one) for one in range(9)]), 4)
    builder = ArrowBuilder(("offset", "index"))
    builder.add(StoredBatch("t", 0, 1, 0, 104, read_header(batch), batch), 106, 110)
    rows = builder.take()
    assert rows.column("offset").to_pylist() == [106, 107, 108, 109]
    assert rows.column("index").to_pylist() == [2, 3, 4, 5]
