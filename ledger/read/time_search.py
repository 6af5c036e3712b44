"""Find a ledger's first record whose timestamp is at or after a given time.

This is Kafka's rule, also when timestamps are out of order. Timestamps beyond the calendar do not
count. `EntrySource.as_new_as` finds the batch, this module the record.
"""

from __future__ import annotations

import asyncio

from octavo.ledger.read.entry_source import DISORDER_UNKNOWN, EntrySource
from octavo.ledger.read.open_batch import TURN_WINDOWS, Opening
from octavo.protocol.append_time import Appended, shown
from octavo.protocol.batch import InvalidBatch, read_header
from octavo.protocol.compression import UnsupportedCompression
from octavo.protocol.entry import Buffer
from octavo.protocol.limits import TIMESTAMP_MS_MAX


async def offset_as_new_as(
    source: EntrySource,
    time_ms: int,
    last: int,
    disorder_ms: int,
    opening: Opening,
    *,
    gaps: bool = False,
    first: int = 0,
    least: int = 0,
    appended: Appended | None = None,
) -> int | None:
    """Return the record's offset; None: all are older.

    `last`: the last entry that may be read. `gaps`: for a compacted view. `first`: the entry that
    holds offset `least`; records below do not count. A batch that cannot be unpacked counts with
    its header's timestamp.
    """
    start = first
    while (
        entry := await source.as_new_as(time_ms, start, last, disorder_ms, appended)
    ) is not None:
        header = shown(read_header(entry.payload), appended)
        passed = max(0, least - header.base_offset)
        if header.partition_leader_epoch > 0:  # of all its records
            return header.base_offset + passed
        delta = await _first_delta(entry.payload, time_ms, opening, gaps, passed)
        if delta is not None:
            return header.base_offset + delta
        start = entry.entry_id + 1
        if not passed:
            # The header's timestamp was wrong: read on in order, without a search per batch.
            disorder_ms = DISORDER_UNKNOWN
    return None


async def _first_delta(
    batch: Buffer, time_ms: int, opening: Opening, gaps: bool, passed: int
) -> int | None:
    try:
        async with opening(batch) as windows:
            for turn, (_, records) in enumerate(windows.following(0, gaps=gaps), 1):
                for record in records:
                    is_so = time_ms <= record.timestamp_ms <= TIMESTAMP_MS_MAX
                    if is_so and record.offset_delta >= passed:
                        return record.offset_delta
                if not turn % TURN_WINDOWS:
                    await asyncio.sleep(0)
    except (InvalidBatch, UnsupportedCompression):
        return passed
    return None
