"""Read a partition without a subscription. The client checks checksums and decodes batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from octavo.client.incarnation import Incarnation
from octavo.client.transport import BATCH_TYPE, NEXT_OFFSET, Transport
from octavo.client.types import Message, TopicName, records_of
from octavo.protocol.append_time import APPEND_TIME_HEADER, Times, readable
from octavo.protocol.batch import split_batches
from octavo.protocol.entry import Buffer
from octavo.protocol.leased import ENTRIES_HEADER, ENTRY, entries_of
from octavo.protocol.records import read_gapped_records


class ReadBatch(NamedTuple):
    """Messages, and the offset to continue from (None if the broker did not name it)."""

    messages: list[Message]
    next_offset: int | None


async def read_messages(
    transport: Transport,
    topic: TopicName,
    partition: int,
    start: str | int,
    limit: int | None,
    wait_s: float,
    *,
    of: Incarnation,
    compacted: bool = False,
) -> ReadBatch:
    """Read once from the topic `of`; without a `limit`, as much as a broker gives at once.

    Raises `Trimmed`, `NotFound`, `TopicReplaced`, `InvalidBatch` (damaged on the way).
    """
    if isinstance(start, str) and start not in ("earliest", "latest"):
        start = await find_offset(transport, topic, partition, start, of=of, compacted=compacted)
    answer = await transport.call(
        "GET",
        f"/v1/topics/{topic}/partitions/{partition}/messages",
        query={
            "from": start,
            "limit": limit,
            "wait": wait_s or None,
            "compacted": "true" if compacted else None,
        },
        headers={"Accept": BATCH_TYPE},
        partition=(str(topic), partition),
        wait_s=wait_s,
        of=of,
    )
    told = answer.headers.get(NEXT_OFFSET)
    next_offset = int(told) if told is not None else None
    if not answer.body:
        return ReadBatch([], next_offset)
    first = start if isinstance(start, int) else 0
    times = Times(answer.headers.get(APPEND_TIME_HEADER, ""))
    entries = entries_of(answer.headers.get(ENTRIES_HEADER, ""))
    messages = opened(partition, answer.body, first, times, iter(entries), compacted=compacted)
    if limit is not None and len(messages) > limit:
        del messages[limit:]  # batches are sent whole, so the last may end after the limit
        next_offset = None
    if messages and next_offset is None:
        next_offset = messages[-1].offset + 1
    return ReadBatch(messages, next_offset)


def opened(
    partition: int,
    batches: Buffer,
    first: int,
    times: Times,
    entries: Iterator[tuple[int, int]] | None = None,
    *,
    compacted: bool = False,
) -> list[Message]:
    """Decode the messages from `first` on in consecutive batches. Raises `InvalidBatch`.

    `entries`: ledger and entry of each batch; without it, they precede each batch. Brokers before
    0.2 send none, and then message ids are empty.
    """
    messages: list[Message] = []
    view = memoryview(batches)
    start, before = 0, 0 if entries is not None else ENTRY.size
    for header, stored in split_batches(batches, gaps=compacted, before=before):
        place = ENTRY.unpack_from(view, start) if entries is None else next(entries, None)
        start += before + header.total_bytes
        entry = "" if place is None else f"{place[0]}:{place[1]}:"
        data = readable(times.shown(header), stored)
        if compacted:
            messages += _of_gapped(partition, header.base_offset, entry, data, first)
        else:
            # A batch is sent whole, so it may begin before the requested offset.
            skip = max(0, first - header.base_offset)
            messages += _messages_of(partition, header.base_offset, entry, data)[skip:]
        first = header.next_offset
    return messages


def _messages_of(partition: int, base: int, entry: str, batch: Buffer) -> list[Message]:
    return [
        Message(
            partition,
            base + index,
            f"{entry}{index}" if entry else "",
            record.key,
            record.value,
            tuple(headers) if (headers := record.headers) else (),
            record.timestamp,
        )
        for index, record in enumerate(records_of(base, batch))
    ]


def _of_gapped(partition: int, base: int, entry: str, batch: Buffer, first: int) -> list[Message]:
    return [
        Message(
            partition,
            base + record.offset_delta,
            f"{entry}{index}" if entry else "",
            record.key,
            record.value,
            tuple(record.headers),
            record.timestamp_ms,
        )
        for index, record in enumerate(read_gapped_records(batch))
        if base + record.offset_delta >= first
    ]


async def find_offset(
    transport: Transport,
    topic: TopicName,
    partition: int,
    at: str | int,
    *,
    of: Incarnation,
    compacted: bool = False,
) -> int:
    answer = await transport.call(
        "GET",
        f"/v1/topics/{topic}/partitions/{partition}/offsets",
        query={"at": at, "compacted": "true" if compacted else None},
        partition=(str(topic), partition),
        of=of,
    )
    return int(answer.json()["offsets"][0]["offset"])
