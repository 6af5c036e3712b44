"""A trim removed what a subscription had just gone back to.

How far may be trimmed was computed before the producers were made durable, and used after: a seek
backwards in between was answered, and then its messages were removed. Found by reading, while the
model of a partition was written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker.state_format import Op
from broker.types import SubscriptionSettings
from tests.broker_cluster import batch, make_topic, owned, running_brokers


async def test_a_seek_while_a_trim_waits_is_honoured(tmp_path: Path) -> None:
    async with running_brokers(tmp_path) as brokers:
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
        info, _ = await running.broker.create_subscription(
            name.topic_name, "s", SubscriptionSettings()
        )
        subscription = await partition.subscribe(info)
        await subscription.seek(20)
        upkeep: Any = partition._upkeep
        persist = upkeep._persist
        sought: list[int] = []

        async def persist_while_one_goes_back(op: Op) -> None:
            await persist(op)
            if not sought:
                sought.append(await subscription.seek(3))

        upkeep._persist = persist_while_one_goes_back
        await partition.upkeep()
        assert sought == [3]
        assert partition.earliest_offset <= 3
        deliveries = await subscription.receive("c", messages_max=1, wait_s=0)
        assert [delivery.offset for delivery in deliveries] == [3]
