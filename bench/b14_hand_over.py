"""B14: a partition is handed over while 1,000 messages a second are published to it.

    python -m bench.b14_hand_over                        # 10 hand-overs, the embedded store

The publisher sends a message every millisecond, whether earlier messages are acked or not. The
silence of a hand-over is the longest time between two acks in the second around it (goal: 50 ms);
the second before it is measured for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.program import arguments, end
from octavo import AsyncClient
from octavo.client.errors import ClientError
from octavo.client.producer import Producer, Receipt
from octavo.standalone.supervisor import Plan, Supervisor

GOAL_MS = 50.0
TOPIC = "hand-over"
QUIET_S = 1.0


class Publisher:
    def __init__(self, producer: Producer, per_s: int) -> None:
        self._producer = producer
        self._pause_s = 1 / per_s
        self._notes: set[asyncio.Task[None]] = set()
        self.acked: list[float] = []
        self.failed: Counter[str] = Counter()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            while due <= loop.time():
                receipt = await self._producer.send(b"x" * 100, partition=0)
                note = asyncio.create_task(self._note(receipt))
                self._notes.add(note)
                note.add_done_callback(self._notes.discard)
                due += self._pause_s
            await asyncio.sleep(max(due - loop.time(), 0))

    async def _note(self, receipt: Receipt) -> None:
        try:
            await receipt
        except ClientError as error:
            self.failed[str(error)[:120]] += 1
        else:
            self.acked.append(time.perf_counter())

    def silence_ms(self, start: float, stop: float) -> float:
        times = [start, *sorted(one for one in self.acked if start <= one <= stop), stop]
        return max(after - before for before, after in itertools.pairwise(times)) * 1000


async def measure(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    supervisor = Supervisor(plan)
    await supervisor.start()
    try:
        async with AsyncClient(supervisor.cluster.urls, retry_s=30) as client:
            await client.create_topic(TOPIC, partitions=1)
            publisher = Publisher(await client.producer(TOPIC, producer_id="b14"), options.per_s)
            publishing = asyncio.create_task(publisher.run())
            rounds = []
            try:
                await asyncio.sleep(2.0)
                for _ in range(options.rounds):
                    rounds.append(await one_round(client, publisher))
                    print(
                        f"silence {rounds[-1]['silence_ms']:7.1f} ms   quiet before "
                        f"{rounds[-1]['quiet_ms']:6.1f} ms   unload took "
                        f"{rounds[-1]['unload_ms']:7.1f} ms",
                        flush=True,
                    )
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
    finally:
        await supervisor.stop()
    found = sorted(one["silence_ms"] for one in rounds)
    return {
        "goal_ms": GOAL_MS,
        "within_goal": sum(one <= GOAL_MS for one in found),
        "silence_ms_median": round(statistics.median(found), 1),
        "silence_ms_max": round(found[-1], 1),
        "failed": dict(publisher.failed),
        "acked": len(publisher.acked),
        "rounds": rounds,
    }


async def one_round(client: AsyncClient, publisher: Publisher) -> dict[str, float]:
    owner = (await client.topic(TOPIC)).stats["partitions"][0]["owner"]
    other = next(one["id"] for one in await client.brokers() if one["id"] != owner)
    quiet_from = time.perf_counter()
    await asyncio.sleep(QUIET_S)
    begun = time.perf_counter()
    await client.unload_topic(TOPIC, to=other)
    took = time.perf_counter() - begun
    await asyncio.sleep(QUIET_S)
    until = time.perf_counter()
    await asyncio.sleep(0.2)  # let outstanding acks arrive
    return {
        "silence_ms": round(publisher.silence_ms(begun, until), 1),
        "quiet_ms": round(publisher.silence_ms(quiet_from, begun), 1),
        "unload_ms": round(took * 1000, 1),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--per-s", type=int, default=1000, help="messages")
    parser.add_argument("--metadata", default="", help="a store's URL; default: the embedded store")
    parser.add_argument("--logs", help="keep the cluster's folder here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-b14-") as made:
        folder = Path(options.logs or made)
        plan = Plan(
            folder=folder / "data", bookies=3, brokers=2, port_base=0,
            metadata_url=options.metadata,
            restart=False,
            sections={"bookie": {"disk_free_bytes_min": 2, "disk_free_bytes_resume": 3,
                                 "disk_free_bytes_reserve": 1}},
        )  # fmt: skip
        found = asyncio.run(measure(options, plan))
    end(options, "b14_hand_over", **found)


if __name__ == "__main__":
    main()
