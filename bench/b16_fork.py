"""B16: how long a fork of a topic takes.

    python -m bench.b16_fork                       # 100 forks each, the embedded store
    python -m bench.b16_fork --forks 20 --ledgers 1
    python -m bench.b16_fork --metadata zk://127.0.0.1:2181/b16  # of `octavo zookeeper`

Two brokers and three bookies, each a process. A topic of one partition and one of four, each
partition with some ledgers, is forked again and again at its end: asked of the owner of partition
0, and of the other broker; `processor_ms` is what both brokers work for one. Then, for what the
machine does by itself, the same number of times a topic is made that forks nothing. The goal is
10 ms. Prints a row each, and last one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.b8_growth import ok
from bench.program import arguments, end
from octavo.standalone.cluster_file import ClusterFile
from octavo.standalone.supervisor import Plan, Supervisor

GOAL_MS = 10.0
PARTITIONS = (1, 4)


def worked_s(cluster: ClusterFile) -> float:
    """Seconds of processor time that the brokers have had."""
    pids = [one.pid for one in cluster.members if one.kind == "broker"]
    return float(sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids))


def figures(took_s: list[float], work_s: float) -> dict[str, float]:
    """Milliseconds."""
    took = sorted(one * 1000 for one in took_s)
    return {
        "processor_ms": round(work_s / len(took) * 1000, 1),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(took[len(took) * 99 // 100], 1),
        "within_goal": sum(one <= GOAL_MS for one in took),
    }


async def filled(session: aiohttp.ClientSession, topic: str, partitions: int, ledgers: int) -> None:
    """A topic whose partitions have so many ledgers each, the last one open."""
    settings = {"partitions": partitions, "rollover": {"entries": 1}}
    await ok(session, "PUT", topic, json=settings)
    for number in range(partitions):
        path = f"{topic}/partitions/{number}"
        for _ in range(ledgers):
            await ok(session, "POST", f"{path}/messages", data=b"x" * 100)
            await asyncio.sleep(0.05)  # it rolls over beside that
        held = await ok(session, "GET", path)
        print(f"{topic}/{number}: {len(held['ledgers'])} ledgers")


async def forked(
    cluster: ClusterFile, session: aiohttp.ClientSession, topic: str, label: str, forks: int
) -> dict[str, float]:
    """Fork it so many times. The forks are deleted afterwards."""
    took_s, before_s = [], worked_s(cluster)
    for number in range(forks):
        began = time.perf_counter()
        await ok(session, "POST", f"{topic}/fork", json={"name": f"{label}-{number}"})
        took_s.append(time.perf_counter() - began)
    found = figures(took_s, worked_s(cluster) - before_s)
    for number in range(forks):
        await ok(session, "DELETE", f"{label}-{number}")
    return found


async def made(
    cluster: ClusterFile, session: aiohttp.ClientSession, topics: int
) -> dict[str, float]:
    """Make so many topics."""
    took_s, before_s = [], worked_s(cluster)
    for number in range(topics):
        began = time.perf_counter()
        await ok(session, "PUT", f"plain-{number}", json={"partitions": 1})
        took_s.append(time.perf_counter() - began)
    return figures(took_s, worked_s(cluster) - before_s)


async def measure(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """All of it."""
    supervisor = Supervisor(plan)
    await supervisor.start()
    found: dict[str, Any] = {"goal_ms": GOAL_MS}
    try:
        urls = supervisor.cluster.urls
        first, second = (aiohttp.ClientSession(f"{url}/v1/topics/public/") for url in urls[:2])
        async with first, second:
            brokers = (await ok(first, "GET", "../../brokers"))["brokers"]
            by_id = {one["id"]: one["url"] for one in brokers}
            for partitions in PARTITIONS:
                topic = f"source-{partitions}"
                await filled(first, topic, partitions, options.ledgers)
                owner = (await ok(first, "GET", topic))["partitions"][0]["owner"]
                asked = [first, second] if by_id[owner] == urls[0] else [second, first]
                for who, session in zip(("owner", "other"), asked, strict=True):
                    label = f"{partitions}-{who}"
                    cluster = supervisor.cluster
                    found[label] = await forked(cluster, session, topic, label, options.forks)
                    print(f"{partitions} partitions, asked of the {who}: {found[label]}")
            found["topic_made"] = await made(supervisor.cluster, first, options.forks)
            print(f"a topic made: {found['topic_made']}")
    finally:
        await supervisor.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--forks", type=int, default=100)
    parser.add_argument("--ledgers", type=int, default=5, help="of each partition, about")
    parser.add_argument("--metadata", default="", help="a store's URL; default: the embedded one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-b16-") as folder:
        plan = Plan(
            folder=Path(folder) / "data", bookies=3, brokers=2, port_base=0,
            metadata_url=options.metadata,
        )  # fmt: skip
        found = asyncio.run(measure(options, plan))
    end(options, "b16_fork", **found)


if __name__ == "__main__":
    main()
