"""A message that waited behind a full window stayed there when the window's head was refused.

Its linger time was over while the window was full, so the next answer was to send it; but a
refusal for good cleared the window and nobody looked again: its receipt had no answer until the
next message came. Closing without a flush left it unanswered too, and sent it afterwards. Found
by reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, InvalidCall, OutcomeUnknown, ProducerFailed
from octavo.client.partition_queue import EPOCH_MAX
from tests.support.fake_service import FakeBroker


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=1)
    await one.start()
    yield one
    await one.stop()


async def test_what_waits_behind_a_refused_batch_is_sent(broker: FakeBroker) -> None:
    faults = iter(["422"])
    broker.fault = lambda: next(faults, None)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", window=1, linger_ms=0)
        first = await producer.send("first")
        for _ in range(3):
            await asyncio.sleep(0)  # it is on its way
        second = await producer.send("second")  # its linger time ends with the window full
        with pytest.raises(ApiError):
            await first
        async with asyncio.timeout(5):
            await second
        with pytest.raises(ApiError):
            await producer.close()
    assert [record.value for record in broker.log.partitions[0]] == [b"second"]


async def test_a_close_without_flush_answers_everything_and_sends_nothing_more(
    broker: FakeBroker,
) -> None:
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", linger_ms=30)
        receipt = await producer.send("never")
        await producer.close(flush=False)
        async with asyncio.timeout(1):
            with pytest.raises((OutcomeUnknown, ProducerFailed)):
                await receipt
        await asyncio.sleep(0.06)  # longer than the linger time: nothing may come of it
        with pytest.raises(InvalidCall):
            await producer.send("later")
    assert broker.log.partitions[0] == []


async def test_a_producer_out_of_epochs_stores_nothing_rather_than_lose_it(
    broker: FakeBroker,
) -> None:
    """Sequence 0 of an epoch that was used already would pass for a repetition."""
    faults = iter([None, "422"])
    broker.fault = lambda: next(faults, None)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", producer_id="p", epoch=EPOCH_MAX, linger_ms=0)
        await (await producer.send("stored"))
        with pytest.raises(ApiError):
            await (await producer.send("refused"))
        with pytest.raises(ProducerFailed, match="epoch"):
            await (await producer.send("third"))
        await producer.close(flush=False)
    assert [record.value for record in broker.log.partitions[0]] == [b"stored"]
