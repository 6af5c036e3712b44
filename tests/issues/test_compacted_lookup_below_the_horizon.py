"""A lookup by time in a compacted view answered an offset that the view does not have.

Where no message of the view was as new, the whole log was asked, and its answer could be a message
below the horizon that the view leaves out: a read from there began earlier than the time that was
asked for. Found by review; the simulator looked up times in the log only.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.ledger.read.entry_source import DISORDER_UNKNOWN
from octavo.ledger.read.open_batch import opening
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.metadata.topics import TopicStore
from octavo.protocol.records import Record, build_batch
from tests.issues.test_time_is_sought_by_halving_out_of_order import Ledger, contents_of, stored
from tests.support.cluster import make_topic, owned, running_cluster, until
from tests.support.compacted_views import write_view

TIMES = (100, 10, 300, 20, 110, 30, 300, 40)
KEYS = "aaabbbcc"


@pytest.mark.parametrize("batch", [1, 3, 8])
async def test_the_first_as_new_that_a_compacted_read_gives(tmp_path: Path, batch: int) -> None:
    """With the horizon anywhere: between ledgers, between batches of one, and amid a batch."""
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=2)
        partition = await owned(running.broker, name)
        records = [
            Record(key.encode(), b"%d" % offset, (), time_ms)
            for offset, (key, time_ms) in enumerate(zip(KEYS, TIMES, strict=True))
        ]
        links = partition._record.ledgers.segments
        for at in range(0, len(records), batch):
            await partition.publish(build_batch(records[at : at + batch]))
            if batch == 1 and at % 2:
                before = len(links)
                await until(
                    lambda n=before: len(partition._record.ledgers.segments) > n, "a roll-over"
                )
                links = partition._record.ledgers.segments
        topics = TopicStore(running.store)
        for horizon in range(len(TIMES) + 1):
            newest = {record.key: offset for offset, record in enumerate(records[:horizon])}
            kept = [(offset, records[offset]) for offset in sorted(newest.values())]
            where = ("public", name.topic, 0)
            await write_view(running.ledgers, topics, where, horizon, [[kept]] if kept else [])
            given = [*newest.values(), *range(horizon, len(TIMES))]
            for time_ms in (0, *(one + off for one in TIMES for off in (0, 1))):
                expected = next((o for o in sorted(given) if TIMES[o] >= time_ms), len(TIMES))
                found = await partition.compacted.resolve(time_ms=time_ms)
                assert found == expected, f"{time_ms} ms, horizon {horizon}"


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_as_new_from_an_offset_on(seed: int) -> None:
    rng = random.Random(seed)
    batches = [
        [rng.randrange(60) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 9))
    ]
    entries, flat = stored(batches), [one for batch in batches for one in batch]
    bounds = [0]
    for some in batches:
        bounds.append(bounds[-1] + len(some))
    for least in range(len(flat)):
        first = next(n for n, (_, end) in enumerate(pairwise(bounds)) if least < end)
        for disorder_ms in (DISORDER_UNKNOWN, contents_of(entries).disorder_ms):
            for time_ms in range(-1, 62, 3):
                expected = next((o for o in range(least, len(flat)) if flat[o] >= time_ms), None)
                source: Any = Ledger(entries)
                found = await offset_as_new_as(
                    source, time_ms, len(entries) - 1, disorder_ms, opening,
                    first=first, least=least,
                )  # fmt: skip
                assert found == expected
