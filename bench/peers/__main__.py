"""B-peers: Octavo and other systems in interleaved rounds.

    python -m bench.peers                                                    # everything
    python -m bench.peers --systems octavo,pulsar --workloads produce,consume --rounds 1
    python -m bench.peers --page                   # and put the result into docs/performance.md

bench/peers/__init__.py describes each system and workload.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.peers import page, table
from bench.peers.contract import (
    KINDS,
    LEDGER_BYTES,
    PARTITIONS,
    RATES,
    SYSTEMS,
    WARM_ONCE,
    WARM_S,
    WARMED_BY,
    WORKLOADS,
    Cluster,
    Load,
    Missing,
)
from bench.peers.figures import Failed, last_json
from bench.peers.servers import run

IDLE_S = 5.0
CLIENT_S = 180
WARM_ROUNDS = 2
"""Java virtual machines become faster during both warm-up rounds."""
WARM_SHARE = 2
WARM_SECONDS_MAX = 2.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    options = _options()
    if options.job:
        print(json.dumps(_client(json.loads(options.job))))
        return
    for number in _ENDING:
        signal.signal(number, _end)
    try:
        document = last_json(options.of.read()) if options.of else _measure(options)
    except Failed as error:
        sys.exit(str(error))
    if options.note:
        document["note"] = options.note
    text = page.text(document)
    print(f"\n{text}")
    if options.page:
        page.write(options.page, text)
    print(json.dumps(document))
    sys.exit(1 if any("failed" in one for one in document["rounds"]) else 0)


def _end(number: int, _: object) -> None:
    """Exit through every `finally`; ignore further signals meanwhile."""
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)
    print("stopping what was started …", file=sys.stderr, flush=True)
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument(
        "--systems", type=_names(SYSTEMS), default=list(SYSTEMS), help=",".join(SYSTEMS)
    )
    parser.add_argument(
        "--workloads", type=_names(WORKLOADS), default=list(WORKLOADS), help=",".join(WORKLOADS)
    )
    parser.add_argument("--rounds", type=_positive(int), default=3)
    parser.add_argument(
        "--messages", type=_positive(int), default=300_000, help="of produce and consume"
    )
    parser.add_argument("--seconds", type=_positive(float), default=4.0, help="of the others")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=page.PAGE, metavar="FILE",
        help="put what is printed between the marks of this page (docs/performance.md)",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="of", type=argparse.FileType(), metavar="FILE",
        help="measure nothing: an earlier run's output, whose last line is its JSON",
    )  # fmt: skip
    parser.add_argument("--note", help="a sentence about the run")
    return parser.parse_args()


def _names(known: Any) -> Any:
    def read(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return [name for name in known if name in wanted]

    return read


def _positive(kind: type[Any]) -> Any:
    def read(text: str) -> Any:
        if (value := kind(text)) <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    read.__name__ = kind.__name__
    return read


def _client(job: dict[str, Any]) -> dict[str, Any]:
    module = importlib.import_module(f"bench.peers.{job['client']}")
    work = job["workload"]
    if work in RATES:
        work = "single"
    elif work in LEDGER_BYTES:
        work = "ledger"
    found: dict[str, Any] = getattr(module, work)(job)
    return found


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    began, busy = time.monotonic(), _busy_s()
    load = Load(options.messages, options.seconds)
    found: dict[str, Any] = {"versions": {}, "missing": {}, "idle_cores": {}, "resident_mb": {}}
    runs: list[dict[str, Any]] = []
    for kind in KINDS:
        workloads = [one for one in options.workloads if one in kind]
        systems = [
            name for name in options.systems if set(SYSTEMS[name].workloads) & set(workloads)
        ]
        if systems:
            _measure_kind(systems, workloads, load, options.rounds, found, runs)
    if not runs:
        raise Failed("none of the systems is available")
    took_s = time.monotonic() - began
    return {
        "bench": "peers", "date": datetime.now(UTC).date().isoformat(),
        "minutes": round(took_s / 60, 1), "others_cores": round((_busy_s() - busy) / took_s, 2),
        "messages": load.messages, "seconds": load.seconds, "partitions": PARTITIONS,
        "warm_s": WARM_S, "python": platform.python_version(), "cores": os.cpu_count(),
        "durability": {name: SYSTEMS[name].durability for name in options.systems},
        **found, "medians": table.all_medians(runs), "rounds": runs,
    }  # fmt: skip


def _measure_kind(
    systems: list[str], workloads: list[str], load: Load, rounds: int,
    found: dict[str, Any], runs: list[dict[str, Any]],
) -> None:  # fmt: skip
    with contextlib.ExitStack() as stack:  # servers end before their folder is removed
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-peers-"))
        clusters, missing = _start(stack, systems, Path(folder))
        found["missing"].update(missing)
        if not clusters:
            return
        found["versions"].update({one.name: one.version for one in set(clusters.values())})
        turns = Turns(clusters, [name for name in systems if name in clusters])
        for number in range(WARM_ROUNDS):
            turns.go(
                f"warm-up {number + 1}", number, _warming(workloads, number), _shorter(load), []
            )
        found["idle_cores"].update(_idle(clusters))
        for number in range(rounds):
            turns.go(f"round {number + 1}", number, workloads, load, runs)
        found["resident_mb"].update({one.name: _resident_mb(one) for one in clusters.values()})


def _busy_s() -> float:
    """Processor seconds of the machine without this process and its children."""
    times = psutil.cpu_times()
    whole = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
    ours = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        ours += used.ru_utime + used.ru_stime
    return float(whole - ours)


def _warming(workloads: list[str], number: int) -> list[str]:
    return [
        one
        for one in workloads
        if WARMED_BY.get(one) not in workloads and (number == 0 or one not in WARM_ONCE)
    ]


def _shorter(load: Load) -> Load:
    messages = max(1, load.messages // WARM_SHARE)
    return Load(messages, min(WARM_SECONDS_MAX, load.seconds))


def _start(
    stack: contextlib.ExitStack, systems: list[str], folder: Path
) -> tuple[dict[str, Cluster], dict[str, str]]:
    modules: dict[str, Cluster | str] = {}
    for name in systems:
        module = SYSTEMS[name].module
        if module not in modules:
            modules[module] = _started(stack, name, folder / module)
    clusters = {n: c for n in systems if isinstance(c := modules[SYSTEMS[n].module], Cluster)}
    missing = {n: c for n in systems if isinstance(c := modules[SYSTEMS[n].module], str)}
    return clusters, missing


def _started(stack: contextlib.ExitStack, name: str, folder: Path) -> Cluster | str:
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
    def __init__(self, clusters: dict[str, Cluster], systems: list[str]) -> None:
        self._clusters = clusters
        self._systems = systems

    def go(
        self, name: str, number: int, workloads: list[str], load: Load, runs: list[dict[str, Any]]
    ) -> None:
        print(f"{name}:", flush=True)
        at = number % len(self._systems)
        order = self._systems[at:] + self._systems[:at]
        with contextlib.ExitStack() as topics:
            held: dict[str, str] = {}
            for workload in workloads:
                for system in order:
                    if workload not in SYSTEMS[system].workloads:
                        continue
                    found = self._turn(topics, held, system, workload, load, f"{number}-{name[0]}")
                    runs.append({"round": name, "system": system, "workload": workload, **found})
                    print("  " + table.line(runs[-1]), flush=True)

    def _turn(
        self, topics: contextlib.ExitStack, held: dict[str, str], system: str, workload: str,
        load: Load, suffix: str,
    ) -> dict[str, Any]:  # fmt: skip
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
    with contextlib.suppress(Failed):
        cluster.drop(topic)


def _one(cluster: Cluster, workload: str, topic: str, load: Load) -> dict[str, Any]:
    command = cluster.command(workload, topic, load)
    before = _used_s(cluster)
    said = run(command, load.seconds + WARM_S + CLIENT_S)
    used_s = _used_s(cluster) - before
    found = cluster.result(workload, said, load)
    return {**found, "server_us": round(used_s / found["acked"] * 1e6, 2)}


def _idle(clusters: dict[str, Cluster]) -> dict[str, float]:
    distinct = set(clusters.values())
    before = {one: _used_s(one) for one in distinct}
    time.sleep(IDLE_S)
    idle = {one.name: round((_used_s(one) - before[one]) / IDLE_S, 3) for one in distinct}
    print(f"idle, of a core: {table.listed(idle)}; together {sum(idle.values()):.2f}", flush=True)
    return idle


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
