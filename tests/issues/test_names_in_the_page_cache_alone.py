"""A journal file's name was relied on that only the page cache had: its bookie never started again.

Found by the enumeration of second lives (`tests/crash_states/kills.py`). A process was killed after
it had given a new journal file its name and before it synced the folder; the next one saw the file,
closed it, and began another. When the power failed then, the second name was there and the first
was not: a gap in the journal, `JournalDamaged`, though nothing was lost. A bookie now syncs its
folders before it builds on what it finds there.
"""

from __future__ import annotations

import pytest

import octavo.bookie.startup.opening
from tests.crash_states.explore import CrashStateFailed, explore_kills


@pytest.mark.long
def test_the_power_fails_after_a_kill_between_rename_and_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert explore_kills([("restart",)]).states > 100
    monkeypatch.setattr(
        octavo.bookie.startup.opening,
        "make_folders",
        lambda disk, folders: [disk.make_directory(folder) for folder in folders],
    )
    with pytest.raises(CrashStateFailed, match=r"killed .* sync_directory /j.*JournalDamaged"):
        explore_kills([("restart",)])
