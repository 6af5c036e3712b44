"""Adds of a group were never answered when its write ended in an error that is not the disk's.

A folder that somebody removed under a running bookie raises `FileNotFoundError` where the next
journal file gets its name. The journal died of it, as it must, and answered all that waited behind;
the group that was being written had left the queue and was forgotten: its adds, or a fence, waited
for ever. Found by reading the engine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench

SMALL = replace(CONFIG, journal_file_bytes_max=16 * 1024)


async def test_the_group_that_met_it_is_answered_too() -> None:
    async with Bench(SMALL) as bench:

        def hook(call: str, path: str) -> None:
            if call == "rename" and path.startswith("/j"):
                raise FileNotFoundError(path)

        assert await bench.add(1, 0, b"x" * 10_000) is Code.OK
        bench.disk.hook = hook
        async with asyncio.timeout(5):
            codes = await asyncio.gather(*[bench.add(1, n, b"x" * 10_000) for n in range(1, 4)])
        assert codes == [Code.IO] * 3
        assert [type(error) for error in bench.fatal] == [FileNotFoundError]
        assert bench.storage.pending_add_bytes == 0
        bench.disk.dead = True
