"""A bookie whose newest entry log had lost its end did not start, and did not say why.

The log was shorter than the journal mark vouches for (a file system that lost its tail). The start
took its present end for the place to go on from, and the first checkpoint would have moved the mark
back: an assertion, no word of the file. What is missing is damage, answered as such; the rest is
served. Found by the single faults, once a mark was held against the one before it.
"""

from __future__ import annotations

import pytest

from octavo.protocol.codes import BookieIOError, Code
from tests.support.storage_support import Bench, entry_bytes

PAYLOADS = [b"%d" % n * 300 for n in range(3)]


@pytest.mark.parametrize("length", [0, 10, 500])
async def test_a_log_that_lost_its_end(length: int) -> None:
    async with Bench() as bench:
        assert await bench.add(1, 0, *PAYLOADS) is Code.OK
        await bench.storage.checkpoint()
        assert await bench.add(1, 3, b"in the journal") is Code.OK
        (path,) = [path for path in bench.disk.names if path.endswith(".log")]
        file = bench.disk.open(path, write=True)
        file.truncate(length)
        file.datasync()
        await bench.crash()
        with pytest.raises(BookieIOError):
            await bench.storage.reads.read(1, 0)
        assert await bench.storage.reads.read(1, 3) == entry_bytes(1, 3, b"in the journal")
        assert await bench.add(1, 4, b"goes on") is Code.OK
        await bench.storage.checkpoint()
        await bench.restart()
        assert await bench.storage.reads.read(1, 4) == entry_bytes(1, 4, b"goes on")
        with pytest.raises(BookieIOError):
            await bench.storage.reads.read(1, 2)
