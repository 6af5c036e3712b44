"""Compacted, a message without a timestamp (-1) got that of the message behind it.

aiokafka's builder takes a first -1 for "none yet", and counts the batch's times from the next one.
A compaction puts messages of many batches into one. Found by the simulator (seed 11 of the profile
`topic`), once it looked up times in compacted reads.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.ledger.read.open_batch import open_batch
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_gapped_batch, read_gapped_records

times = st.lists(st.sampled_from((-1, 0, 1, 5, 1_767_225_600_488, 10**13)), min_size=1, max_size=6)


@given(times, st.sampled_from(Compression))
async def test_each_keeps_its_own(times_ms: list[int], kind: Compression) -> None:
    records = [Record(b"k", b"v", [], one, 3 * n) for n, one in enumerate(times_ms)]
    batch = build_gapped_batch(records, 7, compression=kind)
    check_batch(batch, gaps=True)
    assert read_header(batch).max_timestamp == max(times_ms)
    assert list(read_gapped_records(batch)) == records
    windows = await open_batch(batch)
    assert [one for _, some in windows.following(0, gaps=True) for one in some] == records
