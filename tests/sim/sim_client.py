"""A client process of a seed: a production `LedgerClient`, and its present activity."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.ledger.recover.events import (
    BookieReplaced,
    EntryAnswered,
    FenceAnswered,
    FenceHeld,
    LastEntryFound,
    RecoveryEvent,
    WrittenBack,
)
from octavo.protocol.codes import OctavoError
from tests.sim.cluster import Cluster
from tests.sim.process import Process


class SimClient:
    """A client process; when it crashes, another takes its place."""

    def __init__(self, cluster: Cluster, name: str, life: Callable[[SimClient], Any]) -> None:
        self.cluster = cluster
        self.name = name
        self.rng = cluster.loop.stream(f"client {name}")
        self.process: Process | None = None
        self.ledgers: LedgerClient
        self.pending: dict[tuple[int, int], None] = {}
        self.doing = ""
        """The living process's activity; an item of `ACTIVITIES`, or ""."""
        self._life = life
        self.is_recoverer = False
        self.is_ready = False
        self.is_done = False

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.pending.clear()
        self.is_done = self.is_ready = False
        self.doing = ""
        self.process = self.cluster.new_process(self.name)
        self.process.spawn(self._live(), self.name)

    def crash(self, *, power: bool) -> None:
        if self.process is not None:
            self.process.crash(power=power)

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()

    async def _live(self) -> None:
        try:
            while not await self._begin():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            self.is_ready = True
            await self._life(self)
            self.is_done = True
        except (Exception, asyncio.CancelledError) as error:
            self.cluster.audit.fail(f"client {self.name} ended with {error!r}")
            raise

    async def _begin(self) -> bool:
        """Connect to the metadata store and list the bookies; return whether that succeeded."""
        cluster, process = self.cluster, self.process
        assert process is not None
        store = cluster.metadata_store(process)
        self.ledgers = LedgerClient(
            store,
            rng=process.rng,
            options=LedgerOptions(**cluster.options.client),
            clock=process.clock_ms,
            observe_recovery=self._recovery,
        )
        try:
            await store.start()
            await self.ledgers.start()
        except OctavoError as error:
            cluster.events.add("not started", self.name, error)
            await self.ledgers.close()
            with contextlib.suppress(OctavoError):
                await store.close()
            return False
        return True

    def _recovery(self, ledger_id: int, event: RecoveryEvent) -> None:
        audit, events = self.cluster.audit, self.cluster.events
        self.cluster.trace.probe(f"recovery.{type(event).__name__}")
        match event:
            case EntryAnswered(entry_id, bookie, answer):
                audit.answered(bookie, ledger_id, entry_id)
                if answer == "absent":
                    audit.denied(bookie, ledger_id, entry_id)
            case FenceAnswered(bookie, answer, _):
                events.add("fence answered", self.name, ledger_id, bookie, answer)
            case FenceHeld(lac):
                events.add("fence holds", self.name, ledger_id, lac)
                audit.fence_holds(ledger_id)
            case LastEntryFound() | BookieReplaced() | WrittenBack():
                events.add("recovery", self.name, ledger_id, event)
            case _:
                pass
