"""Messages whose reading took longer than the ack timeout could never be acknowledged.

The lease began when the messages were chosen, not when they were handed over. With cold ledgers, a
large `messages_max` and a short ack timeout every answer came with leases that had ended: each ack
was refused as stale, the messages were delivered again, for ever. Found by the simulator (topic
seeds 2064 and 2748): a subscription did not drain.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import SubscriptionBusy
from octavo.broker.log.open_batches import OpenBatches, ReadableBatch
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import PartitionName, StoredBatch, SubscriptionInfo, SubscriptionSettings
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch

ACK_TIMEOUT_MS = 40


class SlowLog:
    """A partition of three messages that are read slower than the ack timeout."""

    name = PartitionName("public", "t", 0)
    lease_epoch = 1
    earliest_offset = kept_from = 0
    hidden = ()
    next_offset = 3

    def __init__(self) -> None:
        self.data = build_batch([Record(None, b"%d" % n) for n in range(3)])

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        await asyncio.sleep(3 * ACK_TIMEOUT_MS / 1000)
        return [StoredBatch(0, 7, 0, read_header(self.data), self.data)]

    async def large_body(self, offset: int) -> None:
        return None

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        return OpenBatches(0).readable(batch)

    def wall_ms(self) -> int:
        return 0

    async def persist(self, op: Any) -> None:
        pass


def subscription(kind: Any) -> Subscription:
    settings = SubscriptionSettings(type=kind, ack_timeout_ms=ACK_TIMEOUT_MS)
    return Subscription(SlowLog(), SubscriptionInfo("s", settings, 1), Cursor(), BrokerConfig())


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_the_time_to_ack_begins_with_the_answer(kind: str) -> None:
    found = subscription(kind)
    given = await found.receive("a", messages_max=3)
    assert [one.delivery_count for one in given] == [1, 1, 1]
    assert await found.acknowledge([one.ack_id for one in given]) == 3


async def test_nobody_else_gets_what_is_being_read() -> None:
    found = subscription("shared")
    slow = asyncio.create_task(found.receive("a", messages_max=2))
    await asyncio.sleep(2 * ACK_TIMEOUT_MS / 1000)
    other = await found.receive("b", messages_max=3)
    given = await slow
    assert [one.offset for one in given + other] == [0, 1, 2]


async def test_an_exclusive_subscription_is_held_while_its_holder_reads() -> None:
    found = subscription("exclusive")
    slow = asyncio.create_task(found.receive("a", messages_max=2))
    await asyncio.sleep(2 * ACK_TIMEOUT_MS / 1000)
    with pytest.raises(SubscriptionBusy):
        await found.receive("b", messages_max=3)
    assert len(await slow) == 2
