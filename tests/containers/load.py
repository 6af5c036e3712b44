"""The users of a topic, on the cluster's network: `python -m tests.containers.load`. Publishers
and consumers until SIGTERM; then everything is read back and compared with their answers.
`progress.json` has their progress, `verdict.json` the result; times are in seconds."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

from octavo import AsyncClient
from octavo.client.errors import ClientError
from tests.support.kit.history import Call, History
from tests.support.processes.audit import problems, stored, texts
from tests.support.processes.users import (
    SUBSCRIPTION,
    Consumer,
    Follower,
    Place,
    Publisher,
    Record,
    note_read,
)

SETTLE_S = 120.0
"""Every call must be answered within this time after the last fault."""


class Load:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._urls: list[str] = options.brokers.split(",")
        self._notes = Path(options.notes)
        self._record = Record()
        self._refused: list[str] = []
        self._wrong: list[str] = []

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        options, record = self._options, self._record
        async with AsyncClient(
            self._urls, attempt_s=5, retry_s=SETTLE_S, on_retry=self._note_refusal
        ) as client:
            await self._make_topic(client)
            encodings: tuple[Any, ...] = ("batch", "ndjson")
            publishers = [
                Publisher(client, record, f"p{n}", encoding=encoding, topic=options.topic)
                for n, encoding in enumerate(encodings)
            ]
            consumer = Consumer(
                client.subscription(options.topic, SUBSCRIPTION),
                record,
                random.Random(options.seed),
                options.partitions,
            )
            exclusive = await client.subscribe(options.topic, Follower.NAME, ack_timeout_s=3)
            follower = Follower(exclusive, options.partitions, record)
            async with asyncio.TaskGroup() as group:
                publishing = [group.create_task(one.run(options.rate)) for one in publishers]
                others = [group.create_task(one.run()) for one in (consumer, follower)]
                others.append(group.create_task(self._tell_progress()))
                await stop.wait()
                for one in publishers:
                    one.stopping = True
                async with asyncio.timeout(SETTLE_S):
                    await asyncio.gather(*publishing)
                found = await stored(self._urls, options.partitions, options.topic)
                await self._until_consumed(found, follower)
                for task in others:
                    task.cancel()
        self._conclude(found)

    async def _make_topic(self, client: AsyncClient) -> None:
        await client.create_topic(
            self._options.topic,
            partitions=self._options.partitions,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            rollover={"entries": self._options.rollover},
        )
        await client.subscribe(self._options.topic, SUBSCRIPTION, type="shared", ack_timeout_s=3)

    async def _until_consumed(self, found: dict[Place, Any], follower: Follower) -> None:
        ends = [
            sum(number == partition for number, _ in found)
            for partition in range(self._options.partitions)
        ]
        try:
            async with asyncio.timeout(SETTLE_S):
                while self._record.consumed != set(found) or follower.done != ends:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        except TimeoutError:
            left = sorted(set(found) - self._record.consumed)
            self._wrong.append(f"{len(left)} messages not consumed, for example {left[:5]}")
            self._wrong.append(f"the follower came to {follower.done}, the topic to {ends}")

    def _conclude(self, found: dict[Place, tuple[str, str]]) -> None:
        history = self._record.history
        for group in (SUBSCRIPTION, Follower.NAME):
            history.add_done("auditor", Call.DRAIN, group=group)
        note_read(self._record, "auditor", texts(found))
        waits = sorted(
            one.completed_at - one.invoked_at
            for one in history
            if one.call is Call.SEND and one.completed_at is not None
        )
        verdict = {
            "wrong": [*self._wrong, *problems(self._record, found)],
            "sent": self._record.sent,
            "stored": len(found),
            "retries": len(self._refused),
            "retried": sorted(set(self._refused))[:10],
            "wait_p50": waits[len(waits) // 2],
            "wait_p99": waits[len(waits) * 99 // 100],
            "wait_max": waits[-1],
            "silence_max": longest_silence(history),
        }
        (self._notes / "history.jsonl").write_text("\n".join(history.lines()))
        self._write("verdict.json", verdict)

    def _note_refusal(self, error: ClientError) -> None:
        self._refused.append(str(error))

    async def _tell_progress(self) -> None:
        while True:
            record = self._record
            self._write(
                "progress.json",
                {"acked": record.acked, "consumed": len(record.consumed), "failed": record.failed},
            )
            await asyncio.sleep(0.1)

    def _write(self, name: str, what: dict[str, Any]) -> None:
        part = self._notes / f"{name}.part"
        part.write_text(json.dumps(what))
        os.replace(part, self._notes / name)


def longest_silence(history: History) -> float:
    """Return the longest time without an ack of a partition, though a publish was sent. Messages
    that only wait behind others do not count."""
    partitions: dict[str, list[tuple[float, float]]] = {}
    for one in history:
        if one.call is Call.SEND and one.is_ok and one.completed_at is not None:
            partitions.setdefault(one.log, []).append((one.completed_at, one.invoked_at))
    longest = 0.0
    for sends in partitions.values():
        sends.sort(reverse=True)
        asked_at = float("inf")
        for (acked_at, invoked_at), (acked_before, _) in pairwise(sends):
            asked_at = min(asked_at, invoked_at)
            longest = max(longest, acked_at - max(acked_before, asked_at))
    return longest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--notes", required=True)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rate", type=float, default=40)
    parser.add_argument("--rollover", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(Load(parser.parse_args()).run())


if __name__ == "__main__":
    main()
