"""A trim removed what a subscription had just gone back to.

How far may be trimmed was computed before the producers were made durable, and used after: a seek
backwards in between was answered, and then its messages were removed. Found by reading, while the
model of a partition was written. Later the limit was that of the moment of trimming; a seek while
the record was being written still lost its messages, which nobody had looked for: the simulator's
referee forgot what a seek had asked for again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import Op
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import SubscriptionSettings
from tests.support.cluster import batch, make_topic, owned, running_cluster


@contextlib.asynccontextmanager
async def trimmable(folder: Path) -> AsyncIterator[tuple[Partition, Subscription]]:
    """20 messages that are older than the retention, and a subscription that has had them all."""
    async with running_cluster(folder) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=5, retention_ms=60_000)
        partition = await owned(running.broker, name)
        for number in range(20):
            await partition.publish(
                batch(
                    1,
                    time_ms=brokers.clock.now_ms,
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=number,
                )
            )
        brokers.clock.now_ms += 70_000
        info, _ = await running.broker.topics.create_subscription(
            name.topic_name, "s", SubscriptionSettings()
        )
        subscription = await partition.subscribe(info)
        await subscription.seek(20)
        yield partition, subscription


async def test_a_seek_while_a_trim_waits_is_honoured(tmp_path: Path) -> None:
    async with trimmable(tmp_path) as (partition, subscription):
        maintenance: Any = partition._maintenance
        persist = maintenance._persist
        sought: list[int] = []

        async def persist_while_one_goes_back(op: Op) -> None:
            await persist(op)
            if not sought:
                sought.append(await subscription.seek(3))

        maintenance._persist = persist_while_one_goes_back
        await partition.maintain()
        assert sought == [3]
        assert partition.earliest_offset <= 3
        deliveries = await subscription.receive("c", messages_max=1, wait_s=0)
        assert [delivery.offset for delivery in deliveries] == [3]


async def test_a_seek_while_the_record_is_written_says_where_it_stands(tmp_path: Path) -> None:
    async with trimmable(tmp_path) as (partition, subscription):
        topics: Any = partition._record._topics
        write = topics.write_partition
        sought: list[int] = []

        async def write_while_one_goes_back(*args: Any, **how: Any) -> int:
            if not sought:
                sought.append(await subscription.seek(3))
            version: int = await write(*args, **how)
            return version

        topics.write_partition = write_while_one_goes_back
        await partition.maintain()
        assert partition.earliest_offset == sought[0], "told what is left, not what was asked for"
        assert partition.earliest_offset > 3
