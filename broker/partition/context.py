"""The parts that all partitions of a broker share: ledgers, records, caches, clock, settings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.config import BrokerConfig
from octavo.broker.log.cache import TailCache
from octavo.broker.log.ledger_references import SharedLedgers
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.log.reader import ReadAheadBudget
from octavo.broker.subscriptions.dead_letter_delivery import DeadLetterSender
from octavo.broker.types import PartitionName, SubscriptionInfo
from octavo.ledger.client import LedgerClient
from octavo.metadata.bulk_loads import BulkLoadStore
from octavo.metadata.topics import TopicStore
from octavo.protocol.backoff import Backoff
from octavo.protocol.records import Record


class SchemaCheck(Protocol):
    async def misfit(self, messages: Sequence[Record]) -> tuple[int, str] | None: ...


@dataclass(slots=True)
class PassedOver:
    expired: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class PartitionContext:
    config: BrokerConfig
    ledgers: LedgerClient
    topics: TopicStore
    tail_cache: TailCache
    read_ahead: ReadAheadBudget
    open_batches: OpenBatches
    clock: Callable[[], int]
    """This machine's clock, by which nothing may be deleted."""
    rng: random.Random
    deletion_time: Callable[[], DeletionTime | None]
    """None while nothing may be deleted by age."""
    subscription_info: Callable[[PartitionName, str], Awaitable[SubscriptionInfo]]
    broker_id: Callable[[], str]
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    bulk_loads: BulkLoadStore
    shared: SharedLedgers
    schema_checker: Callable[[tuple[str, str]], Awaitable[SchemaCheck]]
    """Raises `SchemaMismatch` when no message can fit the subject."""
    passed_over: PassedOver = field(default_factory=PassedOver)
    leases_are_read: Callable[[], bool] = lambda: True
    """Whether every possible successor can read leases in a state ledger."""
    letters: DeadLetterSender | None = None
    compacting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Limits compactions' memory and pace for the whole broker."""

    def reopen_pauses(self) -> Backoff:
        config = self.config
        return Backoff(config.reopen_delay_ms / 1000, config.reopen_delay_ms_max / 1000, self.rng)
