"""B12: a tenant publishes at ten times its quota: the effect on another tenant.

    python -m bench.b12_noisy                     # 200 messages/s allowed, 2,000 offered

The quiet tenant sends messages of 100 B at a fixed rate; its latencies are measured. The noisy
tenant sends `--times` its quota to the same broker and ignores refusals. Phases of a round: alone;
with a noisy tenant that has a quota; alone; with a noisy tenant without a quota.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from bench import b4_single
from bench.program import arguments, end
from bench.standalone import owner_of, standalone
from octavo import Client
from octavo.cli.main import run as octavo

QUIET, NOISY = "quiet", "noisy"
PHASES = ("alone", "limited", "alone", "unlimited")
TAKES_HOLD_S = 3.0
"""Time until brokers apply new quotas."""


class Noisy(b4_single.Load):
    def __init__(self, host: str, topic: str, namespace: str) -> None:
        self.answers: Counter[str] = Counter()
        super().__init__(host, topic, namespace)

    @property
    def refused(self) -> bytes:
        """A refusal does not end this load."""
        return b""

    @refused.setter
    def refused(self, answer: bytes) -> None:
        if answer:
            self.answers[answer[9:12].decode()] += 1

    def answered(self, connection: b4_single.Connection, due_s: float) -> None:
        self.answers["all"] += 1
        super().answered(connection, due_s)


async def shout(job: dict[str, Any]) -> dict[str, int]:
    loop = asyncio.get_running_loop()
    host, _, port = job["url"].removeprefix("http://").rpartition(":")
    load = Noisy(f"{host}:{port}", job["topic"], NOISY)
    for _ in range(job["connections"]):
        await loop.create_connection(lambda: b4_single.Connection(load), host, int(port))
    ends = loop.run_in_executor(None, sys.stdin.readline)
    begin, sent = time.perf_counter(), 0
    while not ends.done():
        while begin + sent / job["rate"] <= time.perf_counter():
            load.due(begin + sent / job["rate"])
            sent += 1
        load.took_s.clear()
        await asyncio.sleep(0.0005)
    return {"offered": sent, **load.answers}


def topics_of_one_broker(client: Client, url: str) -> tuple[str, str]:
    for namespace in (QUIET, NOISY):
        client.create_namespace(namespace)
    client.create_topic(f"{QUIET}/{QUIET}")
    owner = owner_of(url, QUIET, QUIET)
    for number in range(32):
        client.create_topic(f"{NOISY}/t{number}")
        if owner_of(url, f"t{number}", NOISY) == owner:
            return owner, f"t{number}"
    raise SystemExit("no broker owns topics of both tenants: run it again")


def phase(
    name: str, options: argparse.Namespace, job: dict[str, Any], metadata: str
) -> dict[str, Any]:
    amount = options.allowed if name == "limited" else "unlimited"
    words = ["quota", "set", f"namespace:{NOISY}", f"publish_messages={amount}"]
    if octavo([*words, "--metadata", metadata]):
        raise SystemExit("the quota was not set")
    time.sleep(TAKES_HOLD_S)
    noisy: subprocess.Popen[str] | None = None
    if name != "alone":
        job = {**job, "rate": options.allowed * options.times, "connections": 64}
        command = [sys.executable, "-m", "bench.b12_noisy", "--job", json.dumps(job)]
        noisy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    quiet = {
        "url": job["url"], "topic": QUIET, "namespace": QUIET, "rate": options.rate,
        "seconds": options.seconds, "connections": 256,
    }  # fmt: skip
    found = {"phase": name, **b4_single.measured(quiet)}
    if noisy is not None:
        said, _ = noisy.communicate("end\n")
        found["noisy"] = json.loads(said)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--allowed", type=int, default=200, help="messages a second")
    parser.add_argument("--times", type=int, default=10, help="factor of messages sent")
    parser.add_argument("--rate", type=float, default=500.0, help="of the quiet tenant")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(uvloop.run(shout(json.loads(options.job)))))
        return
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, standalone(Path(name)) as cluster:
        with Client(cluster.urls[0]) as client:
            url, noisy_topic = topics_of_one_broker(client, cluster.urls[0])
        for number in range(options.rounds):
            for which in PHASES:
                job = {"url": url, "topic": noisy_topic}
                one = {"round": number + 1, **phase(which, options, job, cluster.metadata_url)}
                rounds.append(one)
                print(
                    f"round {number + 1}  {which:9} p50 {one['p50_ms']:>8} p99 {one['p99_ms']:>8} "
                    f"max {one['max_ms']:>8} ms, {one['held']:,}/s held; {one.get('noisy', '')}",
                    flush=True,
                )
    p99_ms = {
        which: statistics.median(one["p99_ms"] for one in rounds if one["phase"] == which)
        for which in dict.fromkeys(PHASES)
    }
    worse = round((p99_ms["limited"] / p99_ms["alone"] - 1) * 100, 1)
    print(
        f"p99 alone {p99_ms['alone']} ms, beside one at its quota {p99_ms['limited']} ms: {worse} %"
    )
    end(options, "b12_noisy", p99_ms=p99_ms, worse_percent=worse, rounds=rounds)


if __name__ == "__main__":
    main()
