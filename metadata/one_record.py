"""One record by itself, with its version: what all who compare-and-set such records share.

Whether a read is synced first is for who reads.
"""

from __future__ import annotations

from typing import TypeVar

from octavo.metadata.store import ANY_VERSION, MetadataStore, RecordNotFound
from octavo.metadata.topic_records import decode_record, encode_record

ABSENT = -1
"""The version of a record that is not there."""

Record = TypeVar("Record")


async def read_one(
    store: MetadataStore, path: str, kind: type[Record]
) -> tuple[Record | None, int]:
    """The record at `path` and its version; None, `ABSENT` when there is none.

    Raises `MetadataUnavailable`, `BadRecord`.
    """
    try:
        value, version = await store.get(path)
    except RecordNotFound:
        return None, ABSENT
    return decode_record(kind, path, value), version


async def write_one(store: MetadataStore, path: str, record: object, version: int) -> int:
    """Make it (`ABSENT`) or compare-and-set it; its new version.

    Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
    """
    value = encode_record(record)
    if version == ABSENT:
        await store.create(path, value)
        return 0
    return await store.put(path, value, version)


async def delete_one(store: MetadataStore, path: str, version: int) -> None:
    """Raises `VersionConflict`, `RecordNotFound`."""
    assert version != ANY_VERSION
    await store.delete(path, version)
