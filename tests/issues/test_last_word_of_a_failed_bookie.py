"""A bookie whose disk failed said something else at the end than what had ended it.

Its index, on the same disk, could not be closed either, and RocksDB's bare exception took the
place of the reason; a journal's failure named the spare from which the journal file was made.
Found by failing every `fsync` of real processes (process/test_failing_sync.py).
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk, SyncFailed
from octavo.bookie.index.index import RocksIndex
from octavo.bookie.storage import Storage
from octavo.protocol.codes import BookieIOError, Code
from tests.support.raw_bookie import TroubledDisk
from tests.support.storage_support import make_run


class Unclosable:
    def __init__(self, database: Any) -> None:
        self.database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    def close(self) -> None:
        raise Exception("IO error: While fdatasync: 000122.sst: Input/output error")


def config_in(folder: Path) -> BookieConfig:
    return BookieConfig(
        journal_directories=(f"{folder}/journal",),
        ledger_directories=(f"{folder}/ledgers",),
        journal_preallocate_bytes=64 * 1024,
    )


async def test_an_index_that_cannot_be_closed_says_so_in_our_words(tmp_path: Path) -> None:
    index: RocksIndex | None = None

    def opener(path: str) -> RocksIndex:
        nonlocal index
        index = RocksIndex(path)
        return index

    storage = await Storage.open(config_in(tmp_path), disk=RealDisk(), index_opener=opener)
    assert index is not None
    database = index._db
    index._db = Unclosable(database)  # type: ignore[assignment]
    with pytest.raises(BookieIOError, match=r"index .*: close: .*Input/output error"):
        await storage.close()
    database.close()
    assert storage._threads.read._shutdown  # type: ignore[attr-defined]


async def test_a_failed_sync_names_the_journal_file(tmp_path: Path) -> None:
    disk = TroubledDisk()
    failed: list[BaseException] = []
    storage = await Storage.open(config_in(tmp_path), disk=disk, on_fatal=failed.append)

    def fail(call: str, path: str) -> None:
        if call == "datasync" and "/journal/" in path:
            raise SyncFailed(f"fdatasync {path}: {errno.errorcode[errno.EIO]}")

    disk.hook = fail
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    storage.add([make_run(1, 0, [b"x"])], answered.set_result)
    assert [code for _, code in await answered] == [Code.IO]  # type: ignore[attr-defined]
    await storage.close()
    assert str(failed[0]).endswith(".journal: EIO"), failed
