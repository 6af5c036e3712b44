"""The records of shared ledgers: which partitions name a ledger that several partitions name.

    /octavo/shares/<ledger>

A ledger that only one partition names has no record. Every read here is synced first, so it sees
every change that any process was told of before. The rules are in broker/log/orphan_ledgers.py.
"""

from __future__ import annotations

from octavo.metadata.one_record import delete_one, read_one, write_one
from octavo.metadata.paths import join
from octavo.metadata.store import MetadataStore
from octavo.metadata.topic_records import ShareRecord

SHARES_ROOT = "/octavo/shares"


def share_path(ledger_id: int) -> str:
    """Return the path of a shared ledger's record."""
    return join(SHARES_ROOT, str(ledger_id))


class ShareStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, ledger_id: int) -> tuple[ShareRecord | None, int]:
        """Return the record and its version; None and `ABSENT` when the ledger is not shared."""
        await self._store.sync()
        return await read_one(self._store, share_path(ledger_id), ShareRecord)

    async def write(self, ledger_id: int, record: ShareRecord, version: int) -> int:
        """Create the record or compare-and-set it; return its new version.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        return await write_one(self._store, share_path(ledger_id), record, version)

    async def delete(self, ledger_id: int, version: int) -> None:
        """Delete the record. Raises `VersionConflict`, `RecordNotFound`."""
        await delete_one(self._store, share_path(ledger_id), version)

    async def list(self) -> list[int]:
        """Return all shared ledgers, ascending."""
        return sorted(int(one) for one in await self._store.children(SHARES_ROOT))
