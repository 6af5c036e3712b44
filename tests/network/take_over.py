"""How long a take-over takes, and where the time goes: `python -m tests.network.take_over`. From
`kill -9` of a broker until each of its partitions has acked a message sent after the kill: what
a user sees, including the end of the session, its notification, and the recovery."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from octavo import AsyncClient
from octavo.client.errors import ClientError
from octavo.client.producer import Producer, Receipt
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import BROKERS_ROOT
from octavo.metadata.zookeeper import ZooKeeperStore
from octavo.standalone.supervisor import Plan, Supervisor
from tests.network.rounds import Logs
from tests.support.zookeeper_ensemble import TICK_MS, Ensemble, local_places, running

GOAL_S = 0.2
BOOKIES = 4
BROKERS = 3
PARTITIONS = 6
TOPIC = "take-over"
SEND_PAUSE_S = 0.02
WARM_S = 0.5
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    partitions: int
    session_ended_s: float
    """Its record was gone, as another session saw it."""
    noticed_s: float
    open_s: float
    """The last of its partitions was open elsewhere."""
    acked_s: float
    """The last of its partitions had acked a message that was sent after the kill."""
    recovery_s: float
    """The longest of the partitions' recoveries, from their new owners' logs."""


class Publisher:
    """Sends to every partition all the time; remembers each one's first answer since `mark`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._notes: set[asyncio.Task[None]] = set()
        self._since = 0.0
        self.first: dict[int, float] = {}

    def mark(self) -> None:
        self._since = time.monotonic()
        self.first = {}

    async def run(self) -> None:
        while True:
            for partition in range(PARTITIONS):
                receipt = await self._producer.send(b"x" * 100, partition=partition)
                note = asyncio.create_task(self._note(partition, receipt, time.monotonic()))
                self._notes.add(note)
                note.add_done_callback(self._notes.discard)
            await asyncio.sleep(SEND_PAUSE_S)

    async def _note(self, partition: int, receipt: Receipt, sent_at: float) -> None:
        with contextlib.suppress(ClientError):
            await receipt
            if sent_at >= self._since:
                self.first.setdefault(partition, time.monotonic())

    async def acked_by(self, partitions: set[int]) -> float:
        async with asyncio.timeout(DEADLINE_S):
            while not partitions <= set(self.first):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return max(self.first[number] for number in partitions)


class Registrations:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changed = asyncio.Event()
        self._watch = store.watch_children(BROKERS_ROOT, self._changed.set)

    async def until_without(self, name: str) -> float:
        async with asyncio.timeout(DEADLINE_S):
            while name in await self._store.children(BROKERS_ROOT):
                await self._changed.wait()
                self._changed.clear()
        return time.monotonic()


async def measure(options: argparse.Namespace, folder: Path, ensemble: Ensemble) -> list[Round]:
    url = f"zk://{ensemble.hosts}/take-over"
    plan = Plan(
        folder=folder / "data",
        bookies=BOOKIES,
        brokers=BROKERS,
        port_base=0,
        metadata_url=url,
        session_timeout_ms=options.session_ms,
        restart=False,
        sections={"bookie": {"disk_free_bytes_min": 2, "disk_free_bytes_resume": 3,
                             "disk_free_bytes_reserve": 1}},
    )  # fmt: skip
    supervisor = Supervisor(plan)
    await supervisor.start()
    store = ZooKeeperStore(ensemble.hosts.split(","), "/take-over")
    try:
        await store.start()
        registrations = Registrations(store)
        async with AsyncClient(supervisor.cluster.urls) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS)
            producer = await client.producer(TOPIC)
            publisher = Publisher(producer)
            publishing = asyncio.create_task(publisher.run())
            try:
                found = []
                for _ in range(options.rounds):
                    found.append(await one_round(supervisor, client, publisher, registrations))
                    print(row(found[-1]), flush=True)
                return found
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
                await producer.close(flush=False)
    finally:
        await store.close()
        await supervisor.stop()


async def one_round(
    supervisor: Supervisor, client: AsyncClient, publisher: Publisher, registrations: Registrations
) -> Round:
    publisher.mark()
    await publisher.acked_by(set(range(PARTITIONS)))
    await asyncio.sleep(WARM_S)
    owners = [one["owner"] for one in (await client.topic(TOPIC)).stats["partitions"]]
    killed = owners[0]
    mine = {number for number, owner in enumerate(owners) if owner == killed}
    logs = Logs(supervisor.plan.folder)
    gone = asyncio.create_task(registrations.until_without(killed))
    await asyncio.sleep(0)
    supervisor.signal(killed, signal.SIGKILL)
    publisher.mark()
    at, wall = time.monotonic(), time.time()
    ended, acked = await asyncio.gather(gone, publisher.acked_by(mine))
    noticed = [at_of(e) for e in logs.events("brokers_changed") if killed in list(e["gone"])]  # type: ignore[call-overload]
    opened = {
        str(event["partition"]): event
        for event in logs.events("partition_taken_over")
        if event["broker"] != killed
    }
    found = [opened[f"public/{TOPIC}/{number}"] for number in mine]
    await supervisor.resume(killed)
    return Round(
        len(mine),
        ended - at,
        min(noticed) - wall,
        max(map(at_of, found)) - wall,
        acked - at,
        max(float(str(event["duration_ms"])) for event in found) / 1000,
    )


def at_of(event: dict[str, object]) -> float:
    return datetime.fromisoformat(str(event["ts"])).timestamp()


HEAD = (
    f"{'partitions':>10}{'session ended':>15}{'noticed':>10}{'open':>10}{'acked':>10}"
    f"{'recovery':>10}"
)


def row(one: Round) -> str:
    """Return a line of the table, in ms; each time but the last is since the kill."""
    times = (one.session_ended_s, one.noticed_s, one.open_s, one.acked_s, one.recovery_s)
    shown = [f"{1000 * time_s:.0f}" for time_s in times]
    return f"{one.partitions:10}{shown[0]:>15}" + "".join(f"{one:>10}" for one in shown[1:])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.network.take_over", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--session-ms", type=int, default=2000)
    parser.add_argument("--tick-ms", type=int, default=TICK_MS, help="ZooKeeper's tickTime")
    parser.add_argument("--json", type=Path, help="write the rounds there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="octavo-take-over-") as folder:
        ensemble = Ensemble(Path(folder, "zookeeper"), local_places(3), tick_ms=options.tick_ms)
        with running(ensemble):
            print(HEAD, flush=True)
            found = asyncio.run(measure(options, Path(folder), ensemble))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    session_s = options.session_ms / 1000
    beyond = sorted(one.acked_s - session_s for one in found)
    after = sorted(one.acked_s - one.session_ended_s for one in found)
    within = sum(one <= GOAL_S for one in beyond)
    print(
        f"{within} of {len(found)} within the session timeout + {1000 * GOAL_S:.0f} ms; beyond it: "
        f"median {1000 * statistics.median(beyond):.0f} ms, at most {1000 * beyond[-1]:.0f} ms; "
        f"after the session's end: median {1000 * statistics.median(after):.0f} ms, "
        f"at most {1000 * after[-1]:.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
