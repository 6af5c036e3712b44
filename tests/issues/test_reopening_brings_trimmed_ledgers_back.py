"""A partition's record named ledgers again that retention had trimmed and deleted.

Found by the simulator (seed 2036887): the owner trimmed its chain while it reopened a ledger that
had failed, and the reopening then wrote the chain that it had read before. Reads from those offsets
would have failed for ever. Now the chain of that very moment is closed and continued.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.broker.log.ledger_list import RetentionPolicy
from octavo.broker.log.record import with_ledgers
from tests.support.cluster import batch, make_topic, owned, running_cluster, until


async def test_a_trim_while_a_ledger_is_reopened_holds(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=1)
        partition = await owned(running.broker, name)
        for number in range(1, 3):
            await partition.publish(batch(1, time_ms=brokers.clock.now_ms))
            await until(lambda n=number: len(partition._record.ledgers.segments) > n, "a roll-over")
        await partition.publish(batch(1, time_ms=brokers.clock.now_ms))
        await partition._rollover.cancel()  # type: ignore[union-attr]
        record, opener = partition._record, partition._opener
        before = [link.ledger_id for link in record.ledgers.segments]
        policy = RetentionPolicy(None, 0)
        measure: Any = opener._measure

        async def measure_while_it_is_trimmed(recovered: Any) -> Any:
            found = await measure(recovered)
            await record.change(
                lambda value: with_ledgers(value, record.ledgers.trimming(policy, 2**60, 0, None))
            )
            return found

        opener._measure = measure_while_it_is_trimmed  # type: ignore[method-assign]
        opened = await opener.reopen(partition._publisher.stored_producers, 3)
        assert opened.writer is not None
        after = [link.ledger_id for link in record.ledgers.segments]
        assert after == [before[-1], opened.writer.ledger_id]
        assert record.ledgers.earliest_offset == 2
        await opened.writer.close()
