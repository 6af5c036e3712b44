"""A bookie keeps a bounded number of entry logs open, and closes none that a read uses. A reader of
old topics took one descriptor per log until no connection could be accepted."""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from octavo.bookie.disk.damage import DamagedRead, DamageKind
from octavo.bookie.disk.files import File, NoDescriptorLeft, RealDisk
from octavo.bookie.entrylog.format import Extent, Location
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.entrylog.open_logs import OpenLogs, open_logs_max
from octavo.protocol.codes import BookieIOError
from tests.support.kit.quiescence import in_use
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, Bench, entry_bytes, make_run

BOUND = 4
LOGS = 20


def open_under(folder: Path) -> int:
    """Return this process's descriptors of logs in `folder`."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += target.startswith(str(folder)) and ".log" in target
    return found


def filled(disk: RealDisk | MemoryDisk, folder: str, logs: int = LOGS) -> EntryLogs:
    """Make logs with a record each, at most `BOUND` of them open."""
    disk.make_directory(folder)
    made = EntryLogs(disk, [folder], 400, BOUND)
    made.open()
    made.cut_abandoned((0, 0), journaled=False)
    for number in range(logs):
        made.append([run_of(number)])
    made.seal()
    assert made.log_ids == list(range(1, logs + 1))
    return made


def run_of(number: int) -> Extent:
    frames = make_run(number, 0, [b"%03d" % number * 100]).frames
    return Extent(number, 0, 1, [frames], len(frames))


def read(logs: EntryLogs, log_id: int) -> bytes:
    place = next(place for _, place in logs.scan(log_id))
    return logs.read(Location(log_id, place.offset, place.length), log_id - 1)[1]


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="counts /proc/self/fd")


@needs_proc
def test_no_more_logs_are_open_than_the_bound(tmp_path: Path) -> None:
    logs = filled(RealDisk(), str(tmp_path))
    assert open_under(tmp_path) <= BOUND, "also of logs that were written"
    for log_id in logs.log_ids * 2:
        assert read(logs, log_id) == run_of(log_id - 1).frames[0]
        assert open_under(tmp_path) <= BOUND
    assert logs.open_count == open_under(tmp_path) == BOUND
    logs.remove(LOGS - 1)
    assert logs.open_count == open_under(tmp_path) == BOUND - 1, "what is removed is closed"
    logs.close()
    assert open_under(tmp_path) == 0


@needs_proc
@pytest.mark.parametrize("seed", range(5))
def test_threads_that_read_and_one_that_removes(tmp_path: Path, seed: int) -> None:
    logs = filled(RealDisk(), str(tmp_path), 40)
    keep = [log_id for log_id in logs.log_ids if log_id % 2 == 0]
    gone: list[tuple[DamageKind, int]] = []

    def some_reads(number: int) -> int:
        rng = random.Random(seed * 100 + number)
        good = 0
        for _ in range(150):
            log_id = rng.choice(logs.log_ids)
            try:
                found = read(logs, log_id)
            except DamagedRead as error:
                gone.append((error.damage.kind, log_id))
                continue
            assert found == run_of(log_id - 1).frames[0]
            good += 1
        return good

    with ThreadPoolExecutor(5) as pool:
        reads = [pool.submit(some_reads, number) for number in range(4)]
        removals = pool.submit(lambda: [logs.remove(log_id) for log_id in range(1, 40, 2)])
        removals.result()
        assert all(one.result() for one in reads)
    assert all(kind is DamageKind.MISSING_FILE and log_id not in keep for kind, log_id in gone)
    assert logs.log_ids == keep
    assert open_under(tmp_path) == logs.open_count <= BOUND
    assert not in_use(logs._open)
    logs.close()


def test_the_log_that_was_used_longest_ago_is_closed() -> None:
    disk = MemoryDisk()
    logs = filled(disk, "/a", 6)
    for log_id in (1, 2, 3, 4):
        read(logs, log_id)
    read(logs, 1)
    read(logs, 5)
    opened: list[str] = []
    disk.hook = lambda call, path: opened.append(path) if call == "open" else None
    for log_id in (1, 3, 4, 5):
        read(logs, log_id)
    assert not opened
    read(logs, 2)
    assert len(opened) == 1


def test_a_file_stays_open_as_long_as_a_read_uses_it() -> None:
    logs = filled(MemoryDisk(), "/a", 8)
    entered, go_on = Event(), Event()

    def slow_read() -> bytes:
        with logs._file(1) as file:
            entered.set()
            assert go_on.wait(30)
            return file.pread(24, 0)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(slow_read)
        assert entered.wait(30)
        for log_id in range(2, 9):
            read(logs, log_id)
        go_on.set()
        assert len(slow.result()) == 24
    assert logs.open_count == BOUND


def test_the_log_that_is_written_stays_open() -> None:
    disk = MemoryDisk()
    logs = filled(disk, "/a", 8)
    logs.append([run_of(8)])
    for _ in range(3):
        for log_id in range(1, 9):
            read(logs, log_id)
        logs.append([Extent(100, 0, 1, run_of(9).frames, run_of(9).frames_bytes)])
        logs.sync()


def test_more_reads_than_the_bound_give_everything_back() -> None:
    logs = OpenLogs(1)
    disk = MemoryDisk()
    disk.make_directory("/a")

    def opened(log_id: int) -> File:
        return disk.open(f"/a/{log_id}", create=not disk.exists(f"/a/{log_id}"))

    def nested(log_id: int) -> Iterator[int]:
        with logs.use(log_id, lambda: opened(log_id)):
            yield len(logs)

    under_way = [nested(log_id) for log_id in range(3)]
    assert [next(one) for one in under_way] == [1, 2, 3], "none is closed under its read"
    assert logs.describe() == {"reads": 3, "leaving": 0, "over": 2}
    logs.drop(1)
    assert logs.describe() == {"reads": 2, "leaving": 1, "over": 1}
    with pytest.raises(KeyError), logs.use(2, lambda: opened(2)):
        raise KeyError
    for one in under_way:
        next(one, None)
    assert not in_use(logs)
    assert len(logs) == 1


def test_a_log_that_cannot_be_opened_is_not_counted() -> None:
    logs = filled(MemoryDisk(), "/a", 6)
    logs._disk.unlink(logs.path_of(1))
    with pytest.raises(DamagedRead, match="cannot be opened"):
        read(logs, 1)
    assert not in_use(logs._open)
    assert logs.open_count == BOUND


def test_without_descriptors_idle_logs_are_closed_and_nothing_is_called_damaged() -> None:
    disk = MemoryDisk()
    logs = filled(disk, "/a", 8)
    left = [1]

    def hook(call: str, path: str) -> None:
        if call == "open" and left[0]:
            left[0] -= 1
            raise NoDescriptorLeft(f"open {path}: Too many open files")

    disk.hook = hook
    assert read(logs, 1) == run_of(0).frames[0]
    assert logs.open_count == 1
    left[0] = 2
    with pytest.raises(BookieIOError, match="Too many open files") as refused:
        read(logs, 2)
    assert not isinstance(refused.value, DamagedRead)
    assert read(logs, 2) == run_of(1).frames[0]


def test_the_systems_error_is_told_from_damage(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(NoDescriptorLeft, match="ulimit -n"):
            RealDisk().open(str(tmp_path / "x"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("wanted", "descriptors", "expected"),
    [(900, 1024, 256), (900, 1_048_576, 900), (10, 1024, 10), (900, 2, 1)],
)
def test_the_process_limit_bounds_the_setting(wanted: int, descriptors: int, expected: int) -> None:
    assert open_logs_max(wanted, descriptors) == expected


async def test_a_bookie_reads_all_its_logs_within_the_bound() -> None:
    small = replace(CONFIG, entry_log_bytes_max=1000, open_entry_logs_max=2, read_cache_bytes_max=1)
    async with Bench(small) as bench:
        for entry_id in range(30):
            await bench.add(entry_id % 3, entry_id // 3, b"x" * 300)
            await bench.storage.checkpoint()
        logs = bench.storage.logs
        assert len(logs.log_ids) > 5
        for entry_id in range(30):
            found = await bench.storage.reads.read(entry_id % 3, entry_id // 3)
            assert found == entry_bytes(entry_id % 3, entry_id // 3, b"x" * 300)
            assert logs.open_count <= 2
        assert not in_use(logs._open)
