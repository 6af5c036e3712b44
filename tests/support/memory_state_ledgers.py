"""State ledgers in memory, for tests of what a restart would replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, cast

from octavo.broker.config import BrokerConfig
from octavo.broker.state.format import State
from octavo.broker.state.log import StateLog
from octavo.broker.types import PartitionName, TopicSettings
from octavo.ledger.errors import LedgerClosed
from octavo.metadata.topics import PartitionRecord

NAME = PartitionName("default", "orders", 0)


class MemoryWriter:
    """A ledger whose adds are durable at once, or when `go_on` is set."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.entries: list[bytes] = []
        self.length = 0
        self.metadata = None
        self.ended: Exception | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()

    @property
    def last_add_confirmed(self) -> int:
        return len(self.entries) - 1

    async def append(self, payload: bytes) -> int:
        await self.go_on.wait()
        if self.ended is not None:
            raise self.ended
        self.entries.append(payload)
        return self.last_add_confirmed

    async def close(self) -> None:
        pass

    def abandon(self, error: Exception) -> None:
        self.ended = error


class MemoryLedgers:
    """Makes ledgers; `may_create` delays a creation."""

    def __init__(self) -> None:
        self.writers: dict[int, MemoryWriter] = {}
        self.custom: dict[int, dict[str, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.may_create = asyncio.Event()
        self.may_create.set()

    def has_unsure_bookie(self, _: object) -> bool:
        return False

    async def create(self, **settings: Any) -> MemoryWriter:
        await self.may_create.wait()
        writer = MemoryWriter(len(self.custom) + 1)
        self.writers[writer.ledger_id] = writer
        self.custom[writer.ledger_id] = settings["custom"]
        return writer

    async def delete(self, ledger_id: int) -> None:
        del self.writers[ledger_id]

    async def discard(self, writer: MemoryWriter) -> None:
        writer.abandon(LedgerClosed("discarded"))
        await self.delete(writer.ledger_id)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class MemoryRecord:
    """The partition's record, with the interface of `PartitionRecordKeeper`."""

    def __init__(self) -> None:
        self.value = PartitionRecord()

    async def change(self, make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        self.value = make(self.value)
        return self.value


class Served:
    """A partition's state ledger as its owner drives it, and as its successor reads it."""

    def __init__(self, snapshot: Callable[[], Iterable[bytes]], **config: Any) -> None:
        self.ledgers = MemoryLedgers()
        self.record = MemoryRecord()
        self.lost: list[Exception] = []
        self.log = StateLog(
            cast(Any, self.ledgers),
            cast(Any, self.record),
            NAME,
            replace(BrokerConfig(), **config),
            TopicSettings,
            snapshot,
            self.lost.append,
        )

    @property
    def writer(self) -> MemoryWriter:
        """Return the writer of the ledger that the record names."""
        state_ledger = self.record.value.state_ledger
        assert state_ledger is not None
        return self.ledgers.writers[state_ledger]

    def after_a_restart(self) -> State:
        """Return what a successor replays."""
        state = State()
        for entry in self.writer.entries:
            state.apply(entry)
        return state
