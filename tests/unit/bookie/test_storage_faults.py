"""The storage engine on a bad disk: failed syncs, no space, slow, damaged files."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk import files as disk_module
from octavo.bookie.disk.files import DiskError, DiskFull, RealDisk, SyncFailed
from octavo.bookie.index.index import RocksIndex
from octavo.bookie.journal.format import JournalDamaged, file_name
from octavo.bookie.journal.journal import journal_of
from octavo.bookie.ledgers.limbo import NAME, LimboDamaged
from octavo.bookie.ledgers.state import LedgerStateDamaged
from octavo.bookie.storage import Storage
from octavo.protocol.codes import BookieIOError, Code, NoSuchEntry, ReadOnly
from tests.support.memory_disk import MemoryDisk
from tests.support.raw_bookie import TroubledDisk
from tests.support.storage_support import (
    CONFIG,
    KEY,
    Bench,
    entry_bytes,
    eventually,
    is_fenced,
    make_run,
)


async def test_a_failed_sync_is_fatal_and_nothing_is_acked_after_it() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        bench.disk.fail_syncs()
        assert await bench.add(1, 1) is Code.IO
        assert [type(error) for error in bench.fatal] == [SyncFailed]
        bench.disk.hook = lambda call, path: None
        assert await bench.add(1, 2) is Code.IO, "the disk works again, the promise does not"
        with pytest.raises(BookieIOError):
            await bench.storage.control.fence(1, KEY)
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0)
        with pytest.raises(NoSuchEntry):
            await bench.storage.reads.read(1, 1)
        assert len(bench.fatal) == 1
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, 0)]


async def test_a_full_disk_does_not_stop_a_stop() -> None:
    bench = Bench()
    async with bench:
        await bench.add(1, 0, b"x" * 1000)
        bench.disk.capacity = bench.disk.used
    bench.disk.capacity = 2**40
    async with bench:
        assert await bench.storage.reads.entries(1) == [(0, 0)]


async def test_a_start_that_failed_gives_its_files_back(tmp_path: Path) -> None:
    config = BookieConfig(
        journal_directories=(f"{tmp_path}/j",), ledger_directories=(f"{tmp_path}/l",)
    )
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / file_name(1)).write_bytes(b"junk" * 20)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="junk"):
            await Storage.open(config, disk=RealDisk())


async def test_a_start_that_failed_late_gives_its_index_back(tmp_path: Path) -> None:
    config = BookieConfig(
        journal_directories=(f"{tmp_path}/j",), ledger_directories=(f"{tmp_path}/l",)
    )
    await (await Storage.open(config, disk=RealDisk())).close()
    limbo = tmp_path / "l" / NAME
    limbo.write_bytes(b"junk")
    kept: list[pytest.ExceptionInfo[LimboDamaged]] = []  # and everything that its frames hold
    for _ in range(2):
        with pytest.raises(LimboDamaged) as error:
            await Storage.open(config, disk=RealDisk())
        kept.append(error)
    limbo.unlink()
    await (await Storage.open(config, disk=RealDisk())).close()


async def test_a_failed_sync_in_the_background_flush_is_fatal() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"x")

        def hook(call: str, path: str) -> None:
            if call == "datasync" and path.endswith(".log"):
                raise SyncFailed(f"fdatasync {path}: input/output error")

        bench.disk.hook = hook
        bench.storage._flushing.wanted.set()
        await eventually(lambda: bool(bench.fatal))
        assert await bench.add(1, 1) is Code.IO
        await bench.crash()
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0, b"x")


async def test_a_full_disk_refuses_adds_keeps_reads_and_recovers() -> None:
    async with Bench() as bench:
        for number in range(20):
            await bench.add(1, number, b"x" * 1000)
        bench.disk.capacity = bench.disk.used
        codes = []
        number = 20
        while not bench.storage.disk_full:
            codes.append(await bench.add(1, number, b"y" * 1000))
            number += 1
        assert set(codes) == {Code.OK}, "it is refused before it fails"
        acked = 20 + len(codes)
        assert await bench.add(1, 999) is Code.READ_ONLY
        await bench.storage.control.fence(2, KEY)
        assert await bench.add(1, acked, b"recovered", recovery=True) is Code.OK
        acked += 1
        assert await bench.storage.reads.read(1, acked - 1)
        bench.disk.capacity = 2**40
        await eventually(lambda: not bench.storage.disk_full)
        assert await bench.add(1, acked, b"z") is Code.OK
        assert bench.fatal == []
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, acked)]
        assert is_fenced(bench.storage, 2)


async def test_a_full_disk_at_the_end_of_a_journal_file_still_takes_fences() -> None:
    async with Bench(replace(CONFIG, journal_file_bytes_max=64 * 1024)) as bench:
        number = 0
        while bench.storage._journals.of(1)._writer.offset < 60_000:
            await bench.add(1, number, b"x" * 3000)
            number += 1
        bench.disk.capacity = bench.disk.used
        assert await bench.add(1, number, b"y" * 9000) is Code.OK, "the margin takes it"
        assert bench.storage.disk_full
        assert await bench.add(1, number + 1) is Code.READ_ONLY
        await bench.storage.control.fence(1, KEY)
        bench.disk.capacity = 2**40
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, number)]
        assert is_fenced(bench.storage, 1)


async def test_a_flush_that_finds_no_space_loses_nothing_and_is_tried_again() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"a" * 1000)
        mark = bench.storage._checkpointer.mark
        bench.disk.capacity = bench.disk.used
        with pytest.raises(DiskError):
            await bench.storage.checkpoint()
        assert bench.storage._checkpointer.mark == mark
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0, b"a" * 1000)
        await bench.add(1, 1, b"b")
        await bench.storage.control.fence(2, KEY)
        bench.disk.capacity = 2**40
        await bench.storage.checkpoint()
        await bench.storage.checkpoint()
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, 1)]
        assert is_fenced(bench.storage, 2)


async def test_a_fence_that_finds_no_space_says_so_and_holds_in_memory() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)

        def hook(call: str, path: str) -> None:
            if call == "pwritev":
                raise DiskFull(f"pwritev {path}: no space left")

        bench.disk.hook = hook
        with pytest.raises(ReadOnly, match="no space"):
            await bench.storage.control.fence(1, KEY)
        assert await bench.add(1, 1) is Code.FENCED
        bench.disk.hook = lambda call, path: None
        await bench.storage.control.fence(1, KEY)
        await bench.crash()
        assert is_fenced(bench.storage, 1)


async def test_memory_is_bounded_when_the_disk_is_slow() -> None:
    """A sender that heeds `paused` never has more in flight than the queue and one chunk."""
    config = replace(
        CONFIG,
        journal_queue_bytes_max=256 * 1024,
        journal_group_bytes_max=64 * 1024,
        write_cache_bytes_max=512 * 1024,
    )
    disk = MemoryDisk()
    async with Bench(config, disk) as bench:
        storage = bench.storage
        events: list[bool] = []
        flowing = asyncio.Event()
        flowing.set()

        def pressure(paused: Any) -> None:
            events.append(paused)
            (flowing.clear if paused else flowing.set)()

        storage.pressure.on_change(pressure)
        disk.sync_delay_s = 0.002
        chunk = [b"p" * 1000] * 32
        pending_max = cached_max = 0
        futures = []
        for number in range(200):
            await flowing.wait()
            futures.append(bench.send(make_run(1, number * 32, chunk)))
            pending_max = max(pending_max, storage.pending_add_bytes)
            held = storage._cache.active.bytes
            if storage._cache.flushing is not None:
                held += storage._cache.flushing.bytes
            cached_max = max(cached_max, held)
            if number % 8 == 0:
                await asyncio.sleep(0)
        results = await asyncio.gather(*futures)
        disk.sync_delay_s = 0.0
        assert all(codes == [Code.OK] for codes in results), "slowed, never failed, never dropped"
        assert True in events
        assert pending_max <= config.journal_queue_bytes_max + 40_000
        assert cached_max <= 2 * config.write_cache_bytes_max + pending_max + 200_000
        assert await storage.reads.entries(1) == [(0, 200 * 32 - 1)]


def spoil(disk: MemoryDisk, suffix: str, offset: int) -> str:
    (path,) = [path for path in disk.names if path.endswith(suffix)]
    disk.flip(path, offset, 0x10)
    return path


@pytest.mark.parametrize("offset", [24, 40, 60, 64 + 28 + 32])
async def test_a_damaged_entry_log_is_an_io_error_never_absent(offset: int) -> None:
    """BookKeeper #2908: a damaged log answered "no entry", and recovery cut the ledger."""
    async with Bench() as bench:
        await bench.add(1, 0, b"a" * 100, b"b" * 100)
        await bench.storage.checkpoint()
        path = spoil(bench.disk, ".log", offset)
        with pytest.raises(BookieIOError, match=path.rpartition("/")[2]):
            await bench.storage.reads.read(1, 1)
        bench.disk.flip(path, offset, 0x10)
        assert await bench.storage.reads.read(1, 1) == entry_bytes(1, 1, b"b" * 100)


async def test_a_missing_entry_log_is_an_io_error() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        await bench.restart()
        await bench.add(2, 0)
        await bench.restart()
        first = min(path for path in bench.disk.names if path.endswith(".log"))
        await bench.storage.close()
        bench.disk.unlink(first)
        await bench.start()
        with pytest.raises(BookieIOError, match="missing"):
            await bench.storage.reads.read(1, 0)
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0)


async def test_damaged_ledger_state_stops_the_start() -> None:
    async with Bench() as bench:
        await bench.storage.control.fence(1, KEY)
        await bench.storage.checkpoint()
        spoil(bench.disk, ".state", 60)
        with pytest.raises(LedgerStateDamaged, match=r"\.state is damaged at byte 24"):
            await bench.crash()
        bench.disk.dead = True


async def test_a_damaged_journal_stops_the_start_and_says_what_to_do() -> None:
    async with Bench() as bench:
        for number in range(5):
            await bench.add(1, number, b"x" * 50)
        spoil(bench.disk, ".journal", 100)
        with pytest.raises(JournalDamaged, match=r"damaged from byte 24 .* re-replicated"):
            await bench.crash()
        bench.disk.dead = True


@pytest.mark.parametrize("spoiled", ["/l", "/m"])
async def test_one_good_copy_of_the_mark_is_enough(spoiled: str) -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        await bench.storage.control.fence(1, KEY)
        await bench.storage.checkpoint()
        bench.disk.flip(f"{spoiled}/journal.mark", 20, 1)
        await bench.crash()
        assert is_fenced(bench.storage, 1)
        assert await bench.storage.reads.entries(1) == [(0, 0)]


async def test_a_lost_index_is_rebuilt_from_the_entry_logs() -> None:
    async with Bench() as bench:
        for number in range(10):
            await bench.add(number % 3, number, b"%d" % number)
            if number % 4 == 0:
                await bench.storage.checkpoint()
        await bench.overwrite(make_run(0, 0, [b"newer"], recovery=True))
        await bench.storage.delete_ledger(2)
        await bench.restart()
        await bench.storage.close()
        bench.indexes.clear()
        await bench.start()
        assert await bench.storage.reads.read(0, 0) == entry_bytes(0, 0, b"newer")
        for number in range(1, 10):
            if number % 3 != 2:
                entry = await bench.storage.reads.read(number % 3, number)
                assert entry == entry_bytes(number % 3, number, b"%d" % number)
        assert bench.storage.ledgers() == [0, 1]


# A failed sync stops the bookie, which names it as the reason and does not retry it.
# After a failed sync the kernel may have dropped the pages, so a second, successful sync proves
# nothing. A checkpoint for the collector did not report the failure: adds were still acked, the log
# was synced again, and the mark vouched for a range that may be empty.

SMALL = replace(CONFIG, entry_log_bytes_max=8192)


def fail_one_sync(bench: Bench) -> None:
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


# Errors that only the operating system's disk can have.
def test_no_space_is_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().open(str(tmp_path / "x"), create=True)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match=r"pwritev .*x: No space left"):
        file.pwritev([b"x"], 0)
    with pytest.raises(DiskFull, match="posix_fallocate"):
        file.preallocate(10)


def test_a_real_full_device_is_disk_full() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    file = RealDisk().open("/dev/full", write=True)
    with pytest.raises(DiskFull):
        file.pwritev([b"x"], 0)


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk().open(str(tmp_path / "x"), create=True)
    calls = 0

    def broken(fd: int) -> None:
        nonlocal calls
        calls += 1
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_module, "_datasync", broken)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(SyncFailed, match=r"fdatasync .*x: Input/output error"):
        file.datasync()
    with pytest.raises(SyncFailed, match="fsync of folder"):
        RealDisk().sync_directory(str(tmp_path))
    assert calls == 2, "a failed sync is never tried again"


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: list[bytes], offset: int) -> int:
        data = b"".join(buffers)
        return real(fd, [data[: max(1, len(data) // 2)]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file = RealDisk().open(str(tmp_path / "x"), create=True)
    assert file.pwritev([b"hello", b" ", b"world"], 2) == 11
    assert file.pread(20, 2) == b"hello world"


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError, match="file"):
        RealDisk().make_directory(str(tmp_path / "file" / "below"))
    with pytest.raises(DiskError, match=str(tmp_path)):
        RealDisk().open(str(tmp_path), write=True)


def test_what_the_system_forgot_is_read_from_the_device(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = RealDisk().open(path, create=True)
    file.pwritev([b"x" * 10_000], 0)
    file.datasync()
    file.uncache(0, 10_000)
    assert file.pread(10_000, 0) == b"x" * 10_000
    file.close()
    file.uncache(0, 10_000)  # advice: never an error
