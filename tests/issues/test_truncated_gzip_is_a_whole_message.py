"""A body that broke off in the middle of its encoding was stored as a whole message, with 200."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest

from tests.support.fake_broker import Running, running

TOPIC = "/v1/topics/public/one"
TEXT = random.Random(1).randbytes(40_000)
LINES = b"".join(b'{"value":%d}\n' % number for number in range(200_000))


async def publish(one: Running, broker: int, body: bytes, kind: str, encoding: str):
    headers = {"Content-Encoding": encoding, "Content-Type": kind}
    return await one.apis[broker].call("POST", TOPIC + "/messages", data=body, headers=headers)


@pytest.mark.parametrize("broker", [0, 1], ids=["at the owner", "elsewhere"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/x-ndjson"])
async def test_every_encoding_must_end(kind: str, encoding: str, broker: int) -> None:
    content = {"text/plain": TEXT, "application/json": b'{"value":"' + b"x" * 900 + b'"}'}
    plain = content.get(kind, LINES)
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    async with running(2) as two:
        assert (await two.api.put(TOPIC)).status == 201
        partition = two.partition("public/one")
        for length in (len(packed) // 2, len(packed) - 1, 3):
            answer = await publish(two, broker, packed[:length], kind, encoding)
            assert answer.status == 400, answer
            assert answer.json()["code"] == "broken-content-encoding"
            if kind != "application/x-ndjson":
                assert not partition.batches, "nothing of a body that is not whole is stored"
        stored = partition.next_offset
        answer = await publish(two, broker, packed, kind, encoding)
        assert answer.status == 200, answer
        assert partition.next_offset - stored == answer.json()["count"]


async def test_large_stream_that_breaks_off_elsewhere_is_named() -> None:
    """Longer than what a broker holds before it passes it on: the owner gets a part of it."""
    packed = gzip.compress(random.Random(2).randbytes(30_000_000).hex().encode()[:20_000_000])
    async with running(2) as two:
        assert (await two.api.put(TOPIC)).status == 201
        answer = await publish(two, 1, packed[:3_000_000], "application/x-ndjson", "gzip")
        assert answer.status in (400, 413), answer
        assert answer.json()["code"] in ("broken-content-encoding", "message-too-long")
