"""The records of schemas: all versions of a subject in a record, changed by compare-and-set.

/octavo/schemas/<namespace>/<subject>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.metadata.one_record import delete_one, read_one, write_one
from octavo.metadata.paths import join
from octavo.metadata.store import MetadataStore, Watch

SCHEMAS_ROOT = "/octavo/schemas"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version. `id` is computed from its type and text; `type` is json or avro."""

    number: int
    id: str
    type: str
    text: str
    created_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubjectRecord:
    """A subject: its versions, oldest first, and the compatibility that new versions must keep."""

    compatibility: str = "BACKWARD"
    versions: tuple[SchemaVersion, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class SchemaStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, namespace: str, subject: str) -> tuple[SubjectRecord, int]:
        """Return the record and its version; an empty record and `ABSENT` when there is none."""
        path = join(SCHEMAS_ROOT, namespace, subject)
        record, version = await read_one(self._store, path, SubjectRecord)
        return record or SubjectRecord(), version

    async def write(
        self, namespace: str, subject: str, record: SubjectRecord, version: int
    ) -> None:
        """Create the record or compare-and-set it.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        await write_one(self._store, join(SCHEMAS_ROOT, namespace, subject), record, version)

    async def delete(self, namespace: str, subject: str, version: int) -> None:
        """Delete the record. Raises `VersionConflict`, `RecordNotFound`."""
        await delete_one(self._store, join(SCHEMAS_ROOT, namespace, subject), version)

    async def subjects(self, namespace: str) -> list[str]:
        """Return the subjects of a namespace, sorted."""
        return await self._store.children(join(SCHEMAS_ROOT, namespace))

    def watch(self, namespace: str, subject: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after the record was created, changed or deleted."""
        return self._store.watch(join(SCHEMAS_ROOT, namespace, subject), on_change)
