"""What a message may cost, counted and not timed: calls of functions, the same on every machine.

A whole cluster (three bookies, a broker, the client) runs in this thread; counted is every call
that Python makes in it, its own functions and those in C, while messages go through. What is done
per message, where once per batch would do, shows here at once. A budget is a sixth above what was
counted when it was written; whoever makes it dearer on purpose raises it, and says why.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from octavo import AsyncClient
from octavo.protocol.records import Record, build_batch
from octavo.security.quotas import quota_store, with_quota
from tests.support.cluster import Cluster, add_many, running_cluster

TOPIC = "/v1/topics/public/t"
VALUE = b"x" * 100
ROUNDS = 3


async def least_calls(work: Callable[[], Awaitable[object]]) -> int:
    """Calls of this thread while `work` is awaited, in the round that had the fewest.

    What a busy machine adds, a timer that fires or a page that is cut short, is not in all rounds.
    """
    if sys.getprofile() is not None:
        pytest.skip("something else, a debugger or coverage, counts calls already")
    found = []
    for _ in range(ROUNDS):
        calls = 0

        def called(_frame: object, event: str, _what: object) -> None:
            nonlocal calls
            if event in ("call", "c_call"):
                calls += 1

        sys.setprofile(called)
        try:
            await work()
        finally:
            sys.setprofile(None)
        found.append(calls)
    return min(found)


def within(calls: float, budget: float, what: str) -> None:
    """A budget that is far too large guards nothing, so that is an error too."""
    assert calls <= budget, f"{what}: {calls:.2f} calls, {budget} is the budget"
    assert calls > budget / 3, f"{what}: only {calls:.2f} calls: lower the budget of {budget}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """With a broker, and a topic that was written to."""
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 1})).status == 201
        assert (await found.api.post(f"{TOPIC}/messages", VALUE, "text/plain")).status == 200
        yield found


async def test_an_entry_among_many(cluster: Cluster) -> None:
    writer = await (await cluster.client()).create()
    await add_many(writer, 1_000)
    calls = await least_calls(lambda: add_many(writer, 10_000))
    within(calls / 10_000, 32, "an entry, its writer and three bookies")


async def test_a_single_message(cluster: Cluster) -> None:
    """The call as a client sends it, by a client that is nothing but a socket."""
    host, port = cluster.api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {TOPIC}/messages HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: text/plain\r\n"
    request = f"{head}Content-Length: {len(VALUE)}\r\n\r\n".encode() + VALUE

    async def publish(count: int) -> None:
        for _ in range(count):
            writer.write(request)
            answer = await reader.readuntil(b"}}\n")
            assert answer.startswith(b"HTTP/1.1 200")

    await publish(50)
    calls = await least_calls(lambda: publish(100))
    writer.close()
    within(calls / 100, 2_175, "a single message, from its socket through three bookies")


async def test_a_single_message_beyond_a_quota(cluster: Cluster) -> None:
    """It must cost much less than one that is stored: who sends too much sends many of them."""
    host, port = cluster.api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {TOPIC}/messages HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: text/plain\r\n"
    request = f"{head}Content-Length: {len(VALUE)}\r\n\r\n".encode() + VALUE

    async def publish(count: int) -> int:
        stored = 0
        for _ in range(count):
            writer.write(request)
            answer = await reader.readuntil(b"}\n")
            stored += answer.startswith(b"HTTP/1.1 200")
        return stored

    await publish(10)
    amounts = {"publish_messages": 1}
    await quota_store(cluster.store).change(lambda found: with_quota(found, "anonymous", amounts))
    async with asyncio.timeout(10):
        while await publish(10) > 1:
            pass
    calls = await least_calls(lambda: publish(100))
    writer.close()
    within(calls / 100, 333, "a single message that is refused")


async def test_a_message_in_a_record_batch(cluster: Cluster) -> None:
    body = build_batch([Record(None, VALUE, timestamp_ms=1)] * 600)
    kind = "application/vnd.kafka.recordbatch.v2"
    path = f"{TOPIC}/partitions/0/messages"

    async def publish(count: int) -> None:
        for _ in range(count):
            assert (await cluster.api.post(path, body, kind)).status == 200

    await publish(5)
    calls = await least_calls(lambda: publish(30))
    within(calls / 30 / 600, 4.7, "a message in a batch of 600")


async def test_what_a_python_program_sends_and_gets(cluster: Cluster) -> None:
    count = 10_000
    async with AsyncClient(cluster.api.url) as client:
        subscription = await client.subscribe("t", "s", start="earliest")
        async with client.producer("t") as producer:

            async def produce() -> None:
                for _ in range(count):
                    await producer.send(VALUE)
                await producer.flush()

            await produce()
            calls = await least_calls(produce)
        within(calls / count, 24, "a message of a producer")

        async def consume() -> None:
            got = 0
            async for _ in subscription.deliveries():
                got += 1
                if got == count:
                    return

        calls = await least_calls(consume)
        within(calls / count, 17, "a delivery with its ack")

        async def read() -> None:
            got = 0
            async for _ in client.messages("t"):
                got += 1
                if got == count:
                    return

        calls = await least_calls(read)
        within(calls / count, 1.7, "a message that is read, from the broker's memory")
