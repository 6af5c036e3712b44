"""The due time of a message: the header, and the bit of its batch."""

from __future__ import annotations

import pytest

from octavo.protocol.batch import ATTRIBUTE_DELAYED, check_batch
from octavo.protocol.compression import Compression
from octavo.protocol.due import DELIVER_AT, DUE_MS_MAX, due_header, due_of
from octavo.protocol.records import Record, build_batch, read_records


@pytest.mark.parametrize(
    ("value", "due_ms"),
    [
        (b"0", 0),
        (b"1700000000000", 1_700_000_000_000),
        (b"9" * 15, DUE_MS_MAX),
        (b"9" * 16, None),
        (b"", None),
        (None, None),
        (b"-1", None),
        (b"soon", None),
        ("\u0663".encode(), None),
    ],
)
def test_what_is_a_due_time(value: bytes | None, due_ms: int | None) -> None:
    assert due_of([("a", b"1"), (DELIVER_AT, value)]) == due_ms


def test_the_last_header_counts() -> None:
    assert due_of([due_header(5), due_header(7)]) == 7
    assert due_of([]) is None


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_batch_says_that_somebody_waits(compression: Compression) -> None:
    late = Record(b"k", b"v", [("x", b"y"), due_header(7)], 3, 1)
    first = Record(b"k", b"v", [("x", b"y")], 2, 0)
    assert not check_batch(build_batch([first])).attributes & ATTRIBUTE_DELAYED
    batch = build_batch([first, late], compression=compression, producer_id=3, producer_epoch=0,
                        base_sequence=1)  # fmt: skip
    assert check_batch(batch).attributes == ATTRIBUTE_DELAYED | compression
    assert list(read_records(batch)) == [first, late]
