"""A bookie could not rebuild its index: an old log was longer than its records again.

Found by the simulator (seed 2037646): a start cut a log where the mark ended, the sync failed, the
process died. The next start saw the shorter file, in the page cache alone, and did not sync it; a
power failure brought the reserve back, and behind a newer log nothing said where the records end.
Now a cut log is sealed with map and footer, written anew at each start that finds the mark there.
"""

from __future__ import annotations

import pytest

from octavo.bookie.disk.files import SyncFailed
from octavo.bookie.entrylog.log import EntryLogs
from octavo.protocol.codes import BookieIOError
from tests.support.memory_disk import MemoryDisk
from tests.unit.bookie.test_entry_log import log_run, opened


def test_a_cut_log_says_itself_where_it_ends() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    (first,) = logs.append([log_run(1, 0)])
    logs.sync()
    mark = logs.position

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.endswith(".log"):
            raise SyncFailed(f"fdatasync {path}: input/output error")

    disk.hook = hook
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    with pytest.raises(SyncFailed):
        again.cut_abandoned(mark, journaled=True)
    disk.hook = lambda call, path: None
    third = EntryLogs(disk, ["/a", "/b"], 4000)
    third.open()
    written: list[str] = []
    disk.hook = lambda call, path: written.append(call) if path.endswith(".log") else None
    third.cut_abandoned(mark, journaled=True)
    assert written[-1] == "datasync", "what a failed sync left in the page cache is written anew"
    disk.hook = lambda call, path: None
    third.append([log_run(1, 3)])
    assert [record.first_entry for record, _ in third.scan_all(first.log_id)] == [0]


def test_a_log_that_lost_its_end_is_not_taken_for_whole() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    places = logs.append([log_run(1, 0), log_run(1, 3)])
    logs.seal()
    path = logs._paths[1]
    disk.open(path, write=True).truncate(places[1].offset)
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    with pytest.raises(BookieIOError, match=f"damaged from byte {places[1].offset} on"):
        list(again.scan_all(1))
