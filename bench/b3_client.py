"""B3c: what a Python program gets through `octavo.Client`: produce, consume with acks, read.

    python bench/b3_client.py                     # 300,000 messages of 100 B, four partitions
    python bench/b3_client.py --messages 100000 --rounds 3 --url http://127.0.0.1:8080

`octavo standalone` is started in a fresh folder: three bookies, two brokers, E = Qw = 3, Qa = 2.
In each round one client process publishes all messages with the README's loop and flushes, another
one consumes them from a subscription by `deliveries()`, acks included, and a third reads them
partition by partition with `messages()`. What is timed is the loop, from its first call until the
flush, the last ack, the last message. Prints a line for people per round, and last one JSON
document with rates and processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.standalone import standalone
from octavo import AsyncClient, Client

TOPIC = "b3c"
VALUE = b"x" * 100
KINDS = ("produce", "consume", "read", "produce async", "consume async", "read async")


def produce(url: str, topic: str, messages: int) -> int:
    """The README's loop."""
    with Client(url) as client, client.producer(topic) as producer:
        for _ in range(messages):
            producer.send(VALUE)
        producer.flush()
        return messages


def consume(url: str, topic: str, messages: int) -> int:
    """All of them, acked."""
    with Client(url) as client:
        count = 0
        for _ in client.subscription(topic, "b3c").deliveries(idle_s=5):
            count += 1
            if count == messages:
                break
        return count


def read(url: str, topic: str, messages: int) -> int:
    """All of them, without a subscription."""
    with Client(url) as client:
        count = 0
        for partition in range(client.topic(topic).partitions):
            for _ in client.messages(topic, partition=partition):
                count += 1
        assert count >= messages
        return count


async def produce_async(url: str, topic: str, messages: int) -> int:
    """The same on an event loop."""
    async with AsyncClient(url) as client, await client.producer(topic) as producer:
        for _ in range(messages):
            await producer.send(VALUE)
        await producer.flush()
        return messages


async def consume_async(url: str, topic: str, messages: int) -> int:
    """The same on an event loop."""
    async with AsyncClient(url) as client:
        count = 0
        async for _ in client.subscription(topic, "b3c").deliveries(idle_s=5):
            count += 1
            if count == messages:
                break
        return count


async def read_async(url: str, topic: str, messages: int) -> int:
    """The same on an event loop."""
    async with AsyncClient(url) as client:
        count = 0
        for partition in range((await client.topic(topic)).partitions):
            async for _ in client.messages(topic, partition=partition):
                count += 1
        assert count >= messages
        return count


def one(job: dict[str, Any]) -> dict[str, Any]:
    """One loop in this process, timed."""
    arguments = (job["url"], job["topic"], job["messages"])
    work = globals()[job["kind"].replace(" ", "_")]
    began, used = time.perf_counter(), time.process_time()
    count = work(*arguments)
    if job["kind"].endswith("async"):
        count = asyncio.run(count)
    took_s = time.perf_counter() - began
    assert count >= job["messages"], f"{count} of {job['messages']}"
    return {
        "kind": job["kind"],
        "per_s": round(count / took_s),
        "client_us": round((time.process_time() - used) / count * 1e6, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
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
        for kind in options.kinds.split(",")
        if (of := [one for one in found if one["kind"] == kind])
    }
    settings = {name: getattr(options, name) for name in ("messages", "partitions")}
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    print(json.dumps({"bench": "b3_client", **settings, **machine, "rounds": shown}))


def rounds(options: argparse.Namespace, url: str) -> list[dict[str, Any]]:
    """Each kind once a round, in processes of their own."""
    found: list[dict[str, Any]] = []
    kinds = options.kinds.split(",")
    for number in range(options.rounds):
        for mode in ("", " async"):
            topic = f"{TOPIC}-{number}{mode.strip()}"
            with Client(url) as client:
                client.create_topic(topic, partitions=options.partitions)
                client.subscribe(topic, "b3c", type="shared")
            for kind in ("produce", "consume", "read"):
                if kind + mode not in kinds:
                    continue
                job = {
                    "kind": kind + mode, "url": url, "topic": topic,
                    "messages": options.messages,
                }  # fmt: skip
                command = [sys.executable, "-m", "bench.b3_client", "--job", json.dumps(job)]
                run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
                found.append(json.loads(run.stdout))
                print(
                    f"round {number + 1}  {kind + mode:<14} {found[-1]['per_s']:>9,}/s  "
                    f"{found[-1]['client_us']:.2f} µs of the client's processor a message",
                    flush=True,
                )
    for kind in kinds:
        rates = [one["per_s"] for one in found if one["kind"] == kind]
        if rates:
            print(f"{kind:<14} median {statistics.median(rates):,.0f}/s of {rates}")
    return found


if __name__ == "__main__":
    main()
