"""What the partitions of one broker share: ledgers, records, caches, clock, settings."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.config import BrokerConfig
from octavo.broker.log.cache import TailCache
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.log.reader import ReadAheadBudget
from octavo.broker.types import PartitionName, SubscriptionInfo
from octavo.ledger.client import LedgerClient
from octavo.metadata.bulk_loads import BulkLoadStore
from octavo.metadata.topics import TopicStore
from octavo.protocol.backoff import Backoff


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What the partitions of one broker share."""

    config: BrokerConfig
    ledgers: LedgerClient
    topics: TopicStore
    tail_cache: TailCache
    read_ahead: ReadAheadBudget
    open_batches: OpenBatches
    clock: Callable[[], int]
    """Of this machine: nothing may be deleted by it."""
    rng: random.Random
    deletion_time: Callable[[], DeletionTime | None]
    """None: nothing may be deleted by age now."""
    subscription_info: Callable[[PartitionName, str], Awaitable[SubscriptionInfo]]
    """Raises `SubscriptionNotFound`."""
    broker_id: Callable[[], str]
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    """Runs in the background; the broker holds the task."""
    bulk_loads: BulkLoadStore

    def reopen_pauses(self) -> Backoff:
        """Between attempts to open a partition."""
        config = self.config
        return Backoff(config.reopen_delay_ms / 1000, config.reopen_delay_ms_max / 1000, self.rng)
