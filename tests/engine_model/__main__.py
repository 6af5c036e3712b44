"""`python -m tests.engine_model [--steps N] [--jobs N] [--seed N]`: the engine against the
model, in histories that Hypothesis draws until N steps have run. Exits with 1 and the shortest
history at the first answer that the model forbids."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.engine_model.machine import HISTORIES_OF_A_PIECE, STEPS_OF_ONE, Disagreement, run_piece
from tests.support.kit.progress import progress
from tests.support.quiet import be_quiet


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine_model", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="at least so many")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="another number, other histories")
    options = parser.parse_args()
    started = time.monotonic()
    steps = deaths = histories = 0
    first = options.seed * 1_000_000
    pieces = 2 + 4 * options.steps // (HISTORIES_OF_A_PIECE * STEPS_OF_ONE)
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, be_quiet) as pool, progress("steps", options.steps) as advance:
        try:
            for piece in pool.imap_unordered(run_piece, range(first, first + pieces)):
                histories += piece.histories
                steps += piece.steps
                deaths += piece.deaths
                advance(piece.steps)
                if steps >= options.steps:
                    break
        except Disagreement as error:
            print(f"BROKEN: {error}")
            return 1
    print(
        f"{histories:,} histories, {steps:,} steps, {deaths:,} deaths of the process or its "
        f"machine: the engine agrees with the model, {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
