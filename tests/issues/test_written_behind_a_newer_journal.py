"""An acked deletion stopped a bookie for ever: its journal went on in a file that had a successor.

The journal rolled; the next file had got its name, and could not be opened (too many open files).
The group failed, as it should; but a smaller one after it still fitted into the old file, over its
END block. At the next start the old file had no end, a newer one followed it, and the bookie took
that for damage: "acknowledged entries are lost". Found by letting every call to the disk fail once
(tests/io_errors).
"""

from __future__ import annotations

import pytest

from bookie.disk import DiskError
from bookie.journal import JournalWriter
from bookie.journal_reader import JournalReader
from tests.sim.disk import SimDisk
from tests.sim.disk_handle import SimHandle


def test_nothing_is_written_into_a_journal_file_that_has_a_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    disk.make_directory("/j")
    writer = JournalWriter(disk, "/j", file_bytes_max=1000, preallocate_bytes=1000, sync=True)
    writer.open(1)
    writer.write([b"a" * 600], 600)
    really_open = SimHandle.open

    def too_many_open_files(self: SimHandle, path: str, **how: bool) -> object:
        if path.endswith("2.journal"):
            raise DiskError(f"open {path}: too many open files")
        return really_open(self, path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(SimHandle, "open", too_many_open_files)
        with pytest.raises(DiskError):
            writer.write([b"b" * 600], 600)
        with pytest.raises(DiskError):
            writer.write([b"c" * 100], 100)  # it would fit into the first file
    writer.write([b"d" * 100], 100)
    bodies = [block.body for block in JournalReader(disk, "/j", None).blocks()]
    assert bodies == [b"a" * 600, b"d" * 100]
