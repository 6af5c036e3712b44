"""Bookies were gone for longer than a writer waits, and nobody published: nothing could be read.

The writer had ended, and with it the announcing of what is confirmed. The owner learnt of it from
the next add only: until somebody published, every read of the last messages waited for bookies that
could not confirm them, and was a 503. Seed 1200746 of profile `recreate` (S8). Earlier seeds always
had a publisher that came back; the load of this one was over. Now the partition opens anew at once.
"""

from __future__ import annotations

from pathlib import Path

from octavo.broker.types import PartitionState
from tests.support.cluster import batch, make_topic, owned, running_cluster, until


async def test_what_was_acked_is_read_without_a_publish(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker = (await brokers.start("A", tail_cache_bytes_max=1)).broker
        name = await make_topic(broker)
        partition = await owned(broker, name)
        await partition.publish(batch(3))
        ended = partition._publisher.writer
        assert ended is not None
        for bookie in ("b1", "b2", "b3"):
            await brokers.stop_bookie(bookie)
        await until(lambda: ended.error is not None, "the writer gave up")
        assert partition.state is PartitionState.REOPENING
        for bookie in ("b1", "b2", "b3"):
            await brokers.start_bookie(bookie)
        await until(lambda: partition.state is PartitionState.OPEN, "it opened anew")
        found = await partition.read(0, bytes_max=1 << 20, count_max=10)
        assert [one.header.record_count for one in found] == [3]
        assert (await partition.publish(batch(1))).first_offset == 3
