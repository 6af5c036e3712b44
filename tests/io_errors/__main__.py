"""`python -m tests.io_errors [--stride N]`: EIO and ENOSPC at every call to the disk.

Exits with 1 at the first broken promise.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.io_errors.sweep import all_faults, count_calls, sweep
from tests.support.engine_lab.life import Broken
from tests.support.quiet import be_quiet


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.io_errors", description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="only every N-th call")
    options = parser.parse_args()
    be_quiet()
    started = time.monotonic()
    try:
        ends = sweep(all_faults(options.stride))
    except Broken as error:
        print(f"BROKEN: {error}")
        print("\n".join(getattr(error.__cause__, "__notes__", ())))
        return 1
    for end, count in sorted(ends.items()):
        print(f"{end:55} {count:7,}")
    calls, space_calls = count_calls()
    print(
        f"a life of {calls} calls, {space_calls} of them take space: {ends.total():,} lives with a "
        f"failing call, 0 broken, {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
