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
    """Counts from 0. `now` shows the number that `next` will return."""

    def __init__(self) -> None:
        self.now = 0

    def __next__(self) -> int:
        self.now += 1
        return self.now - 1


class TakesBrokers(Protocol):
    """See `octavo.broker.http.broker_connections.Door`."""

    async def accept(self, call: Call) -> web.StreamResponse:
        """Serve the operations of the broker that makes this call."""

    def close(self) -> None: ...


class InHand:
    """Counts the requests that are being answered, and tells when there are none."""

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
        """Stop counting a request, which was answered or dropped."""
        self.count -= 1
        if not self.count:
            self.idle.set()


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts that handlers work with, made by the server and shared by all calls."""

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
    """Sends operations to the owners of partitions."""
    door: TakesBrokers
    """Accepts the connections of other brokers for operations."""
    run_id: str
    """Unique to this run of the broker."""
    rules: BrokerRules
    """The rules for operations, wherever these come from."""
    operations: Operations
    """Runs operations at whichever broker owns the partition."""
    gate: Gate
    clock: Callable[[], int]
    openapi: bytes
    """The answer of `/openapi.json`."""
    url: str = ""
    ready: bool = False
    leaving: bool = False
    """Whether the broker is stopping: it hands partitions over, and answers until that is done."""
    recoveries: RecoveryDoor = field(default_factory=RecoveryDoor)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    turn: Turn = field(default_factory=Turn)
    """Spreads messages without a key, and rotates the partition where receives begin."""

    @property
    def own_identity(self) -> Identity:
        """This broker's identity, for calls to others on its own behalf."""
        return node_identity(self.broker.broker_id)


def node_identity(broker_id: str) -> Identity:
    """Return the identity with which a broker asks others on its own behalf."""
    return Identity(f"node:{broker_id}", source="node")
