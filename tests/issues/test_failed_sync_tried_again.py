"""After a failed sync of an entry log the next checkpoint synced it again, and the mark moved.

`SyncFailed` is final: the kernel may have dropped the pages, and a second sync that ends well says
nothing of them. The flush task and the compactor did tell the storage; a checkpoint that the
collector asked for did not, so adds went on being acked, and the checkpoint at the end of the
process synced the same log once more. And one that was waiting while a compaction failed went on
behind it. Then the mark vouched for a range of the log that may hold nothing. Found by reading the
engine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from octavo.bookie.disk.files import SyncFailed
from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench

SMALL = replace(CONFIG, entry_log_bytes_max=8192)


def fail_one_sync(bench: Bench) -> None:
    """The next sync of an entry log fails, later ones end well."""
    left = [True]

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.endswith(".log") and left:
            left.clear()
            raise SyncFailed(f"fdatasync {path}: input/output error")

    bench.disk.hook = hook


async def test_a_checkpoint_that_somebody_asked_for() -> None:
    async with Bench() as bench:
        assert await bench.add(1, 0, b"before") is Code.OK
        await bench.storage.checkpoint()
        mark = bench.storage._checkpointer.mark
        assert await bench.add(1, 1, b"behind") is Code.OK
        fail_one_sync(bench)
        with pytest.raises(SyncFailed):
            await bench.storage.checkpoint()
        assert [type(error) for error in bench.fatal] == [SyncFailed]
        assert await bench.add(1, 2, b"never acked") is Code.IO
        with pytest.raises(SyncFailed):
            await bench.storage.checkpoint()
        await bench.storage.close()
        assert bench.storage._checkpointer.mark == mark, "the journal still has to be replayed"
        bench.disk.dead = True


async def test_a_checkpoint_that_waits_behind_a_failing_compaction() -> None:
    async with Bench(SMALL) as bench:
        for number in range(4):
            for ledger_id in (1, 2):
                assert await bench.add(ledger_id, number, b"x" * 3000) is Code.OK
            await bench.storage.checkpoint()
        first = bench.storage.logs.log_ids[0]
        assert await bench.add(1, 4, b"behind") is Code.OK
        mark = bench.storage._checkpointer.mark
        fail_one_sync(bench)
        clearing = asyncio.create_task(bench.storage.compactor.clear(first, copy=True))
        while not bench.storage._checkpointer._lock.locked():  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting = asyncio.create_task(bench.storage.checkpoint())
        found = await asyncio.gather(clearing, waiting, return_exceptions=True)
        assert [type(one) for one in found] == [SyncFailed, SyncFailed]
        assert bench.storage._checkpointer.mark == mark
        bench.disk.dead = True
