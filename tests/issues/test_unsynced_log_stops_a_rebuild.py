"""After a sync of an entry log had failed, the loss of the index kept the bookie from starting.

The process that came next found the log's header and records in the page cache, took them for
good and kept the log; no later sync ever wrote them. When then the power failed, the log was a hole
that no mark vouched for, and a rebuild of the index refused to pass over it: a bookie with all it
ever promised was gone for good. Found by the simulation, seeds 20030 and 31323. What the mark does
not vouch for goes now at a start: the journal has it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import SyncFailed
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code
from tests.sim.disk import SimDisk
from tests.support.storage_support import CONFIG, abandon, make_run


async def _started(disk: SimDisk) -> Storage:
    return await Storage.open(CONFIG, disk=disk, index_opener=disk.open_index)


async def _add(storage: Storage, first: int) -> None:
    answered: asyncio.Future[Code] = asyncio.get_running_loop().create_future()

    def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
        answered.set_result(results[0][1])

    storage.add([make_run(7, first, [b"x" * 700, b"y" * 700])], done)
    assert await answered is Code.OK


@pytest.mark.parametrize("flushed_before", [False, True])
@pytest.mark.parametrize("skip", [0, 1], ids=["header", "records"])
async def test_the_index_is_rebuilt(flushed_before: bool, skip: int) -> None:
    rng = random.Random(1)
    disk = SimDisk(rng=rng)
    storage = await _started(disk)
    if flushed_before:
        await _add(storage, 0)
        await storage.checkpoint()
        await storage.close()
        storage = await _started(disk)
    await _add(storage, 2)
    disk.faults.fail_sync(rng, ".log", skip=skip)
    with pytest.raises(SyncFailed):
        await storage.checkpoint()
    await abandon(storage)
    disk.kill(rng)  # a supervisor starts it again: the page cache is as it was
    storage = await _started(disk)
    await abandon(storage)
    disk.crash(rng)
    disk.indexes.kept.clear()
    storage = await _started(disk)
    assert await storage.reads.entries(7) == [(0 if flushed_before else 2, 3)]
    assert (await storage.reads.read(7, 3)).endswith(b"y")
    await storage.close()
