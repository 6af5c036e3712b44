"""The records of shared ledgers: which partitions name a ledger that more than one of them names.

    /octavo/shares/<ledger>

A ledger that only one partition names has none. Every read here is synced: what it says is not
older than anything that anybody was told before. The rule is in broker/log/referrers.py.
"""

from __future__ import annotations

from octavo.metadata.one_record import delete_one, read_one, write_one
from octavo.metadata.paths import join
from octavo.metadata.store import MetadataStore
from octavo.metadata.topic_records import ShareRecord

SHARES_ROOT = "/octavo/shares"


def share_path(ledger_id: int) -> str:
    """Where a shared ledger's record stands."""
    return join(SHARES_ROOT, str(ledger_id))


class ShareStore:
    """Reads and compare-and-sets of these records."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, ledger_id: int) -> tuple[ShareRecord | None, int]:
        """The record and its version; None, `ABSENT` when the ledger is not shared."""
        await self._store.sync()
        return await read_one(self._store, share_path(ledger_id), ShareRecord)

    async def write(self, ledger_id: int, record: ShareRecord, version: int) -> int:
        """Make it or compare-and-set it; its new version.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        return await write_one(self._store, share_path(ledger_id), record, version)

    async def delete(self, ledger_id: int, version: int) -> None:
        """Raises `VersionConflict`, `RecordNotFound`."""
        await delete_one(self._store, share_path(ledger_id), version)

    async def list(self) -> list[int]:
        """All ledgers that are shared, ascending."""
        return sorted(int(one) for one in await self._store.children(SHARES_ROOT))
