"""The interface of the client that a ledger's writer, reader and recovery use.

`LedgerClient` imports them; they import only this module.
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
    def tick(self, now: float) -> bool:
        """Do what is due at `now` (`loop.time()`); return False when nothing waits any more."""

    def fail(self, error: OctavoError) -> None: ...


class OpenWriter(Protocol):
    def abandon(self, error: OctavoError) -> None:
        """Stop without closing the ledger, which stays open until its recovery."""


class Doubting(Protocol):
    def tell(self, metadata: LedgerMetadata, entry_id: int) -> None: ...


class LedgerContext(Protocol):
    options: LedgerOptions
    rng: random.Random
    records: LedgerStore
    bookies: Bookies

    @property
    def doubts(self) -> Doubting: ...

    def replacements(
        self, wish: ChooseReplacements, metadata: LedgerMetadata
    ) -> dict[int, str]: ...

    def why_no_choice(self, failed: Mapping[str, str]) -> str: ...

    def with_connection(
        self,
        bookie_id: str,
        use: Callable[[BookieConnection], None],
        failed: Callable[[BookieUnavailable], None],
    ) -> None: ...

    async def request(
        self, bookie_id: str, op: Op, body: dict[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]: ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]: ...

    def keep_ticking(self, ticking: Ticking) -> None: ...

    def stop_ticking(self, ticking: Ticking) -> None: ...

    def id_taken(self, ledger_id: int, reason: str) -> None: ...

    def forget(self, writer: OpenWriter) -> None: ...
