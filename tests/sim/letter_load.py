"""Dead letters and retries in the load (X14, X15): subscriptions that give messages up early.

Consumers forget, nack and die. In some seeds the copies go to the retry topic, and no consumer
receives them from there. Options come from a separate stream.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.dead_letters import ORIGIN, RETRY, with_dead_letters
from octavo.broker.types import (
    PartitionName,
    RetryBackoff,
    StoredBatch,
    SubscriptionSettings,
    TopicName,
)
from octavo.protocol.records import read_records
from tests.sim.topic_client import TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_SHARE = 0.4
_RETRIED_SHARE = 0.35
"""The share of these seeds with a retry topic."""
_PAUSES = {"dead_letter_retry_ms": 20, "dead_letter_retry_ms_max": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterOptions:
    max_deliveries: int | None = None
    retry_backoff: RetryBackoff | None = None
    waiting_max: int = 1_000
    retried: bool = False
    """Messages that are given up go to the retry topic."""

    @property
    def config(self) -> dict[str, Any]:
        return {**_PAUSES, "dead_letters_waiting_max": self.waiting_max}

    def given_to(
        self, topic: TopicName, subscriptions: Mapping[str, SubscriptionSettings]
    ) -> Mapping[str, SubscriptionSettings]:
        if self.max_deliveries is None:
            return subscriptions
        return {
            name: with_dead_letters(
                topic,
                name,
                replace(
                    settings,
                    max_deliveries=None if self.retried else self.max_deliveries,
                    retry_deliveries=self.max_deliveries if self.retried else None,
                    retry_backoff=self.retry_backoff,
                ),
            )
            for name, settings in subscriptions.items()
        }


def draw(rng: random.Random) -> LetterOptions:
    if rng.random() >= _SHARE:
        return LetterOptions()
    return LetterOptions(
        max_deliveries=rng.choice((1, 2, 3)),
        retry_backoff=rng.choice((None, RetryBackoff(10, 60), RetryBackoff(40, 40, 1.0))),
        waiting_max=rng.choice((1, 3, 1_000)),
        retried=rng.random() < _RETRIED_SHARE,
    )


def limits(settings: SubscriptionSettings) -> bool:
    return settings.max_deliveries is not None or settings.retry_deliveries is not None


class LetterJudge:
    """Reads the dead-letter topics, or the retry topics, at the end."""

    def __init__(self, load: TopicLoad, options: LetterOptions) -> None:
        self.load = load
        self.options = options

    async def read(self, client: TopicClient, name: PartitionName, sub: str) -> None:
        settings = self.load.options.subscriptions[sub]
        if not limits(settings):
            return
        log = self.load.audit.logs[name]
        # A retry topic has as many partitions as its origin.
        topic = TopicName.parse(settings.retry_topic or settings.dead_letter_topic)
        count = len(self.load.partitions) if settings.retry_topic else 1
        own = RETRY if settings.retry_topic else ORIGIN
        found: dict[int, list[tuple[str, int]]] = {}
        for number in range(count):
            dead = topic.partition(number)
            for batch in await self._batches(client, dead):
                for record in read_records(batch.data):
                    said = {word: value or b"" for word, value in record.headers}
                    if int(said[own + "Partition"]) != name.partition:
                        continue
                    offset = int(said[own + "Offset"])
                    of = said[own + "Topic"].decode(), said[own + "Subscription"]
                    if of != (str(name.topic_name), sub.encode()):
                        log.fails(f"X14 a letter in {dead} is of {of}")
                    words = [word for word, _ in record.headers]
                    as_sent = record.headers[: words.index(own + "Topic")]
                    value = log.odd.name_of(
                        record._replace(headers=as_sent), f"dead letters of {sub}"
                    )
                    times = int(said[own + "Deliveries"])
                    found.setdefault(offset, []).append((value, times))
                    if settings.retry_topic:
                        self.load.cluster.trace.probe("letters.retried")
        assert self.options.max_deliveries is not None
        log.letters(sub, found, self.options.max_deliveries)

    async def _batches(self, client: TopicClient, dead: PartitionName) -> list[StoredBatch]:
        async def bounds(partition: Partition) -> tuple[int, int]:
            return partition.earliest_offset, partition.next_offset

        first, end = await client.ask_retrying(dead, bounds)
        if first:
            self.load.audit.fail(f"X14 {dead} was trimmed up to {first}, and nobody acked it")
        found: list[StoredBatch] = []
        at = first
        while at < end:

            async def some(partition: Partition, at: int = at) -> list[StoredBatch]:
                return await partition.read(at, bytes_max=10_000, count_max=1_000)

            more = await client.ask_retrying(dead, some)
            found += more
            at = more[-1].next_offset
        return found
