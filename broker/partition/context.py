"""What the partitions of one broker share: ledgers, records, caches, clock, settings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.config import BrokerConfig
from octavo.broker.log.cache import TailCache
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.log.reader import ReadAheadBudget
from octavo.broker.log.shared_ledgers import SharedLedgers
from octavo.broker.subscriptions.burying import LetterOffice
from octavo.broker.types import PartitionName, SubscriptionInfo
from octavo.ledger.client import LedgerClient
from octavo.metadata.bulk_loads import BulkLoadStore
from octavo.metadata.topics import TopicStore
from octavo.protocol.backoff import Backoff
from octavo.protocol.records import Record


class SchemaCheck(Protocol):
    """Checks messages by a schema subject."""

    async def misfit(self, messages: Sequence[Record]) -> tuple[int, str] | None:
        """The first that does not fit, and why. Raises `SchemaCheckUnavailable`."""


@dataclass(slots=True)
class PassedOver:
    """Messages that count as acked though nobody acked them, since the start of this broker."""

    expired: int = 0
    """Older than their topic's time to live."""
    evicted: int = 0
    """Beyond a backlog quota."""


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
    shared: SharedLedgers
    """Lets go of ledgers that leave a partition."""
    schema_checker: Callable[[tuple[str, str]], Awaitable[SchemaCheck]]
    """Of a subject; raises `SchemaMismatch` when nothing could fit it."""
    passed_over: PassedOver = field(default_factory=PassedOver)
    leases_are_read: Callable[[], bool] = lambda: True
    """Whether every broker that may be the successor knows what leases look like when written."""
    letters: LetterOffice | None = None
    """Brings dead letters into their topic."""
    compacting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """One partition after the other is compacted: so memory and pace are the broker's."""

    def reopen_pauses(self) -> Backoff:
        """Between attempts to open a partition."""
        config = self.config
        return Backoff(config.reopen_delay_ms / 1000, config.reopen_delay_ms_max / 1000, self.rng)
