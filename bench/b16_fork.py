"""B16: how long a fork of a topic takes.

    python -m bench.b16_fork                       # 100 forks each, the embedded store

Topics with 1 and 4 partitions are forked at their ends: through the owner of partition 0, and
through another broker. `processor_ms`: the work of both brokers for a fork. Empty topics are
created for comparison. The goal is 10 ms.
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
    pids = [one.pid for one in cluster.members if one.kind == "broker"]
    return float(sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids))


def figures(took_s: list[float], work_s: float) -> dict[str, float]:
    took = sorted(one * 1000 for one in took_s)
    return {
        "processor_ms": round(work_s / len(took) * 1000, 1),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(took[len(took) * 99 // 100], 1),
        "within_goal": sum(one <= GOAL_MS for one in took),
    }


async def filled(session: aiohttp.ClientSession, topic: str, partitions: int, ledgers: int) -> None:
    settings = {"partitions": partitions, "rollover": {"entries": 1}}
    await ok(session, "PUT", topic, json=settings)
    for number in range(partitions):
        path = f"{topic}/partitions/{number}"
        for _ in range(ledgers):
            await ok(session, "POST", f"{path}/messages", data=b"x" * 100)
            await asyncio.sleep(0.05)  # the roll-over happens in the background
        held = await ok(session, "GET", path)
        print(f"{topic}/{number}: {len(held['ledgers'])} ledgers")


async def forked(
    cluster: ClusterFile, session: aiohttp.ClientSession, topic: str, label: str, forks: int
) -> dict[str, float]:
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
    took_s, before_s = [], worked_s(cluster)
    for number in range(topics):
        began = time.perf_counter()
        await ok(session, "PUT", f"plain-{number}", json={"partitions": 1})
        took_s.append(time.perf_counter() - began)
    return figures(took_s, worked_s(cluster) - before_s)


async def measure(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
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
    parser = arguments(__doc__)
    parser.add_argument("--forks", type=int, default=100)
    parser.add_argument("--ledgers", type=int, default=5, help="of each partition, about")
    parser.add_argument("--metadata", default="", help="a store's URL; default: the embedded store")
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
