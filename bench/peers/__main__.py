"""B-peers: Octavo beside Kafka and NATS in interleaved rounds; see the package's first lines."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.peers import table
from bench.peers.contract import (
    PARTITIONS,
    RATES,
    SYSTEMS,
    WARM_S,
    WORKLOADS,
    Cluster,
    Load,
    Missing,
)
from bench.peers.figures import Failed
from bench.peers.servers import run

IDLE_S = 5.0
CLIENT_S = 180
"""How long a client may take beyond the seconds that it is to go on."""
WARM_ROUNDS = 2
"""The Java virtual machines of Kafka become faster during the first one, and the second."""
WARM_SHARE = 2
WARM_SECONDS_MAX = 3.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Measure and print; exit code 1 when a run failed or no system was there."""
    options = _options()
    if options.job:
        print(json.dumps(_client(json.loads(options.job))))
        return
    for number in _ENDING:
        signal.signal(number, _end)
    sys.exit(_measure(options))


def _end(number: int, _: object) -> None:
    """End by way of every `finally`, which the next such signal does not cut short."""
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)
    print("stopping what was started …", file=sys.stderr, flush=True)
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--systems", type=_names(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=_positive(int), default=3)
    parser.add_argument(
        "--messages", type=_positive(int), default=300_000, help="of produce and consume"
    )
    parser.add_argument("--seconds", type=_positive(float), default=6.0, help="of the others")
    return parser.parse_args()


def _names(known: Any) -> Any:
    """A reader of `a,b` that keeps the order of `known`."""

    def read(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return [name for name in known if name in wanted]

    return read


def _positive(kind: type[Any]) -> Any:
    """A reader of numbers above 0."""

    def read(text: str) -> Any:
        if (value := kind(text)) <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    read.__name__ = kind.__name__
    return read


def _client(job: dict[str, Any]) -> dict[str, Any]:
    """One workload of one system in this process."""
    module = importlib.import_module(f"bench.peers.{job['client']}")
    work = "single" if job["workload"] in RATES else job["workload"]
    found: dict[str, Any] = getattr(module, work)(job)
    return found


def _measure(options: argparse.Namespace) -> int:
    """Everything, with servers that end when it does. The exit code."""
    with contextlib.ExitStack() as stack:  # servers end before their folder is removed
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-peers-"))
        clusters, missing = _start(stack, options.systems, Path(folder))
        if not clusters:
            print("none of the systems is there", file=sys.stderr)
            return 1
        systems = [name for name in options.systems if name in clusters]
        load = Load(options.messages, options.seconds)
        turns = Turns(clusters, systems, options.workloads)
        for number in range(WARM_ROUNDS):
            turns.go(f"warm-up {number + 1}", number, _shorter(load), [])
        idle = _idle(clusters)
        runs: list[dict[str, Any]] = []
        for number in range(options.rounds):
            turns.go(f"round {number + 1}", number, load, runs)
        memory = {one.name: _resident_mb(one) for one in set(clusters.values())}
    print()
    print("\n".join(table.rows(runs)))
    print()
    print("servers' resident memory at the end, MB: " + _listed(memory))
    for name, why in missing.items():
        print(f"{name} is not in the table: {why}")
    document = {
        "bench": "peers",
        "messages": load.messages, "seconds": load.seconds, "partitions": PARTITIONS,
        "warm_s": WARM_S, "python": platform.python_version(), "cores": os.cpu_count(),
        "versions": {one.name: one.version for one in set(clusters.values())},
        "durability": {name: SYSTEMS[name].durability for name in systems},
        "missing": missing, "idle_cores": idle, "resident_mb": memory,
        "medians": table.all_medians(runs), "rounds": runs,
    }  # fmt: skip
    print(json.dumps(document))
    return 1 if any("failed" in one for one in runs) else 0


def _shorter(load: Load) -> Load:
    """What is enough to warm up."""
    messages = max(1, load.messages // WARM_SHARE)
    return Load(messages, min(WARM_SECONDS_MAX, load.seconds))


def _start(
    stack: contextlib.ExitStack, systems: list[str], folder: Path
) -> tuple[dict[str, Cluster], dict[str, str]]:
    """The clusters of the systems that can run, and why the others cannot."""
    modules: dict[str, Cluster | str] = {}
    for name in systems:
        module = SYSTEMS[name].module
        if module not in modules:
            modules[module] = _started(stack, name, folder / module)
    clusters = {n: c for n in systems if isinstance(c := modules[SYSTEMS[n].module], Cluster)}
    missing = {n: c for n in systems if isinstance(c := modules[SYSTEMS[n].module], str)}
    return clusters, missing


def _started(stack: contextlib.ExitStack, name: str, folder: Path) -> Cluster | str:
    """The cluster of the system, or why there is none."""
    system = SYSTEMS[name]
    folder.mkdir()
    try:
        if importlib.util.find_spec(system.package) is None:
            package = system.package.replace("_", "-")
            raise Missing(
                f"its Python package {package} is not installed: "
                "`make bench-peers` installs it, or pip install --editable '.[peers]'"
            )
        print(f"starting {name} …", flush=True)
        running = importlib.import_module(f"bench.peers.{system.module}").running
        cluster: Cluster = stack.enter_context(running(folder))
    except (Missing, Failed) as error:
        print(f"going on without {name}: {error}", flush=True)
        return str(error)
    return cluster


class Turns:
    """Workload by workload, system after system, another one first in every round."""

    def __init__(
        self, clusters: dict[str, Cluster], systems: list[str], workloads: list[str]
    ) -> None:
        self._clusters = clusters
        self._systems = systems
        self._workloads = workloads

    def go(self, name: str, number: int, load: Load, runs: list[dict[str, Any]]) -> None:
        """One round, whose runs are added to `runs`."""
        print(f"{name}:", flush=True)
        at = number % len(self._systems)
        order = self._systems[at:] + self._systems[:at]
        with contextlib.ExitStack() as topics:
            held: dict[str, str] = {}
            for workload in self._workloads:
                for system in order:
                    found = self._turn(topics, held, system, workload, load, f"{number}-{name[0]}")
                    if found is None:
                        continue
                    runs.append({"round": name, "system": system, "workload": workload, **found})
                    print("  " + table.line(runs[-1]), flush=True)

    def _turn(
        self, topics: contextlib.ExitStack, held: dict[str, str], system: str, workload: str,
        load: Load, suffix: str,
    ) -> dict[str, Any] | None:  # fmt: skip
        """One run in a topic of its own, but `consume` in that of `produce`; None: no such run."""
        cluster = self._clusters[system]
        load = Load(cluster.of_messages(load.messages), load.seconds)
        try:
            if workload == "consume" and system in held:
                topic = held[system]
            else:
                topic = f"{system}-{workload}-{suffix}"
                cluster.create(system, topic, 1 if workload in RATES else PARTITIONS)
                topics.callback(_drop, cluster, topic)
                if workload == "consume":
                    _one(cluster, "produce", topic, load)
            found = _one(cluster, workload, topic, load)
        except Failed as error:
            return {"failed": str(error)}
        finally:
            os.sync()
        if workload == "produce":
            held[system] = topic
        return found


def _drop(cluster: Cluster, topic: str) -> None:
    """A topic that cannot be deleted goes with the folder."""
    with contextlib.suppress(Failed):
        cluster.drop(topic)


def _one(cluster: Cluster, workload: str, topic: str, load: Load) -> dict[str, Any] | None:
    """One client process, and what the servers did for it. Raises `Failed`."""
    command = cluster.command(workload, topic, load)
    if command is None:
        return None
    before = _used_s(cluster)
    said = run(command, load.seconds + WARM_S + CLIENT_S)
    used_s = _used_s(cluster) - before
    found = cluster.result(workload, said, load)
    return {**found, "server_us": round(used_s / found["acked"] * 1e6, 2)}


def _idle(clusters: dict[str, Cluster]) -> dict[str, float]:
    """What each cluster uses of a core while nothing is asked of any; printed."""
    distinct = set(clusters.values())
    before = {one: _used_s(one) for one in distinct}
    time.sleep(IDLE_S)
    idle = {one.name: round((_used_s(one) - before[one]) / IDLE_S, 3) for one in distinct}
    print(f"idle, of a core: {_listed(idle)}; together {sum(idle.values()):.2f}", flush=True)
    return idle


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _processes(cluster: Cluster) -> Iterator[psutil.Process]:
    for pid in cluster.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _used_s(cluster: Cluster) -> float:
    return float(sum(sum(one.cpu_times()[:2]) for one in _processes(cluster)))


def _resident_mb(cluster: Cluster) -> float:
    return float(round(sum(one.memory_info().rss for one in _processes(cluster)) / 1e6))


if __name__ == "__main__":
    main()
