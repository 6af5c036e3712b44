"""What every handler needs, in one place: the broker, its peers, the bounds, the counters."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.batch_proofs import BatchProofs
from broker.broker import Broker
from broker.broker_proof import BrokerProof
from broker.held_bytes import HeldBytes
from broker.http_config import HttpConfig
from broker.in_use import RecoveryDoor
from broker.metrics import Metrics
from broker.overview import Overview
from broker.proxy import Peers
from metadata.store import MetadataStore

if TYPE_CHECKING:
    from broker.router import Route
    from ledger.ledgers import LedgerClient


@dataclass(slots=True, kw_only=True)
class Services:
    """The surroundings of a handler. Made by the server, shared by all calls."""

    broker: Broker
    ledgers: LedgerClient
    store: MetadataStore
    overview: Overview
    config: HttpConfig
    metrics: Metrics
    held: HeldBytes
    proofs: BatchProofs = field(default_factory=BatchProofs)
    peers: Peers
    proof: BrokerProof
    clock: Callable[[], int]
    routes: tuple[Route, ...]
    url: str = ""
    ready: bool = False
    recoveries: RecoveryDoor = field(default_factory=RecoveryDoor)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    turn: itertools.count[int] = field(default_factory=itertools.count)
    """Whose turn it is: spreads messages without a key, rotates where receives begin."""
