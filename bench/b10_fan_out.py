"""B10: many tailing readers of a partition: the cost and the delay of each message.

    python -m bench.b10_fan_out                         # 1,000 readers, 20 messages a second

One process holds all readers: `events` (server-sent events), `poll` (long polls) or `client`
(`messages(follow=True)`). A publisher process sends messages of 100 B at a fixed rate; a message's
delay, at each of fifty readers, counts from when it was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from bench.program import arguments, end
from bench.standalone import owner_of, standalone
from octavo import AsyncClient, Client
from octavo.standalone.cluster_file import ClusterFile

TOPIC = "b10"
TIMED = 50
SETTLE_S = 2.0
BEGIN = b"due "
NS_DIGITS = 19


class Reader(asyncio.Protocol):
    def __init__(self, host: str, kind: str, late_s: list[float] | None) -> None:
        self.count = 0
        self._host = host
        self._kind = kind
        self._late_s = late_s
        self._next = "latest"
        self._transport: Any = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        path = f"/v1/topics/public/{TOPIC}/partitions/0/messages?from={self._next}"
        accept = "text/event-stream"
        if self._kind == "poll":
            path, accept = path + "&wait=30", "application/json"
        head = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: {accept}\r\n\r\n"
        self._transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        if self._kind == "events":
            self._see(data)
            return
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        headers = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        if len(body) < int(headers.get(b"content-length", b"0")):
            return
        self._see(body)
        self._next = headers[b"next-offset"].decode()
        self._got = b""
        self._ask()

    def _see(self, data: bytes) -> None:
        at = data.find(BEGIN)
        while at >= 0:
            self.count += 1
            if self._late_s is not None:
                due = data[at + len(BEGIN) : at + len(BEGIN) + NS_DIGITS]
                self._late_s.append((time.time_ns() - int(due)) / 1e9)
            at = data.find(BEGIN, at + len(BEGIN))


class ClientReader:
    def __init__(self, url: str, late_s: list[float] | None) -> None:
        self.count = 0
        self._late_s = late_s
        self._task = asyncio.ensure_future(self._run(url))

    async def _run(self, url: str) -> None:
        async with AsyncClient(url) as client:
            async for message in client.messages(TOPIC, start="latest", follow=True):
                self.count += 1
                if self._late_s is not None:
                    due = (message.value or b"")[len(BEGIN) : len(BEGIN) + NS_DIGITS]
                    self._late_s.append((time.time_ns() - int(due)) / 1e9)


async def read(job: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    host, _, port = job["url"].removeprefix("http://").rpartition(":")
    late_s: list[float] = []
    readers: list[Reader | ClientReader] = []
    for number in range(job["readers"]):
        timed = late_s if number < TIMED else None
        if job["kind"] == "client":
            readers.append(ClientReader(job["url"], timed))
            continue
        reader = Reader(host, job["kind"], timed)
        await loop.create_connection(lambda reader=reader: reader, host, int(port))  # type: ignore[misc]
        readers.append(reader)
    await asyncio.sleep(SETTLE_S)
    print("ready", flush=True)
    await asyncio.sleep(job["seconds"] + SETTLE_S)
    late_s.sort()
    counts = [reader.count for reader in readers]
    return {
        "least": min(counts),
        "most": max(counts),
        "p50_ms": round(late_s[len(late_s) // 2] * 1000, 1) if late_s else None,
        "p99_ms": round(late_s[int(len(late_s) * 0.99)] * 1000, 1) if late_s else None,
    }


async def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Send each message when it is due, whether earlier messages are answered or not."""
    sent: list[asyncio.Task[Any]] = []
    async with AsyncClient(job["url"]) as client:
        begin = time.time_ns()
        for number in range(int(job["rate"] * job["seconds"])):
            due = begin + int(number / job["rate"] * 1e9)
            await asyncio.sleep(max(0.0, (due - time.time_ns()) / 1e9))
            value = f"due {due:0{NS_DIGITS}d} ".ljust(100, "x")
            sent.append(asyncio.ensure_future(client.publish(TOPIC, value, partition=0)))
        await asyncio.gather(*sent)
    return {"sent": len(sent)}


def own(work: str, job: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.b10_fan_out", "--job", json.dumps([work, job])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def used_s(cluster: ClusterFile) -> dict[str, float]:
    return {
        member.name: sum(psutil.Process(member.pid).cpu_times()[:2]) for member in cluster.members
    }


def bookie_reads(cluster: ClusterFile) -> float:
    total = 0.0
    for member in cluster.of_kind("bookie"):
        with urllib.request.urlopen(
            f"http://127.0.0.1:{member.admin_port}/metrics", timeout=5
        ) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("octavo_bookie_reads_total{"):
                    total += float(line.rpartition(" ")[2])
    return total


def measure(cluster: ClusterFile, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    url = owner_of(cluster.urls[0], TOPIC)
    job = {
        "url": url, "kind": kind, "readers": options.readers,
        "rate": options.rate, "seconds": options.seconds,
    }  # fmt: skip
    readers = own("read", job)
    assert readers.stdout is not None
    assert readers.stdout.readline() == "ready\n"
    before, reads = used_s(cluster), bookie_reads(cluster)
    publisher = own("publish", job)
    said, _ = publisher.communicate()
    assert publisher.returncode == 0
    after = used_s(cluster)
    read_requests = bookie_reads(cluster) - reads
    found = json.loads(readers.communicate()[0].splitlines()[-1])
    sent = json.loads(said)["sent"]
    spent = {name: after[name] - before[name] for name in after}
    broker_s = sum(s for name, s in spent.items() if name.startswith("broker"))
    return {
        "kind": kind,
        **found,
        "sent": sent,
        "broker_cores": round(broker_s / options.seconds, 3),
        "bookie_cores": round((sum(spent.values()) - broker_s) / options.seconds, 3),
        "broker_us_a_delivery": round(broker_s / sent / options.readers * 1e6, 1),
        "bookie_reads_a_message": round(read_requests / sent, 3),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kinds", default="events,poll")
    options = parser.parse_args()
    if options.job:
        work, job = json.loads(options.job)
        print(json.dumps(asyncio.run({"read": read, "publish": publish}[work](job))))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder, standalone(Path(folder)) as cluster:
        with Client(cluster.urls[0]) as client:
            client.create_topic(TOPIC)
            client.publish(TOPIC, "first")
        for kind in options.kinds.split(","):
            found.append(measure(cluster, kind, options))
            one = found[-1]
            print(
                f"{kind:<7} {options.readers:,} readers × {options.rate:g}/s: "
                f"late p50 {one['p50_ms']} p99 {one['p99_ms']} ms, each had {one['least']} to "
                f"{one['most']} of {one['sent']}; brokers {one['broker_cores']:.2f} cores, "
                f"{one['broker_us_a_delivery']} µs a delivery; "
                f"{one['bookie_reads_a_message']} reads at bookies a message",
                flush=True,
            )
    end(options, "b10_fan_out", kinds=found)


if __name__ == "__main__":
    main()
