"""Sixty clients that each asked for 4,000 messages, again and again, kept a broker's loop busy for
11.7 s: each read left the loop after 2,000 messages, and found 59 others in the next turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from broker import api_read
from tests.unit.broker_http.fake_broker import running

TOPIC = "/v1/topics/public/one"
BATCHES, MESSAGES = 4, 500
READERS = 20


async def test_many_reads_do_not_share_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = 0
    rendered: Counter[int] = Counter()
    real = api_read.message_out

    def counted(*about: object) -> object:
        rendered[turn] += 1
        return real(*about)  # type: ignore[arg-type]

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(api_read, "message_out", counted)
    async with running(1) as one:
        await one.api.put(TOPIC)
        lines = b"".join(b'{"value":%d}\n' % n for n in range(MESSAGES))
        for _ in range(BATCHES):
            answer = await one.api.post(f"{TOPIC}/messages", lines, "application/x-ndjson")
            assert answer.status == 200, answer
        counting = asyncio.create_task(turns())
        path = f"{TOPIC}/messages?from=earliest&limit=10000"
        answers = await asyncio.gather(*(one.api.get(path) for _ in range(READERS)))
        counting.cancel()
    assert all(len(one.json()["messages"]) == BATCHES * MESSAGES for one in answers)
    assert sum(rendered.values()) == READERS * BATCHES * MESSAGES
    assert max(rendered.values()) <= 2 * MESSAGES, rendered.most_common(3)
