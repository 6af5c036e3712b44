"""Retry topics: which messages go there, when they are due, and that acks follow copies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import InvalidSettings, PartitionUnavailable
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.dead_letter_delivery import DeadLetterDelivery, LargeSource
from octavo.broker.subscriptions.dead_letters import (
    SpentMessages,
    dead_letter_of,
    retry_of,
    retrying,
    with_dead_letters,
)
from octavo.broker.subscriptions.dispatch import Dispatcher
from octavo.broker.subscriptions.filters import Filter
from octavo.broker.types import (
    Delivery,
    MessageId,
    RetryBackoff,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicName,
)
from octavo.protocol.due import due_of
from octavo.protocol.records import Record

TOPIC = TopicName("shop", "orders")
NAME = TOPIC.partition(2)
RETRIED = with_dead_letters(TOPIC, "s", SubscriptionSettings(max_deliveries=5, retry_deliveries=2))
INFO = SubscriptionInfo("s", RETRIED, 17)


def test_names_that_were_left_away_are_of_topic_and_subscription() -> None:
    assert (RETRIED.retry_topic, RETRIED.retry_subscription) == ("shop/orders-s-retry", "s")
    assert RETRIED.dead_letter_topic == "shop/orders-s-dlq"
    assert with_dead_letters(TOPIC, "s", RETRIED) == RETRIED, "given again it is the same"
    named = with_dead_letters(TOPIC, "s", SubscriptionSettings(retry_topic="again"))
    assert (named.retry_topic, named.retry_deliveries) == ("shop/again", 1)


def test_the_retry_topic_has_the_other_deliveries_and_the_same_dead_letters() -> None:
    there = retrying("s", RETRIED)
    assert (there.type, there.max_deliveries) == ("shared", 3)
    assert there.dead_letter_topic == "shop/orders-s-dlq"
    assert there.filter_headers == (("Octavo-Retry-Subscription", ("s",)),)
    endless = with_dead_letters(TOPIC, "s", SubscriptionSettings(retry_deliveries=2))
    assert retrying("s", endless).max_deliveries is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"retry_subscription": "r"}, "without a retry topic"),
        ({"retry_topic": "orders"}, "own topic"),
        ({"retry_topic": "a", "max_deliveries": 2, "dead_letter_topic": "a"}, "circulate for ever"),
        ({"retry_deliveries": 2, "max_deliveries": 2}, "must be higher"),
        ({"retry_topic": "a", "max_deliveries": 1}, "must be higher"),
        ({"retry_deliveries": 0}, "between 1 and 1000"),
        ({"retry_deliveries": 1001}, "between 1 and 1000"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        with_dead_letters(TOPIC, "s", SubscriptionSettings(**given))  # type: ignore[arg-type]


def test_a_copy_says_where_it_comes_from_and_when_it_is_due() -> None:
    record = Record(b"k", b"v", [("a", b"1")], timestamp_ms=5)
    delivery = Delivery("", 41, MessageId(7, 8, 9), record, 3)
    copy = retry_of(NAME, "s", delivery, 9_000)
    assert (copy.key, copy.value, copy.headers[0]) == (b"k", b"v", ("a", b"1"))
    said = dict(copy.headers)
    assert said["Octavo-Retry-Topic"] == b"shop/orders"
    assert (said["Octavo-Retry-Offset"], said["Octavo-Retry-Deliveries"]) == (b"41", b"3")
    assert due_of(copy.headers) == 9_000
    assert due_of(retry_of(NAME, "s", delivery, None).headers) is None
    again = delivery._replace(record=copy)
    dead = dead_letter_of(TOPIC.partition(0), "s", again, retried=True).headers
    assert dict(dead)["Octavo-Retry-Offset"] == b"41", "where it was first is not forgotten"
    assert due_of(dead) is None, "it is nobody's retry any more"


def test_of_subscriptions_that_share_a_retry_topic_one_has_a_copy() -> None:
    """A dead letter of a subscription, published again with its headers, went to both."""
    earlier = [("Octavo-Retry-Subscription", b"u"), ("octavo-deliver-at", b"99")]
    record = Record(b"k", b"v", earlier, timestamp_ms=5)
    copy = retry_of(NAME, "s", Delivery("", 41, MessageId(7, 8, 9), record, 3), 9_000)
    filters = {name: Filter(retrying(name, RETRIED)) for name in ("s", "u")}
    assert [name for name, one in filters.items() if one.passes(b"k", copy.headers)] == ["s"]
    assert [name for name, _ in copy.headers].count("octavo-deliver-at") == 1
    stored = [*earlier, ("Octavo-Retry-Subscription", b"s")]  # by an older broker
    assert [name for name, one in filters.items() if one.passes(b"k", stored)] == ["s"]


def dispatcher(spent: SpentMessages, backoff: RetryBackoff | None = None) -> Dispatcher:
    one = Dispatcher(
        Cursor(), exclusive=False, ack_timeout_ms=100, leased_max=100, delayed_max=1,
        spent=spent, retry_backoff=backoff,
    )  # fmt: skip
    one.delays.ahead_ms = 1_000_000
    one.enter("c", 0)
    return one


def test_it_is_due_when_it_would_have_been_delivered_again() -> None:
    spent = SpentMessages(1, 100)
    one = dispatcher(spent, RetryBackoff(40, 400))
    assert one.dispatch("c", 0, 10, 4) is not None
    assert one.nack(0, 10, 7_000)
    assert one.nack(1, 10, None)
    assert one.nack(2, 10, 0)
    one.expire(100)
    assert [spent.due_ms(offset) for offset in range(4)] == [
        1_007_010, 1_000_050, None, 1_000_140,
    ]  # fmt: skip
    assert one.delayed == 0, "no place of those that wait here is taken"
    assert spent.send(10) == [0, 1, 2, 3]
    assert spent.sent([0]) == [0]
    spent.acked([1])
    assert (spent.due_ms(0), spent.due_ms(1)) == (None, None)
    spent.clear()
    assert spent.due_ms(3) is None


def test_before_its_last_delivery_here_it_waits_here() -> None:
    spent = SpentMessages(2, 100)
    one = dispatcher(spent)
    assert one.dispatch("c", 0, 1, 1) is not None
    assert one.nack(0, 0, 50)
    assert (one.delayed, len(spent)) == (1, 0)
    one.expire(50)
    assert one.dispatch("c", 50, 1, 1) is not None
    assert one.nack(0, 50, 50)
    assert (one.delayed, len(spent)) == (0, 1)


class Office:
    """Takes copies when it is `open`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self.broken = False
        self.stored: list[tuple[TopicName, Record]] = []

    def turn(self, topic: TopicName) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def send(
        self,
        origin: TopicName,
        topic: TopicName,
        number: int,
        record: Record,
        producer_id: int,
        info: SubscriptionInfo,
        body: LargeSource | None = None,
    ) -> None:
        self.asked.set()
        await self.open.wait()
        if self.broken:
            raise PartitionUnavailable("too few bookies")
        self.stored.append((topic, record))


class Desk:
    """A subscription with one spent message."""

    def __init__(self, office: Office) -> None:
        self.spent = SpentMessages(2, 100)
        self.spent.take(3, 2, 5_000)
        self.acked: list[int] = []
        config = BrokerConfig(dead_letter_retry_ms=1, dead_letter_retry_ms_max=2)
        self.burying = DeadLetterDelivery(
            NAME, lambda: 1, INFO, config, self.spent, office, self.read, self.ack, self.body
        )

    async def read(self, offsets: Sequence[int]) -> list[Delivery]:
        return [Delivery("", one, MessageId(0, one, 0), Record(None, b"v"), 2) for one in offsets]

    async def body(self, offset: int) -> None:
        return None

    async def ack(self, offsets: Sequence[int]) -> None:
        self.acked += offsets


async def until_told(desk: Desk) -> None:
    async with asyncio.timeout(10):
        while desk.burying.stats().problem is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def until_acked(desk: Desk) -> None:
    async with asyncio.timeout(10):
        while not desk.acked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_the_ack_follows_the_copy() -> None:
    office = Office()
    desk = Desk(office)
    desk.burying.look()
    async with asyncio.timeout(10):
        await office.asked.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (desk.acked, len(desk.spent)) == ([], 1), "the copy is not durable yet"
    office.open.set()
    await until_acked(desk)
    ((topic, record),) = office.stored
    assert topic == TopicName("shop", "orders-s-retry")
    assert due_of(record.headers) == 5_000
    desk.burying.close()


async def test_a_copy_that_is_refused_acks_nothing_and_is_sent_again() -> None:
    office = Office()
    office.broken = True
    office.open.set()
    desk = Desk(office)
    desk.burying.look()
    await until_told(desk)
    assert desk.acked == []
    office.broken = False
    await until_acked(desk)
    ((_, record),) = office.stored
    assert due_of(record.headers) == 5_000, "it is due when it was"
    desk.burying.close()
