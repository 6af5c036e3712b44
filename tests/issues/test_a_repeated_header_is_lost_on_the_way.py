"""A message's header that was given twice, in two spellings, came through another broker once.

aiohttp's client tells repeated fields by their spelling and replaces them without regard to it: of
`Octavo-Header-B` and `octavo-header-b` the first was gone at the owner, in silence. Found by the
stories of tests/unit/broker_http/test_any_broker_answers_alike.py when a new call made them others.
"""

from __future__ import annotations

import asyncio

from octavo.protocol.records import read_records
from tests.support.fake_broker import running

TOPIC = "/v1/topics/public/one"
REQUEST = (
    f"POST {TOPIC}/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    "Content-Type: text/plain\r\nContent-Length: 1\r\n"
    "Octavo-Header-B: 1\r\noctavo-header-b: 2\r\n\r\nx"
).encode()


async def test_both_arrive_through_any_broker() -> None:
    async with running(2) as one:
        assert (await one.api.put(TOPIC)).status == 201
        for server in one.servers:  # the first one owns the partition
            host, _, port = server.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(REQUEST)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        stored = [read_records(batch.data) for batch in one.partition("public/one").batches]
        assert [record.headers for (record,) in stored] == [[("b", b"1"), ("b", b"2")]] * 2
