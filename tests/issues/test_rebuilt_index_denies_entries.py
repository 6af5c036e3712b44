"""An index that was rebuilt beside a damaged entry log denied acked entries.

Found by the sweep of single faults (`tests/single_fault`): stepping through a log ended at the
first record header that was not good, without a word. Whoever followed the advice to remove a
damaged index, and had one flipped bit in a log, had a bookie that answered "no such entry" for all
that lay behind it: recovery would have cut the ledger there (BookKeeper #2908).
"""

from __future__ import annotations

import pytest

from octavo.protocol.codes import BookieIOError
from tests.support.storage_support import Bench


@pytest.mark.parametrize("hurt", ["header", "cut"])
async def test_the_rebuild_says_that_records_are_missing(hurt: str) -> None:
    async with Bench() as bench:
        for number in range(3):
            await bench.add(1, number, b"x" * 900)
            await bench.storage.checkpoint()
        (path,) = [name for name in bench.disk.names if name.endswith(".log")]
        await bench.storage.close()
        data = bench.disk.names[path].data
        if hurt == "header":
            data[data.index(b"ERUN", 500)] ^= 1
        else:
            bench.disk.names[path].resize(1500)
        bench.indexes.clear()
        with pytest.raises(BookieIOError, match=r"damaged from byte \d+ on.*re-replicated"):
            await bench.start()
