"""A receive of many messages from slow bookies took longer than its caller waited, again and again.

Whatever was asked for was read before anything was answered. The caller gave up, the messages came
back when their leases were over, and the next call began with the first of them anew: nobody ever
got one. Now who has some gives them after half a second. Found by the simulator (seed 1800453 of
`topic`: 124 messages, 20 ms each, callers that wait 1.5 s).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.log.open_batches import OpenBatches, ReadableBatch
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions import subscription
from octavo.broker.subscriptions.subscription import LeasedBatches, Subscription
from octavo.broker.types import PartitionName, StoredBatch, SubscriptionInfo, SubscriptionSettings
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch

READ_S = 0.02
MESSAGES = 100


class SlowLog:
    """A partition of single messages, each of which takes its time to be read."""

    name = PartitionName("public", "t", 0)
    lease_epoch = 1
    earliest_offset = kept_from = 0
    hidden = ()
    next_offset = MESSAGES

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        await asyncio.sleep(READ_S)
        data = build_batch([Record(None, b"%d" % offset)])
        return [StoredBatch(offset, 7, offset, read_header(data), data)]

    async def large_body(self, offset: int) -> None:
        return None

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        return OpenBatches(0).readable(batch)

    def wall_ms(self) -> int:
        return 0

    async def persist(self, op: Any) -> None:
        pass


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_it_gives_what_it_has_and_the_rest_to_the_next(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_READING_S_MAX", 3 * READ_S)
    log: Any = SlowLog()
    settings = SubscriptionSettings(type=kind, ack_timeout_ms=60_000)
    found = Subscription(log, SubscriptionInfo("s", settings, 1), Cursor(), BrokerConfig())
    first = await found.receive("a", messages_max=MESSAGES)
    assert 1 <= len(first) < MESSAGES / 2
    second = await found.receive("a", messages_max=MESSAGES)
    offsets = [one.offset for one in (*first, *second)]
    assert offsets == list(range(len(offsets))), "in order, none twice and none left out"
    assert await found.acknowledge([one.ack_id for one in first]) == len(first)


@pytest.mark.parametrize("form", ["one-by-one", "as-stored"])
async def test_a_repeat_is_whole_also_when_disks_have_become_slow(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer may be at work on what it was given first, and others got a part of it as well:
    a late copy of the call took their leases away (seed 2301221).
    """
    monkeypatch.setattr(subscription, "_READING_S_MAX", 5 * READ_S)
    log: Any = SlowLog()
    settings = SubscriptionSettings(type="shared", ack_timeout_ms=60_000)
    found = Subscription(log, SubscriptionInfo("s", settings, 1), Cursor(), BrokerConfig())
    receive = found.receive if form == "one-by-one" else found.receive_batches

    def offsets(given: Any) -> list[int]:
        if isinstance(given, LeasedBatches):
            return [one for start, end, _ in given.leased.runs for one in range(start, end)]
        return [one.offset for one in given]

    first = offsets(await receive("a", messages_max=MESSAGES, request="1"))
    assert len(first) > 2
    monkeypatch.setattr(subscription, "_READING_S_MAX", 0.0)
    assert offsets(await receive("a", messages_max=MESSAGES, request="1")) == first
    other = offsets(await receive("b", messages_max=MESSAGES))
    assert other[0] == len(first)


async def test_a_repeat_that_cannot_be_read_leaves_its_messages_where_they_are() -> None:
    log: Any = SlowLog()
    settings = SubscriptionSettings(type="shared", ack_timeout_ms=60_000)
    found = Subscription(log, SubscriptionInfo("s", settings, 1), Cursor(), BrokerConfig())
    first = await found.receive("a", messages_max=2, request="1")
    copy = asyncio.create_task(found.receive("a", messages_max=2, request="1"))
    await asyncio.sleep(READ_S / 2)
    copy.cancel()
    await asyncio.wait({copy})
    other = await found.receive("b", messages_max=2)
    assert [one.offset for one in other] == [2, 3]
    assert await found.acknowledge([one.ack_id for one in first]) == len(first)


class ReadAhead(SlowLog):
    """The same, of which a read gives several batches."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        self.reads += 1
        found: list[StoredBatch] = []
        for one in range(offset, offset + 3):
            found += await super().read(one, bytes_max=1, count_max=1)
        return found


async def test_what_was_read_is_given_though_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a read that took long only the first batch was given, and the others were read again by
    the next receive, which took as long: a hundred subscriptions of one topic kept their broker
    busy with that.
    """
    monkeypatch.setattr(subscription, "_READING_S_MAX", READ_S / 2)
    log: Any = ReadAhead()
    settings = SubscriptionSettings(type="shared", ack_timeout_ms=60_000)
    found = Subscription(log, SubscriptionInfo("s", settings, 1), Cursor(), BrokerConfig())
    for number in range(3):
        given: Any = await found.receive_batches("a", messages_max=MESSAGES)
        assert given.given == 3
        assert given.leased.runs == [(3 * number, 3 * number + 3, 1)]
    assert log.reads == 3
