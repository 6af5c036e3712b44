"""`python -m tests.single_fault [--stride N] [--jobs N] [--only …]`: faults of a bookie's
disk. **cluster**: every 512-byte block of every file of one of three bookies is flipped,
zeroed or cut off. **storage**: on simulated disks every block is also overwritten or replaced
by its neighbour, and a bit of every N-th byte is flipped; the same on every disk that a power
failure leaves within a checkpoint. Exits with 1 at the first wrong answer."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from functools import partial

from tests.single_fault.sweep import LIVES, WrongAnswer, sweep_case, sweep_cut_short
from tests.single_fault.three_bookies import sweep_part
from tests.support.quiet import be_quiet

_CUT_PARTS = 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.single_fault", description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="flip a bit in every N-th byte")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", choices=("cluster", "storage"), help="one part alone")
    options = parser.parse_args()
    be_quiet()
    try:
        if options.only != "storage":
            _cluster(options.jobs)
        if options.only != "cluster":
            _storage(options.stride, options.jobs)
    except WrongAnswer as error:
        print(f"WRONG: {error}")
        return 1
    return 0


def _cluster(jobs: int) -> None:
    started = time.monotonic()
    whole: Counter[tuple[str, str]] = Counter()
    with multiprocessing.get_context("spawn").Pool(jobs, be_quiet) as pool:
        for ends in pool.imap_unordered(partial(sweep_part, jobs), range(jobs)):
            whole += ends
    for (kind, end), count in sorted(whole.items()):
        print(f"{kind:28} {end:40} {count:6,}")
    print(
        f"one of three bookies: {whole.total():,} blocks hurt, 0 wrong answers, "
        f"{time.monotonic() - started:.0f} s",
        flush=True,
    )


def _storage(stride: int, jobs: int) -> None:
    started = time.monotonic()
    whole: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(jobs, be_quiet) as pool:
        parts = range(_CUT_PARTS)
        later = pool.imap_unordered(partial(sweep_cut_short, 40 * stride, _CUT_PARTS), parts)
        for name, ends in pool.imap(partial(sweep_case, stride), range(len(LIVES) * 2)):
            whole += ends
            print(f"{name:40} {dict(sorted(ends.items()))}", flush=True)
        for ends in later:
            cut += ends
    whole += cut
    print(f"{'cut short in a checkpoint':40} {dict(sorted(cut.items()))}")
    print(f"{whole.total():,} single faults, 0 wrong answers, {time.monotonic() - started:.0f} s")
    print(dict(whole.most_common()))


if __name__ == "__main__":
    sys.exit(main())
