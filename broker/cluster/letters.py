"""Brings messages that this broker sends for itself into topics, wherever those are served.

Dead letters, and what is retried elsewhere. Each is a batch by itself, of a producer by itself, so
one that is sent again is stored once, as long as the topic's owner remembers its producer
(`producers_max`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.broker.cluster.ownership import OwnershipManager
from octavo.broker.cluster.topics import Topics
from octavo.broker.types import Owner, PartitionName, TopicName
from octavo.protocol.records import Record, build_batch, partition_for

SENDERS_MAX = 16
"""Partitions that have letters in memory at once, each some 4 MiB."""
ATTEMPT_S = 40.0
"""Longer than a publish takes before its outcome is called unknown."""

PassLetterOn = Callable[[Owner, PartitionName, bytes], Awaitable[None]]
"""Has another broker, the partition's owner, store a batch. Raises what it answers."""


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
        self._topics = topics
        self._ownership = ownership
        self._clock = clock

    async def send(self, topic: TopicName, number: int, record: Record, producer_id: int) -> None:
        """Return when the message is durable, at this broker's time.

        It goes where its key says, without one to partition `number` of as many as there are.
        Raises what publishing does, `TopicNotFound`, `TimeoutError`.
        """
        partitions = (await self._topics.get(topic)).settings.partitions
        found = number % partitions if record.key is None else partition_for(record.key, partitions)
        name = topic.partition(found)
        batch = build_batch(
            [record._replace(timestamp_ms=self._clock())],
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
