"""Why a bookie is short of space: the folder, its free bytes and the threshold stand there."""

from __future__ import annotations

from octavo.bookie.disk.space import disk_is_short

ROOM = {"/journal": (900, 1000), "/ledgers": (7, 1000)}


def test_the_folder_with_the_least_room_is_named_with_the_threshold() -> None:
    said = disk_is_short(ROOM, 10, 20, write_failed=False)
    assert said.startswith("disk full: /ledgers has 7 of 1,000 bytes free, fewer than")
    assert "bookie.disk_free_bytes_min (10)" in said
    assert "bookie.disk_free_bytes_resume (20) free" in said


def test_a_write_that_found_no_room_is_told_apart() -> None:
    said = disk_is_short(ROOM, 5, 6, write_failed=True)
    assert "/ledgers has 7 of 1,000 bytes free, and a write found no room all the same" in said
