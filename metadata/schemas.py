"""The records of schemas: all versions of a subject.

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
    """`id` is computed from type and text."""

    number: int
    id: str
    type: str
    text: str
    created_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubjectRecord:
    """Versions are oldest first."""

    compatibility: str = "BACKWARD"
    versions: tuple[SchemaVersion, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class SchemaStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, namespace: str, subject: str) -> tuple[SubjectRecord, int]:
        """Read a subject; an empty record and `ABSENT` if there is none."""
        path = join(SCHEMAS_ROOT, namespace, subject)
        record, version = await read_one(self._store, path, SubjectRecord)
        return record or SubjectRecord(), version

    async def write(
        self, namespace: str, subject: str, record: SubjectRecord, version: int
    ) -> None:
        """Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read and decide again."""
        await write_one(self._store, join(SCHEMAS_ROOT, namespace, subject), record, version)

    async def delete(self, namespace: str, subject: str, version: int) -> None:
        await delete_one(self._store, join(SCHEMAS_ROOT, namespace, subject), version)

    async def subjects(self, namespace: str) -> list[str]:
        return await self._store.children(join(SCHEMAS_ROOT, namespace))

    def watch(self, namespace: str, subject: str, on_change: Callable[[], None]) -> Watch:
        return self._store.watch(join(SCHEMAS_ROOT, namespace, subject), on_change)
