"""Dead letters: which messages are spent, the content of copies, and that they are sent and
acked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from octavo.broker.cluster import dead_letters
from octavo.broker.cluster.dead_letters import SENDERS_MAX, SLOW_S, Turns
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import InvalidSettings, PartitionUnavailable, TopicNotFound
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.dead_letter_delivery import DeadLetterDelivery, LargeSource
from octavo.broker.subscriptions.dead_letters import (
    ORIGIN,
    RETRY_FOR,
    SpentMessages,
    as_large,
    beside,
    dead_letter_of,
    fitting_batch,
    producer_of,
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
from octavo.protocol.batch import ATTRIBUTE_COMPRESSION, check_batch
from octavo.protocol.due import DELIVER_AT, due_of
from octavo.protocol.large import large_body_of
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.names import NAME_CHARS_MAX
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.kit.examples import examples

TOPIC = TopicName("shop", "orders")
NAME = TOPIC.partition(2)
DEADLY = with_dead_letters(TOPIC, "s", SubscriptionSettings(max_deliveries=3))
INFO = SubscriptionInfo("s", DEADLY, 17)


def test_names_that_were_left_away_are_of_topic_and_subscription() -> None:
    assert DEADLY.dead_letter_topic == "shop/orders-s-dlq", "in the topic's namespace"
    assert DEADLY.dead_letter_subscription == "s"
    assert with_dead_letters(TOPIC, "s", DEADLY) == DEADLY, "given again it is the same"
    plain = SubscriptionSettings()
    assert with_dead_letters(TOPIC, "s", plain) is plain


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dead_letter_topic": "d"}, "without max_deliveries"),
        ({"max_deliveries": 2, "dead_letter_topic": "orders"}, "own topic"),
        ({"max_deliveries": 2, "dead_letter_topic": "shop/orders"}, "own topic"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        with_dead_letters(TOPIC, "s", SubscriptionSettings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [0, 1001])
def test_max_deliveries_has_bounds(most: int) -> None:
    with pytest.raises(InvalidSettings, match="between 1 and 1000"):
        SubscriptionSettings(max_deliveries=most)


def test_a_copy_says_where_it_comes_from() -> None:
    record = Record(b"k", b"v", [("a", b"1")], timestamp_ms=5)
    copy = dead_letter_of(NAME, "s", Delivery("", 41, MessageId(7, 8, 9), record, 3))
    assert (copy.key, copy.value, copy.headers[0]) == (b"k", b"v", ("a", b"1"))
    assert dict(copy.headers[1:]) == {
        "Octavo-Origin-Topic": b"shop/orders",
        "Octavo-Origin-Partition": b"2",
        "Octavo-Origin-Offset": b"41",
        "Octavo-Origin-Id": b"7:8:9",
        "Octavo-Origin-Timestamp": b"5",
        "Octavo-Origin-Deliveries": b"3",
        "Octavo-Origin-Subscription": b"s",
    }


def test_a_copy_inherits_no_header_that_brokers_act_on() -> None:
    """A dead letter of a delayed message was itself delayed."""
    left = [("octavo-deliver-at", b"99"), ("a", b"1"), ("octavo-large", b'{"size": 3}')]
    record = Record(b"k", b"v", left, timestamp_ms=5)
    copy = dead_letter_of(NAME, "s", Delivery("", 41, MessageId(7, 8, 9), record, 3))
    assert [name for name, _ in copy.headers if not name.startswith(ORIGIN)] == ["a"]
    large = record._replace(value=b"")
    copy = dead_letter_of(NAME, "s", Delivery("", 41, MessageId(7, 8, 9), large, 3))
    assert [name for name, _ in copy.headers if not name.startswith(ORIGIN)] == [
        "a", "octavo-large"
    ], "the body is copied with what says how long it is"  # fmt: skip


@pytest.mark.parametrize("retried", [False, True])
def test_a_dead_letter_that_was_published_again_is_a_new_message(retried: bool) -> None:
    """It kept its first origin, and gave both to its readers."""
    earlier = [("Octavo-Retry-Topic", b"shop/orders"), ("Octavo-Origin-Topic", b"elsewhere/t")]
    record = Record(b"k", b"v", [*earlier, ("a", b"1")], timestamp_ms=5)
    delivery = Delivery("", 41, MessageId(7, 8, 9), record, 3)
    copy = dead_letter_of(NAME, "s", delivery, retried=retried)
    topics = [value for name, value in copy.headers if name == "Octavo-Origin-Topic"]
    assert topics == [b"shop/orders"]
    kept = [value for name, value in copy.headers if name == "Octavo-Retry-Topic"]
    assert kept == ([b"shop/orders"] if retried else []), "of this life, where it was retried"


def test_each_message_of_each_subscription_has_a_producer_of_its_own() -> None:
    ids = {
        producer_of(topic, name, INFO._replace(name=sub, created_ms=made), offset)
        for topic in (1, 2)
        for name in (NAME, TOPIC.partition(3))
        for sub in ("s", "t")
        for made in (17, 18)
        for offset in (0, 1)
    }
    assert len(ids) == 32
    assert all(-(2**63) <= one < -1 for one in ids), "such as no client may publish with"


def dispatcher(spent: SpentMessages, attempts: dict[int, int] | None = None) -> Dispatcher:
    return Dispatcher(
        Cursor(), exclusive=False, ack_timeout_ms=100, leased_max=100, delayed_max=100,
        attempts=attempts, spent=spent,
    )  # fmt: skip


def take(one: Dispatcher, now: int, most: int = 10) -> list[int]:
    one.enter("c", now)
    found = one.dispatch("c", now, 10, most)
    return [] if found is None else found.offsets


def test_a_poison_message_stands_in_nobodys_way() -> None:
    spent = SpentMessages(2, 100)
    one = dispatcher(spent)
    assert take(one, 0, 3) == [0, 1, 2]
    one.nack(1, 0, 0)
    assert take(one, 0, 1) == [1]
    one.nack(1, 0, 0)
    assert len(spent) == 1
    assert take(one, 0, 2) == [3, 4]
    assert one.cursor.committed_offset == 0
    assert one.deliveries_of(1) == 2
    assert take(one, 100) == [0, 2, 3, 4, 5, 6, 7, 8, 9], "leases that end count as well"
    one.expire(200)
    assert spent.send(10) == [0, 1, 2, 3, 4]


def test_a_successor_does_not_deliver_what_is_spent() -> None:
    spent = SpentMessages(2, 100)
    one = dispatcher(spent, dict.fromkeys(range(5), 2))
    assert take(one, 0, 2) == [5], "though the first five were all that fitted"
    assert spent.send(100) == [0, 1, 2, 3, 4]


def test_what_is_passed_over_leaves_nothing_behind() -> None:
    spent = SpentMessages(1, 100)
    one = dispatcher(spent)
    assert take(one, 0, 3) == [0, 1, 2]
    one.nack(0, 0, 0)
    assert len(spent) == 1
    one.cursor.ack(0, 5)
    one.acked_up_to(4)
    assert (len(spent), one.leased, one.deliveries_of(0)) == (0, 0, 0)


def test_what_finds_no_room_goes_on_being_delivered() -> None:
    one = dispatcher(SpentMessages(1, 2))
    assert take(one, 0, 3) == [0, 1, 2]
    assert take(one, 100, 1) == [2], "two wait"


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_message_is_spent_at_the_last_delivery_and_not_before(most: int) -> None:
    spent = SpentMessages(most, 8)
    assert [spent.take(0, times) for times in (most - 1, most)] == [False, True]
    assert spent.take(1, most + 1), "a setting that was lowered meanwhile"
    assert not SpentMessages(None, 8).take(0, 10**6)


def test_as_many_wait_and_are_remembered_as_may() -> None:
    spent = SpentMessages(1, 3)
    assert [spent.take(offset, 1) for offset in range(4)] == [True, True, True, False]
    assert spent.take(2, 1), "it waits already"
    assert spent.send(2) == [0, 1]
    assert not spent.take(4, 1), "those under way count"
    assert spent.sent([0, 1]) == [0, 1]
    assert [spent.take(offset, 1) for offset in (4, 5, 6)] == [True, True, False]
    spent.send(3)
    spent.sent([2])
    assert [spent.was_sent(offset) for offset in (0, 1, 2)] == [True] * 3
    spent.sent([4])
    assert [spent.was_sent(offset) for offset in (0, 1, 2, 4)] == [False, True, True, True]


class Spending(RuleBasedStateMachine):
    """Every spent message is waiting, in progress, or done; none is acked after a seek away from
    it."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = SpentMessages(1, 8)
        self.known: set[int] = set()
        self.under_way: set[int] = set()

    @rule(offset=st.integers(0, 12))
    def give_up(self, offset: int) -> None:
        if self.spent.take(offset, 1):
            self.known.add(offset)
        else:
            assert len(self.known) == 8

    @rule(most=st.integers(1, 4))
    def send(self, most: int) -> None:
        found = self.spent.send(most)
        assert found == sorted(found)
        assert not self.under_way & set(found), "nobody sends it twice at once"
        self.under_way |= set(found)

    @rule(data=st.data())
    def stored(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.integers(0, 12)))
        done = self.spent.sent(sorted(some))
        assert set(done) == some & self.under_way
        self.known -= set(done)
        self.under_way -= set(done)

    @rule()
    def failed(self) -> None:
        self.spent.not_sent(sorted(self.under_way))
        self.under_way = set()

    @rule(upto=st.integers(0, 12))
    def acked(self, upto: int) -> None:
        self.spent.acked_up_to(upto)
        self.known = {one for one in self.known if one > upto}
        self.under_way &= self.known

    @rule()
    def sought(self) -> None:
        self.spent.clear()
        self.known, self.under_way = set(), set()

    @invariant()
    def none_is_lost(self) -> None:
        assert len(self.spent) == len(self.known)


Spending.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestSpending = Spending.TestCase


class Office:
    """Takes letters, unless it is `broken`."""

    def __init__(self) -> None:
        self.broken: dict[int, Exception] = {}
        self.letters: list[tuple[TopicName, int, bytes]] = []
        self.producers: list[int] = []

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
        offset = int(dict(record.headers)["Octavo-Origin-Offset"] or b"")
        if error := self.broken.get(offset):
            raise error
        self.producers.append(producer_id)
        self.letters.append((topic, number, record.value or b""))


class Desk:
    """A subscription with spent messages 0 to 4."""

    def __init__(self, office: Office) -> None:
        self.spent = SpentMessages(1, 100)
        self.acked: list[int] = []
        self.read_at_once = 100
        self.wanted, self.enough = 5, asyncio.Event()
        for offset in range(5):
            self.spent.take(offset, 1)
        config = BrokerConfig(dead_letter_retry_ms=1, dead_letter_retry_ms_max=2)
        self.burying = DeadLetterDelivery(
            NAME, lambda: 1, INFO, config, self.spent, office, self.read, self.ack, self.body
        )

    async def read(self, offsets: Sequence[int]) -> list[Delivery]:
        return [
            Delivery("", one, MessageId(0, one, 0), Record(None, b"%d" % one), 3)
            for one in offsets[: self.read_at_once]
        ]

    async def body(self, offset: int) -> None:
        return None

    async def ack(self, offsets: Sequence[int]) -> None:
        self.acked += offsets
        if len(self.acked) >= self.wanted:
            self.enough.set()

    async def through(self, count: int) -> None:
        self.wanted = count
        if len(self.acked) < count:
            self.enough.clear()
            async with asyncio.timeout(5):
                await self.enough.wait()


async def test_copies_come_first_then_acks() -> None:
    office = Office()
    desk = Desk(office)
    desk.read_at_once = 2  # memory has room for two
    desk.burying.look()
    await desk.through(5)
    assert sorted(desk.acked) == [0, 1, 2, 3, 4]
    assert {one[:2] for one in office.letters} == {(TopicName("shop", "orders-s-dlq"), 2)}
    assert sorted(value for _, _, value in office.letters) == [b"0", b"1", b"2", b"3", b"4"]
    assert desk.burying.stats() == (0, 5, None)


async def test_while_copies_cannot_be_stored_messages_stay_and_it_is_told() -> None:
    office = Office()
    office.broken[3] = TopicNotFound("there is no topic shop/orders-s-dlq")
    desk = Desk(office)
    desk.burying.look()
    await desk.through(4)
    assert sorted(desk.acked) == [0, 1, 2, 4], "it does not keep the others"
    waiting, sent, problem = desk.burying.stats()
    assert (waiting, sent) == (1, 4)
    assert problem is not None
    assert "there is no topic" in problem
    office.broken.clear()
    await desk.through(5)
    await asyncio.sleep(0)
    assert desk.burying.stats() == (0, 5, None)


async def test_what_is_sent_again_is_of_the_same_producer() -> None:
    one, two = Office(), Office()
    for office in (one, two):
        desk = Desk(office)
        desk.burying.look()
        await desk.through(5)
    assert one.producers == two.producers
    assert len(set(one.producers)) == 5


async def test_closed_it_sends_nothing_more() -> None:
    office = Office()
    office.broken = {offset: TopicNotFound("no") for offset in range(5)}
    desk = Desk(office)
    desk.burying.look()
    await asyncio.sleep(0.01)
    desk.burying.close()
    await asyncio.sleep(0.01)
    office.broken.clear()
    await asyncio.sleep(0.02)
    assert office.letters == []
    assert len(desk.spent) == 5


def test_what_cannot_be_stored_is_tried_after_the_others() -> None:
    """Dead letters were stored no more once 32 of them could not be. The same 32, too long for the
    dead-letter topic, were tried again and again, and later ones never: they stayed unacked. Found
    by reading; seen with curl."""
    spent = SpentMessages(1, 100)
    for offset in range(40):
        assert spent.take(offset, 1)
    first = spent.send(32)
    assert first == [*range(32)]
    spent.not_sent(first)
    second = spent.send(32)
    assert second == [*range(24), *range(32, 40)]
    assert spent.sent(second[24:]) == [*range(32, 40)]
    spent.not_sent(second)
    assert spent.send(32) == [*range(32)]


LETTER_NAME = TopicName("public", "t").partition(3)
PRODUCER = -77
NOISE = random.Random(5).randbytes(ENTRY_PAYLOAD_BYTES_MAX)


def filling(spare: int) -> Record:
    """Make a message whose batch leaves this many bytes of an entry."""
    around = len(build_batch([Record(b"k", NOISE[: 1 << 22], (), 0)])) - (1 << 22)
    size = ENTRY_PAYLOAD_BYTES_MAX - spare - around
    return Record(b"k", NOISE[:size], (), 0)


def letter(record: Record, *, retry: bool = False) -> Record:
    delivery = Delivery("a", 17, MessageId(1, 2, 3), record, 5)
    if retry:
        return retry_of(LETTER_NAME, "s", delivery, 9_000_000)
    return dead_letter_of(LETTER_NAME, "s", delivery)


def only(batch: bytes) -> Record:
    check_batch(batch)
    (record,) = read_records(batch)
    return record


@pytest.mark.parametrize("retry", [False, True])
def test_a_short_one_stays_as_it_is(*, retry: bool) -> None:
    copy = letter(Record(b"k", b"v", [("own", b"1")], 0), retry=retry)
    batch = fitting_batch(copy, PRODUCER)
    assert batch is not None
    assert not check_batch(batch).attributes & ATTRIBUTE_COMPRESSION
    assert list(only(batch).headers) == list(copy.headers)


def test_what_is_too_long_goes_with_fewer_headers() -> None:
    """Each number of spare bytes, and each dropped header, is a separate step."""
    kept = set()
    for spare in (200, 150, 100, 60):
        record = filling(spare)
        batch = fitting_batch(letter(record), PRODUCER)
        assert batch is not None, spare
        assert ENTRY_PAYLOAD_BYTES_MAX - 200 < len(batch) <= ENTRY_PAYLOAD_BYTES_MAX
        found = only(batch)
        assert found.value == record.value
        kept.add(len(list(found.headers)))
        names = [name for name, _ in found.headers]
        assert ORIGIN + "Offset" in names, "it says where it comes from as long as it can"
    assert len(kept) > 1


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_copy_that_just_fits_keeps_every_header(more: int) -> None:
    """A byte beyond an entry costs a header, the last byte of the entry does not."""
    around = len(build_batch(letter(Record(b"k", NOISE[: 1 << 22], (), 0)) for _ in range(1)))
    size = ENTRY_PAYLOAD_BYTES_MAX - (around - (1 << 22)) + more
    copy = letter(Record(b"k", NOISE[:size], (), 0))
    batch = fitting_batch(copy, PRODUCER)
    assert batch is not None
    if more <= 0:
        assert len(batch) == ENTRY_PAYLOAD_BYTES_MAX + more
    kept = len(list(only(batch).headers))
    assert (kept == len(list(copy.headers))) is (more <= 0)
    assert only(batch).value == copy.value


def test_a_retry_keeps_the_name_of_its_subscription_and_its_time() -> None:
    batch = fitting_batch(letter(filling(62), retry=True), PRODUCER)
    assert batch is not None
    assert {name for name, _ in only(batch).headers} == {RETRY_FOR, DELIVER_AT}


@pytest.mark.parametrize("retry", [False, True])
def test_the_longest_one_goes_in_pieces(*, retry: bool) -> None:
    """It was refused for ever, and its original was never acked."""
    copy = letter(filling(0), retry=retry)
    if not retry:
        assert fitting_batch(copy, PRODUCER) is not None, "without a header it is as before"
        return
    assert fitting_batch(copy, PRODUCER) is None
    found = as_large(copy, "letter:1")
    assert found is not None
    large, body = found
    assert (large.value, body) == (b"", copy.value)
    assert list(large.headers)[:-1] == list(copy.headers)
    said = large_body_of(large.headers)
    assert said is not None
    assert (said.size, said.upload) == (len(body), "letter:1")


def test_one_without_a_value_has_no_pieces() -> None:
    key = Record(NOISE[: ENTRY_PAYLOAD_BYTES_MAX - 200], None, (), 0)
    assert as_large(letter(key, retry=True), "letter:1") is None


def test_the_topic_beside_has_a_name_that_may_be() -> None:
    assert beside("failed", retries=False) == "failed-dlq"
    assert beside("again", retries=True) == "again-retry"
    longest = [beside(letter * NAME_CHARS_MAX, retries=False) for letter in "ab"]
    assert [len(name) for name in longest] == [NAME_CHARS_MAX] * 2
    assert longest[0] != beside("a" * (NAME_CHARS_MAX - 1) + "b", retries=False)


class TurnsDesk:
    """Senders that keep their turns until they are released."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = Turns(SENDERS_MAX, lambda: self.now_s)
        self.holding: list[TopicName] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _hold(self, topic: TopicName) -> None:
        async with self.turns.turn(topic):
            self.holding.append(topic)
            await asyncio.Event().wait()

    async def begin(self, *topics: TopicName) -> None:
        self.tasks += [asyncio.create_task(self._hold(topic)) for topic in topics]
        for _ in range(5):
            await asyncio.sleep(0)

    async def send(self, topic: TopicName, takes_s: float = 0.0, *, fails: bool = False) -> None:
        with suppress(ConnectionError):
            async with self.turns.turn(topic):
                self.now_s += takes_s
                if fails:
                    raise ConnectionError

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert not self.turns._shares, "what was taken is given back"


def topics(namespace: str, count: int) -> list[TopicName]:
    return [TopicName(namespace, f"t{number}") for number in range(count)]


async def test_one_topic_and_one_namespace_have_a_share() -> None:
    desk = TurnsDesk()
    (full,) = topics("a", 1)
    await desk.begin(*[full] * 50)
    assert desk.holding == [full] * (SENDERS_MAX // 8)
    await desk.begin(*topics("a", 50))
    assert len(desk.holding) == SENDERS_MAX // 4
    await asyncio.wait_for(desk.send(TopicName("b", "t")), 5)
    await desk.end()


async def test_topics_that_take_nothing_hold_up_no_other() -> None:
    """Sixteen letters to full topics of a tenant waited, and all other letters behind them."""
    desk = TurnsDesk()
    slow = [one for number in range(40) for one in topics(f"n{number}", 2)]
    for topic in slow:
        await desk.send(topic, SLOW_S, fails=True)
    await desk.begin(*slow)
    assert len(desk.holding) == SENDERS_MAX // 4, "they share a few turns of their own"
    assert len({topic.namespace for topic in desk.holding}) == len(desk.holding)
    await asyncio.wait_for(desk.send(TopicName("b", "t")), 5)
    await desk.end()


async def test_a_topic_that_took_one_is_as_any_other() -> None:
    desk = TurnsDesk()
    (topic,) = topics("a", 1)
    await desk.send(topic, SLOW_S, fails=True)
    await desk.send(topic)
    await desk.begin(*[topic] * 3)
    assert len(desk.holding) == SENDERS_MAX // 8
    await desk.end()
    await desk.send(topic, SLOW_S / 2, fails=True)
    assert not desk.turns._doubtful, "it was refused at once: that held up nobody"


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "DOUBTFUL_MAX", 3)
    desk = TurnsDesk()
    for topic in topics("a", 5):
        await desk.send(topic, SLOW_S, fails=True)
    assert list(desk.turns._doubtful) == topics("a", 5)[2:]


@pytest.mark.parametrize("first", ["doubtful", "sound"])
async def test_topics_in_doubt_and_others_of_one_namespace_take_no_turns_of_each_other(
    first: str,
) -> None:
    """Good topics have a quarter of all turns, doubtful topics a single turn."""
    desk = TurnsDesk()
    doubtful, sound = topics("a", 2), [TopicName("a", f"s{number}") for number in range(50)]
    for topic in doubtful:
        await desk.send(topic, SLOW_S, fails=True)
    for part in (doubtful, sound) if first == "doubtful" else (sound, doubtful):
        await desk.begin(*part)
    assert sum(one in doubtful for one in desk.holding) == 1
    assert sum(one in sound for one in desk.holding) == SENDERS_MAX // 4
    await desk.end()


RETRIED = with_dead_letters(TOPIC, "s", SubscriptionSettings(max_deliveries=5, retry_deliveries=2))
RETRY_INFO = SubscriptionInfo("s", RETRIED, 17)


def test_retry_names_that_were_left_away_are_of_topic_and_subscription() -> None:
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
def test_retries_that_make_no_sense_are_refused(given: dict[str, object], why: str) -> None:
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


def retry_dispatcher(spent: SpentMessages, backoff: RetryBackoff | None = None) -> Dispatcher:
    one = Dispatcher(
        Cursor(), exclusive=False, ack_timeout_ms=100, leased_max=100, delayed_max=1,
        spent=spent, retry_backoff=backoff,
    )  # fmt: skip
    one.delays.ahead_ms = 1_000_000
    one.enter("c", 0)
    return one


def test_it_is_due_when_it_would_have_been_delivered_again() -> None:
    spent = SpentMessages(1, 100)
    one = retry_dispatcher(spent, RetryBackoff(40, 400))
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
    one = retry_dispatcher(spent)
    assert one.dispatch("c", 0, 1, 1) is not None
    assert one.nack(0, 0, 50)
    assert (one.delayed, len(spent)) == (1, 0)
    one.expire(50)
    assert one.dispatch("c", 50, 1, 1) is not None
    assert one.nack(0, 50, 50)
    assert (one.delayed, len(spent)) == (0, 1)


class RetryOffice:
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


class RetryDesk:
    """A subscription with one spent message."""

    def __init__(self, office: RetryOffice) -> None:
        self.spent = SpentMessages(2, 100)
        self.spent.take(3, 2, 5_000)
        self.acked: list[int] = []
        config = BrokerConfig(dead_letter_retry_ms=1, dead_letter_retry_ms_max=2)
        self.burying = DeadLetterDelivery(
            NAME,
            lambda: 1,
            RETRY_INFO,
            config,
            self.spent,
            office,
            self.read,
            self.ack,
            self.body,
        )

    async def read(self, offsets: Sequence[int]) -> list[Delivery]:
        return [Delivery("", one, MessageId(0, one, 0), Record(None, b"v"), 2) for one in offsets]

    async def body(self, offset: int) -> None:
        return None

    async def ack(self, offsets: Sequence[int]) -> None:
        self.acked += offsets


async def until_told(desk: RetryDesk) -> None:
    async with asyncio.timeout(10):
        while desk.burying.stats().problem is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def until_acked(desk: RetryDesk) -> None:
    async with asyncio.timeout(10):
        while not desk.acked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_the_ack_follows_the_copy() -> None:
    office = RetryOffice()
    desk = RetryDesk(office)
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
    office = RetryOffice()
    office.broken = True
    office.open.set()
    desk = RetryDesk(office)
    desk.burying.look()
    await until_told(desk)
    assert desk.acked == []
    office.broken = False
    await until_acked(desk)
    ((_, record),) = office.stored
    assert due_of(record.headers) == 5_000, "it is due when it was"
    desk.burying.close()
