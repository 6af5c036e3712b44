"""An acked deletion stopped a bookie for ever: its journal went on in a file that had a successor.

The journal rolled; the next file had got its name, and could not be opened (too many open files).
The group failed, as it should; but a smaller one after it still fitted into the old file, over its
END block. At the next start the old file had no end, a newer one followed it, and the bookie took
that for damage: "acknowledged entries are lost". Found by letting every call to the disk fail once
(tests/io_errors).
"""

from __future__ import annotations

import pytest

from octavo.bookie.disk.files import DiskError, DiskFull
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.reader import JournalReader
from tests.sim.disk import SimDisk
from tests.sim.disk_handle import SimHandle


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_written_into_a_journal_file_that_has_a_successor(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`full`: the disk has no room for the new name's folder, and may have taken it all the same.

    A full disk is else no reason to fail: what fits goes into the old file's margin.
    """
    disk = SimDisk()
    disk.make_directory("/j")
    writer = JournalWriter(disk, "/j", file_bytes_max=1000, preallocate_bytes=1000, sync=True)
    writer.open(1)
    writer.write([b"a" * 600], 600)
    really_open, really_rename = SimHandle.open, SimHandle.rename

    def too_many_open_files(self: SimHandle, path: str, **how: bool) -> object:
        if path.endswith("2.journal"):
            raise DiskError(f"open {path}: too many open files")
        return really_open(self, path, **how)

    def no_room(self: SimHandle, old: str, new: str) -> None:
        if new.endswith("2.journal"):
            really_rename(self, old, new)
            raise DiskFull(f"rename {old} to {new}: no room")

    with monkeypatch.context() as patch:
        if full:
            patch.setattr(SimHandle, "rename", no_room)
        else:
            patch.setattr(SimHandle, "open", too_many_open_files)
        with pytest.raises(DiskError):
            writer.write([b"b" * 600], 600)
        with pytest.raises(DiskError):
            writer.write([b"c" * 100], 100)  # it would fit into the first file
    writer.write([b"d" * 100], 100)
    bodies = [block.body for block in JournalReader(disk, "/j", None).blocks()]
    assert bodies == [b"a" * 600, b"d" * 100]
