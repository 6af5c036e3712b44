"""After two bad starts an index named entries in a log that a third start had cut.

Found by the simulator (seed 2022320): the sync of a journal failed, so its last block was in the
page cache alone. The next start replayed it, flushed log and index, and died before it wrote the
mark; the one after found the block gone and cut the log. The index, flushed before the mark, still
named those entries: reads failed for ever, and what it named had hidden older copies of the same
entries. Now the index comes after the mark.
"""

from __future__ import annotations

import pytest

from octavo.bookie.disk.files import SyncFailed
from tests.support.storage_support import Bench, entry_bytes


async def test_the_index_is_never_ahead_of_the_mark() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"first copy")
        await bench.storage.checkpoint()
        before = bench.storage._index.runs(1)
        await bench.add(1, 0, b"first copy")
        await bench.add(1, 1, b"x")

        def hook(call: str, path: str) -> None:
            if call == "datasync" and "journal.mark" in path:
                raise SyncFailed(f"fdatasync {path}: input/output error")

        bench.disk.hook = hook
        with pytest.raises(SyncFailed):
            await bench.storage.checkpoint()
        assert bench.storage._index.runs(1) == before
        await bench.crash()
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0, b"first copy")


async def test_a_crash_between_mark_and_index_is_made_good_from_the_logs() -> None:
    async with Bench() as bench:
        for number in range(3):
            await bench.add(1, number, b"%d" % number)
        index = bench.storage._index
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index, "put", lambda *_: (_ for _ in ()).throw(SyncFailed("power")))
            with pytest.raises(SyncFailed):
                await bench.storage.checkpoint()
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, 2)]
        assert await bench.storage.reads.read(1, 2) == entry_bytes(1, 2, b"2")
