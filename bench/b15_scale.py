r"""B15: how much a cluster can hold: topics, ledgers, ack holes, subscriptions.

    python -m bench.b15_scale                           # the sizes of the goals: over half an hour
    python -m bench.b15_scale --topics 200 --ledgers 500 --holes 5000 --subscriptions 10 \
        --messages 20000 --seconds 5                    # small sizes: a minute

Each part runs a fresh `octavo standalone --brokers 1`.

- topics: creates topics with a message each; measures the idle broker's memory and processor time,
  and the seconds until it serves all topics after a restart and after a kill.
- ledgers: writes and closes ledgers (an entry of 100 B, three copies); measures idle bookies,
  reads,
  and the restart of a killed bookie.
- holes: acks every second message of a subscription; the others were nacked with a delay (`nacked`)
  or are not due yet (`not_due`). The broker is killed, and the next owner must know each hole.
- subscriptions: compares the rate of a single subscription that drains a topic with the rates of
  many. Then all must keep up with a rate of messages.

RSS is the resident memory; PSS counts shared pages proportionally.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import structlog
import uvloop

from bench.b2_three_bookies import ledger_client
from bench.b8_growth import RECORD_BATCH, each, ok
from bench.program import arguments, end, or_zero, several
from bench.standalone import Typed, as_typed
from octavo.protocol.ack_ids import shown
from octavo.protocol.leased import LEASE_HEADER, Leased
from octavo.protocol.records import Record, build_batch
from octavo.standalone.cluster_file import read_cluster

GOALS = {
    "topics": "10,000 on one broker, idle: 1 GB and 5 % of a core at most; 10 s from a start on "
    "each answers within 1 s",
    "ledgers": "100,000",
    "holes": "1,000,000 over HTTP, also with the bounds of leases as they come",
    "subscriptions": "100 on one topic, each with half of one's rate",
}
PARTS = tuple(GOALS)
SETTLE_S = 5.0
PATIENCE_S = 600.0
RETRY_S = 0.05
READ_AGAIN = 200
ASKED_FIRST = 200
ASKED_AT_ONCE = 4
BATCH_MESSAGES = 500
HOLES_A_CALL = 1000
PACED_BATCH = 100
LATER = "12h"
BOUND = "broker.{}_messages_max={}"


class Watched:
    def __init__(self, cluster: Typed, folder: Path) -> None:
        self.url = cluster.url
        self._folder = folder

    def of_kind(self, kind: str) -> list[psutil.Process]:
        members = read_cluster(self._folder).of_kind(kind)
        return [psutil.Process(one.pid) for one in members]

    def kill_one(self, kind: str) -> None:
        self.of_kind(kind)[0].send_signal(signal.SIGKILL)

    def idle(self, seconds: float) -> dict[str, Any]:
        time.sleep(min(SETTLE_S, seconds))
        found: dict[str, Any] = {}
        kinds = {kind: self.of_kind(kind) for kind in ("broker", "bookie")}
        used = {kind: _used_s(processes) for kind, processes in kinds.items()}
        time.sleep(seconds)
        for kind, processes in kinds.items():
            infos = [process.memory_full_info() for process in processes]
            found[kind] = {
                "cores": round((_used_s(processes) - used[kind]) / seconds, 3),
                "rss_mib": sum(info.rss for info in infos) >> 20,
                "pss_mib": sum(info.pss for info in infos) >> 20,
            }
        return found


def _used_s(processes: Iterable[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def say(part: str, what: str, found: Any) -> None:
    print(f"{part:<13} {what}: {found}", flush=True)


async def patient(work: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat `work` while connections are refused."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await work()
        except aiohttp.ClientConnectionError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(RETRY_S)


def session(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        f"{url}/v1/topics/public/",
        timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
        connector=aiohttp.TCPConnector(limit=0),
    )


async def make_topics(url: str, count: int) -> dict[str, float]:
    async with session(url) as calls:

        async def make(number: int) -> None:
            await patient(lambda: ok(calls, "PUT", f"t{number}"))

        async def publish(number: int) -> None:
            await patient(lambda: ok(calls, "POST", f"t{number}/messages", data=b"first"))

        made_s = await each(count, make)
        say("topics", "made, s", made_s)
        return {"made_s": made_s, "opened_s": await each(count, publish)}


async def all_answer(url: str, count: int) -> float:
    async with session(url) as calls:

        async def read(number: int) -> None:
            said = await patient(lambda: ok(calls, "GET", f"t{number}/messages?from=earliest"))
            if not said["messages"]:
                raise SystemExit(f"t{number} has lost its message")

        return await each(count, read)


async def first_answer(url: str, count: int) -> dict[str, float]:
    took_ms: list[float] = []
    places = asyncio.Semaphore(ASKED_AT_ONCE)
    async with session(url) as calls:

        async def read(number: int) -> None:
            async with places:
                began = time.monotonic()
                await patient(lambda: ok(calls, "GET", f"t{number}/messages?from=earliest"))
                took_ms.append(round((time.monotonic() - began) * 1000, 1))

        some = random.Random(1).sample(range(count), min(ASKED_FIRST, count))
        await asyncio.gather(*map(read, some))
    took_ms.sort()
    return {
        "p50_ms": took_ms[len(took_ms) // 2],
        "p99_ms": took_ms[len(took_ms) * 99 // 100],
        "max_ms": took_ms[-1],
    }


def topics(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    count = options.topics
    with as_typed(folder, "--brokers", "1") as cluster:
        watched = Watched(cluster, folder)
        found: dict[str, Any] = {"topics": count, "empty": watched.idle(options.seconds)}
        say("topics", "before", found["empty"])
        found |= asyncio.run(make_topics(cluster.url, count))
        say("topics", "a message published to each, s", found["opened_s"])
        found["idle"] = watched.idle(options.seconds)
        say("topics", "idle", found["idle"])
        began = time.monotonic()
    found["stopped_s"] = round(time.monotonic() - began, 2)
    with as_typed(folder, "--brokers", "1") as cluster:
        watched = Watched(cluster, folder)
        found["started"] = {"ready_s": round(cluster.took_s, 2)}
        found["started"] |= asyncio.run(first_answer(cluster.url, count))
        found["started"]["all_answer_s"] = asyncio.run(all_answer(cluster.url, count))
        say("topics", f"stopped in {found['stopped_s']} s, started again", found["started"])
        found["idle_again"] = watched.idle(options.seconds)
        say("topics", "idle", found["idle_again"])
        watched.kill_one("broker")
        found["killed"] = asyncio.run(first_answer(cluster.url, count))
        say("topics", "killed, the first answers", found["killed"])
        found["killed_all_answer_s"] = asyncio.run(all_answer(cluster.url, count))
        say("topics", "killed: all answer after, s", found["killed_all_answer_s"])
    return found


async def make_ledgers(url: str, count: int) -> tuple[dict[str, Any], list[int]]:
    payload = os.urandom(100)
    made: list[int] = []
    async with ledger_client(url) as client:

        async def write(_: int) -> None:
            writer = await client.create()
            await writer.append(payload)
            await writer.close()
            made.append(writer.ledger_id)

        took_s = await each(count, write)
    return {"ledgers": count, "written_s": took_s, "per_s": round(count / took_s)}, made


async def read_ledgers(url: str, ids: list[int]) -> float:
    async with ledger_client(url) as client:

        async def read(number: int) -> None:
            reader = await client.open(ids[number])
            entries = await reader.read(0, 0)
            assert len(entries) == 1
            await reader.close()

        return await each(len(ids), read)


def ledgers(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with as_typed(folder, "--brokers", "1") as cluster:
        watched = Watched(cluster, folder)
        url = read_cluster(folder).metadata_url
        empty = watched.idle(options.seconds)["bookie"]
        found, ids = asyncio.run(make_ledgers(url, options.ledgers))
        found["empty"] = empty
        say("ledgers", "written", found)
        found["idle"] = watched.idle(options.seconds)["bookie"]
        some = random.Random(1).sample(ids, min(READ_AGAIN, len(ids)))
        found["read_again_s"] = asyncio.run(read_ledgers(url, some))
        say("ledgers", f"idle; {len(some)} read in {found['read_again_s']} s", found["idle"])
        before = len(watched.of_kind("bookie"))
        watched.kill_one("bookie")
        found["bookie_again_s"] = _until_again(folder, before)
    found["metadata_mb"] = round((folder / "metadata.db").stat().st_size / 1e6, 1)
    with as_typed(folder, "--brokers", "1") as cluster:
        found["ready_again_s"] = round(cluster.took_s, 2)
        found["read_after_s"] = asyncio.run(read_ledgers(url, some))
    say("ledgers", "again", {k: v for k, v in found.items() if k.endswith(("again_s", "mb"))})
    return found


def _until_again(folder: Path, count: int) -> float:
    began = time.monotonic()
    died = False
    while time.monotonic() - began < PATIENCE_S:
        running = [one for one in read_cluster(folder).of_kind("bookie") if one.state == "running"]
        died = died or len(running) < count
        if died and len(running) == count:
            return round(time.monotonic() - began, 2)
        time.sleep(RETRY_S)
    raise SystemExit("the killed bookie did not restart")


async def make_holes(url: str, count: int, how: str) -> dict[str, Any]:
    lines = [b'{"value": "x"}\n', b'{"value": "x"}\n']
    if how == "not_due":
        lines[0] = f'{{"value": "x", "deliver_after": "{LATER}"}}\n'.encode()
    rounds = -(-count // BATCH_MESSAGES)
    found: dict[str, Any] = {}
    async with session(url) as calls:
        await ok(calls, "PUT", "holes")
        settings = {"start": "earliest", "type": "shared"}
        await ok(calls, "PUT", "holes/subscriptions/s", json=settings)

        async def publish(_: int) -> None:
            body = b"".join(lines) * BATCH_MESSAGES
            kind = {"Content-Type": "application/x-ndjson"}
            async with calls.post("holes/messages", data=body, headers=kind) as answer:
                await answer.read()
                answer.raise_for_status()

        found["published_s"] = await each(rounds, publish)
        total = rounds * BATCH_MESSAGES
        began, acked, tenths = time.monotonic(), 0, [0.0]
        while acked < total:
            asked = f"receive?max={2 * HOLES_A_CALL}&consumer=c&wait=5"
            given = await ok(calls, "POST", f"holes/subscriptions/s/{asked}")
            ids = [one["ack_id"] for one in given["messages"]]
            if not ids:
                raise SystemExit(f"after {acked} holes a receive gives no more messages: {given}")
            body: dict[str, Any] = {"ack_ids": ids}
            if how == "nacked":
                even = [int(one.split("-")[1]) % 2 == 0 for one in ids]
                left = [one for one, stays in zip(ids, even, strict=True) if stays]
                body["ack_ids"] = [one for one, stays in zip(ids, even, strict=True) if not stays]
                body["nack"] = [{"ack_id": one, "delay": LATER} for one in left]
            await ok(calls, "POST", "holes/subscriptions/s/ack", json=body)
            acked += len(body["ack_ids"])
            if acked * 10 >= total * len(tenths):
                tenths.append(round(time.monotonic() - began, 2))
        found["holes"], found["acked_s"] = acked, tenths[-1]
        found["first_tenth_s"] = tenths[1]
        found["last_tenth_s"] = round(tenths[-1] - tenths[-2], 2)
    return found


async def known_holes(url: str) -> tuple[float, dict[str, Any]]:
    began = time.monotonic()
    async with session(url) as calls:
        said = await patient(lambda: ok(calls, "GET", "holes/subscriptions/s"))
    return round(time.monotonic() - began, 2), said


def holes(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found = {}
    room = 2 * options.holes + 10_000
    for how in ("nacked", "not_due"):
        sets = [BOUND.format(kind, room) for kind in ("leased", "delayed")]
        raised = [part for one in sets for part in ("--set", one)] if how == "nacked" else []
        with as_typed(folder / how, "--brokers", "1", *raised) as cluster:
            watched = Watched(cluster, folder / how)
            one = asyncio.run(make_holes(cluster.url, options.holes, how))
            one["broker"] = watched.idle(options.seconds)["broker"]
            watched.kill_one("broker")
            one["known_again_s"], said = asyncio.run(known_holes(cluster.url))
            one["unacked_ranges"], one["backlog"] = said["unacked_ranges"], said["backlog"]
            one["broker_again"] = watched.idle(options.seconds)["broker"]
        say("holes", how, one)
        if not one["unacked_ranges"] == one["backlog"] == one["holes"]:
            raise SystemExit(f"{one['holes']} holes were acknowledged, the next broker has {said}")
        found[how] = one
    return found


async def fill(url: str, count: int, names: list[str]) -> None:
    records = [Record(None, b"x" * 100, (), 1) for _ in range(BATCH_MESSAGES)]
    batch = build_batch(records)
    async with session(url) as calls:
        await ok(calls, "PUT", "fan")
        for name in names:
            settings = {"start": "earliest", "ack_timeout": PATIENCE_S}
            await ok(calls, "PUT", f"fan/subscriptions/{name}", json=settings)

        async def publish(_: int) -> None:
            await ok(calls, "POST", "fan/messages", data=batch, headers=RECORD_BATCH)

        await each(-(-count // BATCH_MESSAGES), publish)


async def drain(job: dict[str, Any]) -> dict[str, Any]:
    """Drain all subscriptions at once; return thousands of messages a second.

    With a `rate`, this number of messages a second is published meanwhile.
    """
    rates: list[float] = []
    async with session(job["url"]) as calls:

        async def one(name: str) -> None:
            path, done, acking = f"fan/partitions/0/subscriptions/{name}/", 0, None
            while done < job["messages"]:
                ids, count = await some(calls, path)
                if acking is not None:
                    await acking
                said = ok(calls, "POST", path + "ack", json={"ack_ids": ids})
                acking = asyncio.ensure_future(said)
                done += count
            if acking is not None:
                await acking
            rates.append(done / (time.perf_counter() - began) / 1000)

        began, used_s = time.perf_counter(), time.process_time()
        publishing = asyncio.ensure_future(publish_at(calls, job))
        await asyncio.gather(publishing, *(one(name) for name in job["names"]))
        took_s = time.perf_counter() - began
        used_s = time.process_time() - used_s
    rates.sort()
    return {
        "slowest_k_per_s": round(rates[0], 2),
        "median_k_per_s": round(rates[len(rates) // 2], 2),
        "all_k_per_s": round(job["messages"] * len(rates) / took_s / 1000, 2),
        "took_s": round(took_s, 2),
        "client_cores": round(used_s / took_s, 2),
    }


async def some(calls: aiohttp.ClientSession, path: str) -> tuple[list[str], int]:
    accept = {"Accept": "application/vnd.kafka.recordbatch.v2, application/json"}
    asked = calls.post(path + "receive?max=10000&consumer=c&wait=30", headers=accept)
    async with asked as answer:
        body = await answer.read()
        answer.raise_for_status()
        if LEASE_HEADER not in answer.headers:
            ids = [one["ack_id"] for one in json.loads(body)["messages"]]
            return ids, len(ids)
        leased = Leased.of(answer.headers)
    runs = leased.runs
    ids = [shown(leased.partition, start, stop, leased.lease) for start, stop, _ in runs]
    return ids, sum(stop - start for start, stop, _ in runs)


async def publish_at(calls: aiohttp.ClientSession, job: dict[str, Any]) -> None:
    if not job["rate"]:
        return
    batch = build_batch([Record(None, b"x" * 100, (), 1) for _ in range(PACED_BATCH)])
    began = time.perf_counter()
    for number in range(job["messages"] // PACED_BATCH):
        due = began + number * PACED_BATCH / job["rate"]
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await ok(calls, "POST", "fan/messages", data=batch, headers=RECORD_BATCH)


def subscriptions(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    messages = -(-options.messages // BATCH_MESSAGES) * BATCH_MESSAGES
    names = [f"s{number}" for number in range(options.subscriptions)]
    found: dict[str, Any] = {"messages": messages, "subscriptions": len(names)}
    with as_typed(folder, "--brokers", "1") as cluster:
        watched = Watched(cluster, folder)
        asyncio.run(fill(cluster.url, messages, ["alone", *names]))
        for what, which in (("one", ["alone"]), ("many", names)):
            found[what] = _drained(watched, which, messages, 0)
            say("subscriptions", what, found[what])
        if options.rate:
            batches = max(1, round(options.rate * options.seconds / PACED_BATCH))
            found["paced"] = _drained(watched, names, batches * PACED_BATCH, options.rate)
            say("subscriptions", f"paced, {options.rate:,}/s published", found["paced"])
    one, many = found["one"]["median_k_per_s"], found["many"]
    found["each_of_one"] = round(many["median_k_per_s"] / one, 3)
    found["all_of_one"] = round(many["all_k_per_s"] / one, 3)
    return found


def _drained(watched: Watched, names: list[str], messages: int, rate: int) -> dict[str, Any]:
    job = {"url": watched.url, "messages": messages, "names": names, "rate": rate}
    before_s = _used_s(watched.of_kind("broker"))
    command = [sys.executable, "-m", "bench.b15_scale", "--job", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    spent_s = _used_s(watched.of_kind("broker")) - before_s
    found: dict[str, Any] = json.loads(done.stdout)
    found["broker_us"] = round(spent_s / messages / len(names) * 1e6, 2)
    found["broker_cores"] = round(spent_s / found["took_s"], 2)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument(
        "--parts", type=several(PARTS), default=[*PARTS], help="parts, separated by commas"
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--holes", type=int, default=1_000_000)
    parser.add_argument("--subscriptions", type=int, default=100)
    parser.add_argument("--messages", type=int, default=50_000, help="for each subscription")
    parser.add_argument(
        "--rate", type=or_zero, default=1_000, help="messages published a second, or 0"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of each idle phase")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    if options.job:
        print(json.dumps(uvloop.run(drain(json.loads(options.job)))))
        return
    work = {"topics": topics, "ledgers": ledgers, "holes": holes, "subscriptions": subscriptions}
    found = {}
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="octavo-b15-") as name:
            load = os.getloadavg()[0]
            found[part] = work[part](options, Path(name)) | {"load_before": round(load, 1)}
        say(part, "goal", GOALS[part])
    end(options, "b15_scale", goals=GOALS, **found)


if __name__ == "__main__":
    main()
