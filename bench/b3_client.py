"""B3c: the rates of a Python program with `octavo.Client`: produce, consume with acks, read.

    python -m bench.b3_client                     # 300,000 messages of 100 B, four partitions
    python -m bench.b3_client --processes 2 --kinds produce           # does it scale?

Each round has three client processes: one publishes with the README's loop and flushes, one
consumes and acks by `deliveries()`, one reads by `messages()`. The time is from the first call to
the flush, the last ack, or the last message. `--processes N` divides the messages among N
processes, each with its own topic.
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
from pathlib import Path
from typing import Any

from bench.program import arguments, end, several
from bench.standalone import standalone
from octavo import AsyncClient, Client

TOPIC = "b3c"
VALUE = b"x" * 100
KINDS = ("produce", "consume", "read", "produce async", "consume async", "read async")


def produce(url: str, topic: str, messages: int) -> int:
    with Client(url) as client, client.producer(topic) as producer:
        for _ in range(messages):
            producer.send(VALUE)
        producer.flush()
        return messages


def consume(url: str, topic: str, messages: int) -> int:
    with Client(url) as client:
        count = 0
        for _ in client.subscription(topic, "b3c").deliveries(idle_s=5):
            count += 1
            if count == messages:
                break
        return count


def read(url: str, topic: str, messages: int) -> int:
    with Client(url) as client:
        count = 0
        for partition in range(client.topic(topic).partitions):
            for _ in client.messages(topic, partition=partition):
                count += 1
        assert count >= messages
        return count


async def produce_async(url: str, topic: str, messages: int) -> int:
    async with AsyncClient(url) as client, await client.producer(topic) as producer:
        for _ in range(messages):
            await producer.send(VALUE)
        await producer.flush()
        return messages


async def consume_async(url: str, topic: str, messages: int) -> int:
    async with AsyncClient(url) as client:
        count = 0
        async for _ in client.subscription(topic, "b3c").deliveries(idle_s=5):
            count += 1
            if count == messages:
                break
        return count


async def read_async(url: str, topic: str, messages: int) -> int:
    async with AsyncClient(url) as client:
        count = 0
        for partition in range((await client.topic(topic)).partitions):
            async for _ in client.messages(topic, partition=partition):
                count += 1
        assert count >= messages
        return count


def one(job: dict[str, Any]) -> dict[str, Any]:
    """Wait for a line on standard input, then begin."""
    arguments = (job["url"], job["topic"], job["messages"])
    work = globals()[job["kind"].replace(" ", "_")]
    print("ready", flush=True)
    sys.stdin.readline()
    began, used = time.perf_counter(), time.process_time()
    count = work(*arguments)
    if job["kind"].endswith("async"):
        count = asyncio.run(count)
    ended = time.perf_counter()
    assert count >= job["messages"], f"{count} of {job['messages']}"
    return {"count": count, "began": began, "ended": ended, "used": time.process_time() - used}


def together(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.b3_client", "--job"]
    pipe = subprocess.PIPE
    clients = [
        subprocess.Popen([*command, json.dumps(job)], stdin=pipe, stdout=pipe, text=True)
        for job in jobs
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n", "a client did not start, see above"
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    found = [json.loads(client.communicate()[0]) for client in clients]
    # perf_counter is the same for all processes of the machine.
    took_s = max(one["ended"] for one in found) - min(one["began"] for one in found)
    count = sum(one["count"] for one in found)
    return {
        "kind": jobs[0]["kind"],
        "per_s": round(count / took_s),
        "client_us": round(sum(one["used"] for one in found) / count * 1e6, 2),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="clients of each kind at once")
    parser.add_argument(
        "--kinds", type=several(KINDS), default=[*KINDS], help="kinds, separated by commas"
    )
    options = parser.parse_args()
    if options.job:
        print(json.dumps(one(json.loads(options.job))))
        return
    if options.url:
        found = rounds(options, options.url)
    else:
        with tempfile.TemporaryDirectory() as folder, standalone(Path(folder)) as cluster:
            found = rounds(options, cluster.urls[0])
    shown = {
        kind: {"per_s": [one["per_s"] for one in of], "client_us": [one["client_us"] for one in of]}
        for kind in options.kinds
        if (of := [one for one in found if one["kind"] == kind])
    }
    end(options, "b3_client", kinds=shown)


def rounds(options: argparse.Namespace, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    kinds = options.kinds
    each = options.messages // options.processes
    for number in range(options.rounds):
        for mode in ("", " async"):
            topics = [f"{TOPIC}-{number}-{n}{mode.strip()}" for n in range(options.processes)]
            with Client(url) as client:
                for topic in topics:
                    client.create_topic(topic, partitions=options.partitions)
                    client.subscribe(topic, "b3c", type="shared")
            for kind in ("produce", "consume", "read"):
                if kind + mode not in kinds:
                    continue
                job = {"kind": kind + mode, "url": url, "messages": each}
                found.append(together([{**job, "topic": topic} for topic in topics]))
                print(
                    f"round {number + 1}  {kind + mode:<14} {found[-1]['per_s']:>9,}/s  "
                    f"{found[-1]['client_us']:.2f} µs of the clients' processor a message",
                    flush=True,
                )
    for kind in kinds:
        rates = [one["per_s"] for one in found if one["kind"] == kind]
        if rates:
            print(f"{kind:<14} median {statistics.median(rates):,.0f}/s of {rates}")
    return found


if __name__ == "__main__":
    main()
