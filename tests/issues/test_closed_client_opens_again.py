"""A producer that nobody had closed went on after its client was, with connections that stayed.

`close` gave the session back, and the next try of a message opened another one, which nobody
closed: "Unclosed client session" at the end of the program.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import InvalidCall
from octavo.client.producer import Producer, ProducerOptions
from octavo.client.types import TopicName
from octavo.client.wire import HttpWire


async def test_what_still_calls_is_refused_and_opens_nothing() -> None:
    wire = HttpWire()
    client = AsyncClient("http://127.0.0.1:9", wire=wire, retry_s=60.0)
    producer = Producer(
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
