"""The behaviour of every `Disk` and every index."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.bookie.disk.files import Disk, DiskError, RealDisk
from octavo.bookie.entrylog.format import Location
from octavo.bookie.index.index import IndexedExtent, LedgerIndex, RocksIndex
from octavo.protocol.codes import BookieIOError
from tests.sim.disk import SimDisk
from tests.sim.index import KeptIndex, SimIndex
from tests.support.kit.examples import examples
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_index import MemoryIndex

DISKS: dict[str, Callable[[], Disk]] = {"real": RealDisk, "memory": MemoryDisk, "sim": SimDisk}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def folder(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path / "a" / "b")
    disk.make_directory(path)
    return path


def test_writes_are_read_back(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/x", create=True)
    assert file.pwritev([b"hello ", bytearray(b"big "), memoryview(b"world")], 3) == 15
    assert file.pread(100, 0) == b"\0\0\0hello big world"
    assert file.pread(5, 3) == b"hello"
    assert file.pread(5, 1000) == b""
    assert file.size() == 18
    assert file.path == f"{folder}/x"
    file.datasync()
    file.close()
    assert disk.open(f"{folder}/x").pread(100, 3) == b"hello big world"


def test_more_buffers_than_one_call_takes(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/x", create=True)
    parts = [b"%05d" % number for number in range(3000)]
    assert file.pwritev(parts, 7) == 15000
    assert file.pread(20000, 7) == b"".join(parts)
    assert file.pwritev([], 0) == 0


def test_preallocate_reserves_and_keeps_what_is_there(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/x", create=True)
    file.pwritev([b"abc"], 0)
    file.preallocate(4096)
    assert file.size() == 4096
    assert file.pread(5, 0) == b"abc\0\0"
    file.preallocate(100)
    assert file.size() == 4096
    file.truncate(2)
    assert file.pread(5, 0) == b"ab"
    file.truncate(4)
    assert file.pread(5, 0) == b"ab\0\0"


def test_open_tells_missing_from_existing(disk: Disk, folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/x")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/x", write=True)
    disk.open(f"{folder}/x", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open(f"{folder}/x", create=True)
    file = disk.open(f"{folder}/x")
    with pytest.raises(DiskError):
        file.pwritev([b"no"], 0)


def test_names(disk: Disk, folder: str) -> None:
    assert disk.list_directory(folder) == []
    assert disk.list_directory(f"{folder}/none") == []
    for name in ("b", "a", "c"):
        disk.open(f"{folder}/{name}", create=True).close()
    disk.make_directory(f"{folder}/d")
    disk.make_directory(f"{folder}/d")
    disk.rename(f"{folder}/a", f"{folder}/b")
    disk.unlink(f"{folder}/c")
    disk.sync_directory(folder)
    assert disk.list_directory(folder) == ["b", "d"]
    assert disk.exists(f"{folder}/b")
    assert disk.exists(f"{folder}/d")
    assert not disk.exists(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{folder}/c")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{folder}/c", f"{folder}/e")


def test_a_lock_is_held_until_closed_and_its_holder_named(disk: Disk, folder: str) -> None:
    held = disk.lock(f"{folder}/lock")
    with pytest.raises(DiskError, match=r"held by process \d+"):
        disk.lock(f"{folder}/lock")
    held.close()
    disk.lock(f"{folder}/lock").close()


def test_free_bytes(disk: Disk, folder: str) -> None:
    free, total = disk.free_bytes(folder)
    assert 0 < free <= total


# The behaviour of every index: RocksDB's, the one in memory, the simulated one.
OPENERS: dict[str, Callable[[str], LedgerIndex]] = {
    "rocks": RocksIndex,
    "memory": lambda path: MemoryIndex(),
    "sim": lambda path: SimIndex(KeptIndex(), path=path),
}


@pytest.fixture(params=OPENERS)
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerIndex]:
    opened = OPENERS[request.param](str(tmp_path / "index"))
    yield opened
    opened.close()


def run(ledger_id: int, first: int, last: int, offset: int = 0) -> IndexedExtent:
    return IndexedExtent(ledger_id, first, last, Location(1, offset, 100))


def test_an_empty_index_holds_nothing(index: LedgerIndex) -> None:
    assert index.covered is None
    assert index.find(0, 0) is None
    assert index.runs(0) == []
    index.delete_ledger(0)
    index.flush()


def test_runs_are_found_by_any_of_their_entries_and_no_other(index: LedgerIndex) -> None:
    runs = [run(1, 0, 9, 10), run(1, 10, 10, 20), run(1, 15, 20, 30), run(2, 3, 4, 40)]
    index.put(runs, (1, 140))
    assert index.covered == (1, 140)
    assert index.runs(1) == runs[:3]
    for one in runs:
        for entry_id in range(one.first, one.last + 1):
            assert index.find(one.ledger_id, entry_id) == one
    for ledger_id, entry_id in ((1, 11), (1, 14), (1, 21), (2, 2), (2, 5), (0, 5), (3, 0)):
        assert index.find(ledger_id, entry_id) is None
    assert index.find(2**62, 2**62) is None


def test_runs_can_be_asked_for_by_their_entries(index: LedgerIndex) -> None:
    runs = [run(1, 0, 9, 10), run(1, 10, 10, 20), run(1, 15, 20, 30), run(2, 3, 4, 40)]
    index.put(runs, (1, 140))
    for first in range(25):
        for last in range(first, 25):
            wanted = [one for one in runs[:3] if one.first <= last and one.last >= first]
            assert index.runs(1, first, last) == wanted, (first, last)
    assert index.runs(3, 0, 5) == []


def test_all_runs_come_by_ledger_and_entry(index: LedgerIndex) -> None:
    assert list(index.all_runs()) == []
    runs = [run(5, 0, 9, 10), run(1, 10, 10, 20), run(2**62, 15, 20, 30), run(1, 3, 4, 40)]
    index.put(runs, (1, 140))
    assert list(index.all_runs()) == sorted(runs)
    index.delete_ledger(5)
    assert list(index.all_runs()) == sorted(runs[1:])


def test_highest_ids(index: LedgerIndex) -> None:
    top = 2**63 - 1
    index.put([run(top, top, top)], (1, 1))
    assert index.find(top, top) == run(top, top, top)
    assert index.runs(top) == [run(top, top, top)]
    assert index.covered == (1, 1)


def test_a_later_run_cuts_what_it_overlaps(index: LedgerIndex) -> None:
    index.put([run(1, 0, 99, 1), run(1, 100, 199, 2), run(2, 0, 99, 3)], (1, 1))
    index.put([run(1, 90, 120, 4), run(1, 50, 50, 5)], (1, 2))
    assert index.runs(1) == [
        run(1, 0, 49, 1),
        run(1, 50, 50, 5),
        run(1, 51, 89, 1),
        run(1, 90, 120, 4),
        run(1, 121, 199, 2),
    ]
    assert index.runs(2) == [run(2, 0, 99, 3)]


def test_a_deleted_ledger_is_gone_and_its_neighbours_are_not(index: LedgerIndex) -> None:
    index.put([run(ledger, 0, 9, ledger) for ledger in (1, 2, 3)], (1, 1))
    index.delete_ledger(2)
    assert index.runs(2) == []
    assert index.find(2, 5) is None
    assert index.find(1, 5) == run(1, 0, 9, 1)
    assert index.find(3, 5) == run(3, 0, 9, 3)
    index.put([run(2, 5, 6, 9)], (1, 2))
    assert index.runs(2) == [run(2, 5, 6, 9)]


puts = st.lists(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=5
    ),
    max_size=8,
)


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
@settings(max_examples=examples(40), deadline=None)
@given(puts)
def test_against_a_dict(
    opener: Callable[[str], LedgerIndex], batches: list[list[tuple[int, int, int]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = opener(f"{folder}/index")
        wanted: dict[tuple[int, int], int] = {}
        serial = 0
        for batch in batches:
            runs = []
            for ledger_id, first, more in batch:
                serial += 1
                runs.append(run(ledger_id, first, first + more, serial))
                wanted |= {(ledger_id, first + n): serial for n in range(more + 1)}
            index.put(runs, (1, serial))
        for ledger_id in range(3):
            for entry_id in range(60):
                found = index.find(ledger_id, entry_id)
                assert wanted.get((ledger_id, entry_id)) == (found and found.location.offset)
            held = index.runs(ledger_id)
            spans = [(one.first, one.last) for one in held]
            assert spans == sorted(spans)
            assert all(a[1] < b[0] for a, b in pairwise(spans))
        index.close()


def test_rocks_keeps_what_was_flushed(tmp_path: Path) -> None:
    index = RocksIndex(str(tmp_path / "index"))
    index.put([run(1, 0, 9)], (3, 4))
    index.flush()
    index.close()
    again = RocksIndex(str(tmp_path / "index"))
    assert again.covered == (3, 4)
    assert again.runs(1) == [run(1, 0, 9)]
    again.put([run(1, 5, 12, 7)], (3, 5))
    assert again.runs(1) == [run(1, 0, 4), run(1, 5, 12, 7)], "overlaps are seen after a restart"
    again.close()


def test_a_damaged_block_is_an_io_error_never_absent(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = RocksIndex(str(path))
    index.put([run(1, number, number) for number in range(1000)], (3, 4))
    index.flush()
    index.close()
    for name in os.listdir(path):
        if name.endswith(".sst"):
            data = bytearray((path / name).read_bytes())
            data[100:2000] = bytes(1900)
            (path / name).write_bytes(data)
    index = RocksIndex(str(path))
    for read in (lambda: index.find(1, 5), lambda: index.runs(1)):
        with pytest.raises(BookieIOError, match="remove the folder, and it is rebuilt"):
            read()
    index.close()


def test_a_broken_rocks_folder_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "index"
    RocksIndex(str(path)).close()
    for name in os.listdir(path):
        if name.startswith(("CURRENT", "MANIFEST")):
            (path / name).write_bytes(b"junk")
    with pytest.raises(BookieIOError, match="remove the folder, and it is rebuilt"):
        RocksIndex(str(path))


def test_an_index_of_single_entries_stays_below_a_hundredth_of_1_kb_each(tmp_path: Path) -> None:
    """The worst case: no flush finds two neighbouring entries of a ledger."""
    ledgers, flushes, record_bytes = 5_000, 8, 1_100
    index = RocksIndex(str(tmp_path / "index"))
    offset = 0
    for entry_id in range(flushes):
        runs = []
        for ledger_id in range(ledgers):
            at = Location(1, offset, record_bytes)
            runs.append(IndexedExtent(ledger_id, entry_id, entry_id, at))
            offset += record_bytes
        index.put(runs, (1, offset))
        index.flush()
    index.close()
    size = sum(file.stat().st_size for file in tmp_path.glob("index/*.sst"))
    assert size <= offset / 100
