"""The simulated disk forgets what it may forget, keeps what it must, and fails when told to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from octavo.bookie.disk.files import DiskError, DiskFull, SyncFailed
from octavo.bookie.entrylog.format import Location
from octavo.bookie.index.index import IndexedExtent
from octavo.protocol.codes import BookieIOError
from tests.sim.disk import SimDisk
from tests.sim.disk_faults import Damage
from tests.sim.inode import SECTOR
from tests.sim.loop import SimLoop
from tests.sim.process import Process, ProcessCrashed
from tests.sim.trace import Trace

OLD, NEW = b"o" * 4 * SECTOR, b"n" * 4 * SECTOR


def a_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/d")
    return disk


def put(disk: SimDisk, path: str, data: bytes, *, sync: bool = True) -> None:
    file = disk.open(path, create=not disk.exists(path), write=True)
    file.pwritev([data], 0)
    if sync:
        file.datasync()
        disk.sync_directory("/d")


def content(disk: SimDisk, path: str = "/d/x") -> bytes:
    return disk.open(path).pread(1 << 20, 0)


def outcomes(make: Callable[[], SimDisk], look: Callable[[SimDisk], Any]) -> set[Any]:
    found: set[Any] = set()
    for seed in range(200):
        disk = make()
        disk.crash(random.Random(seed))
        found.add(look(disk))
    return found


def overwritten() -> SimDisk:
    disk = a_disk()
    put(disk, "/d/x", OLD)
    put(disk, "/d/x", NEW, sync=False)
    return disk


def test_a_crash_keeps_any_subset_of_unsynced_sectors_and_tears_some() -> None:
    def sectors(disk: SimDisk) -> tuple[str, ...]:
        data = content(disk)
        parts = [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
        return tuple(
            "old" if one == OLD[:SECTOR] else "new" if one == NEW[:SECTOR] else "torn"
            for one in parts
        )

    found = outcomes(overwritten, sectors)
    assert {one for one in found if "torn" not in one} >= {
        (a, b, c, d)  # type: ignore[misc]
        for a in ("old", "new")
        for b in ("old", "new")
        for c in ("old", "new")
        for d in ("old", "new")
    }
    assert any("torn" in one for one in found), "garbage within a sector"  # type: ignore[operator]


def test_what_was_synced_stays() -> None:
    def make() -> SimDisk:
        disk = overwritten()
        disk.open("/d/x", write=True).datasync()
        return disk

    assert outcomes(make, content) == {NEW}


def test_the_same_seed_leaves_the_same() -> None:
    images = []
    for _ in range(2):
        disk = overwritten()
        disk.crash(random.Random(5))
        images.append(content(disk))
    assert images[0] == images[1]


def test_no_newer_write_survives_in_a_sector_without_the_older_one() -> None:
    def make() -> SimDisk:
        disk = a_disk()
        put(disk, "/d/x", bytes(100))
        file = disk.open("/d/x", write=True)
        file.pwritev([b"1"], 10)
        file.pwritev([b"2"], 20)
        return disk

    found = outcomes(make, lambda disk: (content(disk)[10:11], content(disk)[20:21]))
    assert (b"1", b"2") in found
    assert (b"1", b"\0") in found
    assert (b"\0", b"2") not in found


def test_a_file_may_have_grown_while_its_bytes_did_not_arrive() -> None:
    def make() -> SimDisk:
        disk = a_disk()
        put(disk, "/d/x", b"abc")
        disk.open("/d/x", write=True).pwritev([NEW], 3)
        return disk

    found = outcomes(make, content)
    assert b"abc" + bytes(4 * SECTOR) in found
    assert b"abc" in found
    assert b"abc" + NEW in found


def test_names_are_lost_each_for_itself_until_the_folder_is_synced() -> None:
    def make() -> SimDisk:
        disk = a_disk()
        for name in ("gone", "old"):
            put(disk, f"/d/{name}", b"1")
        disk.open("/d/made", create=True).datasync()
        disk.rename("/d/old", "/d/new")
        disk.unlink("/d/gone")
        return disk

    found = outcomes(make, lambda disk: tuple(disk.list_directory("/d")))
    assert len(found) == 8
    assert ("gone", "old") in found
    assert ("made", "new") in found

    def synced() -> SimDisk:
        disk = make()
        disk.sync_directory("/d")
        return disk

    assert outcomes(synced, lambda disk: tuple(disk.list_directory("/d"))) == {("made", "new")}


def test_a_killed_process_leaves_the_page_cache() -> None:
    disk = overwritten()
    disk.open("/d/y", create=True)
    disk.kill(random.Random(1))
    assert content(disk) == NEW
    assert disk.list_directory("/d") == ["x", "y"]


def test_reserved_space_is_not_copied_and_counts() -> None:
    disk = SimDisk(capacity=10_000)
    disk.make_directory("/d")
    file = disk.open("/d/x", create=True)
    file.preallocate(9_000)
    assert (file.size(), disk.free_bytes("/d")) == (9_000, (1_000, 10_000))
    assert file.pread(10, 8_995) == bytes(5)
    with pytest.raises(DiskFull):
        file.preallocate(10_001)
    file.truncate(10)
    assert disk.used == 10
    disk.unlink("/d/x")
    assert disk.used == 0


def test_a_full_disk_takes_the_front_of_a_write() -> None:
    disk = SimDisk(capacity=1000)
    disk.make_directory("/d")
    file = disk.open("/d/x", create=True)
    with pytest.raises(DiskFull):
        file.pwritev([b"a" * 600, b"b" * 600], 0)
    assert file.pread(2000, 0) == b"a" * 600 + b"b" * 400


# Armed faults


def test_a_failed_sync_loses_pages_although_the_next_one_succeeds() -> None:
    lost = 0
    for seed in range(50):
        disk = a_disk()
        put(disk, "/d/x", OLD)
        disk.faults.fail_sync(random.Random(seed), path="/d/x")
        file = disk.open("/d/x", write=True)
        file.pwritev([NEW], 0)
        with pytest.raises(SyncFailed):
            file.datasync()
        assert content(disk) == NEW, "the page cache still has it"
        file.datasync()
        disk.crash(random.Random(seed))
        lost += content(disk) != NEW
    assert lost > 10
    assert disk.counts["disk: sync EIO"] == 1


def test_armed_errors_fire_where_and_when_they_were_armed() -> None:
    rng = random.Random(1)
    disk = a_disk()
    put(disk, "/d/x", OLD)
    put(disk, "/d/y", OLD)
    disk.faults.fail_read(rng, path="/y", skip=1)
    file = disk.open("/d/y", write=True)
    assert content(disk) == OLD
    assert file.pread(1, 0) == b"o"
    with pytest.raises(DiskError, match="input/output"):
        file.pread(1, 0)
    assert file.pread(1, 0) == b"o"
    disk.faults.fail_write(rng)
    with pytest.raises(DiskError, match="input/output"):
        file.pwritev([NEW], 0)
    disk.faults.fill(rng, times=2)
    with pytest.raises(DiskFull):
        file.preallocate(8 * SECTOR)
    with pytest.raises(DiskFull):
        file.pwritev([NEW + NEW], 0)
    file.pwritev([NEW], 0)
    assert disk.counts == {"disk: read EIO": 1, "disk: write EIO": 1, "disk: ENOSPC": 2}
    assert disk.faults.rules == []


def test_lost_and_misdirected_writes_are_told_to_nobody_but_the_atlas() -> None:
    disk = a_disk()
    damages: list[Damage] = []
    disk.on_damage = damages.append
    put(disk, "/d/x", OLD)
    disk.faults.lose_write(random.Random(1))
    put(disk, "/d/x", NEW)
    (stale,) = damages
    assert content(disk)[stale.start : stale.end] == OLD[:SECTOR]
    assert content(disk).count(b"n") == 3 * SECTOR
    damages.clear()
    put(disk, "/d/y", OLD * 4)
    disk.faults.misdirect_write(random.Random(1))
    put(disk, "/d/y", NEW)
    left, hit = damages
    assert content(disk, "/d/y")[left.start : left.end] == OLD[:SECTOR]
    assert content(disk, "/d/y")[hit.start : hit.end] == NEW[:SECTOR]


def test_rot_hits_what_was_synced() -> None:
    kinds = Counter[str]()
    for seed in range(40):
        disk = a_disk()
        put(disk, "/d/x", OLD[:SECTOR] + NEW[SECTOR:])
        damages: list[Damage] = []
        disk.on_damage = damages.append
        before = content(disk)
        hit = disk.rot(random.Random(seed))
        assert hit is not None
        assert damages == [hit]
        disk.crash(random.Random(1))
        differing = [at for at, byte in enumerate(content(disk)) if byte != before[at]]
        assert set(differing) <= set(range(hit.start, hit.end))
        assert hit.kind == "wrong sector" or differing
        kinds[hit.kind] += 1
        assert len(content(disk)) == len(before)
    assert len(kinds) == 4
    assert a_disk().rot(random.Random(3), path="/nothing") is None


def test_wiped_and_swapped() -> None:
    one, other = a_disk(), a_disk()
    put(one, "/d/x", OLD)
    one.swap(other)
    assert content(other) == OLD
    assert other.used == len(OLD)
    assert one.used == 0
    assert not one.exists("/d/x")
    other.wipe()
    assert other.list_directory("/") == []


def test_slow_calls_are_added_up() -> None:
    disk = a_disk()
    disk.slow(sync_s=2.0, read_s=0.5)
    put(disk, "/d/x", OLD)
    content(disk)
    assert disk.take_delay_s() == 4.5
    assert disk.take_delay_s() == 0


# Processes


def test_a_crashed_process_reaches_its_disk_no_more_and_frees_its_locks() -> None:
    loop = SimLoop(1, trace=Trace())
    disk = a_disk()
    process = Process(loop, "bookie")
    handle = disk.attach(process)
    handle.lock("/d/lock")
    file = handle.open("/d/x", create=True)
    process.crash()
    for call in (lambda: file.pwritev([b"late"], 0), lambda: handle.unlink("/d/x")):
        with pytest.raises(ProcessCrashed):
            call()
    disk.attach(Process(loop, "bookie")).lock("/d/lock")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_dies_within_a_call(when: str) -> None:
    loop = SimLoop(1, trace=Trace())
    disk = a_disk()
    disk.kill_chance = 1.0
    process = Process(loop, "bookie")
    handle = disk.attach(process)
    file = handle.open("/d/x", create=True)
    getattr(disk.faults, f"crash_{when}")(random.Random(1), path="/d/x")
    with pytest.raises(ProcessCrashed):
        file.pwritev([b"new"], 0)
    assert not process.alive
    assert content(disk) == (b"new" if when == "after" else b"")


def test_the_power_fails_in_a_sync_and_somebody_is_told() -> None:
    loop = SimLoop(1, trace=Trace())
    disk = a_disk()
    disk.kill_chance = 0.0
    told: list[str] = []
    disk.on_death = lambda: told.append("dead")
    file = disk.attach(Process(loop, "bookie")).open("/d/x", create=True)
    disk.sync_directory("/d")
    disk.faults.crash_in_sync(random.Random(1))
    file.pwritev([b"on its way"], 0)
    with pytest.raises(ProcessCrashed):
        file.datasync()
    assert told == ["dead"]
    assert content(disk) != b"on its way", "this seed lost it: nothing had been synced"


# Index


def run(entry_id: int) -> IndexedExtent:
    return IndexedExtent(1, entry_id, entry_id, Location(1, entry_id * 10, 10))


def test_an_index_keeps_what_was_flushed_and_a_prefix_of_the_rest() -> None:
    found = set()
    for seed in range(50):
        disk = a_disk()
        index = disk.open_index("/d/index")
        index.put([run(0)], (1, 1))
        index.flush()
        index.put([run(1)], (1, 2))
        index.put([run(2)], (1, 3))
        index.delete_ledger(1)
        disk.crash(random.Random(seed))
        again = disk.open_index("/d/index")
        found.add((tuple(one.first for one in again.runs(1)), again.covered))
    assert found == {((0,), (1, 1)), ((0, 1), (1, 2)), ((0, 1, 2), (1, 3)), ((), (1, 3))}


def test_a_damaged_index_never_says_absent() -> None:
    disk = a_disk()
    index = disk.open_index("/d/index")
    index.put([run(0)], (1, 1))
    disk.indexes.kept["/d/index"].damaged = "block checksum mismatch"
    with pytest.raises(BookieIOError):
        index.find(1, 7)
    disk.indexes.kept["/d/index"].damaged = ""
    disk.faults.fail_read(random.Random(1), path="index")
    with pytest.raises(BookieIOError):
        index.runs(1)
