"""The message about short space names the folder, its free bytes and the threshold."""

from __future__ import annotations

from octavo.bookie.disk.space import disk_is_short, has_changed

ROOM = {"/journal": (900, 1000), "/ledgers": (7, 1000)}


def test_the_folder_with_the_least_room_is_named_with_the_threshold() -> None:
    said = disk_is_short(ROOM, 10, 20, write_failed=False)
    assert said.startswith("disk full: /ledgers has 7 of 1,000 bytes free, fewer than")
    assert "bookie.disk_free_bytes_min (10)" in said
    assert "bookie.disk_free_bytes_resume (20) free" in said


def test_a_write_that_found_no_room_is_told_apart() -> None:
    said = disk_is_short(ROOM, 5, 6, write_failed=True)
    assert "/ledgers has 7 of 1,000 bytes free, and a write found no room all the same" in said


def test_free_space_is_told_anew_when_placement_should_know() -> None:
    assert has_changed(500, 450, 1000), "a twentieth of all"
    assert not has_changed(500, 451, 1000)
    assert has_changed(500, 550, 1000), "also when it is more"
    assert has_changed(20, 10, 1000), "half of the little that was left"
    assert not has_changed(20, 11, 1000)
    assert has_changed(10, 20, 1000), "twice as much"
    assert not has_changed(0, 0, 1000)
    assert not has_changed(0, 0, 0), "a folder that cannot be read"
    assert not has_changed(100, 300, 1_000_000), "too little of all to matter"
