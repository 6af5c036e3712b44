"""A client that was closed dropped what its producers had not sent yet, and said nothing.

`close` gave the connections back and left producers to themselves; their messages were neither sent
nor was anything said of them. What was sent after it was refused once, and from then on taken.
"""

from __future__ import annotations

import pytest

from octavo import AsyncClient, Client
from octavo.client.errors import InvalidCall, ProducerFailed, Unreachable
from octavo.client.sync import Producer, Receipt
from tests.support.broker_thread import broker_thread
from tests.support.fake_broker import running

LONG = 60_000.0


async def test_close_sends_it() -> None:
    async with running() as broker:
        async with AsyncClient(broker.api.url) as client:
            await client.create_topic("t")
            producer = await client.producer("t", linger_ms=LONG)
            receipts = [await producer.send("x") for _ in range(10)]
        assert [(await one).offset for one in receipts] == [*range(10)]
        with pytest.raises(InvalidCall, match="closed"):
            await producer.send("y")


def test_so_does_the_synchronous_one() -> None:
    with broker_thread() as broker:
        with Client(broker.url) as client:
            client.create_topic("t")
            producer = client.producer("t", linger_ms=LONG)
            receipts = [producer.send("x") for _ in range(10)]
        assert [one.result().offset for one in receipts] == [*range(10)]
        for _ in range(3):
            with pytest.raises(InvalidCall, match="closed"):
                producer.send("y")
        producer.close()
        assert len(broker.values()) == 10


def test_a_block_that_failed_says_what_is_lost() -> None:
    receipts: list[Receipt] = []

    def fail(client: Client) -> None:
        with client:
            receipts.append(client.producer("t", linger_ms=LONG).send("x"))
            raise ZeroDivisionError

    with broker_thread() as broker:
        client = Client(broker.url)
        client.create_topic("t")
        with pytest.raises(ZeroDivisionError):
            fail(client)
        with pytest.raises(ProducerFailed, match="not sent"):
            receipts[0].result()
        assert not broker.values()


def test_close_raises_what_could_not_be_sent() -> None:
    with broker_thread() as broker:
        client = Client(broker.url, retry_s=0.1)
        client.create_topic("t")
        producer = client.producer("t", linger_ms=LONG, delivery_timeout_ms=100)
        receipt = producer.send("x")
    with pytest.raises(Unreachable):
        client.close()
    with pytest.raises(Unreachable):
        receipt.result()


def test_what_was_told_is_not_raised_again() -> None:
    def fail(producer: Producer) -> None:
        with producer:
            producer.send("x")
            raise ZeroDivisionError

    with broker_thread() as broker, Client(broker.url, retry_s=0.1) as client:
        client.create_topic("t")
        with pytest.raises(ZeroDivisionError):
            fail(client.producer("t", linger_ms=LONG))
        receipt = client.producer("t", linger_ms=500, delivery_timeout_ms=100).send("x")
        told = client.producer("t", linger_ms=LONG, delivery_timeout_ms=100)
        told.send("x")
        broker.stop()
        with pytest.raises(Unreachable):
            receipt.result()
        with pytest.raises(Unreachable):
            told.flush()
