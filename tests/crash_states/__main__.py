"""`python -m tests.crash_states [--length N] [--kills N] [--journals N] [--jobs N] [--json]`.
All sequences of at most N operations, all crash points, every disk that a crash may leave;
with two journals; and after every kill and failed sync. Exits with 1 at the first state that
breaks a promise."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from tests.crash_states.explore import CrashStateFailed, Explored, explore_all
from tests.support.engine_lab.lives import OPERATIONS, WITH_TWO_JOURNALS
from tests.support.kit.progress import progress
from tests.support.quiet import be_quiet


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_states", description=__doc__)
    parser.add_argument("--length", type=int, default=4, help="operations in a life, at most")
    parser.add_argument(
        "--kills", type=int, default=2, help="operations before a kill or a failed sync, at most"
    )
    parser.add_argument(
        "--journals", type=int, default=3, help="operations in a life with two journals, at most"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true", help="the counts as one JSON object")
    options = parser.parse_args()
    be_quiet()
    counts: dict[str, dict[str, Any]] = {}
    broken: str | None = None
    try:
        for what, length, how in (
            ("lives", options.length, {}),
            ("lives with two journals", options.journals, {"two_journals": True}),
            ("second lives", options.kills, {"kills": True}),
        ):
            started = time.monotonic()
            names = len(WITH_TWO_JOURNALS if "two_journals" in how else OPERATIONS)
            with progress(what, sum(names**n for n in range(length + 1))) as advance:
                found = explore_all(length, options.jobs, **how, on_sequences=advance)
            seconds = time.monotonic() - started
            counts[what] = _counts(found, length, seconds)
            if not options.json:
                print(_line(what, found, length, seconds), flush=True)
    except CrashStateFailed as error:
        broken = str(error)
    if options.json:
        print(json.dumps({"broken": broken, **counts}))
    elif broken:
        print(f"BROKEN: {broken}")
    else:
        states = sum(one["states"] for one in counts.values())
        print(f"{states:,} different crash states checked, 0 broken")
    return 1 if broken else 0


def _line(what: str, found: Explored, length: int, seconds: float) -> str:
    return (
        f"{what}: {found.sequences:,} sequences of ≤ {length} operations, {found.points:,} crash "
        f"points ({found.incomplete:,} with too much unsynced for every combination), "
        f"{found.images:,} crash states, {found.states:,} of them different and checked, 0 broken, "
        f"{seconds:.0f} s"
    )


def _counts(found: Explored, length: int, seconds: float) -> dict[str, Any]:
    return {
        "length_max": length,
        "sequences": found.sequences,
        "crash_points": found.points,
        "incomplete": found.incomplete,
        "images": found.images,
        "states": found.states,
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
