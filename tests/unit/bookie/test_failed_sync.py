"""A failed sync stops the bookie, which names it as the reason and does not retry it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import DiskFull, RealDisk, SyncFailed
from octavo.bookie.index.index import RocksIndex
from octavo.bookie.journal.journal import journal_of
from octavo.bookie.storage import Storage
from octavo.protocol.codes import BookieIOError, Code
from tests.support.raw_bookie import TroubledDisk
from tests.support.storage_support import CONFIG, Bench, eventually, make_run

# After a failed sync the kernel may have dropped the pages, so a second, successful sync proves
# nothing. A checkpoint for the collector did not report the failure: adds were still acked, the log
# was synced again, and the mark vouched for a range that may be empty.

SMALL = replace(CONFIG, entry_log_bytes_max=8192)


def fail_one_sync(bench: Bench) -> None:
    """Fail the next sync of an entry log; later syncs succeed."""
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


# Repeated adds bypass the journal. A bookie whose journal failed still acked them, but a process
# that has to end must promise nothing.

TWO = replace(CONFIG, journal_directories=("/j", "/k"), read_cache_bytes_max=1)
LEDGER = 1
OWN, OTHER = ("j", "k") if journal_of(LEDGER, 2) == 0 else ("k", "j")
NEIGHBOUR = next(n for n in range(2, 9) if journal_of(n, 2) != journal_of(LEDGER, 2))
PLACES = ["cache", "log"]


class Gate:
    def __init__(self) -> None:
        self.entered, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.entered.set()
        assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


def failing(folder: str, gate: Gate | None = None) -> Callable[[str, str], None]:
    """Make syncs of journals in `folder` fail, after the gate if there is one."""

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.startswith(f"/{folder}/"):
            if gate is not None:
                gate.wait()
            raise SyncFailed(f"fdatasync {path}: input/output error")

    return hook


async def with_an_entry(place: str) -> Bench:
    bench = Bench(TWO)
    await bench.start()
    for ledger_id in (LEDGER, NEIGHBOUR):
        assert await bench.add(ledger_id, 0) is Code.OK
    if place == "log":
        await bench.storage.checkpoint()
    assert await bench.add(LEDGER, 0) is Code.OK
    return bench


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("broken", [OWN, OTHER])
async def test_after_it_nothing_is_a_success(place: str, recovery: bool, broken: str) -> None:
    bench = await with_an_entry(place)
    bench.disk.hook = failing(broken)
    assert await bench.add(LEDGER if broken == OWN else NEIGHBOUR, 1) is Code.IO
    bench.disk.hook = lambda call, path: None
    for _ in range(2):
        assert await bench.add(LEDGER, 0, recovery=recovery) is Code.IO
    assert [type(error) for error in bench.fatal] == [SyncFailed]
    await bench.storage.close()


async def test_what_came_while_the_sync_was_failing() -> None:
    bench, gate = await with_an_entry("cache"), Gate()
    bench.disk.hook = failing(OWN, gate)
    new = bench.send(make_run(LEDGER, 1, [b""]))
    await eventually(gate.entered.is_set)
    again, of_the_new = (bench.send(make_run(LEDGER, entry_id, [b""])) for entry_id in (0, 1))
    gate.open()
    assert [await new, await again, await of_the_new] == [[Code.IO]] * 3
    await bench.storage.close()


async def test_a_sync_that_fails_while_entries_are_compared() -> None:
    """The disk has failed, and the loop does not know it yet."""
    bench, reading, syncing = await with_an_entry("log"), Gate(), Gate()
    sync_fails = failing(OWN, syncing)

    def hook(call: str, path: str) -> None:
        if call == "pread" and path.endswith(".log"):
            reading.wait()
        sync_fails(call, path)

    bench.disk.hook = hook
    again = bench.send(make_run(LEDGER, 0, [b""]))
    await eventually(reading.entered.is_set)
    new = bench.send(make_run(LEDGER, 1, [b""]))
    await eventually(syncing.entered.is_set)
    reading.open()
    queue = bench.storage._journals.of(LEDGER)._queue
    await eventually(lambda: again.done() or bool(queue))
    assert not again.done()
    syncing.open()
    assert [await new, await again] == [[Code.IO]] * 2
    await bench.storage.close()


async def test_of_a_full_disk_what_is_here_knows_nothing() -> None:
    bench = await with_an_entry("cache")

    def hook(call: str, path: str) -> None:
        if call == "pwritev" and path.startswith(f"/{OWN}/"):
            raise DiskFull(f"write {path}: no space left; free some space")

    bench.disk.hook = hook
    runs = [make_run(LEDGER, entry_id, [b""], recovery=True) for entry_id in (1, 0)]
    assert await bench.send(*runs) == [Code.READ_ONLY, Code.OK]
    bench.disk.hook = lambda call, path: None
    assert bench.fatal == []
    await bench.storage.close()


async def test_what_could_not_be_synced_is_a_success_once_it_is() -> None:
    """The next process reads it from the page cache, and syncs it before it acks."""
    bench = await with_an_entry("cache")
    bench.disk.hook = failing(OWN)
    assert await bench.add(LEDGER, 1) is Code.IO
    await bench.storage.close()
    bench.disk.hook = lambda call, path: None
    await bench.start()
    assert await bench.storage.reads.entries(LEDGER) == [(0, 1)]
    assert await bench.add(LEDGER, 1) is Code.OK
    await bench.crash()
    assert await bench.storage.reads.entries(LEDGER) == [(0, 1)]
    await bench.storage.close()


# The index on the failed disk could not be closed either, and RocksDB's exception replaced the
# reason.


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


GROUP_SMALL = replace(CONFIG, journal_file_bytes_max=16 * 1024)


async def test_the_group_that_met_it_is_answered_too() -> None:
    """An error that is not the disk's, such as a removed folder, ended the journal; the group being
    written was never answered."""
    async with Bench(GROUP_SMALL) as bench:

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


HALF_SMALL = replace(CONFIG, write_cache_bytes_max=64 * 1024)


async def test_both_halves_are_flushed() -> None:
    """When a full disk had room again, only one half of the write cache was flushed. While a flush
    is retried, the other half fills, and the successful flush did not report it. The next add
    would, but adds wait while the cache is over its bound, so all waited for `flush_interval_ms`.
    Found by reading the engine."""
    async with Bench(HALF_SMALL) as bench:

        def hook(call: str, path: str) -> None:
            if call in ("preallocate", "pwritev") and path.endswith(".log"):
                raise DiskFull(f"{call} {path}: no space left")

        bench.disk.hook = hook
        cache = bench.storage._cache
        number = 0
        while cache.flushing is None or not cache.is_full:
            code = await bench.add(1, number, b"x" * 10_000, recovery=True)
            assert code is Code.OK
            number += 1
        await eventually(lambda: bench.storage.disk_full)
        bench.disk.hook = lambda call, path: None
        await eventually(lambda: not bench.storage.disk_full)
        await eventually(lambda: not cache.active.bytes, timeout_s=3)
