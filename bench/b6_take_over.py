"""B6: a broker is killed: the time until each of its partitions answers again, step by step.

    python -m bench.b6_take_over                      # ten kills, a session of 2 s; needs Java

Three brokers, four bookies and three ZooKeepers. A round kills (-9) the owner of partition 0, and
lasts until all of its partitions have acked a message that was sent after the kill. The goal is the
session timeout plus 200 ms.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.program import arguments, end

GOAL_S = 0.2
"""Added to the session timeout."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--session-ms", type=int, default=2000, help="of brokers with ZooKeeper")
    options = parser.parse_args()
    if shutil.which("java") is None:
        print("nothing measured: `java` is not on the path, and ZooKeeper needs Java 17 or newer")
        end(options, "b6_take_over", missing="java")
        return
    with tempfile.TemporaryDirectory(prefix="octavo-b6-") as folder:
        file = Path(folder) / "rounds.json"
        command = [sys.executable, "-m", "tests.network.take_over", "--json", str(file)]
        command += ["--rounds", str(options.rounds), "--session-ms", str(options.session_ms)]
        subprocess.run(command, check=True)
        rounds = json.loads(file.read_text())
    beyond = sorted(one["acked_s"] - options.session_ms / 1000 for one in rounds)
    end(
        options, "b6_take_over", goal_s=GOAL_S,
        within_goal=sum(one <= GOAL_S for one in beyond),
        beyond_session_s_median=round(statistics.median(beyond), 3),
        beyond_session_s_max=round(beyond[-1], 3), rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
