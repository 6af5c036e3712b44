"""The records of bulk loads: which ledgers belong to each one's newest batch.

    /octavo/transactions/<id>

A bulk load was called a transaction in 0.1. Paths and the keys of stored maps keep the old word, so
that stores made before still open. One record per id, for all its batches: writing batch n over
batch n - 1 is the moment at which batch n is committed (broker/bulkload/rules.py says when that may
be done). Every read here is synced: what it says is not older than anything that anybody was told
before.
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
    """A closed ledger that a task wrote for one partition, and what it holds.

    `disorder_ms`: as in `PartitionLedger`; −1 when the task did not say. `pieces`: likewise, of the
    one ledger of a large message.
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
    """What a batch adds to one partition.

    `topic_incarnation` is the topic's `identity`; older records have none, and `topic_created_ms`
    alone tells the topic from namesakes.
    """

    namespace: str
    topic: str
    partition: int
    topic_created_ms: int
    ledgers: tuple[PrivateLedger, ...]
    topic_incarnation: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def is_of(self, topic: TopicRecord) -> bool:
        """Whether this topic is the one that was meant, and no namesake."""
        if self.topic_incarnation:
            return topic.identity == self.topic_incarnation
        return topic.created_ms == self.topic_created_ms


@dataclass(frozen=True, slots=True)
class BulkLoadRecord:
    """The newest committed batch (-1: none yet), and whether all of its parts are taken in.

    `refused` maps ledgers that were given up, and may be deleted already, to their batch.
    `since_ms`, when the id was first used, tells it from one that was forgotten and used again.
    `begun` is the newest batch that its writer publishes by itself (-1: none), `content` what it
    said it would publish, by partition: words that only the writer understands. `token_digest` is
    of the token that only the id's owner knows ("": nobody has given one yet).
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
    """Where a bulk load's record stands."""
    return join(BULK_LOADS_ROOT, bulk_load)


class BulkLoadStore:
    """Reads and compare-and-sets of these records."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bulk_load: str) -> tuple[BulkLoadRecord, int]:
        """The record and its version; an empty one, `ABSENT`, when there is none."""
        await self.sync()
        path = bulk_load_path(bulk_load)
        record, version = await read_one(self._store, path, BulkLoadRecord)
        return record or BulkLoadRecord(), version

    async def write(self, bulk_load: str, record: BulkLoadRecord, version: int) -> None:
        """Make it or compare-and-set it.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        await write_one(self._store, bulk_load_path(bulk_load), record, version)

    async def delete(self, bulk_load: str, version: int) -> None:
        """Raises `VersionConflict`, `RecordNotFound`."""
        await delete_one(self._store, bulk_load_path(bulk_load), version)

    async def sync(self) -> None:
        """Reads begun after this, of topics too, see all that anybody was told of before it."""
        await self._store.sync()

    async def list(self) -> list[str]:
        """All ids, sorted."""
        return await self._store.children(BULK_LOADS_ROOT)

    def watch(self, bulk_load: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record is made, changed or deleted."""
        return self._store.watch(bulk_load_path(bulk_load), on_change)

    def watch_list(self, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after an id came or went."""
        return self._store.watch_children(BULK_LOADS_ROOT, on_change)
