"""B11: one of three bookies syncs slowly: the effect on publishers and on memory.

    python -m bench.b11_slow_bookie                        # 500 ms a sync, 1,000 messages/s

In the second of three phases, the third bookie sleeps before each `fdatasync`. Two copies are
enough for an ack, so publishers should not notice, and memory must stay bounded.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from bench import b4_single
from bench.program import arguments, end
from bench.standalone import owner_of, standalone
from octavo import Client
from octavo.process.spec import ProcessSpec
from octavo.standalone.child import Child

TOPIC = "b11"
SLOW = "bookie-3"
PHASES = ("before", "slow", "after")


def child_of(flag: Path, sync_s: float) -> Any:
    class OneIsSlow(Child):
        @property
        def command(self) -> list[str]:
            if self.name != SLOW:
                return super().command
            return [sys.executable, "-m", "bench.slow_bookie", str(flag), str(sync_s)]

    def make(kind: str, spec: ProcessSpec, folder: Path) -> Child:
        return OneIsSlow(kind, spec, folder)

    return make


def memory(members: Any) -> dict[str, int]:
    return {m.name: psutil.Process(m.pid).memory_info().rss >> 20 for m in members}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sync-s", type=float, default=0.5)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--connections", type=int, default=256)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        flag = Path(name) / "slow"
        with standalone(Path(name) / "data", child_of(flag, options.sync_s)) as cluster:
            with Client(cluster.urls[0]) as client:
                client.create_topic(TOPIC)
                client.publish(TOPIC, "first")
            job = {
                "url": owner_of(cluster.urls[0], TOPIC), "topic": TOPIC, "rate": options.rate,
                "seconds": options.seconds, "connections": options.connections,
            }  # fmt: skip
            for phase in PHASES:
                if phase == "slow":
                    flag.touch()
                else:
                    flag.unlink(missing_ok=True)
                one = {"phase": phase, **b4_single.measured(job), "mib": memory(cluster.members)}
                found.append(one)
                print(
                    f"{phase:7} p50 {one['p50_ms']:>8} p99 {one['p99_ms']:>8} "
                    f"p99.9 {one['p999_ms']:>8} max {one['max_ms']:>8} ms, {one['held']:,}/s held; "
                    f"MiB {one['mib']}",
                    flush=True,
                )
    end(options, "b11_slow_bookie", phases=found)


if __name__ == "__main__":
    main()
