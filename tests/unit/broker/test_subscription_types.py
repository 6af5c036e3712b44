"""The driver with each type of subscription: turns, keys, filters, limits, and written changes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import CUMULATIVE_ACK_NOT_ALLOWED, StaleLease, SubscriptionNotFound
from octavo.broker.log.open_batches import OpenBatches, ReadableBatch
from octavo.broker.state.cursor import Cursor, unpack_ranges
from octavo.broker.state.format import Op
from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import (
    Delivery,
    Nack,
    PartitionName,
    StoredBatch,
    SubscriptionInfo,
    SubscriptionSettings,
)
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import until
from tests.support.kit.refusals import raises_code
from tests.unit.broker.test_keys import owned_by

GONE_MS = 60


class Log:
    """A partition of single messages, in memory."""

    name = PartitionName("public", "t", 0)
    lease_epoch = 1
    earliest_offset = kept_from = 0
    hidden = ()

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.written: list[Op] = []

    @property
    def next_offset(self) -> int:
        return len(self.records)

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        data = build_batch(self.records[offset : offset + min(count_max, 50)])
        data = with_base_offset(data, offset)
        return [StoredBatch(offset, 1, offset, read_header(data), bytes(data))]

    async def large_body(self, offset: int) -> None:
        return None

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        return OpenBatches(0).readable(batch)

    async def persist(self, op: Op) -> None:
        self.written.append(op)

    def wall_ms(self) -> int:
        return 0


def keyed(*keys: str | None) -> list[Record]:
    return [Record(None if key is None else key.encode(), b"v") for key in keys]


def made(log: Log, type_: Any, **settings: Any) -> Subscription:
    settings.setdefault("consumer_timeout_ms", GONE_MS)
    info = SubscriptionInfo("s", SubscriptionSettings(type=type_, **settings), 1)
    return Subscription(log, info, Cursor(0), BrokerConfig())


async def offsets(subscription: Subscription, name: str, **asked: Any) -> list[int]:
    asked.setdefault("messages_max", 100)
    return [one.offset for one in await subscription.receive(name, **asked)]


def ids(deliveries: list[Delivery], *wanted: int) -> list[str]:
    return [one.ack_id for one in deliveries if one.offset in wanted]


async def test_the_keys_are_shared_by_those_who_wait() -> None:
    a, b = owned_by("a", "a", "b")[0], owned_by("b", "a", "b")[0]
    log = Log([])
    subscription = made(log, "key_shared")
    waiting = [
        asyncio.ensure_future(offsets(subscription, name, wait_s=5, messages_max=2))
        for name in "ab"
    ]
    await asyncio.sleep(0.01)
    log.records += keyed(a, b, b, a, b)
    subscription.wake()
    assert [await one for one in waiting] == [[0, 3], [1, 2]]
    stats = {one.name: one for one in subscription.stats().consumers}
    assert (stats["a"].slots or 0) + (stats["b"].slots or 0) == 65_536
    assert "-" in (stats["a"].slot_ranges or "")


async def test_who_is_silent_has_no_keys_whether_anybody_calls_or_not() -> None:
    a, b = owned_by("a", "a", "b")[0], owned_by("b", "a", "b")[0]
    log = Log([])
    subscription = made(log, "key_shared", consumer_timeout_ms=1_000, ack_timeout_ms=1_200)

    def slots() -> dict[str, int | None]:
        return {one.name: one.slots for one in subscription.stats().consumers}

    waits = [offsets(subscription, name, wait_s=wait_s) for name, wait_s in (("a", 0), ("b", 0.5))]
    assert await asyncio.gather(*waits) == [[], []]
    log.records += keyed(a, b, b)
    assert await offsets(subscription, "b", messages_max=1) == [1]
    assert 0 < (slots()["a"] or 0) < 65_536
    assert "1 are other consumers'" in (subscription.held_back("b") or "")
    await until(lambda: slots()["a"] == 0, "nobody waits for a")
    assert slots()["b"] == 65_536
    assert subscription.held_back("b") is None
    assert "'a' no longer asks for messages" in (subscription.held_back("a") or "")
    assert subscription.stats().leased == 1
    await until(lambda: slots()["b"] == 0, "nor for b")
    assert "'b' no longer asks for messages" in (subscription.held_back("b") or "")
    await until(lambda: subscription.stats().leased == 0, "what b had is back")
    assert subscription.stats().redelivering == 1


async def test_order_of_a_key_through_a_nack_with_its_stale_leases() -> None:
    log = Log(keyed("k", "k", "k", "x"))
    subscription = made(log, "key_shared")
    first = await subscription.receive("a", messages_max=9)
    assert await subscription.acknowledge(nacks=[Nack(ids(first, 0)[0], 40)]) == 0
    with pytest.raises(StaleLease):
        await subscription.acknowledge(ids(first, 1))
    assert await offsets(subscription, "a") == []
    assert "of 1 the first was given back with a delay" in (subscription.held_back("a") or "")
    again = await subscription.receive("a", messages_max=9, wait_s=2)
    assert [(one.offset, one.delivery_count) for one in again] == [(0, 2), (1, 1), (2, 1)]
    # Acks and a nack in one call: the consumer decided to ack later messages.
    both = ids(again, 1, 2)
    assert await subscription.acknowledge(both, nacks=[Nack(ids(again, 0)[0])]) == 2
    assert await offsets(subscription, "a") == [0]


async def test_several_nacks_in_one_call_count_each() -> None:
    log = Log(keyed("k", "k", "k"))
    subscription = made(log, "key_shared")
    first = await subscription.receive("a", messages_max=9)
    await subscription.acknowledge(nacks=[Nack(one) for one in ids(first, 0, 1)])
    again = await subscription.receive("a", messages_max=9)
    assert [(one.offset, one.delivery_count) for one in again] == [(0, 2), (1, 2), (2, 1)]


async def test_a_failover_subscription_has_one_at_a_time_and_the_next_stands_by() -> None:
    log = Log(keyed(*[None] * 6))
    subscription = made(log, "failover", ack_timeout_ms=200)
    assert await offsets(subscription, "b", messages_max=2) == [0, 1]
    assert await offsets(subscription, "c") == []
    assert "'b' is the active one; 'c' stands by" in (subscription.held_back("c") or "")
    # A consumer with an earlier name takes over, but not before leased messages are done.
    assert await offsets(subscription, "a") == []
    assert "takes over" in (subscription.held_back("a") or "")
    assert await offsets(subscription, "b") == []
    assert await subscription.acknowledge(up_to=1) == 2
    assert await offsets(subscription, "a", messages_max=1) == [2]
    stats = {one.name: one.active for one in subscription.stats().consumers}
    assert stats == {"a": True, "b": False, "c": False}
    # The active consumer vanishes: a waiting one gets its messages, and all later ones.
    assert await offsets(subscription, "c", wait_s=5) == [2, 3, 4, 5]


async def test_a_failover_consumer_that_stops_calling_is_replaced_in_time() -> None:
    log = Log(keyed(None))
    subscription = made(log, "failover")
    got = await subscription.receive("a", messages_max=9)
    await subscription.acknowledge(ids(got, 0))
    waiting = asyncio.ensure_future(offsets(subscription, "b", wait_s=5))
    await asyncio.sleep(0)
    log.records += keyed(None)
    subscription.wake()
    began = asyncio.get_running_loop().time()
    assert await waiting == [1]
    assert asyncio.get_running_loop().time() - began < 2


async def test_failover_by_priority_before_name_and_by_partition() -> None:
    log = Log(keyed(None, None))
    subscription = made(log, "failover")
    await offsets(subscription, "a", priority=1, messages_max=1)
    await subscription.acknowledge(up_to=0)
    assert await offsets(subscription, "z", priority=0) == [1]
    log = Log(keyed(None, None))
    log.name = PartitionName("public", "t", 1)
    second = made(log, "failover")
    await offsets(second, "a", messages_max=1)
    await second.acknowledge(up_to=0)
    assert await offsets(second, "b") == [1], "each partition takes the next one by name"


async def test_who_has_a_worse_priority_gets_what_is_left() -> None:
    log = Log([])
    subscription = made(log, "shared")
    low = asyncio.ensure_future(offsets(subscription, "low", wait_s=5, priority=2))
    await asyncio.sleep(0)
    high = asyncio.ensure_future(offsets(subscription, "high", wait_s=5, messages_max=1))
    await asyncio.sleep(0.01)
    log.records += keyed(None, None, None)
    subscription.wake()
    assert await high == [0]
    assert await low == [1, 2]


async def test_limits_pause_and_say_so() -> None:
    log = Log(keyed(*[None] * 20))
    subscription = made(log, "shared", max_unacked=5, max_unacked_per_consumer=3)
    first = await subscription.receive("a", messages_max=9)
    assert len(first) == 3
    assert await offsets(subscription, "a") == []
    assert "consumer has at most 3" in (subscription.held_back("a") or "")
    assert len(await offsets(subscription, "b")) == 2
    assert await offsets(subscription, "c") == []
    assert "at most 5 out" in (subscription.held_back("c") or "")
    await subscription.acknowledge([one.ack_id for one in first])
    assert len(await offsets(subscription, "a")) == 3


@pytest.mark.parametrize("type_", ["exclusive", "shared", "failover", "key_shared"])
async def test_what_a_filter_refuses_is_acked_and_written(type_: str) -> None:
    records = [
        Record(f"eu-{n}".encode() if n % 2 else b"us", b"v", (("kind", b"order"),))
        if n % 3
        else Record(b"eu-0", b"v", (("kind", b"other"),))
        for n in range(3_000)
    ]
    log = Log(records)
    settings = {"filter_headers": (("kind", ("order", "refund")),), "filter_key_prefix": "eu-"}
    subscription = made(log, type_, **settings)
    wanted = [n for n in range(3_000) if n % 2 and n % 3]
    got: list[int] = []
    while more := await subscription.receive("a", messages_max=700):
        got += [one.offset for one in more]
        await subscription.acknowledge([one.ack_id for one in more])
    assert got == wanted
    assert subscription.stats().backlog == 0
    acked = Cursor(0)
    for op in log.written:
        for start, end in op_ranges(op):
            acked.ack(start, end)
    assert acked.committed_offset == 3_000, "all of it was written"
    assert len(log.written) < 200, "in chunks"


def op_ranges(op: Op) -> list[tuple[int, int]]:
    return unpack_ranges(list(op[-1]))


async def test_a_filter_that_takes_little_does_not_keep_a_call_for_long() -> None:
    log = Log(keyed(*["no"] * 500))
    subscription = made(log, "shared", filter_key_prefix="yes")
    assert await offsets(subscription, "a") == []
    assert subscription.stats().committed_offset == 500
    log.records += keyed("yes", None)
    assert await offsets(subscription, "a") == [500]


async def test_a_seek_is_filtered_anew() -> None:
    log = Log(keyed("no", "yes", "no", "yes"))
    subscription = made(log, "exclusive", filter_key_prefix="yes")
    assert await offsets(subscription, "a") == [1, 3]
    await subscription.seek(0)
    assert await offsets(subscription, "a") == [1, 3]


async def test_cumulative_acks_are_for_one_consumer_at_a_time() -> None:
    log = Log(keyed(None))
    for type_ in ("shared", "key_shared"):
        with raises_code(CUMULATIVE_ACK_NOT_ALLOWED, match=type_):
            await made(log, type_).acknowledge(up_to=0)


async def test_nothing_is_written_of_a_subscription_that_is_not_durable() -> None:
    log = Log(keyed(*[None] * 4))
    infos = {"s": SubscriptionInfo("s", SubscriptionSettings(type="shared", durable=False), 1)}

    async def lookup(name: str) -> SubscriptionInfo:
        if name not in infos:
            raise SubscriptionNotFound(name)
        return infos[name]

    def owner() -> SubscriptionSet:
        return SubscriptionSet(log, BrokerConfig(), lookup, log.persist)

    first = owner()
    subscription = await first.get("s")
    got = await subscription.receive("a", messages_max=2)
    assert await subscription.acknowledge([one.ack_id for one in got]) == 2
    await subscription.seek(1)
    assert (log.written, first.cursors(), first.oldest_unacked()) == ([], [], None)
    await first.follow(["s"])
    assert await offsets(await first.get("s"), "a") == [1, 2, 3]
    await first.follow([])
    second = owner()
    assert await offsets(await second.get("s"), "a") == [0, 1, 2, 3], "it begins anew"
    infos["s"] = infos["s"]._replace(
        settings=SubscriptionSettings(type="shared", start="latest"), created_ms=2
    )
    await second.get("s")
    assert [name for name, _, _ in second.cursors()] == ["s"]
    assert len(log.written) == 1
