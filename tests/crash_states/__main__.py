"""`python -m tests.crash_states [--length N] [--kills N] [--journals N] [--jobs N]`.

Crash states of the storage: all sequences of at most N operations, all crash points, all that a
crash may leave; the same with two journals; and the same after every kill and every failed sync.
Ends with 1 at the first state that breaks a promise.
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
    parser.add_argument(
        "--kills", type=int, default=2, help="operations before a kill or a failed sync, at most"
    )
    parser.add_argument(
        "--journals", type=int, default=3, help="operations in a life with two journals, at most"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    be_quiet()
    try:
        for what, length, how in (
            ("", options.length, {}),
            ("with two journals ", options.journals, {"two_journals": True}),
            ("second lives after ", options.kills, {"kills": True}),
        ):
            started = time.monotonic()
            found = explore_all(length, options.jobs, **how)
            print(
                f"{what}{found.sequences:,} sequences of ≤ {length} "
                f"operations: {found.points:,} crash points ({found.incomplete:,} with too much "
                f"unsynced for every combination), {found.images:,} crash states, {found.states:,} "
                f"of them different and checked, 0 broken, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    except CrashStateFailed as error:
        print(f"BROKEN: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
