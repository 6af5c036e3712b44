"""`python -m tests.single_fault [--stride N]`: every single fault on the disk of a bookie.

Every 512-byte block of every file is zeroed, overwritten, replaced by its neighbour and cut off;
in every N-th byte of every file a bit is flipped. The same, with fewer flipped bits, on every disk
that a power failure leaves in the middle of a checkpoint. Ends with 1 at the first wrong answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.crash_states.explore import be_quiet
from tests.single_fault.sweep import WrongAnswer, cases, cut_short, faults_of, sweep


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.single_fault", description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="flip a bit in every N-th byte")
    options = parser.parse_args()
    be_quiet()
    started = time.monotonic()
    whole: Counter[str] = Counter()
    try:
        for case in cases():
            ends = sweep(case, faults_of(case, stride=options.stride))
            whole += ends
            print(f"{case.name:40} {dict(sorted(ends.items()))}", flush=True)
        cut: Counter[str] = Counter()
        for number, case in enumerate(cut_short()):
            stride = 40 * options.stride
            cut += sweep(case, faults_of(case, number % stride, stride))
        whole += cut
        print(f"{'cut short in a checkpoint':40} {dict(sorted(cut.items()))}")
    except WrongAnswer as error:
        print(f"WRONG: {error}")
        return 1
    print(f"{whole.total():,} single faults, 0 wrong answers, {time.monotonic() - started:.0f} s")
    print(dict(whole.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
