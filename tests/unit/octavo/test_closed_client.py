"""A Python client that is closed, forgotten, or used from its own thread."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient, Client
from octavo.client import doubt
from octavo.client.doubt import Doubts, PartitionKey
from octavo.client.errors import InvalidCall, NotFound, ProducerFailed, Unreachable
from octavo.client.producer import Producer as ReopenedProducer
from octavo.client.producer import ProducerOptions
from octavo.client.sync import Producer, Receipt
from octavo.client.types import TopicName
from octavo.client.wire import HttpWire
from tests.support.broker_thread import broker_thread
from tests.support.memory_cluster import running


async def test_nobody_is_asked_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer outlived `close`, and started a call over a closed session."""
    monkeypatch.setattr(doubt, "SILENCE_S", 0.01)
    asked: list[str] = []

    async def ask(partition: PartitionKey, url: str) -> str | None:
        asked.append(url)
        return None

    silent = asyncio.Event()

    async def attempt() -> str:
        await silent.wait()
        return "late"

    doubts = Doubts(ask)
    call = asyncio.create_task(doubts.unless_moved("http://a", ("t", 0), attempt(), 0.0))
    await asyncio.sleep(0)
    await doubts.close()
    await asyncio.sleep(0.1)
    silent.set()
    assert await call == "late"
    assert asked == []
    assert not doubts._tasks


# A closed client silently dropped its producers' unsent messages.

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


async def test_what_still_calls_is_refused_and_opens_nothing() -> None:
    """An open producer's next try opened another session, which stayed at the end of the
    program."""
    wire = HttpWire()
    client = AsyncClient("http://127.0.0.1:9", wire=wire, retry_s=60.0)
    producer = ReopenedProducer(
        client.transport, TopicName.of("t"), 1, ProducerOptions(producer_id=7),
        rng=random.Random(1), clock=lambda: 0,
    )  # fmt: skip
    receipt = await producer.send(b"x")
    async with asyncio.timeout(10):
        while wire._session is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(InvalidCall, match="this client is closed"):
            await receipt
    assert wire._session is None
    with pytest.raises(InvalidCall, match="this client is closed"):
        await client.cluster()
    await producer.close(flush=False)


# Each client that was not closed kept a thread and its connections for ever.


def client_threads() -> int:
    return sum(one.name == "octavo-client" for one in threading.enumerate())


def until_none_is_left() -> None:
    deadline = time.monotonic() + 10
    while client_threads():
        assert time.monotonic() < deadline, threading.enumerate()
        gc.collect()
        time.sleep(0.01)


def test_a_client_ends_with_the_last_who_has_it() -> None:
    with broker_thread() as broker:
        for _ in range(20):
            Client(broker.url).create_topic("t")
        until_none_is_left()

        receipt = Client(broker.url).producer("t").send("x")
        gc.collect()
        assert receipt.result().offset == 0
        messages = Client(broker.url).messages("t")
        assert next(messages).value == b"x"
        gc.collect()
        assert not [*messages]
        del receipt, messages
        until_none_is_left()


def test_what_its_producer_had_is_sent() -> None:
    with broker_thread() as broker:
        Client(broker.url).create_topic("t")
        Client(broker.url).producer("t", linger_ms=60_000).send("x")
        until_none_is_left()
        assert broker.values() == [b"x"]


# The interpreter stops the client's thread before it finalises generators, which wait for its
# answer: a program with an open loop over messages never ended, and unsent messages were lost.

BEGIN = """
import atexit
import structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
from tests.support.broker_thread import BrokerThread
broker = BrokerThread()
atexit.register(lambda: print(sorted(map(bytes, broker.values()))[-1].decode(), flush=True))
from octavo import Client
client = Client(broker.url)
client.create_topic("t")
client.publish("t", "a")
"""
LOOPS = {
    "subscription": "found = client.subscribe('t', 's', type='shared').deliveries()",
    "several topics": "found = client.consume('t', 's').deliveries()",
    "group": "found = client.consume('t', 's', group=True).deliveries()",
    "reader": "found = client.messages('t')",
    "follower": "found = client.messages('t', follow=True)",
}


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_with_a_loop_open(loop: str) -> None:
    ended = run(f"{loop}\nprint(next(found).text(), flush=True)")
    assert (ended.returncode, ended.stdout.split()) == (0, ["a", "a"]), ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_producers_have_is_sent() -> None:
    ended = run(
        "producer = client.producer('t', linger_ms=60_000)\n"
        "for number in range(100): producer.send(f'b{number:03}')"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["b099"]), ended.stderr


def test_what_cannot_be_sent_is_told() -> None:
    """No broker answers any more."""
    ended = run(
        "import octavo.loop_thread\n"
        "octavo.loop_thread.CLOSE_TIMEOUT_S = 0.3\n"
        "producer = client.producer('t', linger_ms=60_000)\n"
        "for number in range(100): producer.send('b')\n"
        "broker.stop()"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["a"]), ended.stderr
    assert "100 messages to public/t were not answered, or not even sent" in ended.stderr


def test_processes_of_multiprocessing_send_it_too() -> None:
    ended = run(
        "import multiprocessing\n"
        "def work():\n"
        "    own = Client(broker.url)\n"
        "    own.producer('t', linger_ms=60_000).send('b')\n"
        "one = multiprocessing.get_context('fork').Process(target=work)\n"
        "one.start(); one.join(); print(one.exitcode)"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["0", "b"]), ended.stderr


# The client's thread waited for itself when a callback made a call of the client, or the collector
# found a loop over messages on that thread.


@pytest.mark.timeout(60)
def test_a_callback_must_not_wait() -> None:
    told: list[BaseException] = []
    over = threading.Event()

    with broker_thread() as broker, Client(broker.url) as client:

        def call(_: Receipt) -> None:
            try:
                client.publish("t", "y")
            except InvalidCall as error:
                told.append(error)
            over.set()

        client.create_topic("t")
        client.producer("t").send("x").add_done_callback(call)
        assert over.wait(20)
        assert "a callback" in str(told)
        assert client.publish("t", "z").offset == 1


@pytest.mark.timeout(60)
def test_the_collector_ends_a_loop_anywhere() -> None:
    def collect() -> None:
        gc.collect()

    with broker_thread() as broker, Client(broker.url) as client:
        client.create_topic("t")
        client.publish("t", "x")
        subscription = client.subscribe("t", "s", type="shared")
        cycle: list[Any] = [subscription.deliveries()]
        cycle.append(cycle)
        assert next(cycle[0]).value == b"x"
        gc.collect()
        gc.disable()
        try:
            del cycle
            client._thread.soon(collect)
            assert next(subscription.deliveries()).delivery_count == 2  # it was given back
        finally:
            gc.enable()


@pytest.mark.timeout(60)
def test_a_fork_has_no_part_in_the_loop_of_its_parent() -> None:
    """It continued with the received messages, in parallel to its parent."""
    with broker_thread() as broker, Client(broker.url) as client:
        client.create_topic("t")
        client.publish_many("t", [(None, "x")] * 3)
        found = client.subscribe("t", "s", type="shared").deliveries()
        assert next(found).offset == 0
        if not (child := os.fork()):
            status = 1
            try:
                next(found)
            except InvalidCall:
                client.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert next(found).offset == 1


def test_a_loop_over_a_topic_that_is_deleted() -> None:
    """The error said falsely that acks could not be sent and that messages would come again."""
    with broker_thread() as broker, Client(broker.url) as client:
        client.create_topic("t")
        client.publish_many("t", [(None, "x")] * 100)
        found = client.subscribe("t", "s", type="shared").deliveries()
        assert next(found).offset == 0
        client.delete_topic("t")
        with pytest.raises(NotFound):
            for _ in found:
                pass
