"""Read and compare-and-set a single record. The caller syncs first, if needed."""

from __future__ import annotations

from typing import TypeVar

from octavo.metadata.store import ANY_VERSION, MetadataStore, RecordNotFound
from octavo.metadata.topic_records import decode_record, encode_record

ABSENT = -1
"""The version of a missing record."""

Record = TypeVar("Record")


async def read_one(
    store: MetadataStore, path: str, kind: type[Record]
) -> tuple[Record | None, int]:
    """Read a record and its version; None and `ABSENT` if there is none."""
    try:
        value, version = await store.get(path)
    except RecordNotFound:
        return None, ABSENT
    return decode_record(kind, path, value), version


async def write_one(store: MetadataStore, path: str, record: object, version: int) -> int:
    """Write a record; `ABSENT` creates it.

    Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read and decide again.
    """
    value = encode_record(record)
    if version == ABSENT:
        await store.create(path, value)
        return 0
    return await store.put(path, value, version)


async def delete_one(store: MetadataStore, path: str, version: int) -> None:
    assert version != ANY_VERSION
    await store.delete(path, version)
