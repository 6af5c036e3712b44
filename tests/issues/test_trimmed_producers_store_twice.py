"""After a trim and a take-over a repeated batch was stored twice, or refused for ever.

A take-over rebuilds what is known of numbered producers from the last checkpoint in the state
ledger and the batches published since. Retention removed ledgers whose batches no checkpoint
covered: the next owner knew nothing of them. A repeat of sequence 0 was stored again; a producer
in the middle of its sequences was told to begin at 0, for ever. Found by the simulator (topic
seeds 124 and 130 of the day it began to have topics).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker_cluster import batch, make_topic, owned, running_brokers, until


@pytest.mark.parametrize("repeated", [0, 3])
async def test_a_batch_that_was_trimmed_is_still_known(tmp_path: Path, repeated: int) -> None:
    async with running_brokers(tmp_path) as brokers:
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
