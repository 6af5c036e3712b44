"""Delete topics, subscriptions and streams that no client uses any more, if their policy says so.

A topic goes when `delete_when_inactive` has passed since it was made, it has no subscription, and
each partition's owner says that no client has called for this time, nor since the owner began. Then
the owners are asked twice more, and refuse all calls for a moment: so a late publish is retried,
and is never acked into a topic that is about to go.

A durable subscription goes by `subscription_expiry` in the same way, whatever is unacked; those for
dead letters or retries never do. A non-durable subscription goes after `non_durable_expiry_ms`
without use.

Readers that bypass the brokers, such as Spark, do not count as use.

Durable streams go when they have expired. The protocol keeps the name of a stream with forks, so
its topic goes after its last fork; only forks that share ledgers count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.cluster.ownership import OwnershipManager
from octavo.broker.cluster.topics import Topics
from octavo.broker.errors import SubscriptionNotFound, TopicChanged, TopicNotFound
from octavo.broker.log.ledger_references import SharedLedgers
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName, SubscriptionInfo, TopicName
from octavo.metadata.topics import TopicStore
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_RETIRED_S = 10.0
AskUnused = Callable[[Owner, PartitionName, int, float, str], Awaitable[bool]]
"""Asks another owner for `Partition.is_unused` or, with a name, `is_subscription_unused`."""


class InactiveTopics:
    def __init__(
        self,
        topics: Topics,
        records: TopicStore,
        ownership: OwnershipManager,
        deletion_time: Callable[[], DeletionTime | None],
        non_durable_expiry_ms: int,
    ) -> None:
        self._topics = topics
        self._records = records
        self._ownership = ownership
        self._deletion_time = deletion_time
        self._non_durable_ms = non_durable_expiry_ms
        self.ask: AskUnused | None = None

    def is_due(self, partition: Partition) -> bool:
        span_ms = self._span_ms(partition)
        return (
            partition.name.partition == 0 and span_ms is not None and partition.is_unused(span_ms)
        )

    def _span_ms(self, partition: Partition) -> int | None:
        return partition.settings.policies.inactive_ms

    async def look(self, partition: Partition) -> None:
        name, span_ms = partition.name.topic_name, self._span_ms(partition)
        info = await self._topics.newest(name)
        time = self._deletion_time()
        if span_ms is None or time is None or info.incarnation != partition.incarnation:
            return
        if time.doubt or time.now_ms - info.created_ms < span_ms:
            return
        for retire_s in (0.0, _RETIRED_S, _RETIRED_S):
            # A client may have come while the other owners were asked.
            if not await self._is_unused(name, info.settings.partitions, span_ms, retire_s):
                return
        await self._topics.delete(name, info.incarnation)
        _log.warning("inactive_topic_deleted", topic=str(name), unused_ms=span_ms)

    def expires(self, partition: Partition) -> bool:
        return partition.name.partition == 0 and (
            not partition.knows_subscriptions
            or any(partition.unused_subscriptions(*one) for one in self._spans(partition))
        )

    def _spans(self, partition: Partition) -> list[tuple[int, bool]]:
        span_ms = partition.settings.policies.subscription_expiry_ms
        return [(self._non_durable_ms, False)] + ([] if span_ms is None else [(span_ms, True)])

    async def expire(self, partition: Partition) -> None:
        name = partition.name.topic_name
        info = await self._topics.newest(name)
        if info.incarnation != partition.incarnation:
            return
        if not partition.knows_subscriptions:
            await partition.know_subscriptions()
        for span_ms, durable in self._spans(partition):
            for sub in partition.unused_subscriptions(span_ms, durable):
                with contextlib.suppress(SubscriptionNotFound):
                    found = await self._topics.subscription(name, sub)
                    if found.settings.durable == durable:
                        await self._expire(name, info.settings.partitions, found, span_ms)

    async def _expire(
        self, name: TopicName, partitions: int, found: SubscriptionInfo, span_ms: int
    ) -> None:
        time = self._deletion_time()
        if time is None or time.doubt or time.now_ms - found.created_ms < span_ms:
            return
        if found.has_letters:
            return
        for retire_s in (0.0, _RETIRED_S, _RETIRED_S):
            if not await self._is_unused(name, partitions, span_ms, retire_s, found.name):
                return
        await self._topics.delete_subscription(name, found.name, found.created_ms)
        _log.warning(
            "subscription_expired", topic=str(name), subscription=found.name, unused_ms=span_ms
        )

    async def _is_unused(
        self, name: TopicName, partitions: int, span_ms: int, retire_s: float, sub: str = ""
    ) -> bool:
        if not sub and await self._records.list_subscriptions(*name):
            return False
        for number in range(partitions):
            one = name.partition(number)
            owner = await self._ownership.owner_of(one)
            if owner.local:
                partition = await self._ownership.partition(one)
                unused = (
                    partition.is_subscription_unused(sub, span_ms, retire_s)
                    if sub
                    else partition.is_unused(span_ms, retire_s)
                )
            else:
                ask = self.ask
                unused = ask is not None and await ask(owner, one, span_ms, retire_s, sub)
            if not unused:
                return False
        return True


_GENERATIONS_MAX = 100


class ExpiredStreams:
    def __init__(
        self,
        topics: Topics,
        shared: SharedLedgers,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._topics = topics
        self._shared = shared
        self._spawn = spawn

    def is_due(self, partition: Partition) -> bool:
        state = partition.stream.state
        return state is not None and (state.is_gone or partition.stream.is_over)

    async def look(self, partition: Partition) -> bool:
        """Delete the stream's topic if the stream is over; return whether it was."""
        state = partition.stream.state
        if state is None:
            return False
        over = partition.stream.is_over
        if not over and not (state.is_gone and not await self.has_forks(partition)):
            return False
        await self.delete(partition.name.topic_name, partition.incarnation)
        _log.info("stream_went", topic=str(partition.name.topic_name), expired=over)
        return True

    async def delete(self, name: TopicName, incarnation: str) -> None:
        try:
            await self._topics.delete(name, incarnation)
        except (TopicChanged, TopicNotFound):
            return

    def begin(self, partition: Partition) -> None:
        self._spawn(self._look_quietly(partition))

    async def work(self, partition: Partition) -> None:
        await self.look(partition)

    async def _look_quietly(self, partition: Partition) -> None:
        try:
            await self.look(partition)
        except OctavoError as error:
            _log.warning(
                "stream_not_deleted", topic=str(partition.name.topic_name), reason=str(error)
            )

    async def has_forks(self, partition: Partition) -> bool:
        """Return whether the topic has forks; forks of forks count, too."""
        name, incarnation = partition.name.topic_name, partition.incarnation
        seen: dict[TopicName, bool] = {name: False}
        for ledger_id in partition.ledger_ids:
            for one in await self._shared.referrers(ledger_id):
                fork = TopicName(one.namespace, one.topic)
                if fork not in seen:
                    seen[fork] = await self._descends(fork, one.incarnation, name, incarnation)
                    if seen[fork]:
                        return True
        return False

    async def _descends(
        self, fork: TopicName, incarnation: str, name: TopicName, source: str
    ) -> bool:
        for _ in range(_GENERATIONS_MAX):
            try:
                info = await self._topics.get(fork)
            except TopicNotFound:
                return False
            if info.incarnation != incarnation or info.fork is None:
                return False
            fork, incarnation = TopicName(fork.namespace, info.fork.topic), info.fork.incarnation
            if fork == name:
                return incarnation == source
        return False
