"""A producer that fails again and again gives back all that it counted. Its bounds are so
small that a unit lost with each failure fills them: then `send` waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Literal

import pytest

from octavo.client import transport
from octavo.client.client import AsyncClient
from octavo.client.errors import ClientError
from octavo.client.producer import Producer, Receipt
from octavo.client.types import Position
from tests.support.fake_service import FakeBroker
from tests.support.kit.quiescence import in_use

PENDING_BYTES_MAX = 1_000
ROUNDS = 25


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PAUSE_S", 0.001)
    monkeypatch.setattr(transport, "PAUSE_S_MAX", 0.01)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=2)
    await one.start()
    yield one
    await one.stop()


def in_vain(producer: Producer) -> list[str]:
    """Return needless waits, once everything that is ready has run."""
    told = [producer.waits_in_vain(), *(one.waits_in_vain() for one in producer._queues)]
    return [why for why in told if why]


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
@pytest.mark.parametrize("seed", range(4))
async def test_all_is_given_back_after_refusals_and_cancelled_senders(
    broker: FakeBroker, seed: int, encoding: Literal["batch", "ndjson"]
) -> None:
    rng = random.Random(seed)
    async with AsyncClient(broker.url, rng=random.Random(seed)) as client:
        producer = await client.producer(
            "t", encoding=encoding, batch_bytes=rng.choice((1, 300)), linger_ms=rng.choice((0, 1)),
            window=rng.choice((1, 2, 4)), pending_bytes_max=PENDING_BYTES_MAX,
        )  # fmt: skip
        for _ in range(ROUNDS):
            # A final refusal fails its batch and all later ones; others are sent again.
            faults = rng.choices(["422", "503", "drop", None], (3, 2, 1, 2), k=rng.randint(1, 5))
            broker.fault = _in_turn(faults)
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
        broker.fault = lambda: None
        await producer.send(b"last", partition=0)
        await producer.flush()


def _in_turn(faults: list[str | None]) -> Callable[[], str | None]:
    left = iter(faults)
    return lambda: next(left, None)


async def test_senders_go_on_as_soon_as_there_is_room(broker: FakeBroker) -> None:
    """The rest of the window stays full meanwhile."""
    answered, gate = 0, asyncio.Event()

    def fault() -> str | None:
        nonlocal answered
        answered += 1
        return None if answered <= 2 or gate.is_set() else "503"

    broker.fault = fault
    async with AsyncClient(broker.url) as client:
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
    broker: FakeBroker, flush: bool
) -> None:
    broker.fault = lambda: "503"
    async with AsyncClient(broker.url) as client:
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
    broker: FakeBroker,
) -> None:
    """Its linger time is over, and nothing else would send it."""
    broker.fault = _in_turn(["422", None])
    async with AsyncClient(broker.url) as client:
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
