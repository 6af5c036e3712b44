"""Send dead letters and copies for retry topics, wherever the topics are served.

Each copy is a batch with its own producer id, so a repeat is stored once while the topic's owner
remembers that producer (`producers_max`); a large message is an upload named for the producer.

A durable stream takes no copies, and a compacted topic no large messages: such copies go to another
topic (`beside`), which statistics and `explain` name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import NamedTuple

import structlog

from octavo.broker.cluster.ownership import OwnershipManager
from octavo.broker.cluster.topics import Topics
from octavo.broker.errors import BATCH_TOO_LONG, NOT_ENCRYPTED, LargeNotTaken, TopicIsStream
from octavo.broker.subscriptions.dead_letter_delivery import LargeSource
from octavo.broker.subscriptions.dead_letters import as_large, fitting_batch
from octavo.broker.types import Owner, PartitionName, SubscriptionInfo, TopicName
from octavo.protocol.large import PIECE_BYTES
from octavo.protocol.records import Record, partition_for

_log = structlog.get_logger()

SENDERS_MAX = 16
"""Partitions with letters in memory at once; each takes about 4 MiB."""
ATTEMPT_S = 40.0
"""Longer than until a publish's outcome counts as unknown."""
SLOW_S = 1.0
"""A topic whose attempt failed after this time is doubtful until an attempt succeeds."""
LARGE_AT_ONCE = 2
"""Large messages copied at once; each takes about 8 MiB."""
DOUBTFUL_MAX = 10_000
SLOWEST_BYTES_S = 512 * 1024
"""A slower copy of a large message is stopped and begun again."""

PassLetterOn = Callable[[Owner, PartitionName, bytes], Awaitable[None]]


class LargeLetter(NamedTuple):
    upload: str
    """A name that no client can use."""
    copy: Record
    body: LargeSource


class ValueSource:
    def __init__(self, value: bytes) -> None:
        self._value = value

    @property
    def size(self) -> int:
        return len(self._value)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(self._value), PIECE_BYTES):
            yield self._value[start : start + PIECE_BYTES]


PassLargeOn = Callable[[Owner, PartitionName, LargeLetter], Awaitable[None]]


class Turns:
    """Turns to have letters in memory, so that a stuck topic delays only its own letters.

    A topic has at most an eighth of the turns, a namespace a quarter. Topics whose last attempt was
    slow and failed are doubtful: they share an extra quarter, of which a namespace has at most one
    turn. So topics that are full or not served delay only their tenant's letters.
    """

    def __init__(self, most: int, now_s: Callable[[], float]) -> None:
        self._most = most
        self._now_s = now_s
        self._all = asyncio.Semaphore(most)
        self._doubtful_all = asyncio.Semaphore(max(1, most // 4))
        self._shares: dict[object, tuple[asyncio.Semaphore, int]] = {}
        self._doubtful: dict[TopicName, None] = {}

    @asynccontextmanager
    async def turn(self, topic: TopicName) -> AsyncIterator[None]:
        doubtful = topic in self._doubtful
        namespace = 1 if doubtful else self._most // 4
        async with (
            self._share(topic, self._most // 8),
            self._share((topic.namespace, doubtful), namespace),
            self._doubtful_all if doubtful else self._all,
        ):
            began_s = self._now_s()
            try:
                yield
            except BaseException:
                if self._now_s() - began_s >= SLOW_S:
                    self._doubtful.pop(topic, None)
                    self._doubtful[topic] = None
                    if len(self._doubtful) > DOUBTFUL_MAX:
                        del self._doubtful[next(iter(self._doubtful))]
                raise
            self._doubtful.pop(topic, None)

    @asynccontextmanager
    async def _share(self, of: object, most: int) -> AsyncIterator[None]:
        turns, users = self._shares.get(of) or (asyncio.Semaphore(max(1, most)), 0)
        self._shares[of] = turns, users + 1
        try:
            async with turns:
                yield
        finally:
            turns, users = self._shares.pop(of)
            if users > 1:
                self._shares[of] = turns, users - 1


class DeadLetterRouter:
    def __init__(
        self,
        topics: Topics,
        ownership: Callable[[], OwnershipManager],
        clock: Callable[[], int],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._turns = Turns(SENDERS_MAX, loop.time)
        self._large_turns = Turns(LARGE_AT_ONCE, loop.time)
        self.pass_on: PassLetterOn | None = None
        self.pass_large_on: PassLargeOn | None = None
        self._topics = topics
        self._ownership = ownership
        self._clock = clock

    def turn(self, topic: TopicName) -> AbstractAsyncContextManager[None]:
        return self._turns.turn(topic)

    async def send(
        self,
        origin: TopicName,
        topic: TopicName,
        number: int,
        record: Record,
        producer_id: int,
        info: SubscriptionInfo,
        body: LargeSource | None = None,
    ) -> str | None:
        """Send a message, with its large body if any; return when it is durable.

        Without a key, `number` modulo the topic's partitions picks the partition. Returns None, or
        which other topic has the message and why.
        """
        record = record._replace(timestamp_ms=self._clock())
        try:
            await self._send(origin, topic, number, record, producer_id, body)
        except (TopicIsStream, LargeNotTaken) as error:
            other = await self._topics.letters_beside(origin, topic, info)
            await self._send(origin, other, number, record, producer_id, body)
            _log.warning(
                "letter_stored_beside", topic=str(topic), other=str(other), reason=str(error)[:300]
            )
            return f"copies go to {other}, because {topic} refuses them: {error}"
        return None

    async def _send(
        self,
        origin: TopicName,
        topic: TopicName,
        number: int,
        record: Record,
        producer_id: int,
        body: LargeSource | None,
    ) -> None:
        target = await self._topics.mark_letters(topic)
        if not target.settings.encrypted and (await self._topics.get(origin)).settings.encrypted:
            raise NOT_ENCRYPTED(
                f"topic {origin} is encrypted and {topic} is not: a copy would be stored in clear "
                f"text; encrypt namespace {topic.namespace}"
            )
        partitions = target.settings.partitions
        found = number % partitions if record.key is None else partition_for(record.key, partitions)
        name = topic.partition(found)
        upload = f"letter:{-producer_id:016x}"
        batch = None if body is not None else fitting_batch(record, producer_id)
        if batch is None and body is None and (large := as_large(record, upload)) is not None:
            record, body = large[0], ValueSource(large[1])
        if body is not None:
            limit_s = ATTEMPT_S + body.size / SLOWEST_BYTES_S
            async with self._large_turns.turn(topic), asyncio.timeout(limit_s):
                await self._send_large(name, upload, record, body)
            return
        if batch is None:
            raise BATCH_TOO_LONG(
                "its key and headers fill an entry, and a copy needs another header: no topic can "
                "store the copy; ack the message, or skip it"
            )
        async with asyncio.timeout(ATTEMPT_S):
            owner = await self._ownership().owner_of(name)
            if owner.local:
                await (await self._ownership().partition(name)).store_copy(batch)
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
