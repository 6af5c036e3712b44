"""What a dead consumer had held was acked by the next one, which had never got it.

Of failover and exclusive subscriptions with a `retry_backoff`: the leases of the one that died
ended, its messages waited for their delay, and who took over was given those behind them. So the
order of the partition was broken, and an ack `up_to` took those that waited along: nobody had
processed them, and nobody ever would. Likewise a message that was on its way to the dead-letter
topic, while that took none. Found by a program that checks the order; seen with curl.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import NotOwner, PartitionUnavailable
from octavo.broker.state.cursor import Cursor, unpack_ranges
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import Nack, RetryBackoff, SubscriptionInfo, SubscriptionSettings
from tests.unit.broker.test_subscription_types import Log, keyed, made, offsets

IN_ORDER = ["failover", "exclusive"]


@pytest.mark.parametrize("type_", IN_ORDER)
async def test_nothing_overtakes_what_waits(type_: Any) -> None:
    log = Log(keyed(*"abcdef"))
    backoff = RetryBackoff(100, 100, 1)
    subscription = made(log, type_, ack_timeout_ms=40, retry_backoff=backoff)
    assert await offsets(subscription, "a", messages_max=3) == [0, 1, 2]
    await asyncio.sleep(0.07)
    assert await offsets(subscription, "b", wait_s=0.0) == []
    held_back = subscription.held_back("b")
    assert held_back is not None
    assert "offset 0 waits for the delay" in held_back
    assert await offsets(subscription, "b", wait_s=2.0) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("type_", IN_ORDER)
async def test_what_was_given_back_with_a_delay_comes_before_what_is_behind_it(type_: Any) -> None:
    subscription = made(Log(keyed(*"abcd")), type_)
    given = await subscription.receive("a", messages_max=2)
    await subscription.acknowledge([given[0].ack_id], nacks=[Nack(given[1].ack_id, 60)])
    assert await offsets(subscription, "a") == []
    assert await offsets(subscription, "a", wait_s=2.0) == [1, 2, 3]


async def test_a_shared_one_goes_on_meanwhile() -> None:
    subscription = made(Log(keyed(*"abcd")), "shared")
    given = await subscription.receive("a", messages_max=2)
    await subscription.acknowledge([given[0].ack_id], nacks=[Nack(given[1].ack_id, 60)])
    assert await offsets(subscription, "a") == [2, 3]


class _Shut:
    """A dead-letter topic that takes nothing."""

    def __init__(self) -> None:
        self.opens = False
        self.stored: list[int] = []

    def turn(self, topic: object) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def send(
        self, origin: object, topic: object, number: int, record: Any, *_: object
    ) -> None:
        if not self.opens:
            raise PartitionUnavailable("no room")
        self.stored.append(int(dict(record.headers)["Octavo-Origin-Offset"]))


@pytest.mark.parametrize("type_", IN_ORDER)
async def test_what_is_on_its_way_to_the_dead_letters_is_not_acked(type_: Any) -> None:
    log, office = Log(keyed(*"abcd")), _Shut()
    settings = SubscriptionSettings(
        type=type_, consumer_timeout_ms=50, ack_timeout_ms=40, max_deliveries=1,
        dead_letter_topic="public/dlq", dead_letter_subscription="s",
    )  # fmt: skip
    config = BrokerConfig(dead_letter_retry_ms=50)
    subscription = Subscription(
        log, SubscriptionInfo("s", settings, 1), Cursor(0), config, office=office
    )
    assert await offsets(subscription, "a", messages_max=2) == [0, 1]
    await asyncio.sleep(0.07)
    assert await offsets(subscription, "b") == [2, 3]
    assert await subscription.acknowledge(up_to=3) == 2
    assert unpack_ranges(list(log.written[-1][-1])) == [(2, 4)]
    assert subscription.stats().backlog == 2
    office.opens = True
    async with asyncio.timeout(5):
        while subscription.stats().backlog:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert sorted(office.stored) == [0, 1]
    subscription.close(NotOwner("over"))
