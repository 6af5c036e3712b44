"""Find the process that holds a SQLite file's write lock, by Linux's /proc/locks.

It is byte 120 of the `-shm` file (https://www.sqlite.org/walformat.html, "WAL locks"). Never query
it with fcntl: closing a descriptor of the file would release SQLite's own locks.
"""

from __future__ import annotations

import os
from pathlib import Path

_WRITE_LOCK_BYTE = "120"


def describe_holder(path: str) -> str:
    """Say, for example, `process 17 (octavo, stopped) holds its lock`, or give a hint."""
    pid = _holder(path)
    if pid is None:
        return "is a process that uses it stopped?"
    return f"process {pid}{_describe(pid)} holds its lock"


def _holder(path: str) -> int | None:
    try:
        inode = os.stat(f"{path}-shm").st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    for line in locks.splitlines():
        # 1: POSIX  ADVISORY  WRITE 4711 fd:01:1234 120 120
        fields = line.split()
        if len(fields) == 8 and fields[3] == "WRITE" and fields[6] == _WRITE_LOCK_BYTE:
            _, _, found = fields[5].rpartition(":")
            if found == str(inode) and fields[4].isdecimal() and fields[4] != "0":
                return int(fields[4])
    return None


def _describe(pid: int) -> str:
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return ""
    stopped = ", stopped" if after.split()[0] in ("T", "t") else ""
    return f" ({before.partition('(')[2]}{stopped})"
