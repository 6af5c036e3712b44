"""The records of ledgers that several partitions name (broker/log/orphan_ledgers.py).

    /octavo/shares/<ledger>

Reads are synced first.
"""

from __future__ import annotations

from octavo.metadata.one_record import delete_one, read_one, write_one
from octavo.metadata.paths import join
from octavo.metadata.store import MetadataStore
from octavo.metadata.topic_records import ShareRecord

SHARES_ROOT = "/octavo/shares"


def share_path(ledger_id: int) -> str:
    return join(SHARES_ROOT, str(ledger_id))


class ShareStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, ledger_id: int) -> tuple[ShareRecord | None, int]:
        """Read the ledger's record; None and `ABSENT` if it is not shared."""
        await self._store.sync()
        return await read_one(self._store, share_path(ledger_id), ShareRecord)

    async def write(self, ledger_id: int, record: ShareRecord, version: int) -> int:
        """Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read and decide again."""
        return await write_one(self._store, share_path(ledger_id), record, version)

    async def delete(self, ledger_id: int, version: int) -> None:
        await delete_one(self._store, share_path(ledger_id), version)

    async def list(self) -> list[int]:
        """List shared ledgers, ascending."""
        return sorted(int(one) for one in await self._store.children(SHARES_ROOT))
