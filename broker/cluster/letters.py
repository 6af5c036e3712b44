"""Brings messages that this broker sends for itself into topics, wherever those are served.

Dead letters, and what is retried elsewhere. Each is a batch by itself, of a producer by itself, so
one that is sent again is stored once, as long as the topic's owner remembers its producer
(`producers_max`). A large message goes with its body, as an upload that is named for that producer:
once, as long as the copy is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

from octavo.broker.cluster.ownership import OwnershipManager
from octavo.broker.cluster.topics import Topics
from octavo.broker.subscriptions.burying import LargeSource
from octavo.broker.types import Owner, PartitionName, TopicName
from octavo.protocol.records import Record, build_batch, partition_for

SENDERS_MAX = 16
"""Partitions that have letters in memory at once, each some 4 MiB."""
ATTEMPT_S = 40.0
"""Longer than a publish takes before its outcome is called unknown."""
LARGE_AT_ONCE = 2
"""Large messages that a broker copies at once, each some 8 MiB of memory."""
SLOWEST_BYTES_S = 512 * 1024
"""A copy that is slower is begun again."""

PassLetterOn = Callable[[Owner, PartitionName, bytes], Awaitable[None]]
"""Has another broker, the partition's owner, store a batch. Raises what it answers."""


class LargeLetter(NamedTuple):
    """The copy of a large message: the message itself, and whatever reads its body."""

    upload: str
    """What it is called; no publisher can call an upload so."""
    copy: Record
    body: LargeSource


PassLargeOn = Callable[[Owner, PartitionName, LargeLetter], Awaitable[None]]
"""The same for one of these."""


class Letters:
    """Of one broker."""

    def __init__(
        self,
        topics: Topics,
        ownership: Callable[[], OwnershipManager],
        clock: Callable[[], int],
    ) -> None:
        self.turn = asyncio.Semaphore(SENDERS_MAX)
        self.pass_on: PassLetterOn | None = None
        """Set by whoever connects brokers with one another."""
        self.pass_large_on: PassLargeOn | None = None
        """As well."""
        self._large_turn = asyncio.Semaphore(LARGE_AT_ONCE)
        self._topics = topics
        self._ownership = ownership
        self._clock = clock

    async def send(
        self,
        topic: TopicName,
        number: int,
        record: Record,
        producer_id: int,
        body: LargeSource | None = None,
    ) -> None:
        """Return when the message is durable, at this broker's time, with the body of a large one.

        It goes where its key says, without one to partition `number` of as many as there are.
        Raises what publishing and reading do, `TopicNotFound`, `TimeoutError`.
        """
        partitions = (await self._topics.get(topic)).settings.partitions
        found = number % partitions if record.key is None else partition_for(record.key, partitions)
        name = topic.partition(found)
        record = record._replace(timestamp_ms=self._clock())
        if body is not None:
            async with self._large_turn, asyncio.timeout(ATTEMPT_S + body.size / SLOWEST_BYTES_S):
                await self._send_large(name, f"letter:{producer_id:016x}", record, body)
            return
        batch = build_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        async with asyncio.timeout(ATTEMPT_S):
            owner = await self._ownership().owner_of(name)
            if owner.local:
                await (await self._ownership().partition(name)).publish(batch)
            else:
                assert self.pass_on is not None, "brokers are connected before partitions are open"
                await self.pass_on(owner, name, batch)

    async def _send_large(
        self, name: PartitionName, upload: str, copy: Record, body: LargeSource
    ) -> None:
        owner = await self._ownership().owner_of(name)
        if owner.local:
            partition = await self._ownership().partition(name)
            async with aclosing(body.pieces()) as parts:
                await partition.copy_large(upload, copy, parts)
        else:
            assert self.pass_large_on is not None, "as above"
            await self.pass_large_on(owner, name, LargeLetter(upload, copy, body))
