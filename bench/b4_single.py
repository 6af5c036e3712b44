"""B4: single small publishes at a fixed rate: the latency of each, from when it was due.

    python -m bench.b4_single                            # 1,000, 2,000 and 4,000 a second

Messages of 100 B are sent when they are due, whether earlier messages are answered or not. A
message that finds all connections busy waits, and the wait counts.
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
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.program import arguments, end, rates
from bench.standalone import owner_of, standalone
from octavo import Client

TOPIC = "b4"
VALUE = b"x" * 100
WARM_S = 3.0


class Connection(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: Any = None
        self._due_s = 0.0
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._load.idle.append(self)

    def send(self, due_s: float) -> None:
        self._due_s = due_s
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.lower().index(b"content-length: ") + 16
        if len(body) < int(head[at:].split(b"\r\n", 1)[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._load.refused = self._got
        self._got = b""
        self._load.answered(self, self._due_s)


class Load:
    def __init__(self, host: str, topic: str, namespace: str = "public") -> None:
        self.idle: list[Connection] = []
        self.refused = b""
        """An answer other than 200, which ends the measurement."""
        self.late: deque[float] = deque()
        self.took_s: list[float] = []
        path = f"/v1/topics/{namespace}/{topic}/partitions/0/messages"
        self.request = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(VALUE)}\r\n\r\n"
        ).encode() + VALUE

    def due(self, due_s: float) -> None:
        if self.idle:
            self.idle.pop().send(due_s)
        else:
            self.late.append(due_s)

    def answered(self, connection: Connection, due_s: float) -> None:
        self.took_s.append(time.perf_counter() - due_s)
        if self.late:
            connection.send(self.late.popleft())
        else:
            self.idle.append(connection)


async def run(job: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    host, _, port = job["url"].removeprefix("http://").rpartition(":")
    load = Load(f"{host}:{port}", job["topic"], job.get("namespace", "public"))
    for _ in range(job["connections"]):
        await loop.create_connection(lambda: Connection(load), host, int(port))
    rate, seconds = job["rate"], job["seconds"]
    for phase_s in (WARM_S, seconds):
        load.took_s.clear()
        begin, sent, total = time.perf_counter(), 0, int(rate * phase_s)
        while sent < total:
            now = time.perf_counter()
            while sent < total and begin + sent / rate <= now:
                load.due(begin + sent / rate)
                sent += 1
            await asyncio.sleep(max(0.0002, begin + sent / rate - time.perf_counter()))
        while len(load.took_s) < total:
            await asyncio.sleep(0.01)
            if load.refused:
                raise SystemExit(f"a publish was refused: {load.refused.decode(errors='replace')}")
        took_s = time.perf_counter() - begin
    took = sorted(load.took_s)

    def at(share: float) -> float:
        return round(took[min(len(took) - 1, int(len(took) * share))] * 1000, 2)

    return {
        "rate": rate, "held": round(total / took_s),
        "p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": at(1.0),
    }  # fmt: skip


def command(job: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "bench.b4_single", "--job", json.dumps(job)]


def measured(job: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(command(job), stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--rates", type=rates, default="1000,2000,4000")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument(
        "--passed-on", action="store_true", help="ask a broker that is not the partition's owner"
    )
    options = parser.parse_args()
    if options.job:
        print(json.dumps(uvloop.run(run(json.loads(options.job)))))
        return
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, standalone(Path(folder)) as cluster:
        with Client(cluster.urls[0]) as client:
            client.create_topic(TOPIC)
            client.publish(TOPIC, "first")
        url = owner_of(cluster.urls[0], TOPIC)
        if options.passed_on:
            url = next(one for one in cluster.urls if one != url)
        for number in range(options.rounds):
            for rate in options.rates:
                job = {
                    "url": url, "rate": rate, "seconds": options.seconds,
                    "connections": options.connections, "topic": TOPIC,
                }  # fmt: skip
                before = used_s(cluster.members)
                one = measured(job)
                spent = {k: s - before[k] for k, s in used_s(cluster.members).items()}
                messages = rate * (options.seconds + WARM_S)
                for kind in ("broker", "bookie"):
                    used = sum(s for name, s in spent.items() if name.startswith(kind))
                    one[f"{kind}_us"] = round(used / messages * 1e6)
                found.append(one)
                print(
                    f"round {number + 1}  {rate:>6,.0f}/s  p50 {one['p50_ms']:>8} p99 "
                    f"{one['p99_ms']:>8} p99.9 {one['p999_ms']:>8} ms, {one['held']:,}/s held; "
                    f"brokers {one['broker_us']}, bookies {one['bookie_us']} µs a message",
                    flush=True,
                )
    medians = {
        rate: {
            key: statistics.median([one[key] for one in found if one["rate"] == rate])
            for key in ("p50_ms", "p99_ms", "held", "broker_us", "bookie_us")
        }
        for rate in sorted({one["rate"] for one in found})
    }
    end(options, "b4_single", medians=medians, rounds=found)


def used_s(members: Any) -> dict[str, float]:
    return {one.name: sum(psutil.Process(one.pid).cpu_times()[:2]) for one in members}


if __name__ == "__main__":
    main()
