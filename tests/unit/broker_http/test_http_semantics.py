"""HEAD, repeated headers and long polls, at the owner and at another broker."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from octavo.protocol.records import read_records
from tests.support.http_api import until
from tests.support.memory_cluster import Running, running

TOPIC = "/v1/topics/public/one"
REQUEST = (
    f"POST {TOPIC}/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    "Content-Type: text/plain\r\nContent-Length: 1\r\n"
    "Octavo-Header-B: 1\r\noctavo-header-b: 2\r\n\r\nx"
).encode()


async def test_both_arrive_through_any_broker() -> None:
    """A header that was given twice, in two spellings, came through another broker once. aiohttp's
    client tells repeated fields by spelling and replaces them case-insensitively, so of
    `Octavo-Header-B` and `octavo-header-b` the first was lost silently.
    test_any_broker_answers_alike.py found it."""
    async with running(2) as one:
        assert (await one.api.put(TOPIC)).status == 201
        for server in one.servers:
            host, _, port = server.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(REQUEST)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        stored = [read_records(batch.data) for batch in (await one.batches("public/one"))]
        assert [record.headers for (record,) in stored] == [[("b", b"1"), ("b", b"2")]] * 2


HEAD_TOPIC = "/v1/topics/public/t"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
BATCHES = "application/vnd.kafka.recordbatch.v2"


async def answers(one: Running, broker: int, path: str, accept: str) -> list[bytes]:
    """Return the answers to a HEAD and a GET behind it, by head and body."""
    place = urlsplit(one.apis[broker].url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"HEAD {HEAD_TOPIC}{path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
    writer.write(head.encode() + NEXT)
    try:
        async with asyncio.timeout(10):
            found = await reader.read(-1)
    finally:
        writer.close()
    return found.split(b"\r\n\r\n")


@pytest.mark.parametrize("broker", [0, 1])
@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/partitions/0/messages", EVENTS),
        ("/partitions/0/messages?follow=true", LINES),
        ("/partitions/0/messages?follow=true", BATCHES),
        ("/subscriptions/s/stream", EVENTS),
        ("/subscriptions/s/stream", LINES),
    ],
)
async def test_a_head_and_nothing_else(broker: int, path: str, accept: str) -> None:
    """HEAD of a stream sent the stream: message content was taken for the next answer of the
    connection, perhaps another client's behind a proxy; and HEAD of a subscription leased
    messages."""
    async with running(brokers=2) as one:
        await one.api.put(HEAD_TOPIC)
        await one.api.put(f"{HEAD_TOPIC}/subscriptions/s", json={"type": "shared"})
        await one.api.post(f"{HEAD_TOPIC}/messages", b"HTTP/1.1 200 OK", "text/plain")
        first, second, body = await answers(one, broker, path, accept)
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"\r\nContent-Type: {accept}\r\n".encode() in first
        assert second.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(body)["status"]
        received = await one.api.post(f"{HEAD_TOPIC}/subscriptions/s/receive?max=10")
        assert len(received.json()["messages"]) == 1


async def test_calls_that_wait_leave_connections_to_those_that_work() -> None:
    """Many long polls at a broker took its connections to the owner, so other calls got 503."""
    async with running(2) as two:
        assert (await two.api.put(TOPIC)).status == 201
        other = two.apis[1]
        waiting = [
            asyncio.ensure_future(other.get(f"{TOPIC}/messages?from=latest&wait=30s"))
            for _ in range(20)
        ]
        try:
            async with asyncio.timeout(10):
                await until(lambda: two.waiting("public/one") == 20)
                answers = await asyncio.gather(
                    *(other.post(f"{TOPIC}/messages", b"x", "text/plain") for _ in range(8))
                )
            assert {answer.status for answer in answers} == {200}
            assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        finally:
            for one in waiting:
                one.cancel()
