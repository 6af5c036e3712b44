"""`python -m tests.crash_states [--length N] [--jobs N]`: every crash state of the storage engine.

All sequences of at most N operations, all crash points, all that a crash may leave. Ends with 1 at
the first state that breaks a promise, and tells which.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.crash_states.explore import CrashStateFailed, be_quiet, explore_all


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_states", description=__doc__)
    parser.add_argument("--length", type=int, default=4, help="operations in a life, at most")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    be_quiet()
    started = time.monotonic()
    try:
        found = explore_all(options.length, options.jobs)
    except CrashStateFailed as error:
        print(f"BROKEN: {error}")
        return 1
    print(
        f"{found.sequences:,} sequences of ≤ {options.length} operations, {found.points:,} crash "
        f"points ({found.incomplete:,} with too much unsynced for every combination), "
        f"{found.images:,} crash states, {found.states:,} of them different and checked, 0 broken, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
