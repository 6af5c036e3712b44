"""A partition's messages page by page: to its end, or without end (followed).

At the end, a follower opens a stream from the owner, which costs a third of calls. When it breaks
off, the next call continues at the same offset. While no message comes, long polls cost less.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from octavo.client.errors import ApiError, Unreachable
from octavo.client.incarnation import Incarnation
from octavo.client.reading import ReadBatch, opened, read_messages
from octavo.client.transport import BATCH_TYPE, Transport
from octavo.client.types import Message, TopicName
from octavo.protocol.append_time import APPEND_TIME_HEADER, Times
from octavo.protocol.batch import whole_batches
from octavo.protocol.leased import BEFORE_EACH, ENTRIES_HEADER, ENTRY

AHEAD_FROM = 1_000
"""After a page of this many messages, the client fetches the next page at once."""
WAIT_S = 20.0
QUIET_S = 15.0
"""A broker ends a stream without messages after this time."""
STREAM_AGAIN_S = 30.0
"""The wait after a refusal: the broker has too many streams, or is too old for them."""


async def pages(
    transport: Transport,
    topic: TopicName,
    partition: int,
    start: str | int,
    *,
    of: Incarnation,
    follow: bool,
    compacted: bool,
) -> AsyncGenerator[list[Message], None]:
    loop = asyncio.get_running_loop()

    def reading(place: str | int, wait_s: float) -> asyncio.Task[ReadBatch]:
        read = read_messages(
            transport, topic, partition, place, None, wait_s, of=of, compacted=compacted
        )
        return asyncio.create_task(read, name=f"read {topic} {partition} from {place}")

    place = start
    wait_s = 0.0
    stream_from_s = loop.time()
    ahead: asyncio.Task[ReadBatch] | None = None
    try:
        while True:
            page = await (ahead or reading(place, wait_s))
            ahead = None
            if page.next_offset is not None:
                place = page.next_offset
            if page.messages:
                wait_s = 0.0 if loop.time() >= stream_from_s else WAIT_S
                if len(page.messages) >= AHEAD_FROM:
                    ahead = reading(place, wait_s)
                yield page.messages
            elif not follow:
                return
            elif wait_s or not isinstance(place, int) or loop.time() < stream_from_s:
                wait_s = WAIT_S
            else:
                wait_s = WAIT_S
                try:
                    async with aclosing(_streamed(transport, topic, partition, place, of)) as found:
                        async for messages in found:
                            place, wait_s = messages[-1].offset + 1, 0.0
                            yield messages
                except ApiError:
                    stream_from_s = loop.time() + STREAM_AGAIN_S
                except Unreachable:
                    pass  # the stream broke off: the next call looks for the owner
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait({ahead})


async def _streamed(
    transport: Transport, topic: TopicName, partition: int, offset: int, of: Incarnation
) -> AsyncGenerator[list[Message], None]:
    times = Times()
    placed = False

    def heed(headers: Mapping[str, str]) -> None:
        nonlocal times, placed
        times = Times(headers.get(APPEND_TIME_HEADER, ""))
        placed = headers.get(ENTRIES_HEADER) == BEFORE_EACH

    found = transport.stream(
        f"/v1/topics/{topic}/partitions/{partition}/messages",
        query={"from": offset, "follow": "true"},
        headers={"Accept": BATCH_TYPE, ENTRIES_HEADER: BEFORE_EACH},
        partition=(str(topic), partition),
        wait_s=QUIET_S,
        of=of,
        on_head=heed,
    )
    data = bytearray()
    async with aclosing(found) as pieces:
        async for piece in pieces:
            data += piece
            if whole := whole_batches(data, before=ENTRY.size if placed else 0):
                batches = bytes(data[:whole])
                del data[:whole]
                entries = None if placed else iter(())
                if messages := opened(partition, batches, offset, times, entries):
                    offset = messages[-1].offset + 1
                    yield messages
