"""What a restarted bookie read from the page cache it took for durable; the power took it back.

Found by the simulator, once it let machines lose power in the middle of a sync. A bookie that was
killed while it sealed its journal left the END block in the page cache; the next start read it
there, did not sync it, and began another file. A power failure then took the END block, and with a
newer file behind it the journal counted as damaged: the bookie never started again. The same held
for what a failed `fsync` leaves behind: readable, counted as clean, never written. A fence that was
replayed from there was answered as durable, and forgotten.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence
from typing import Any, TypeVar

import pytest

from octavo.protocol.codes import BookieIOError, Code
from tests.sim.disk import SimDisk
from tests.support.storage_support import KEY, Bench, abandon, is_fenced

T = TypeVar("T")


class Worst(random.Random):
    """Nothing unsynced survives a power failure; the page cache survives every process."""

    def random(self) -> float:
        return 0.999

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def shuffle(self, x: MutableSequence[Any]) -> None:
        pass


WORST = Worst(0)


async def started_again(bench: Bench) -> Bench:
    """The process is gone, its page cache is not; another one starts."""
    await abandon(bench.storage)
    bench.disk.kill(WORST)  # type: ignore[attr-defined]
    return await bench_on(bench.disk)


async def bench_on(disk: Any) -> Bench:
    bench = Bench(disk=disk)
    await bench.start()
    return bench


async def after_a_power_failure(bench: Bench) -> Bench:
    await abandon(bench.storage)
    bench.disk.crash(None)
    return await bench_on(bench.disk)


async def test_killed_while_sealing_the_journal() -> None:
    disk = SimDisk()
    bench = await bench_on(disk)
    assert await bench.add(1, 0, b"acked") is Code.OK
    await abandon(bench.storage)
    disk.faults.fail_sync(WORST, ".journal")
    with pytest.raises(Exception, match="input/output"):
        await bench_on(disk)
    disk.kill(WORST)
    bench = await bench_on(disk)
    bench = await after_a_power_failure(bench)
    assert (await bench.storage.reads.read(1, 0)).endswith(b"acked")
    await bench.storage.close()


async def test_a_fence_whose_sync_failed_is_no_durable_fence() -> None:
    disk = SimDisk()
    bench = await bench_on(disk)
    assert await bench.add(1, 0) is Code.OK
    disk.faults.fail_sync(WORST, ".journal")
    with pytest.raises(BookieIOError):
        await bench.storage.control.fence(1, KEY)
    bench = await started_again(bench)
    await bench.storage.control.fence(1, KEY)
    bench = await after_a_power_failure(bench)
    assert is_fenced(bench.storage, 1), "it was answered as durable"
    await bench.storage.close()
