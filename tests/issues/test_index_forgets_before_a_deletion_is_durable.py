"""The index forgot a ledger whose deletion a power failure then took back.

The collector deletes a ledger: state and journal record are under way when a checkpoint begins. It
removed the ledger from the index, durably, before state and mark; the mark failed, the bookie died,
and the deletion was nowhere. The ledger was there again and none of its entries: denied. Found by
seed 3001449. Now the index comes after the mark here too, and a start removes from it whom the
ledger state knows to be deleted.
"""

from __future__ import annotations

import asyncio

import pytest

from octavo.bookie.disk.files import SyncFailed
from octavo.protocol.codes import NoSuchLedger
from tests.support.storage_support import Bench, entry_bytes


async def test_a_deletion_that_was_not_durable_takes_nothing_away() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"kept")
        await bench.storage.checkpoint()

        def hook(call: str, path: str) -> None:
            if call in ("pwritev", "datasync") and "journal" in path:
                raise SyncFailed(f"fdatasync {path}: input/output error")

        bench.disk.hook = hook
        deletion = asyncio.ensure_future(bench.storage.delete_ledger(1))
        with pytest.raises(SyncFailed):
            await bench.storage.checkpoint()
        await asyncio.gather(deletion, return_exceptions=True)
        await bench.crash()
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0, b"kept")


async def test_a_deletion_that_is_durable_reaches_the_index_at_the_next_start() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"gone")
        await bench.add(2, 0, b"kept")
        await bench.storage.checkpoint()
        await bench.storage.delete_ledger(1)
        index = bench.storage._index
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                index, "delete_ledger", lambda _: (_ for _ in ()).throw(SyncFailed("power"))
            )
            with pytest.raises(SyncFailed):
                await bench.storage.checkpoint()
        await bench.crash()
        assert not bench.storage._index.runs(1)
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(1, 0)
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0, b"kept")
