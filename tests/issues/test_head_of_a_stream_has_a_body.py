"""HEAD of a stream sent the stream: what stood in messages was taken for the next answer of the
connection, perhaps another client's behind a proxy; and of a subscription it leased messages.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from tests.support.fake_broker import Running, running

TOPIC = "/v1/topics/public/t"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
BATCHES = "application/vnd.kafka.recordbatch.v2"


async def answers(one: Running, broker: int, path: str, accept: str) -> list[bytes]:
    """What comes of a HEAD and a GET behind it, by head and body."""
    place = urlsplit(one.apis[broker].url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"HEAD {TOPIC}{path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
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
    async with running(brokers=2) as one:
        await one.api.put(TOPIC)
        await one.api.put(f"{TOPIC}/subscriptions/s", json={"type": "shared"})
        await one.api.post(f"{TOPIC}/messages", b"HTTP/1.1 200 OK", "text/plain")
        first, second, body = await answers(one, broker, path, accept)
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"\r\nContent-Type: {accept}\r\n".encode() in first
        assert second.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(body)["status"]
        received = await one.api.post(f"{TOPIC}/subscriptions/s/receive?max=10")
        assert len(received.json()["messages"]) == 1
