"""The parts that every handler needs: the broker, its peers, the limits, the counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from octavo.broker.broker import Broker
from octavo.broker.cluster.in_use import RecoveryDoor
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.gate import Gate
from octavo.broker.http.held_bytes import HeldBytes
from octavo.broker.http.overview import Overview
from octavo.broker.http.quotas import HttpQuotas
from octavo.broker.http.stream import Pages, StreamPlaces
from octavo.broker.metrics import Metrics
from octavo.broker.operations.asking import Operations
from octavo.broker.operations.remote import Remote
from octavo.broker.operations.rules import BrokerRules
from octavo.metadata.store import MetadataStore
from octavo.security.principal import Identity

if TYPE_CHECKING:
    from aiohttp import web

    from octavo.broker.http.call import Call
    from octavo.ledger.client import LedgerClient


class Turn:
    """Counts from 0; `now` shows what `next` will return."""

    def __init__(self) -> None:
        self.now = 0

    def __next__(self) -> int:
        self.now += 1
        return self.now - 1


class TakesBrokers(Protocol):
    async def accept(self, call: Call) -> web.StreamResponse: ...

    def close(self) -> None: ...


class InHand:
    def __init__(self) -> None:
        self.count = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def describe(self) -> dict[str, int]:
        return {"requests": self.count}

    def enter(self) -> None:
        self.count += 1
        self.idle.clear()

    def leave(self) -> None:
        self.count -= 1
        if not self.count:
            self.idle.set()


@dataclass(slots=True, kw_only=True)
class Services:
    broker: Broker
    ledgers: LedgerClient
    store: MetadataStore
    overview: Overview
    config: HttpConfig
    metrics: Metrics
    held: HeldBytes
    quotas: HttpQuotas
    groups: Groups
    in_hand: InHand = field(default_factory=InHand)
    streams: StreamPlaces
    pages: Pages = field(default_factory=Pages)
    remote: Remote
    door: TakesBrokers
    run_id: str
    rules: BrokerRules
    operations: Operations
    gate: Gate
    clock: Callable[[], int]
    openapi: bytes
    url: str = ""
    ready: bool = False
    leaving: bool = False
    """The broker stops: it hands partitions over, and answers until then."""
    recoveries: RecoveryDoor = field(default_factory=RecoveryDoor)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    turn: Turn = field(default_factory=Turn)
    """Spreads messages without a key, and the partitions where receives begin."""

    @property
    def own_identity(self) -> Identity:
        return node_identity(self.broker.broker_id)


def node_identity(broker_id: str) -> Identity:
    return Identity(f"node:{broker_id}", source="node")
