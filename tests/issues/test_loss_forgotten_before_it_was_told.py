"""An accepted loss was forgotten when the start ended before limbo was durable.

The index is made anew from the entry logs before the bookie goes into limbo, for only then it is
known what was lost. A damaged log was passed over, and the index said at once that it was complete.
Then metadata did not answer, so limbo was not written and the start ended. The next start saw a
complete index, no damage and no limbo, and denied the entries. Found by reading the engine.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.bookie.entrylog.format import FILE_HEADER_BYTES
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import BookieIOError, Code
from tests.support.storage_support import CONFIG, Bench, entry_bytes

SMALL = replace(CONFIG, entry_log_bytes_max=4096)


async def test_the_next_start_finds_it_again() -> None:
    bench = Bench(SMALL)
    async with bench:
        for ledger_id in range(3):
            assert await bench.add(ledger_id, 0, b"x" * 3000) is Code.OK
            await bench.storage.checkpoint()
    path = bench.storage.logs.path_of(bench.storage.logs.log_ids[0])
    file = bench.disk.open(path, write=True)
    file.pwritev([b"damaged!"], FILE_HEADER_BYTES)
    file.datasync()
    bench.indexes.clear()

    async def silent(why: str) -> None:
        raise MetadataUnavailable("no answer")

    bench.on_loss = silent
    with pytest.raises(MetadataUnavailable):
        await bench.start()

    bench.on_loss = None
    with pytest.raises(BookieIOError, match="damaged"):
        await bench.start()

    told: list[str] = []

    async def tell(why: str) -> None:
        told.append(why)

    bench.on_loss = tell
    async with bench:
        assert len(told) == 1
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0, b"x" * 3000)

    bench.on_loss = None  # told once, durably: it is for limbo to say so from now on
    async with bench:
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0, b"x" * 3000)
