"""B7: `octavo standalone`: the time until it is ready, and its memory idle and after a load.

    python -m bench.b7_standalone                   # five starts, a load of 10 s after the last

A start counts from the process's start to its ready line. Memory is the sum over all processes:
resident (counts shared pages several times), and proportional (`PSS`).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.program import arguments, end
from bench.standalone import as_typed

IDLE_S = 10.0


def memory_mib(supervisor: psutil.Process) -> dict[str, int]:
    family = [supervisor, *supervisor.children(recursive=True)]
    infos = [one.memory_full_info() for one in family]
    return {
        "rss": sum(info.rss for info in infos) >> 20,
        "pss": sum(info.pss for info in infos) >> 20,
    }


def cpu_s(supervisor: psutil.Process) -> float:
    family = [supervisor, *supervisor.children(recursive=True)]
    return float(sum(sum(one.cpu_times()[:2]) for one in family))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load")
    options = parser.parse_args()
    found: dict[str, Any] = {"fresh_s": []}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.starts):
            with as_typed(Path(name) / str(number)) as cluster:
                found["fresh_s"].append(round(cluster.took_s, 2))
                if number < options.starts - 1:
                    continue
                supervisor = cluster.supervisor
                before_s = cpu_s(supervisor)
                time.sleep(IDLE_S)
                found["idle_mib"] = memory_mib(supervisor)
                found["idle_cores"] = round((cpu_s(supervisor) - before_s) / IDLE_S, 3)
                load = [sys.executable, "-m", "bench.b3_publish", "--url", cluster.url]
                load += ["--rounds", "1", "--modes", "batch", "--seconds", str(options.seconds)]
                subprocess.run(load, stdout=subprocess.DEVNULL, check=True)
                found["loaded_mib"] = memory_mib(supervisor)
        with as_typed(Path(name) / str(options.starts - 1)) as cluster:
            found["again_s"] = round(cluster.took_s, 2)
    typical_s = statistics.median(found["fresh_s"])
    print(f"ready after {typical_s:.2f} s (median of {found['fresh_s']})")
    print(f"ready in its folder again after {found['again_s']} s")
    print(f"idle: {found['idle_mib']} MiB, {found['idle_cores']} of a core")
    print(f"after {options.seconds:g} s of load: {found['loaded_mib']} MiB")
    end(options, "b7_standalone", **found)


if __name__ == "__main__":
    main()
