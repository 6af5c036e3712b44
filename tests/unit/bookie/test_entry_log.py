"""Entry logs and the ledger state file."""

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
from octavo.bookie.disk.files import DiskFull, File, NoDescriptorLeft, RealDisk
from octavo.bookie.entrylog.format import RECORD_BYTES, Extent, Location, decode_footer, file_name
from octavo.bookie.entrylog.log import EntryLogMissing, EntryLogs
from octavo.bookie.entrylog.open_logs import OpenLogs, open_logs_max
from octavo.bookie.ledgers.state import LedgerState, LedgerStateDamaged, StateFile, encode_record
from octavo.protocol.codes import BookieIOError
from tests.support.kit.quiescence import in_use
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, entry_bytes, make_run


def log_run(ledger_id: int, first: int, count: int = 3, size: int = 100) -> Extent:
    frames = make_run(ledger_id, first, [b"x" * size] * count).frames
    return Extent(ledger_id, first, count, [frames], len(frames))


def opened(disk: MemoryDisk, log_bytes_max: int = 4000) -> EntryLogs:
    for folder in ("/a", "/b"):
        disk.make_directory(folder)
    logs = EntryLogs(disk, ["/a", "/b"], log_bytes_max)
    logs.open()
    logs.cut_abandoned((0, 0), journaled=False)
    return logs


def test_runs_are_read_back_across_logs() -> None:
    logs = opened(MemoryDisk())
    runs = [log_run(number % 2, number * 3) for number in range(20)]
    places = [logs.append([run])[0] for run in runs]
    logs.sync()
    assert len(logs.log_ids) == 3
    for run, place in zip(runs, places, strict=True):
        record, frames = logs.read(place, run.ledger_id)
        assert (record.first_entry, record.entries) == (run.first_entry, 3)
        assert [frames] == run.frames
    for log_id in logs.log_ids:
        scanned = [place for _, place in logs.scan(log_id)]
        assert scanned == [place for place in places if place.log_id == log_id]
        sums: dict[int, int] = {}
        for run, place in zip(runs, places, strict=True):
            if place.log_id == log_id:
                sums[run.ledger_id] = sums.get(run.ledger_id, 0) + run.frames_bytes
        assert logs.ledgers_of(log_id) == sums, "by map or by scan, the same"


def test_a_sealed_log_has_no_reserve_and_a_map() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    logs.append([log_run(1, 0)])
    first = logs._paths[1]
    assert disk.open(first).size() == 4000
    logs.seal()
    data = disk.open(first).pread(10_000, 0)
    footer = decode_footer(data)
    assert footer is not None
    assert footer[0] == 24 + RECORD_BYTES + 3 * 164


def test_what_is_not_what_the_index_said_is_an_io_error() -> None:
    logs = opened(MemoryDisk())
    place, other = logs.append([log_run(1, 0), log_run(2, 0)])
    wrong = [
        (place, 2),
        (place._replace(offset=place.offset + 1), 1),
        (place._replace(length=place.length - 1), 1),
        (place._replace(length=place.length + other.length), 1),
        (place._replace(log_id=9), 1),
        (Location(1, 10**6, 100), 1),
    ]
    for location, ledger_id in wrong:
        with pytest.raises(BookieIOError):
            logs.read(location, ledger_id)


def test_a_full_disk_adds_nothing_and_the_next_attempt_goes_on() -> None:
    disk = MemoryDisk()
    logs = opened(disk, log_bytes_max=10**6)
    logs.append([log_run(1, 0)])
    disk.capacity = disk.used
    before = logs.position
    with pytest.raises(DiskFull):
        logs.append([log_run(1, 3, 3, 10**6)])
    assert logs.position == before
    disk.capacity = 2**40
    (place,) = logs.append([log_run(1, 3)])
    assert logs.read(place, 1)[0].first_entry == 3


def test_after_a_restart_the_old_log_is_cut_and_never_appended_to() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    places = logs.append([log_run(1, 0), log_run(1, 3)])
    logs.sync()
    end = places[1].offset + places[1].length
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    again.cut_abandoned((1, places[1].offset), journaled=False)
    assert again.position == (1, end)
    assert disk.open(logs._paths[1]).pread(4, end) == b"EMAP", "and sealed where it was cut"
    (place,) = again.append([log_run(1, 6)])
    assert place.log_id == 2
    assert again.read(places[0], 1)[0].first_entry == 0
    assert again.ledgers_of(1) == {1: 6 * 164}


def test_no_id_is_used_twice() -> None:
    """Until the journal is replayed, the index may name records of a dropped log."""
    disk = MemoryDisk()
    logs = opened(disk)
    (first,) = logs.append([log_run(1, 0)])
    end = first.offset + first.length
    for number in range(3):
        logs.roll()
        logs.append([log_run(1, 3 + 3 * number)])
    logs.sync()
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    again.cut_abandoned((1, end), journaled=True)
    assert again.log_ids == [1]
    assert again.append([log_run(1, 3)])[0].log_id == 5


def test_after_a_lost_log_the_next_one_is_newer_than_the_mark() -> None:
    """Otherwise the next mark would name an older log, and everything behind it would be cut."""
    disk = MemoryDisk()
    logs = opened(disk)
    logs.append([log_run(1, 0)])
    logs.sync()
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    again.cut_abandoned((7, 1000), journaled=False, missing=True)
    assert again.append([log_run(1, 3)])[0].log_id == 8


def test_a_log_that_the_mark_names_must_be_there() -> None:
    with pytest.raises(EntryLogMissing, match=file_name(3)):
        EntryLogs(MemoryDisk(), ["/a"], 4000).cut_abandoned((3, 100), journaled=True)


def state(last_entry: int) -> LedgerState:
    made = LedgerState(KEY)
    made.last_entry = last_entry
    return made


def test_state_file_counts_up_to_the_mark() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")
    file = StateFile(disk, "/a")
    assert file.wants_rewrite(0)
    file.rewrite([encode_record(1, state(1)), encode_record(2, state(1))])
    file.append([encode_record(1, state(5))])
    position = (file.file_id, file.offset)
    file.append([encode_record(1, state(9))])
    found = {key: value.last_entry for key, value in StateFile(disk, "/a").load(position)}
    assert found == {1: 5, 2: 1}, "what lies behind the mark is the journal's"
    found = {key: value.last_entry for key, value in StateFile(disk, "/a").load(None)}
    assert found == {1: 9, 2: 1}, "without a mark: as far as it is good"


def test_state_file_is_rewritten_when_stale_and_the_old_one_goes() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")
    file = StateFile(disk, "/a")
    file.rewrite([encode_record(1, state(0))])
    while not file.wants_rewrite(1):
        file.append([encode_record(1, state(file.offset))] * 500)
    assert 2**20 < file.offset < 2**20 + 100_000
    file.rewrite([encode_record(1, state(7))])
    assert len(disk.list_directory("/a")) == 2
    file.remove_old()
    assert len(disk.list_directory("/a")) == 1
    position = (file.file_id, file.offset)
    assert [held.last_entry for _, held in StateFile(disk, "/a").load(position)] == [7]


def test_a_missing_state_file_is_damage() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")
    with pytest.raises(LedgerStateDamaged, match="is missing"):
        list(StateFile(disk, "/a").load((3, 100)))


# A bookie keeps a bounded number of entry logs open, and closes none that a read uses. A reader of
BOUND = 4
LOGS = 20


def open_under(folder: Path) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += target.startswith(str(folder)) and ".log" in target
    return found


def filled(disk: RealDisk | MemoryDisk, folder: str, logs: int = LOGS) -> EntryLogs:
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
