"""The producer against a broker that loses requests, answers and itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple

import pytest

from octavo.client import doubt, partition_queue, transport
from octavo.client.client import AsyncClient
from octavo.client.errors import (
    ApiError,
    ClientError,
    InvalidCall,
    NotFound,
    OutcomeUnknown,
    ProducerFailed,
    Unreachable,
)
from octavo.client.partition_queue import EPOCH_MAX
from octavo.client.producer import Producer, Receipt, producer_id_of
from octavo.client.sync import Client
from octavo.client.types import Position
from octavo.client.wire import Body, Reply, Streamed
from octavo.protocol.batch import check_batch
from octavo.protocol.records import Record, partition_for, read_records
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.fake_service import FakeBroker, SharedLog
from tests.support.kit.quiescence import in_use


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PAUSE_S", 0.001)
    monkeypatch.setattr(transport, "PAUSE_S_MAX", 0.01)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=3)
    await one.start()
    yield one
    await one.stop()


def values(broker: FakeBroker, partition: int) -> list[bytes]:
    return [record.value for record in broker.log.partitions[partition]]


async def test_a_producer_is_entered_or_awaited(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        async with client.producer("t", linger_ms=60_000) as producer:
            receipt = await producer.send("entered", partition=0)
        assert receipt.done, "it was flushed"
        with pytest.raises(InvalidCall, match="closed"):
            await producer.send("late")
        left = client.producer("t", linger_ms=60_000)
        lost = await (await left.__aenter__()).send("not flushed", partition=0)
        await left.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        with pytest.raises(ProducerFailed):
            await lost
        awaited = await client.producer("t")
        await awaited.send("awaited", partition=0)
        await awaited.close()
    assert values(broker, 0) == [b"entered", b"awaited"]


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
@pytest.mark.parametrize("seed", range(6))
async def test_every_message_once_and_in_order_under_faults(
    broker: FakeBroker, seed: int, encoding: Literal["batch", "ndjson"]
) -> None:
    rng = random.Random(seed)
    choices = ["drop", "store-drop", "503", "504", "late", None, None, None, None]
    broker.fault = lambda: rng.choice(choices)
    async with AsyncClient(broker.url, rng=random.Random(seed)) as client:
        producer = await client.producer("t", encoding=encoding, batch_bytes=300, linger_ms=1)
        receipts = [await producer.send(f"{n}", key=f"k{n % 20}") for n in range(400)]
        await producer.flush()
        positions = [await receipt for receipt in receipts]
    expected: list[list[bytes]] = [[], [], []]
    for n in range(400):
        expected[partition_for(f"k{n % 20}".encode(), 3)].append(f"{n}".encode())
    assert [values(broker, n) for n in range(3)] == expected
    for n, position in enumerate(positions):
        if position.offset >= 0:
            assert values(broker, position.partition)[position.offset] == f"{n}".encode()


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_a_repeated_run_stores_only_what_is_new(
    broker: FakeBroker, encoding: Literal["batch", "ndjson"]
) -> None:
    """The same producer id; the same messages and some more, in batches of other sizes."""
    async with AsyncClient(broker.url) as client:
        for count, batch_bytes in ((50, 200), (70, 330), (70, 10_000), (100, 1_000_000)):
            producer = await client.producer(
                "t", producer_id="import", encoding=encoding, batch_bytes=batch_bytes
            )
            receipts = [await producer.send(f"{n}", partition=0) for n in range(count)]
            await producer.close()
            positions = [await receipt for receipt in receipts]
            assert values(broker, 0) == [f"{n}".encode() for n in range(count)]
            assert all(place.offset in (-1, n) for n, place in enumerate(positions))


async def test_a_newer_instance_shuts_this_one_out(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t")
        receipt = await producer.send("a", partition=0)
        broker.log.store(0, (producer.options.producer_id, 5, 0), [Record(None, b"new")])
        with pytest.raises(ApiError, match="stale-producer-epoch"):
            await receipt


async def test_another_broker_takes_over(broker: FakeBroker) -> None:
    other = FakeBroker(partitions=3, log=broker.log)
    await other.start()
    async with AsyncClient([broker.url, other.url]) as client:
        producer = await client.producer("t", batch_bytes=200, linger_ms=1)
        for n in range(100):
            await producer.send(f"{n}", partition=0)
        await asyncio.sleep(0)
        stopping = asyncio.create_task(broker.stop())
        for n in range(100, 200):
            await producer.send(f"{n}", partition=0)
        await producer.flush()
        await stopping
    assert values(broker, 0) == [f"{n}".encode() for n in range(200)]
    await other.stop()


async def test_goes_straight_to_the_owner_once_known(broker: FakeBroker) -> None:
    other = FakeBroker(partitions=3, log=broker.log)
    await other.start()
    broker.owner_header = other.url
    async with AsyncClient(broker.url) as client:
        await client.publish("t", "a", partition=1)
        await client.publish("t", "b", partition=1)
        assert client.transport.owner(("public/t", 1)) == other.url
    assert ("POST", "/v1/topics/public/t/partitions/1/messages") in other.requests
    assert values(broker, 1) == [b"a", b"b"]
    await other.stop()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubt, "SILENCE_S", 0.01)
    monkeypatch.setattr(doubt, "PAUSE_S", 0.01)


@pytest.mark.usefixtures("_impatient")
async def test_an_owner_that_vanished_is_left_once_there_is_another(broker: FakeBroker) -> None:
    """Its host refuses nothing, so the call would hang for an hour."""
    other = FakeBroker(partitions=3, log=broker.log)
    other.owner_header = broker.url
    await other.start()
    broker.fault = lambda: "hang"
    async with AsyncClient([other.url, broker.url], attempt_s=3600) as client:
        await client.publish("t", "a", partition=1)  # through the other, which names the owner
        receipt = asyncio.create_task(client.publish("t", "b", partition=1))
        async with asyncio.timeout(60):
            while broker.log.asked_owner < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert not receipt.done(), "the others say that it is still the owner"
            other.owner_header = other.url
            position = await receipt
        assert position.duplicate, "the one that vanished had stored it"
        assert client.transport.owner(("public/t", 1)) == other.url
    assert values(broker, 1) == [b"a", b"b"]
    await broker.stop()
    await other.stop()


@pytest.mark.usefixtures("_impatient")
async def test_an_owner_that_is_only_slow_keeps_its_call(broker: FakeBroker) -> None:
    other = FakeBroker(partitions=3, log=broker.log)
    other.owner_header = broker.url
    await other.start()
    faults = iter([None, "slow"])
    other.fault = broker.fault = lambda: next(faults, "422")
    async with AsyncClient([other.url, broker.url], attempt_s=3600) as client:
        await client.publish("t", "a", partition=1)
        async with asyncio.timeout(60):
            assert not (await client.publish("t", "b", partition=1)).duplicate
    assert values(broker, 1) == [b"a", b"b"]
    await other.stop()


async def test_a_refusal_fails_what_came_after_and_later_messages_go_on(broker: FakeBroker) -> None:
    faults = iter(["422"])
    broker.fault = lambda: next(faults, None)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", batch_bytes=1, window=1)
        receipts = [await producer.send(text, partition=0) for text in ("a", "b", "c")]
        with pytest.raises(ApiError) as caught:
            await receipts[0]
        assert caught.value.status == 422
        for receipt in receipts[1:]:
            with pytest.raises(ProducerFailed, match="sequence 0 failed"):
                await receipt
        with pytest.raises(ApiError):
            await producer.flush()
        position = await (await producer.send("d", partition=0))
        assert position.offset == 0
        assert position.id == "7:0:0"
        await producer.flush()
    assert values(broker, 0) == [b"d"]


async def test_no_answer_in_time_is_an_unknown_outcome(broker: FakeBroker) -> None:
    broker.fault = lambda: "503"
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", delivery_timeout_ms=200)
        receipt = await producer.send("a", partition=0)
        with pytest.raises((ApiError, OutcomeUnknown)):
            await receipt


async def test_unanswered_bytes_are_bounded(broker: FakeBroker) -> None:
    gate = asyncio.Event()
    broker.fault = lambda: None if gate.is_set() else "503"
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", pending_bytes_max=1000, batch_bytes=100)
        sent = 0

        async def send_many() -> None:
            nonlocal sent
            for _ in range(100):
                await producer.send(b"x" * 50, partition=0)
                sent += 1

        task = asyncio.create_task(send_many())
        while producer.has_room:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert sent < 30
        assert producer.pending_bytes < 1100
        gate.set()
        await task
        await producer.flush()
        assert producer.pending_bytes == 0
        assert producer.stored_count == 100


async def test_keyless_messages_fill_batches_and_spread(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url, rng=random.Random(1)) as client:
        producer = await client.producer("t", batch_bytes=500)
        for n in range(300):
            await producer.send(f"{n:08d}")
        await producer.close()
    counts = [len(values(broker, n)) for n in range(3)]
    assert sum(counts) == 300
    assert all(counts)
    publishes = [path for method, path in broker.requests if method == "POST"]
    assert len(publishes) < 30


async def test_a_deletion_whose_answer_was_lost_is_done(broker: FakeBroker) -> None:
    broker.fault = lambda: "store-drop"
    async with AsyncClient(broker.url) as client:
        await client.delete_topic("t")
        assert broker.log.deleted
        with pytest.raises(NotFound):
            await client.delete_topic("t")


async def test_nobody_there_says_who_was_asked() -> None:
    async with AsyncClient("http://127.0.0.1:9", retry_s=0.2) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
            await client.topic("t")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "", "ftp://x", "http://"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(InvalidCall, match="http://"):
        AsyncClient(url)


async def test_wrong_calls(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        with pytest.raises(InvalidCall, match="namespace/topic"):
            await client.topic("a/b/c")
        with pytest.raises(InvalidCall, match="partitions 0 to 2"):
            await client.publish("t", "x", partition=3)
        with pytest.raises(InvalidCall, match="window"):
            await client.producer("t", window=0)


def test_producer_ids() -> None:
    rng = random.Random(1)
    assert producer_id_of(17, rng) == 17
    assert producer_id_of("17", rng) == 17
    named = producer_id_of("billing", rng)
    assert named == producer_id_of("billing", rng)
    assert 0 <= named < 2**63
    assert producer_id_of(None, rng) != producer_id_of(None, rng)


def test_the_synchronous_face() -> None:
    """From a thread without a loop; the broker runs on a loop elsewhere."""
    import threading

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    broker = FakeBroker(partitions=3)
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result()
    try:
        with Client(broker.url) as client:
            assert client.topic("t").partitions == 3
            assert client.publish("t", {"a": 1}, key="k").offset == 0
            with client.producer("t") as producer:
                futures = [producer.send(f"{n}", partition=0) for n in range(5_000)]
            offsets = [future.result().offset for future in futures]
            assert offsets == [*range(offsets[0], offsets[0] + 5_000)]
            with pytest.raises(InvalidCall, match="partitions 0 to 2"):
                client.producer("t").send("x", partition=9).result()
            with pytest.raises(InvalidCall, match="is closed"):
                producer.send("x").result()
    finally:
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()
    stored = [value for n in range(3) for value in values(broker, n)]
    assert b'{"a":1}' in stored
    assert len(stored) == 5_001


BATCHES = 80


async def test_a_backlog_goes_out_at_full_width_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches behind an interrupted one are refused as gaps and wait until they are first. A
    new batch that was sent at once made the next gap: a backlog went out singly, each batch
    twice."""
    monkeypatch.setattr(partition_queue, "MERGED_BYTES_MAX", 1)  # as a backlog of long batches
    broker = FakeBroker(partitions=1)
    await broker.start()
    faults = iter(["503"])
    broker.fault = lambda: next(faults, "late")
    try:
        async with AsyncClient(broker.url) as client:
            producer = await client.producer("t", window=4, linger_ms=0, batch_bytes=150)
            texts = [f"{number:0100}" for number in range(BATCHES)]
            receipts = [await producer.send(text) for text in texts]
            positions = [await receipt for receipt in receipts]
            await producer.close()
    finally:
        await broker.stop()
    assert [position.offset for position in positions] == list(range(BATCHES))
    sent = sum(method == "POST" for method, _ in broker.requests)
    assert sent < BATCHES * 1.5, f"{sent} requests for {BATCHES} batches"


URL = "http://a:1"
WAY_S = (0.02, 0.25)
"""The delay to the owner on a busy machine: the second of two messages may arrive first."""
BACK_S = 0.02


class UnevenWire:
    """The way to an owner that refuses everything in the seconds of `away`."""

    def __init__(self, seed: int, away: tuple[float, float]) -> None:
        self.log = SharedLog(1)
        self.trips = 0
        self.gaps = 0
        self._rng = random.Random(seed)
        self._away = away

    async def send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        body: Body,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        follow: bool = True,
    ) -> Reply:
        if method == "GET":
            return _reply(200, {"name": "public/t", "settings": {"partitions": 1}})
        assert isinstance(body, bytes)
        await asyncio.sleep(self._rng.uniform(*WAY_S))
        reply = self._store(body)
        self.trips += 1
        await asyncio.sleep(BACK_S)
        return reply

    def _store(self, body: bytes) -> Reply:
        if self._away[0] <= asyncio.get_running_loop().time() < self._away[1]:
            return _reply(503, {"code": "partition-moving", "retryable": True})
        header, records = check_batch(body), list(read_records(body))
        who = (header.producer_id, header.producer_epoch, header.base_sequence)
        first = self.log.store(0, who, records)
        if isinstance(first, str):
            self.gaps += 1
            expected = self.log.expected(0, who[0])
            return _reply(409, {"code": first, "retryable": False, "expected_sequence": expected})
        if first < 0:
            return Reply(204, {"Octavo-Owner": URL})
        ends = [{"offset": one, "id": f"7:0:{one}"} for one in (first, first + len(records) - 1)]
        return _reply(200, {"first": ends[0], "last": ends[1]})

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        raise NotImplementedError

    async def close(self) -> None: ...


def _reply(status: int, found: object) -> Reply:
    headers = {"Octavo-Owner": URL, "Content-Type": "application/json"}
    return Reply(status, headers, json.dumps(found).encode())


class Told(NamedTuple):
    trips: int
    gaps: int
    waits_s: list[float]


def virtual(work: Coroutine[Any, Any, Told]) -> Told:
    told: Told = SimLoop(1, trace=Trace()).run_until_complete(work)
    return told


async def publish_through(away: tuple[float, float], seed: int, messages: int = 3_000) -> Told:
    """Publish like the users of the rolling-restart test: small batches, and `send` waits
    behind 100 kB."""
    wire = UnevenWire(seed, away)
    loop = asyncio.get_running_loop()
    waits_s: list[float] = []
    receipts: list[Receipt] = []
    async with AsyncClient(URL, rng=random.Random(seed), wire=wire) as client:
        producer = await client.producer(
            "t", batch_bytes=1_000, linger_ms=5, pending_bytes_max=100_000
        )
        texts = [f"{number:0150}" for number in range(messages)]
        for number, text in enumerate(texts):
            due_s = 0.002 * number
            if loop.time() < due_s:
                await asyncio.sleep(due_s - loop.time())
            began_s = loop.time()
            receipt = await producer.send(text)
            receipt.on_done(lambda _, began_s=began_s: waits_s.append(loop.time() - began_s))
            receipts.append(receipt)
        await producer.close()
        offsets = [(await receipt).offset for receipt in receipts]
    assert offsets == list(range(messages)), "each receipt tells its own message's place"
    assert [record.value for record in wire.log.partitions[0]] == [text.encode() for text in texts]
    assert len(waits_s) == messages
    return Told(wire.trips, wire.gaps, waits_s)


@pytest.mark.parametrize("seed", range(3))
def test_messages_wait_little_longer_than_the_owner_was_away(seed: int) -> None:
    """Batches overtake each other on several connections, and the owner refuses early ones.
    Sent again singly, messages waited seven seconds in a rolling restart."""
    told = virtual(publish_through((1.0, 3.0), seed))
    print(
        f"{told.trips} round trips, {told.gaps} refused as gaps, longest {max(told.waits_s):.2f} s"
    )
    assert max(told.waits_s) < 2.0 + 3.0
    assert told.trips < 100


# When the head of a full window was refused, a message whose linger time was over stayed without an
# answer until the next message.


@pytest.fixture
async def refused_broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=1)
    await one.start()
    yield one
    await one.stop()


async def test_what_waits_behind_a_refused_batch_is_sent(refused_broker: FakeBroker) -> None:
    faults = iter(["422"])
    refused_broker.fault = lambda: next(faults, None)
    async with AsyncClient(refused_broker.url) as client:
        producer = await client.producer("t", window=1, linger_ms=0)
        first = await producer.send("first")
        for _ in range(3):
            await asyncio.sleep(0)
        second = await producer.send("second")
        with pytest.raises(ApiError):
            await first
        async with asyncio.timeout(5):
            await second
        with pytest.raises(ApiError):
            await producer.close()
    assert [record.value for record in refused_broker.log.partitions[0]] == [b"second"]


async def test_a_close_without_flush_answers_everything_and_sends_nothing_more(
    refused_broker: FakeBroker,
) -> None:
    async with AsyncClient(refused_broker.url) as client:
        producer = await client.producer("t", linger_ms=30)
        receipt = await producer.send("never")
        await producer.close(flush=False)
        async with asyncio.timeout(1):
            with pytest.raises((OutcomeUnknown, ProducerFailed)):
                await receipt
        await asyncio.sleep(0.06)  # longer than the linger time
        with pytest.raises(InvalidCall):
            await producer.send("later")
    assert refused_broker.log.partitions[0] == []


async def test_a_producer_out_of_epochs_stores_nothing_rather_than_lose_it(
    refused_broker: FakeBroker,
) -> None:
    """Sequence 0 of a used epoch would count as a repeat."""
    faults = iter([None, "422"])
    refused_broker.fault = lambda: next(faults, None)
    async with AsyncClient(refused_broker.url) as client:
        producer = await client.producer("t", producer_id="p", epoch=EPOCH_MAX, linger_ms=0)
        await (await producer.send("stored"))
        with pytest.raises(ApiError):
            await (await producer.send("refused"))
        with pytest.raises(ProducerFailed, match="epoch"):
            await (await producer.send("third"))
        await producer.close(flush=False)
    assert [record.value for record in refused_broker.log.partitions[0]] == [b"stored"]


# A producer that fails again and again gives back all that it counted. Its bounds are so
PENDING_BYTES_MAX = 1_000
ROUNDS = 25


@pytest.fixture
async def small_broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=2)
    await one.start()
    yield one
    await one.stop()


def in_vain(producer: Producer) -> list[str]:
    told = [producer.waits_in_vain(), *(one.waits_in_vain() for one in producer._queues)]
    return [why for why in told if why]


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
@pytest.mark.parametrize("seed", range(4))
async def test_all_is_given_back_after_refusals_and_cancelled_senders(
    small_broker: FakeBroker, seed: int, encoding: Literal["batch", "ndjson"]
) -> None:
    rng = random.Random(seed)
    async with AsyncClient(small_broker.url, rng=random.Random(seed)) as client:
        producer = await client.producer(
            "t", encoding=encoding, batch_bytes=rng.choice((1, 300)), linger_ms=rng.choice((0, 1)),
            window=rng.choice((1, 2, 4)), pending_bytes_max=PENDING_BYTES_MAX,
        )  # fmt: skip
        for _ in range(ROUNDS):
            # A final refusal fails its batch and all later ones; others are sent again.
            faults = rng.choices(["422", "503", "drop", None], (3, 2, 1, 2), k=rng.randint(1, 5))
            small_broker.fault = _in_turn(faults)
            senders = [
                asyncio.create_task(producer.send(b"x" * rng.choice((10, 200)), partition=n % 2))
                for n in range(rng.randint(1, 12))
            ]
            for _ in range(rng.randint(0, 6)):
                await asyncio.sleep(0)
            for sender in senders:
                if rng.random() < 0.3:
                    sender.cancel()
            async with asyncio.timeout(60):
                await asyncio.gather(*senders, return_exceptions=True)
                with contextlib.suppress(ClientError):
                    await producer.flush()
            assert in_vain(producer) == []
            assert [in_use(one) for one in (producer, *producer._queues)] == [{}, {}, {}]
            assert producer.has_room
        small_broker.fault = lambda: None
        await producer.send(b"last", partition=0)
        await producer.flush()


def _in_turn(faults: list[str | None]) -> Callable[[], str | None]:
    left = iter(faults)
    return lambda: next(left, None)


async def test_senders_go_on_as_soon_as_there_is_room(small_broker: FakeBroker) -> None:
    """The rest of the window stays full meanwhile."""
    answered, gate = 0, asyncio.Event()

    def fault() -> str | None:
        nonlocal answered
        answered += 1
        return None if answered <= 2 or gate.is_set() else "503"

    small_broker.fault = fault
    async with AsyncClient(small_broker.url) as client:
        producer = await client.producer(
            "t", batch_bytes=1, window=4, pending_bytes_max=PENDING_BYTES_MAX
        )
        async with asyncio.timeout(60):
            while producer.has_room:
                await producer.send(b"x" * 200, partition=0)
            await producer.send(b"y", partition=0)
        assert producer.pending_bytes > 0
        assert in_vain(producer) == []
        gate.set()
        await producer.flush()


@pytest.mark.parametrize("flush", [True, False])
async def test_a_producer_that_is_closed_amid_failures_holds_nothing(
    small_broker: FakeBroker, flush: bool
) -> None:
    small_broker.fault = lambda: "503"
    async with AsyncClient(small_broker.url) as client:
        producer = await client.producer(
            "t", batch_bytes=100, delivery_timeout_ms=150, pending_bytes_max=PENDING_BYTES_MAX
        )
        receipts: list[Receipt] = []
        while producer.has_room:
            receipts.append(await producer.send(b"x" * 50, partition=len(receipts) % 2))
        with contextlib.suppress(ClientError):
            await producer.close(flush=flush)
        for receipt in receipts:
            with pytest.raises(ClientError):
                await receipt
        assert [in_use(one) for one in (producer, *producer._queues)] == [{}, {}, {}]


async def test_what_waited_for_the_window_goes_out_when_the_batch_before_it_is_refused(
    small_broker: FakeBroker,
) -> None:
    """Its linger time is over, and nothing else would send it."""
    small_broker.fault = _in_turn(["422", None])
    async with AsyncClient(small_broker.url) as client:
        producer = await client.producer("t", window=1, linger_ms=0)
        first = await producer.send(b"a", partition=0)
        for _ in range(3):
            await asyncio.sleep(0)
        second = await producer.send(b"b", partition=0)
        with pytest.raises(ClientError):
            await first
        position = await asyncio.wait_for(_of(second), 30)
        assert position.offset == 0


async def _of(receipt: Receipt) -> Position:
    return await receipt
