"""Dead letters in the load: subscriptions with `max_deliveries`, and what the referee says of them.

In a share of the seeds with topics each subscription gives messages up after so few deliveries that
it happens all the time: consumers forget, nack, and die. X14: a message that no consumer tried to
ack, and that counts as acked all the same, has its copy in the dead-letter topic, which nobody
trims; copies are of messages that there are, say the truth of them, and none is there twice unless
a seek came between. X15: no consumer is told a lower delivery count than one before it was, not by
the next owner either, unless a seek came between or an owner answers that has a successor.
Drawn from a stream of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.dead_letters import with_dead_letters
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
_OWN = "Octavo-Origin-"
"""So begin the headers that a copy has beside its original's."""
_PAUSES = {"dead_letter_retry_ms": 20, "dead_letter_retry_ms_max": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterOptions:
    """One seed's."""

    max_deliveries: int | None = None
    retry_backoff: RetryBackoff | None = None
    waiting_max: int = 1_000

    @property
    def config(self) -> dict[str, Any]:
        """Of the brokers."""
        return {**_PAUSES, "dead_letters_waiting_max": self.waiting_max}

    def given_to(
        self, topic: TopicName, subscriptions: Mapping[str, SubscriptionSettings]
    ) -> Mapping[str, SubscriptionSettings]:
        """The subscriptions, with this in their settings."""
        if self.max_deliveries is None:
            return subscriptions
        return {
            name: with_dead_letters(
                topic,
                name,
                replace(
                    settings,
                    max_deliveries=self.max_deliveries,
                    retry_backoff=self.retry_backoff,
                ),
            )
            for name, settings in subscriptions.items()
        }


def draw(rng: random.Random) -> LetterOptions:
    """The options of one seed. All draws come from `rng`, in one order."""
    if rng.random() >= _SHARE:
        return LetterOptions()
    return LetterOptions(
        max_deliveries=rng.choice((1, 2, 3)),
        retry_backoff=rng.choice((None, RetryBackoff(10, 60), RetryBackoff(40, 40, 1.0))),
        waiting_max=rng.choice((1, 3, 1_000)),
    )


class LetterJudge:
    """Reads the dead-letter topics in the end."""

    def __init__(self, load: TopicLoad, options: LetterOptions) -> None:
        self.load = load
        self.options = options

    async def read(self, client: TopicClient, name: PartitionName, sub: str) -> None:
        """All letters of one subscription in one partition, for its referee."""
        settings = self.load.options.subscriptions[sub]
        if settings.max_deliveries is None:
            return
        log = self.load.audit.logs[name]
        dead = TopicName.parse(settings.dead_letter_topic).partition(0)
        found: dict[int, list[tuple[str, int]]] = {}
        for batch in await self._batches(client, dead):
            for record in read_records(batch.data):
                said = {word: value or b"" for word, value in record.headers}
                if int(said["Octavo-Origin-Partition"]) != name.partition:
                    continue
                offset = int(said["Octavo-Origin-Offset"])
                of = said["Octavo-Origin-Topic"].decode(), said["Octavo-Origin-Subscription"]
                if of != (str(name.topic_name), sub.encode()):
                    log.fails(f"X14 a letter in {dead} is of {of}")
                as_sent = [header for header in record.headers if not header[0].startswith(_OWN)]
                value = log.odd.name_of(record._replace(headers=as_sent), f"dead letters of {sub}")
                times = int(said["Octavo-Origin-Deliveries"])
                found.setdefault(offset, []).append((value, times))
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
