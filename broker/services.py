"""What every handler needs, in one place: the broker, its peers, the bounds, the counters."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.broker import Broker
from broker.errors import Overloaded
from broker.http_config import HttpConfig
from broker.metrics import Metrics
from broker.overview import Overview
from broker.proxy import Peers
from metadata.store import MetadataStore

if TYPE_CHECKING:
    from broker.router import Route
    from ledger.ledgers import LedgerClient

ROOM_WAIT_S = 2.0
"""How long a body waits for room before its sender is told to come back."""


class HeldBytes:
    """How many bytes of request bodies are in memory, and a bound on that."""

    def __init__(self, bytes_max: int, on_change: Callable[[int], None]) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._on_change = on_change

    async def take(self, size: int) -> None:
        """Count `size` more bytes; waits a moment for room. Raises `Overloaded`."""
        if self._held + size > self._bytes_max:
            await self._wait_for_room(size)
        self._held += size
        self._on_change(self._held)

    def give_back(self, size: int) -> None:
        """These bytes are free again."""
        self._held -= size
        assert self._held >= 0
        self._on_change(self._held)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for_room(self, size: int) -> None:
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                while self._held + size > self._bytes_max:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiter)
                    await waiter
        except TimeoutError:
            raise Overloaded(
                f"this broker holds {self._held} bytes of request bodies, its bound is "
                f"{self._bytes_max}; come back in a moment, or ask another broker"
            ) from None


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
    peers: Peers
    clock: Callable[[], int]
    routes: tuple[Route, ...]
    url: str = ""
    ready: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    turn: itertools.count[int] = field(default_factory=itertools.count)
    """Whose turn it is: spreads messages without a key, rotates where receives begin."""
