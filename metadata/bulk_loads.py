"""The records of bulk loads: which ledgers belong to the newest batch of each bulk load.

    /octavo/transactions/<id>

In 0.1 a bulk load was called a transaction. Paths and the keys of stored maps keep the old word, so
that older stores still open. There is a single record for each id, for all its batches. Writing
batch n over batch n - 1 is the moment at which batch n is committed (broker/bulkload/rules.py says
when that is allowed). Every read here is synced first, so it sees every change that any process was
told of before.
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
    """A closed ledger that a task wrote for a partition, and its contents.

    `disorder_ms`: as in `PartitionLedger`; −1 when the task did not say. `pieces`: as there, for
    the ledger of a large message.
    """

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
    """The ledgers that a batch adds to a partition.

    `topic_incarnation` is the topic's `identity`. Older records have none; there only
    `topic_created_ms` tells the topic from others with the same name.
    """

    namespace: str
    topic: str
    partition: int
    topic_created_ms: int
    ledgers: tuple[PrivateLedger, ...]
    topic_incarnation: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def is_of(self, topic: TopicRecord) -> bool:
        """Whether this is the topic of the batch, and not another topic of the same name."""
        if self.topic_incarnation:
            return topic.identity == self.topic_incarnation
        return topic.created_ms == self.topic_created_ms


@dataclass(frozen=True, slots=True)
class BulkLoadRecord:
    """The newest committed batch (-1: none yet), and whether all of its parts have been added.

    `refused` maps ledgers that were given up, and may be deleted already, to their batch.
    `since_ms`, when the id was first used, tells it from a later use of the same id. `begun` is the
    newest batch that its writer publishes by itself (-1: none), and `content` is the writer's own
    description of that batch, by partition. `token_digest` belongs to the token that only the id's
    owner knows ("": none yet).
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
    """Return the path of a bulk load's record."""
    return join(BULK_LOADS_ROOT, bulk_load)


class BulkLoadStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bulk_load: str) -> tuple[BulkLoadRecord, int]:
        """Return the record and its version; an empty record and `ABSENT` when there is none."""
        await self.sync()
        path = bulk_load_path(bulk_load)
        record, version = await read_one(self._store, path, BulkLoadRecord)
        return record or BulkLoadRecord(), version

    async def write(self, bulk_load: str, record: BulkLoadRecord, version: int) -> None:
        """Create the record or compare-and-set it.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        await write_one(self._store, bulk_load_path(bulk_load), record, version)

    async def delete(self, bulk_load: str, version: int) -> None:
        """Delete the record. Raises `VersionConflict`, `RecordNotFound`."""
        await delete_one(self._store, bulk_load_path(bulk_load), version)

    async def sync(self) -> None:
        """Let later reads, also of topics, see every change that any process was told of before."""
        await self._store.sync()

    async def list(self) -> list[str]:
        """Return all ids, sorted."""
        return await self._store.children(BULK_LOADS_ROOT)

    def watch(self, bulk_load: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record is created, changed or deleted."""
        return self._store.watch(bulk_load_path(bulk_load), on_change)

    def watch_list(self, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after an id came or went."""
        return self._store.watch_children(BULK_LOADS_ROOT, on_change)
