"""Say why a bookie is short of space, and when to report its free space. Pure."""

from __future__ import annotations

from collections.abc import Mapping

TOLD = "the setting bookie.read_only says so"
_SHARE_TOLD = 20
"""Report the free space when it has changed by one twentieth of the disk."""
_LEAST_TOLD = 1000
"""Report it too when it has doubled or halved, and changed by at least this part of the disk."""


def has_changed(told: int, free: int, total: int) -> bool:
    """Whether placement should hear that `told` bytes of `total` have become `free`."""
    changed = abs(free - told)
    if changed * _SHARE_TOLD >= total:
        return changed > 0
    return changed * _LEAST_TOLD >= total and (free >= 2 * told or told >= 2 * free)


def disk_is_short(
    measured: Mapping[str, tuple[int, int]], least: int, resume: int, *, write_failed: bool
) -> str:
    """Say which folder has the least room, how many bytes are free, and why that is too few.

    `measured` has the free and all bytes of each folder's file system. `least` and `resume` are the
    settings. `write_failed`: a write found no room, whatever the file system says.
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
