"""What a ledger's writer, reader and recovery need of the client that made them.

`LedgerClient` (client.py) is all of this. It makes writers, readers and recoveries, so it knows
them; they know only what stands here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from octavo.ledger.actions import ChooseReplacements
from octavo.ledger.bookies.bookies import Bookies
from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.metadata.ledgers import LedgerMetadata, LedgerStore
from octavo.protocol.codes import OctavoError
from octavo.protocol.extension import Op

T = TypeVar("T")


class Ticking(Protocol):
    """Who waits for time to pass."""

    def tick(self, now: float) -> bool:
        """Look at the clock (`loop.time()`); False when nothing here waits any more."""

    def fail(self, error: OctavoError) -> None:
        """It raised what nobody foresaw: end it, and tell its callers."""


class OpenWriter(Protocol):
    """A writer that the client ends when it is closed."""

    def abandon(self, error: OctavoError) -> None:
        """No further ack; the ledger stays open, for its recovery."""


class Doubting(Protocol):
    """Where doubts about copies are told; see `Doubts`."""

    def tell(self, metadata: LedgerMetadata, entry_id: int) -> None:
        """Have this entry and the one before it compared by all that hold them."""


class LedgerContext(Protocol):
    """The client, seen from below."""

    options: LedgerOptions
    rng: random.Random
    records: LedgerStore
    bookies: Bookies

    @property
    def doubts(self) -> Doubting:
        """Whom a reader tells of entries that do not follow one another."""

    def replacements(self, wish: ChooseReplacements, metadata: LedgerMetadata) -> dict[int, str]:
        """A spare bookie for each position that can have one."""

    def why_no_choice(self, failed: Mapping[str, str]) -> str:
        """Why bookies are not chosen now; `failed` for a ledger, with their errors."""

    def with_connection(
        self,
        bookie_id: str,
        use: Callable[[BookieConnection], None],
        failed: Callable[[BookieUnavailable], None],
    ) -> None:
        """Use the bookie's connection, now or when it stands."""

    async def request(
        self, bookie_id: str, op: Op, body: dict[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """One extension request. Raises `BookieUnavailable` and what the bookie answers."""

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that ends with the client at the latest."""

    def keep_ticking(self, ticking: Ticking) -> None:
        """Call `ticking.tick` from time to time, until it returns False."""

    def stop_ticking(self, ticking: Ticking) -> None:
        """It waits for nothing any more."""

    def id_taken(self, ledger_id: int, reason: str) -> None:
        """A ledger's id is somebody else's, at a bookie that was to hold it."""

    def forget(self, writer: OpenWriter) -> None:
        """It ended."""
