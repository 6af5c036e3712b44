"""After a trim and a take-over a repeated batch was stored twice, or refused for ever.

A take-over rebuilds what is known of numbered producers from the last checkpoint in the state
ledger and the batches published since. Retention removed ledgers whose batches no checkpoint
covered: the next owner knew nothing of them. A repeat of sequence 0 was stored again; a producer
in the middle of its sequences was told to begin at 0, for ever. Found by the simulator (topic
seeds 124 and 130 of the day it began to have topics).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.state.format import Op
from tests.support.cluster import batch, make_topic, owned, running_cluster, until


@pytest.mark.parametrize("repeated", [0, 3])
async def test_a_batch_that_was_trimmed_is_still_known(tmp_path: Path, repeated: int) -> None:
    async with running_cluster(tmp_path) as brokers:
        first = await brokers.start("A", trim_interval_ms=20)
        name = await make_topic(first.broker, retention_bytes=0, rollover_entries=1)
        partition = await owned(first.broker, name)
        numbered = [
            batch(tag=f"m{n}", producer_id=7, producer_epoch=0, base_sequence=n) for n in range(4)
        ]
        for one in numbered:
            await partition.publish(one)
        await until(lambda: partition.earliest_offset == 4, "trimmed")
        await first.vanish()

        second = await brokers.start("B")
        partition = await owned(second.broker, name)
        published = await partition.publish(numbered[repeated])
        assert published.duplicate
        assert partition.next_offset == 4
        following = batch(tag="m4", producer_id=7, producer_epoch=0, base_sequence=4)
        assert (await partition.publish(following)).first_offset == 4


async def test_what_came_while_the_producers_were_written_is_not_trimmed(tmp_path: Path) -> None:
    """They are as of a moment; ledgers may have been filled and closed since."""
    async with running_cluster(tmp_path) as brokers:
        first = await brokers.start("A", trim_interval_ms=3_600_000)
        name = await make_topic(first.broker, retention_bytes=0, rollover_entries=1)
        partition = await owned(first.broker, name)
        numbered = [
            batch(tag=f"m{n}", producer_id=7, producer_epoch=0, base_sequence=n) for n in range(4)
        ]

        def newest_begins_at(offset: int) -> bool:
            return partition._record.ledgers.segments[-1].base_offset == offset

        async def publish(first: int, stop: int) -> None:
            for one in numbered[first:stop]:
                end = (await partition.publish(one)).first_offset + 1
                await until(partial(newest_begins_at, end), "rolled over")

        await publish(0, 2)
        maintenance: Any = partition._maintenance
        persist = maintenance._persist

        async def persist_while_some_publish(op: Op) -> None:
            maintenance._persist = persist
            await persist(op)
            await publish(2, 4)

        maintenance._persist = persist_while_some_publish
        await partition.maintain()
        assert partition.earliest_offset == 2
        await first.vanish()

        second = await brokers.start("B")
        partition = await owned(second.broker, name)
        assert (await partition.publish(numbered[3])).duplicate
