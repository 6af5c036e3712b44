"""Errors that only the operating system's disk can have."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from octavo.bookie.disk import files as disk_module
from octavo.bookie.disk.files import DiskError, DiskFull, RealDisk, SyncFailed


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
