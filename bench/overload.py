"""What a bookie occupies under more load than it can take: half frames, long entries, a slow disk,
readers that take nothing, each from thousands of connections.

    python bench/overload.py --connections 10000 --seconds 20 [--only slow_disk]

Prints a line for each, and last one JSON document. The goal is: caches + 150 MiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.overload import RESIDENT_MIB_MAX, SCENARIOS, caches_mib


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", choices=[scenario.__name__ for scenario in SCENARIOS])
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = []
    for scenario in SCENARIOS:
        if args.only in (None, scenario.__name__):
            with tempfile.TemporaryDirectory(prefix="overload-") as folder:
                result = scenario(folder, args.connections, args.seconds)
            results.append(result._asdict())
            print(
                f"{result.name:>16}  {result.connections:>6} connections  idle "
                f"{result.idle_mib:6.0f} MiB  peak {result.peak_mib:6.0f} MiB  a modest add "
                f"{result.modest_ms:7.1f} ms  {result.figures}",
                flush=True,
            )
    goal = caches_mib() + RESIDENT_MIB_MAX
    print(json.dumps({"benchmark": "overload", "goal_mib": goal, "results": results}))


if __name__ == "__main__":
    main()
