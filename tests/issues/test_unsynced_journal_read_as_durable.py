"""Entries that a killed process had written and not synced were half there after a power failure.

Found by the enumeration of second lives (`tests/crash_states/kills.py`). The next process read them
from the page cache and flushed them to the entry log; when the power failed in the middle of that,
their journal block was gone and their log record torn or alone. With its index rebuilt the bookie
then held an entry that it had denied, or answered an I/O error for one that nobody had been told
of, for ever. The journal is now synced before it is read, and what lies in an entry log behind the
mark is not kept.
"""

from __future__ import annotations

import pytest

from octavo.bookie.journal.reader import JournalReader
from tests.crash_states.explore import CrashStateFailed, explore_kills
from tests.sim.disk_handle import SimFile


@pytest.mark.long
def test_the_power_fails_while_a_second_process_flushes_what_a_killed_one_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert explore_kills([("add", "add")]).states > 100
    real, reading = SimFile.datasync, JournalReader.blocks

    def unsynced(reader: JournalReader):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(SimFile, "datasync", lambda file: None)
        blocks = reading(reader)
        first = next(blocks, None)
        monkeypatch.setattr(SimFile, "datasync", real)
        if first is not None:
            yield first
            yield from blocks

    monkeypatch.setattr(JournalReader, "blocks", unsynced)
    with pytest.raises(CrashStateFailed, match="killed"):
        explore_kills([("add", "add")])
