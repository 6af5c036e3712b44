"""Say why a bookie is short of space, and when to report its free space. Pure."""

from __future__ import annotations

from collections.abc import Mapping

TOLD = "the setting bookie.read_only says so"
_SHARE_TOLD = 20
"""Report when a twentieth of the disk has changed."""
_LEAST_TOLD = 1000
"""Report also when this part has changed, and the free space has doubled or halved."""


def has_changed(told: int, free: int, total: int) -> bool:
    changed = abs(free - told)
    if changed * _SHARE_TOLD >= total:
        return changed > 0
    return changed * _LEAST_TOLD >= total and (free >= 2 * told or told >= 2 * free)


def disk_is_short(
    measured: Mapping[str, tuple[int, int]], least: int, resume: int, *, write_failed: bool
) -> str:
    """Say why the disk is short; empty if it is not. `measured`: (free, all) bytes by folder.

    `write_failed`: a write found no room, whatever the file system says.
    """
    folder = min(measured, key=lambda one: measured[one][0])
    free, total = measured[folder]
    room = f"{folder} has {free:,} of {total:,} bytes free"
    if free < least:
        why = f"fewer than bookie.disk_free_bytes_min ({least:,})"
    elif write_failed:
        why = "and a write found no room all the same"
    else:
        why = f"fewer than bookie.disk_free_bytes_resume ({resume:,})"
    again = f"each folder has bookie.disk_free_bytes_resume ({resume:,}) free"
    return f"disk full: {room}, {why}; writable again when {again}"
