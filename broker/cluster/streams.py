"""Delete durable streams that have expired, or that were deleted while they had forks.

A fork shares ledgers and needs nothing else of its source (forks.py), so a deleted source could go
at once. But the protocol keeps its name while it has forks: such a stream is marked
(state/stream.py), and its topic is deleted after its last fork is gone. The ledgers that are shared
tell whether there are forks; a fork at the very beginning shares none, and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from octavo.broker.cluster.topics import Topics
from octavo.broker.errors import TopicChanged, TopicNotFound
from octavo.broker.log.shared_ledgers import SharedLedgers
from octavo.broker.partition.partition import Partition
from octavo.broker.types import TopicName
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_GENERATIONS_MAX = 100
"""Limit of generations of forks that are followed."""


class Streams:
    """Delete streams that have to go, for the partitions that this broker serves."""

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
        """Whether the stream may have to go. Costs nothing."""
        state = partition.stream.state
        return state is not None and (state.is_gone or partition.stream.is_over)

    async def look(self, partition: Partition) -> bool:
        """Delete the topic of this stream if it has to go; return whether it had to.

        Raises what the metadata store raises, `TopicDeleting`.
        """
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
        """Delete this incarnation of the topic; do nothing if it is already gone."""
        try:
            await self._topics.delete(name, incarnation)
        except (TopicChanged, TopicNotFound):
            return

    def begin(self, partition: Partition) -> None:
        """Run `look` in the background. If it fails, a later chore or call tries again."""
        self._spawn(self._look_quietly(partition))

    async def work(self, partition: Partition) -> None:
        """Run `look` as a chore."""
        await self.look(partition)

    async def _look_quietly(self, partition: Partition) -> None:
        try:
            await self.look(partition)
        except OctavoError as error:
            _log.warning(
                "stream_not_deleted", topic=str(partition.name.topic_name), reason=str(error)
            )

    async def has_forks(self, partition: Partition) -> bool:
        """Whether an existing topic was forked from this topic, directly or through other forks."""
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
