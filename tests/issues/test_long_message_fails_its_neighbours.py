"""A message over the limit made those behind it in its partition fail with `ProducerFailed`.

The client sent it, the broker refused its batch (413), and what was batched with it or after it
went down with it. Raw bodies were allowed 8 MiB, of which a message may have four, and in an array
of JSON messages one that was too long was found when those before it were stored.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import InvalidCall, MessageTooLong
from octavo.client.sync import Client
from octavo.protocol.limits import MESSAGE_BYTES_MAX
from tests.support.fake_broker import running

ONE = "/v1/topics/public/one"
TOO_LONG = bytes(MESSAGE_BYTES_MAX + 1)
LONGEST = bytes(MESSAGE_BYTES_MAX)


@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
async def test_it_is_refused_at_once_and_alone(encoding: Literal["batch", "ndjson"]) -> None:
    async with running(1) as one, AsyncClient(one.api.url) as client:
        await one.api.put(ONE)
        producer = await client.producer("one", encoding=encoding)
        receipts = [await producer.send(b"before")]
        with pytest.raises(MessageTooLong, match="4194304 bytes"):
            await producer.send(TOO_LONG)
        with pytest.raises(MessageTooLong):
            await producer.send(b"", headers={"h": TOO_LONG})
        receipts.append(await producer.send(LONGEST))
        receipts.append(await producer.send(b"behind"))
        assert [(await receipt).offset for receipt in receipts] == [0, 1, 2]
        if encoding == "ndjson":  # control characters in a key take six bytes each
            with pytest.raises(MessageTooLong, match="JSON"):
                await producer.send(b"", key="\1" * 2**20)
        await producer.close()


async def test_who_waits_for_no_answer_hears_of_it_too() -> None:
    async with running(1) as one:
        await one.api.put(ONE)

        def run() -> None:
            with Client(one.api.url) as client:
                producer = client.producer("one")
                producer.send(b"before")
                with pytest.raises(MessageTooLong):
                    producer.send(TOO_LONG)
                behind = producer.send(b"behind")
                producer.flush()
                assert behind.result().offset == 1
                producer.close()

        await asyncio.to_thread(run)


async def test_brokers_have_the_same_limit_for_every_form() -> None:
    async with running(1) as one:
        await one.api.put(ONE)
        for body, kind in (
            (TOO_LONG, "text/plain"),
            (b'{"messages":[{"value":1},{"value":"' + TOO_LONG.replace(b"\0", b"x") + b'"}]}',
             "application/json"),
        ):  # fmt: skip
            answer = await one.api.post(ONE + "/messages", body, kind)
            assert answer.status == 413, answer
            assert answer.json()["bytes_max"] == MESSAGE_BYTES_MAX
            assert answer.json().get("stored", {"count": 0}) == {"count": 0}
        assert (await one.api.get(ONE + "/messages")).status == 204
        assert (await one.api.post(ONE + "/messages", LONGEST, "text/plain")).status == 200


async def test_a_batch_must_fit_an_entry() -> None:
    async with running(1) as one, AsyncClient(one.api.url) as client:
        await one.api.put(ONE)
        with pytest.raises(InvalidCall, match="batch_bytes"):
            await client.producer("one", batch_bytes=4 * 2**20)
