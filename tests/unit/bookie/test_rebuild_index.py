"""A rebuilt index finds the same entries as the old one; a crash at any step keeps an index."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamagedRead
from octavo.bookie.disk.files import DiskError, RealDisk, SyncFailed
from octavo.bookie.entrylog.format import Location
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import IndexedExtent, RocksIndex
from octavo.bookie.startup.index_rebuild import RebuildRefused, rebuild_index, settle
from octavo.bookie.storage import Storage
from octavo.protocol.codes import BookieIOError, Code, NoSuchLedger
from tests.sim.disk import SimDisk
from tests.sim.index import SimIndex
from tests.support.memory_index import MemoryIndex
from tests.support.real_folders import (
    RealBench,
    config_in,
    filled,
    names_in,
    read,
    remove,
    runs_of,
    write,
)
from tests.support.storage_support import CONFIG, Bench, abandon, entry_bytes, make_run


async def test_it_finds_what_the_old_one_found(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    folder = Path(config.ledger_directories[0])
    assert len(names_in(folder, "*.log")) > 2
    assert {run.ledger_id for run in before} == {1, 2, 4, 5}
    passed: list[int] = []
    made = rebuild_index(RealDisk(), config.ledger_directories, passed.append)
    assert runs_of(config) == before
    assert made.runs == 16
    assert before[0][:3] == (1, 0, 1), "cut by the next run, which is newer"
    assert sum(passed) > 0
    assert names_in(folder, "index*") == [folder / "index"]


async def test_what_lies_behind_the_mark_stays_out(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    logs = EntryLogs(RealDisk(), config.ledger_directories, 10**9)
    logs.open()
    last = logs.log_ids[-1]
    (*_, (_, location)) = logs.scan(last)
    path = Path(logs.path_of(last))
    logs.close()
    data = read(path)
    end = location.offset + location.length
    write(path, data[:end] + data[location.offset : end])  # written, and the mark never moved
    rebuild_index(RealDisk(), config.ledger_directories)
    assert runs_of(config) == before


class Stopped(Exception): ...


class Mortal(RealDisk):
    """Dies at the n-th call that changes a name, before or after it is done."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left = at
        self.after = after

    def _call(self, call: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0:
            if self.after:
                call()
            raise Stopped
        call()

    def rename(self, old: str, new: str) -> None:
        self._call(lambda: super(Mortal, self).rename(old, new))

    def remove_folder(self, path: str) -> None:
        self._call(lambda: super(Mortal, self).remove_folder(path))

    def sync_directory(self, path: str) -> None:
        self._call(lambda: super(Mortal, self).sync_directory(path))


@pytest.mark.parametrize("leftover", [False, True])
async def test_a_crash_at_each_step_leaves_an_index_that_is_whole(
    tmp_path: Path, leftover: bool
) -> None:
    _, before = await filled(tmp_path / "as it was")
    steps = 0
    for at in range(1, 100):
        ended = False
        for after in (False, True):
            shutil.rmtree(tmp_path / "now", ignore_errors=True)
            shutil.copytree(tmp_path / "as it was", tmp_path / "now")
            now = config_in(tmp_path / "now")
            folder = now.ledger_directories[0]
            if leftover:
                shutil.copytree(f"{folder}/index", f"{folder}/index.new")
            try:
                rebuild_index(Mortal(at, after=after), now.ledger_directories)
                ended = True
            except Stopped:
                steps += 1
            settle(RealDisk(), folder)
            assert names_in(folder, "index*") == [Path(folder, "index")]
            assert runs_of(now) == before
        if ended:
            break
    assert steps >= 14


@pytest.mark.parametrize("steps", ["half filled", "old one gone"])
async def test_a_half_filled_index_never_takes_the_place_of_none(
    tmp_path: Path, steps: str
) -> None:
    config, before = await filled(tmp_path)
    folder = Path(config.ledger_directories[0])
    index = RocksIndex(str(folder / "index.new"))
    index.put(before[:2], (0, 0))
    index.flush()
    index.close()
    if steps == "old one gone":
        shutil.rmtree(folder / "index")
    bench = RealBench(config)
    async with bench:
        assert await bench.storage.reads.read(5, 0)
    assert runs_of(config) == before


async def test_one_that_rocksdb_finds_damaged_is_made_anew_at_a_start(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    spoil(config)
    with pytest.raises(BookieIOError, match="Corruption"):
        RocksIndex(f"{config.ledger_directories[0]}/index")
    bench = RealBench(config)
    async with bench:
        for ledger_id in (1, 2, 4, 5):
            last = bench.storage.control.last_entry(ledger_id)
            assert len(await bench.storage.reads.read_many(ledger_id, 0, 100, 10**6)) == last + 1
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(3, 0)
    assert runs_of(config) == before


def spoil(config: BookieConfig) -> None:
    (manifest,) = Path(config.ledger_directories[0], "index").glob("MANIFEST-*")
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    manifest.write_bytes(data)


async def test_it_is_not_made_anew_when_the_logs_cannot_vouch_for_it(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    spoil(config)
    folder = Path(config.ledger_directories[0])
    path = names_in(folder, "*.log")[0]
    data = read(path)
    data[data.index(b"ERUN", 100)] ^= 1
    write(path, data)
    spoiled = [read(path) for path in names_in(folder / "index", "MANIFEST*")]
    with pytest.raises(BookieIOError, match=r"damaged from byte \d+ on"):
        await RealBench(config).start()
    assert [read(path) for path in names_in(folder / "index", "MANIFEST*")] == spoiled
    with pytest.raises(BookieIOError, match=r"damaged from byte \d+ on"):
        rebuild_index(RealDisk(), config.ledger_directories)


async def test_without_a_mark_nobody_knows_what_counts(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    remove(Path(config.ledger_directories[0], "journal.mark"))
    with pytest.raises(RebuildRefused, match="Start the bookie"):
        rebuild_index(RealDisk(), config.ledger_directories)
    assert runs_of(config) == before


async def test_a_missing_log_that_the_mark_names_refuses_it(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    remove(names_in(config.ledger_directories[0], "*.log")[-1])
    with pytest.raises(RebuildRefused, match="is missing: bring it back"):
        rebuild_index(RealDisk(), config.ledger_directories)
    assert runs_of(config) == before


async def test_a_full_disk_leaves_the_old_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, before = await filled(tmp_path)

    def full(self: RocksIndex) -> None:
        raise DiskError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RocksIndex, "flush", full)
        with pytest.raises(DiskError):
            rebuild_index(RealDisk(), config.ledger_directories)
    assert runs_of(config) == before
    bench = RealBench(config)
    async with bench:
        assert await bench.storage.reads.read(1, 0) != entry_bytes(1, 0)
    assert not names_in(config.ledger_directories[0], "index.new")


ENTRIES = 1500


async def test_the_next_start_goes_on_with_the_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index whose rebuild was cut short claims to cover byte 0 of log 0. Without a mark a start
    accepted that and denied the other entries: the index must then cover all kept logs."""
    async with Bench() as bench:
        for number in range(ENTRIES):  # more than one batch of the rebuild, each a record
            await bench.add(number + 1, 0, b"x" * 700)
        await bench.storage.checkpoint()
        for path in list(bench.disk.names):
            if path.endswith(("journal.mark", "0001.journal")):
                del bench.disk.names[path]
                bench.disk.durable_names.pop(path, None)
        await bench.storage.close()
        for path in [path for path in bench.disk.names if path.endswith("journal.mark")]:
            del bench.disk.names[path]
            del bench.disk.durable_names[path]
        bench.indexes.clear()

        put = SimIndex.put

        def dies(self: MemoryIndex, *args: object) -> None:
            if self._runs:
                self.flush()
                raise DiskError("the process ends here")
            put(self, *args)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(SimIndex, "put", dies)
            with pytest.raises(DiskError):
                await bench.start()
        await bench.start()
        for number in range(ENTRIES):
            assert await bench.storage.reads.read(number + 1, 0) == entry_bytes(
                number + 1, 0, b"x" * 700
            )


@pytest.mark.parametrize("hurt", ["header", "cut"])
async def test_the_rebuild_says_that_records_are_missing(hurt: str) -> None:
    """Stepping through a log ended silently at a bad record header, so the rebuilt index denied
    everything behind it, and a recovery would have cut the ledger (BookKeeper #2908)."""
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


RUNS = 2000
BLOCK_ENTRIES = 10


def test_every_entry_is_found_or_unknown(tmp_path: Path) -> None:
    """The look-up of a run reads the record before it; that record was damaged, and the error was
    forgotten when the next record was good."""
    path = str(tmp_path / "index")
    index = RocksIndex(path)
    index.put(
        [
            IndexedExtent(
                1,
                n * BLOCK_ENTRIES,
                n * BLOCK_ENTRIES + BLOCK_ENTRIES - 1,
                Location(1, n * 100, 100),
            )
            for n in range(RUNS)
        ],
        (1, RUNS * 100),
    )
    index.flush()
    index.close()
    table = max(Path(path).glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    third = len(data) // 3  # in the middle of the record blocks
    for at in range(third, third + 64):
        data[at] ^= 0xFF
    table.write_bytes(data)
    index = RocksIndex(path)
    unknown = 0
    for entry_id in range(RUNS * BLOCK_ENTRIES):
        try:
            found = index.runs(1, entry_id, entry_id)
        except DamagedRead:
            unknown += 1
            continue
        assert found, f"entry {entry_id} is answered as absent"
    assert 0 < unknown < RUNS * BLOCK_ENTRIES
    with pytest.raises(DamagedRead):
        index.runs(1)
    index.close()


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
    """A log whose sync had failed was kept from the page cache, never synced, and after a power
    failure a hole that a rebuild refused to skip. A start drops what the mark does not cover: the
    journal has it."""
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
    disk.kill(rng)  # the next process has the same page cache
    storage = await _started(disk)
    await abandon(storage)
    disk.crash(rng)
    disk.indexes.kept.clear()
    storage = await _started(disk)
    assert await storage.reads.entries(7) == [(0 if flushed_before else 2, 3)]
    assert (await storage.reads.read(7, 3)).endswith(b"y")
    await storage.close()
