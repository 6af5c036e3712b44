"""Offloaded ledgers with a row for each message: engines read the rows, brokers the entries."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import polars
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ledger.offload.format import About, ObjectFile, ObjectWriter
from octavo.protocol.append_time import Appended, shown
from octavo.protocol.batch import HEADER_BYTES, read_header, resealed, with_base_offset
from octavo.protocol.compression import Compression
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch, build_gapped_batch
from octavo.protocol.windows import all_records
from tests.support.kit.examples import examples

LEDGER, BASE = 9, 5_000


def entries_of(payloads: list[bytes]) -> list[Entry]:
    found, base, length = [], 0, 0
    for number, made in enumerate(payloads):
        payload = with_base_offset(made, base)
        length += len(payload)
        found.append(Entry(LEDGER, number, number - 1, length, payload))
        base = read_header(payload).next_offset
    return found


def object_of(
    entries: list[Entry], *, pieces: int = 0, appended: Appended | None = None
) -> tuple[bytes, ObjectFile]:
    out = io.BytesIO()
    about = About(LEDGER, "u", "public/t", 3, BASE, len(entries), pieces=pieces)
    writer = ObjectWriter(out, about)
    writer.add(entries, [shown(read_header(one.payload), appended) for one in entries])
    facts = writer.close()
    data = out.getvalue()
    return data, ObjectFile(io.BytesIO(data), "object", facts.bytes, facts.footer_crc)


def all_of(file: ObjectFile) -> list[Entry]:
    return [entry for group in range(len(file.groups)) for entry in file.entries(group)]


def rows(data: bytes) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(data)).to_pylist()


_text = st.binary(max_size=12)
_record = st.builds(
    Record,
    st.none() | _text,
    st.none() | _text,
    st.lists(st.tuples(st.text(max_size=4), st.none() | _text), max_size=3),
    st.sampled_from([-1, 0, 1, -5_000]) | st.integers(-(2**40), 2**48),
)


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.lists(_record, min_size=1, max_size=5), st.sampled_from(Compression)),
        min_size=1,
        max_size=6,
    )
)
def test_messages_are_rows_and_entries_come_back_byte_for_byte(
    batches: list[tuple[list[Record], Compression]],
) -> None:
    entries = entries_of([build_batch(some, compression=kind) for some, kind in batches])
    data, file = object_of(entries)
    assert all_of(file) == entries
    expected = [one for entry in entries for one in all_records(entry.payload)]
    found = rows(data)
    assert [row["offset"] for row in found] == [BASE + one.offset for one in expected]
    assert [(row["key"], row["value"]) for row in found] == [(r.key, r.value) for r in expected]
    names = [[(h["key"], h["value"]) for h in row["headers"] or ()] for row in found]
    assert names == [list(one.headers) for one in expected]
    times = [
        row["timestamp_ms"]
        if row["timestamp"] is None
        else round(row["timestamp"].timestamp() * 1000)
        for row in found
    ]
    assert times == [one.timestamp for one in expected]
    assert {row["partition"] for row in found} == {3}


def unusual(batch: bytes, **changed: int) -> bytes:
    return resealed(read_header(batch)._replace(**changed), bytearray(batch))


TWO = [Record(b"k", b"v", (), 10), Record(None, None, (), 20)]
BY_PRODUCER = build_batch(TWO, producer_id=2**40, producer_epoch=3, base_sequence=17)


@pytest.mark.parametrize(
    ("payload", "is_kept"),
    [
        (build_batch(TWO), False),
        (BY_PRODUCER, False),
        (
            build_gapped_batch([Record(b"k", b"v", (), 1, 4), Record(b"k", b"w", (), 1, 9)], 0),
            False,
        ),
        (with_base_offset(build_batch(TWO), 0, leader_epoch=77), False),
        (unusual(BY_PRODUCER, attributes=0x20), False),
        (build_batch(TWO, compression=Compression.ZSTD), True),
        (unusual(build_batch(TWO), first_timestamp=9), False),
        (unusual(build_batch(TWO), attributes=0x08), True),
        (build_batch(TWO)[:HEADER_BYTES] + b"\xff" * (len(build_batch(TWO)) - HEADER_BYTES), True),
    ],
    ids=[
        "plain",
        "producer",
        "gaps",
        "epoch",
        "control",
        "zstd",
        "first time",
        "append",
        "damaged",
    ],
)
def test_a_payload_is_kept_only_where_it_would_differ(payload: bytes, is_kept: bool) -> None:
    entry = Entry(LEDGER, 0, -1, len(payload), payload)
    data, file = object_of([entry])
    assert all_of(file) == [entry]
    (group,) = file.groups
    rest = pq.read_table(io.BytesIO(data[group.rows_end : group.end]))
    assert rest.column("payload").to_pylist() == [payload if is_kept else None]


@pytest.mark.parametrize("together", [False, True])
def test_rows_have_the_append_time_and_entries_the_producers(together: bool) -> None:
    appended = Appended(1_700_000_000_000, together)
    payload = with_base_offset(build_batch(TWO), 0, leader_epoch=5)
    entry = Entry(LEDGER, 0, -1, len(payload), payload)
    data, file = object_of([entry], appended=appended)
    assert all_of(file) == [entry]
    time_ms = appended.shown(read_header(payload)).max_timestamp
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows(data)] == [time_ms] * 2
    assert file.groups[0].newest_ms == time_ms


@pytest.mark.parametrize("a_group", [1, 2, 10])
def test_pieces_of_a_large_message_are_no_rows(
    a_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.ledger.offload.format.GROUP_ENTRIES_MAX", a_group)
    made = [build_batch([Record(None, b"piece %d" % n)]) for n in range(3)]
    entries = entries_of([*made, build_batch([Record(b"k", b"", [("octavo-large", b"{}")], 1)])])
    data, file = object_of(entries, pieces=3)
    assert all_of(file) == entries
    assert [(row["offset"], row["key"]) for row in rows(data)] == [(BASE + 3, b"k")]
    assert [file.group_of_entry(n) for n in range(4)] == [n // a_group for n in range(4)]


def test_engines_read_the_rows_and_their_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.ledger.offload.format.GROUP_ENTRIES_MAX", 4)
    batches = [
        build_batch(
            [Record(b"%03d" % n, b"v%d" % (n * 10 + m), (), n * 1_000 + m) for m in range(10)]
        )
        for n in range(20)
    ]
    data, file = object_of(entries_of(batches))
    path = tmp_path / "object.parquet"
    path.write_bytes(data)
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(
        f'select count(*), min("offset"), max("offset"), count(distinct key) from \'{path}\''
    ).fetchall()
    assert found == [(200, BASE, BASE + 199, 20)]
    frame = polars.read_parquet(path)
    assert frame["value"].to_list() == [b"v%d" % n for n in range(200)]
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == len(file.groups) == 5
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = {
            group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)
        }
        offsets = columns["offset"].statistics
        assert (offsets.min, offsets.max) == (BASE + 40 * number, BASE + 40 * number + 39)
        assert all(one.is_stats_set for one in columns.values())
        assert "DELTA_BINARY_PACKED" in columns["offset"].encodings


class Counting(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        return found


def test_a_query_of_one_column_reads_little_else() -> None:
    rng = random.Random(1)
    batches = [
        build_batch([Record(b"k%d" % m, rng.randbytes(80), (), n) for m in range(500)])
        for n in range(150)
    ]
    data, _ = object_of(entries_of(batches))
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    assert len(groups) > 3
    for column in ("offset", "timestamp", "key", "value"):
        file = Counting(data)
        pq.ParquetFile(file, pre_buffer=False).read([column])
        own = sum(
            group.column(n).total_compressed_size
            for group in groups
            for n in range(group.num_columns)
            if group.column(n).path_in_schema == column
        )
        assert file.taken <= own + len(data) / 20, column
