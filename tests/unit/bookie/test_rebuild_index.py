"""An index made anew from the logs finds what the old one found; a crash at any step keeps one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import DiskError, RealDisk
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import RocksIndex
from octavo.bookie.startup.index_rebuild import RebuildRefused, rebuild_index, settle
from octavo.protocol.codes import BookieIOError, NoSuchLedger
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
from tests.support.storage_support import entry_bytes


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


class Stopped(Exception):
    """The process died here."""


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
