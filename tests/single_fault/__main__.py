"""`python -m tests.single_fault [--stride N]`: every single fault on the disk of a bookie.

Every 512-byte block of every file is zeroed, overwritten, replaced by its neighbour and cut off;
in every N-th byte of every file a bit is flipped. Ends with 1 at the first wrong answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.crash_states.explore import be_quiet
from tests.single_fault.sweep import WrongAnswer, cases, faults_of, sweep


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.single_fault", description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="flip a bit in every N-th byte")
    options = parser.parse_args()
    be_quiet()
    started = time.monotonic()
    whole: Counter[str] = Counter()
    for case in cases():
        try:
            ends = sweep(case, faults_of(case, stride=options.stride))
        except WrongAnswer as error:
            print(f"WRONG: {error}")
            return 1
        whole += ends
        print(f"{case.name:40} {dict(sorted(ends.items()))}")
    print(f"{whole.total():,} single faults, 0 wrong answers, {time.monotonic() - started:.0f} s")
    print(dict(whole.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
