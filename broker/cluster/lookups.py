"""Who owns which partition, as last read: kept in memory under a watch (watched_record.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from octavo.broker.cluster.registry import decode_broker
from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.types import BrokerInfo, PartitionName, TopicName
from octavo.metadata.election import Ownership
from octavo.metadata.store import Watch
from octavo.metadata.topics import owner_path

_ASKED_EVERY_S = 0.25


class Lookup:
    """Who owns a partition, as last read."""

    __slots__ = ("changed", "changes", "owner", "watch")

    def __init__(self, owner: WatchedRecord[BrokerInfo | None]) -> None:
        self.owner = owner
        self.changes = 0
        self.changed = asyncio.Event()
        """Set at the next change, and then replaced."""
        self.watch: Watch | None = None

    def alarm(self) -> None:
        """Whoever waits for another owner looks again."""
        self.owner.alarm()
        self.changes += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def until_owned(self, ask: Callable[[], Awaitable[None]]) -> BrokerInfo:
        """Who owns it, once somebody does; `ask`, now and then, has somebody claim it.

        No watch has to tell: it may be late by any time. Raises what reading records does.
        """
        while (owner := await self.owner.newest()) is None:
            changed = self.changed
            await ask()
            self.owner.alarm()
            if await self.owner.newest() is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASKED_EVERY_S):
                        await changed.wait()
                self.owner.alarm()
        return owner


class Lookups:
    """All that one broker was asked for or serves. `on_change(name)`: its owner may be another."""

    def __init__(
        self,
        ownership: Ownership,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_change: Callable[[PartitionName], None],
    ) -> None:
        self._ownership = ownership
        self._spawn = spawn
        self._on_change = on_change
        self._lookups: dict[PartitionName, Lookup] = {}

    def __len__(self) -> int:
        return len(self._lookups)

    def of(self, name: PartitionName) -> Lookup:
        """The partition's, made at the first question."""
        lookup = self._lookups.get(name)
        if lookup is None:
            path = owner_path(*name)

            async def read() -> BrokerInfo | None:
                value = await self._ownership.owner(path)
                return None if value is None else decode_broker(value)

            lookup = self._lookups[name] = Lookup(WatchedRecord(read, self._spawn))
            lookup.watch = self._ownership.watch(path, lambda: self._changed(name))
        return lookup

    def note(self, name: PartitionName, owner: BrokerInfo | None) -> None:
        """What was learned of an owner by other means."""
        lookup = self._lookups.get(name)
        if lookup is not None:
            lookup.owner.note(owner)

    def released(self, name: PartitionName) -> None:
        """Not ours even before the watch tells: what is remembered of it must not claim it."""
        lookup = self._lookups.get(name)
        if lookup is not None:
            lookup.owner.note(None)
            lookup.alarm()

    def changes(self, name: PartitionName) -> int:
        """How often the partition's owner has changed, as far as this broker has heard."""
        lookup = self._lookups.get(name)
        return 0 if lookup is None else lookup.changes

    async def until_changed(self, name: PartitionName, seen: int, timeout_s: float) -> None:
        """Return once `changes` is no longer `seen`, or when time is up."""
        lookup = self._lookups.get(name)
        if lookup is None:
            await asyncio.sleep(timeout_s)
        elif lookup.changes == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await lookup.changed.wait()

    def forget(self, topic: TopicName | None = None) -> None:
        """Watch the partitions of a topic no more, or none at all."""
        for name in list(self._lookups):
            if topic is None or name.topic_name == topic:
                lookup = self._lookups.pop(name)
                lookup.alarm()
                if lookup.watch is not None:
                    lookup.watch.cancel()

    def _changed(self, name: PartitionName) -> None:
        self._lookups[name].alarm()
        self._on_change(name)
