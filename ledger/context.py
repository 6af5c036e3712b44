"""The interface of the client that a ledger's writer, reader and recovery use.

`LedgerClient` (client.py) implements it. It creates writers, readers and recoveries, so it imports
them; they import only this module.
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
    """A part that waits for time to pass."""

    def tick(self, now: float) -> bool:
        """Look at the clock (`loop.time()`); return False when nothing here waits any more."""

    def fail(self, error: OctavoError) -> None:
        """End after an unexpected exception in `tick`, and fail all callers with `error`."""


class OpenWriter(Protocol):
    """A writer that the client ends when it is closed."""

    def abandon(self, error: OctavoError) -> None:
        """Acknowledge nothing more; the ledger stays open until its recovery."""


class Doubting(Protocol):
    """Where a reader reports doubts about copies; see `Doubts`."""

    def tell(self, metadata: LedgerMetadata, entry_id: int) -> None:
        """Ask all bookies that hold this entry or the entry before it to compare their copies."""


class LedgerContext(Protocol):
    """The ledger client as writers, readers and recoveries see it."""

    options: LedgerOptions
    rng: random.Random
    records: LedgerStore
    bookies: Bookies

    @property
    def doubts(self) -> Doubting:
        """Where a reader reports entries that do not follow one another."""

    def replacements(self, wish: ChooseReplacements, metadata: LedgerMetadata) -> dict[int, str]:
        """Choose a spare bookie for each position that can have one."""

    def why_no_choice(self, failed: Mapping[str, str]) -> str:
        """Say why bookies cannot be chosen now; `failed`: bookies that failed a ledger, and why."""

    def with_connection(
        self,
        bookie_id: str,
        use: Callable[[BookieConnection], None],
        failed: Callable[[BookieUnavailable], None],
    ) -> None:
        """Call `use` with the bookie's connection, now or once it is connected."""

    async def request(
        self, bookie_id: str, op: Op, body: dict[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send one extension request. Raises `BookieUnavailable` and errors of the bookie."""

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that the client's `close` cancels if it still runs."""

    def keep_ticking(self, ticking: Ticking) -> None:
        """Call `ticking.tick` every 50 ms, until it returns False."""

    def stop_ticking(self, ticking: Ticking) -> None:
        """Stop the calls of `ticking.tick`."""

    def id_taken(self, ledger_id: int, reason: str) -> None:
        """Report that a chosen bookie already knows this id under the key of another ledger."""

    def forget(self, writer: OpenWriter) -> None:
        """Stop counting a writer that has ended."""
