"""The records of bulk loads: the newest batch of each, and its ledgers.

    /octavo/transactions/<id>

Until 0.1 a bulk load was called a transaction; paths and keys keep the old word. Writing batch n
over batch n - 1 commits it (broker/bulkload/rules.py). Reads are synced first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.metadata.one_record import delete_one, read_one, write_one
from octavo.metadata.paths import join
from octavo.metadata.store import MetadataStore, Watch
from octavo.metadata.topic_records import TopicRecord, unsaid

BULK_LOADS_ROOT = "/octavo/transactions"


@dataclass(frozen=True, slots=True)
class PrivateLedger:
    """`disorder_ms` and `pieces`: as in `PartitionLedger`."""

    ledger_id: int
    count: int
    bytes: int
    first_ms: int
    last_ms: int
    disorder_ms: int = -1
    pieces: int | None = unsaid()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BulkLoadPart:
    """A partition's part; without `topic_incarnation` (old records) `topic_created_ms` counts."""

    namespace: str
    topic: str
    partition: int
    topic_created_ms: int
    ledgers: tuple[PrivateLedger, ...]
    topic_incarnation: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def is_of(self, topic: TopicRecord) -> bool:
        if self.topic_incarnation:
            return topic.identity == self.topic_incarnation
        return topic.created_ms == self.topic_created_ms


@dataclass(frozen=True, slots=True)
class BulkLoadRecord:
    """The newest committed batch (-1: none yet), and whether all of its parts have been added.

    `refused`: ledgers that were given up, with their batch. `since_ms`: when the id was first used.
    `begun`: the newest batch that its writer publishes by itself (-1: none); `content`: its
    description, by partition. `token_digest`: of the token that only the id's owner knows.
    """

    batch: int = -1
    parts: tuple[BulkLoadPart, ...] = ()
    complete: bool = True
    since_ms: int = 0
    changed_ms: int = 0
    refused: Mapping[int, int] = field(default_factory=dict)
    begun: int = -1
    content: Mapping[str, str] = field(default_factory=dict)
    token_digest: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def bulk_load_path(bulk_load: str) -> str:
    return join(BULK_LOADS_ROOT, bulk_load)


class BulkLoadStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bulk_load: str) -> tuple[BulkLoadRecord, int]:
        await self.sync()
        path = bulk_load_path(bulk_load)
        record, version = await read_one(self._store, path, BulkLoadRecord)
        return record or BulkLoadRecord(), version

    async def write(self, bulk_load: str, record: BulkLoadRecord, version: int) -> None:
        """Write a bulk load's record.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read and decide again.
        """
        await write_one(self._store, bulk_load_path(bulk_load), record, version)

    async def delete(self, bulk_load: str, version: int) -> None:
        await delete_one(self._store, bulk_load_path(bulk_load), version)

    async def sync(self) -> None:
        await self._store.sync()

    async def list(self) -> list[str]:
        return await self._store.children(BULK_LOADS_ROOT)

    def watch(self, bulk_load: str, on_change: Callable[[], None]) -> Watch:
        return self._store.watch(bulk_load_path(bulk_load), on_change)

    def watch_list(self, on_change: Callable[[], None]) -> Watch:
        return self._store.watch_children(BULK_LOADS_ROOT, on_change)
