"""The behaviour of every `Disk`: the operating system's, the one in memory, the simulated one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.bookie.disk.files import Disk, DiskError, RealDisk
from tests.sim.disk import SimDisk
from tests.support.memory_disk import MemoryDisk

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
