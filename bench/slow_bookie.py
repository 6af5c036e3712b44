"""A bookie whose syncs are slow while a file exists: `FILE SECONDS SPEC [CONTROL_FD]`."""

from __future__ import annotations

import os
import sys
import time

from octavo.bookie.disk import files
from octavo.process import bookie


def slow_down(flag: str, seconds: float) -> None:
    sync = files._datasync

    def slow(fd: int) -> None:
        if os.path.exists(flag):
            time.sleep(seconds)
        sync(fd)

    files._datasync = slow


if __name__ == "__main__":
    slow_down(sys.argv[1], float(sys.argv[2]))
    del sys.argv[1:3]
    sys.exit(bookie.main())
