"""`python -m tests.attack`: runs every attempt and prints its result. Exit code 1 when an attempt
did harm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attack.campaign import Outcome, chosen, run
from tests.attack.secured import campaign as secured


def tell(outcome: Outcome) -> None:
    verdict = "harm" if outcome.problems else "held"
    turn_ms = 1000 * (outcome.turn.processor_s if outcome.turn else 0.0)
    others = f"turn {turn_ms:5.0f} ms  p99 {outcome.p99_s * 1000:5.0f} ms"
    print(f"{verdict}  {outcome.seconds:6.2f} s  {others}  {outcome.attempt.name}", flush=True)
    for stall in outcome.stalls:
        print(f"      stall: {stall}", flush=True)
    for peak in outcome.memory:
        print(f"      memory: {peak}", flush=True)
    for problem in outcome.problems:
        print(f"      {problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="attempts with this in the name")
    parser.add_argument("--short", action="store_true", help="the form of every test run")
    parser.add_argument("--fuzz", type=float, metavar="SECONDS", help="how long the fuzzer has")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer and the short form")
    parser.add_argument("--list", action="store_true", help="their names, and nothing else")
    options = parser.parse_args()
    attempts = chosen(options.only, short=options.short, seed=options.seed, fuzz_s=options.fuzz)
    against_secured = secured.chosen(options.only, short=options.short, seed=options.seed)
    if options.list:
        print("\n".join(one.name for one in (*attempts, *against_secured)))
        return 0
    outcomes = []
    for some, attack in ((attempts, run), (against_secured, secured.run)):
        if some:
            with tempfile.TemporaryDirectory(prefix="octavo-attack-") as folder:
                outcomes += attack(Path(folder) / "data", some, tell)
    harmed = [one for one in outcomes if one.problems]
    stalls = sum(len(one.stalls) for one in outcomes)
    print(f"{len(outcomes)} attempts, {len(harmed)} did harm, {stalls} stalls of a loop were seen")
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
