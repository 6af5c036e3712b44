"""The statistics of thousands of subscriptions stop no other work of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.broker.config import BrokerConfig
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.subscriptions.subscriptions import STATS_A_TURN, SubscriptionSet
from octavo.broker.types import (
    PartitionName,
    SubscriptionInfo,
    SubscriptionSettings,
    SubscriptionStats,
)

SUBSCRIPTIONS = 4_000


class EmptyLog:
    """A partition without messages."""

    name = PartitionName("public", "t", 0)
    lease_epoch = 1
    earliest_offset = kept_from = next_offset = 0
    hidden = ()

    def readable(self, batch: Any) -> Any:
        return OpenBatches(0).readable(batch)

    def wall_ms(self) -> int:
        return 0


async def none(*_: Any) -> Any:
    raise AssertionError("not asked")


def many() -> SubscriptionSet:
    log: Any = EmptyLog()
    found = SubscriptionSet(log, BrokerConfig(), none, none)
    for number in range(SUBSCRIPTIONS):
        info = SubscriptionInfo(f"s{number}", SubscriptionSettings(type="shared"), 1)
        found._open[info.name] = Subscription(log, info, Cursor(), BrokerConfig())
    return found


async def test_some_subscriptions_are_described_in_each_turn(monkeypatch: Any) -> None:
    """4,000 took 66 ms of processor time, and every partition's figures made them in one turn."""
    found = many()
    here, most = 0, 0
    stats = Subscription.stats

    def counted(one: Subscription) -> SubscriptionStats:
        nonlocal here
        here += 1
        return stats(one)

    monkeypatch.setattr(Subscription, "stats", counted)
    making = asyncio.ensure_future(found.stats())
    while not making.done():
        here = 0
        await asyncio.sleep(0)
        most = max(most, here)
    assert most == STATS_A_TURN
    assert making.result() == {name: one.stats() for name, one in found._open.items()}


async def test_a_subscription_that_is_deleted_meanwhile_is_left_out() -> None:
    found = many()
    making = asyncio.ensure_future(found.stats())
    await asyncio.sleep(0)
    await found._forget(f"s{SUBSCRIPTIONS - 1}")
    assert len(await making) == SUBSCRIPTIONS - 1
