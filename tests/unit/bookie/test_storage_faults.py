"""The storage engine on a bad disk: failed syncs, no space, slow, damaged files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import DiskError, DiskFull, RealDisk, SyncFailed
from octavo.bookie.journal.format import JournalDamaged, file_name
from octavo.bookie.ledgers.limbo import NAME, LimboDamaged
from octavo.bookie.ledgers.state import LedgerStateDamaged
from octavo.bookie.storage import Storage
from octavo.protocol.codes import BookieIOError, Code, NoSuchEntry, ReadOnly
from tests.support.memory_disk import MemoryDisk
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
