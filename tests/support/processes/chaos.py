"""A real cluster, its users, and a breaker: the parts of tests with random faults. A seed
gives the faults; a replay tries the same faults, not the same interleaving."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from octavo import AsyncClient
from octavo.standalone.supervisor import Plan, Supervisor
from tests.support.kit.history import Call
from tests.support.processes.audit import (
    errors_in_logs,
    last_warnings,
    ledger_problems,
    problems,
    stored,
    texts,
)
from tests.support.processes.users import (
    SUBSCRIPTION,
    TOPIC,
    Consumer,
    Follower,
    Publisher,
    Record,
    note_read,
)

BOOKIES = 4
BROKERS = 2
SESSION_MS = 2_000
SETTLE_S = 90.0
SMALL_BOOKIE = {
    "flush_interval_ms": 500,
    "write_cache_bytes_max": 1_000_000,
    "journal_file_bytes_max": 4_000_000,
    "journal_preallocate_bytes": 1_000_000,
    "entry_log_bytes_max": 8_000_000,
    "disk_free_bytes_min": 2,
    "disk_free_bytes_resume": 3,
    "disk_free_bytes_reserve": 1,
}
"""Flushes, roll-overs and checkpoints happen all the time, so that kills hit them too."""
SMALL_BROKER = {"state_ledger_entries_max": 60, "producer_checkpoint_bytes": 40_000}

QUORUMS = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (4, 2, 2), (3, 2, 1))
"""(E, Qw, Qa); with E = 4 there is no spare, and entries are striped (bookkeeper #4097)."""


class Fault(NamedTuple):
    """`pause_s` after the last fault, the first `count` unbroken processes of `names` suffer
    `kind` for `for_s`."""

    pause_s: float
    kind: str
    names: tuple[str, ...]
    count: int  # type: ignore[assignment]
    for_s: float


def draw_faults(rng: random.Random, count: int) -> Iterator[Fault]:
    bookies = [f"bookie-{n}" for n in range(1, BOOKIES + 1)]
    brokers = [f"broker-{n}" for n in range(1, BROKERS + 1)]
    for _ in range(count):
        kind = rng.choices(("KILL", "STOP", "TERM"), (5, 4, 2))[0]
        names = rng.sample(bookies + brokers, BOOKIES + BROKERS)
        count = rng.choices((1, 2, 3, BOOKIES + BROKERS), (12, 4, 2, 1))[0]
        if rng.random() < 0.15:
            names, count = brokers, BROKERS
        past_session = kind == "STOP" and rng.random() < 0.7
        for_s = rng.uniform(1.2, 2.5) * SESSION_MS / 1000 if past_session else rng.uniform(0, 2)
        yield Fault(rng.uniform(0.1, 2.0), kind, tuple(names), count, for_s)


class Breaker:
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._broken: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.log: list[str] = []

    async def run(self, faults: Iterator[Fault]) -> None:
        """Run the faults in order. They may overlap, but a process has one fault at a time."""
        for fault in faults:
            await asyncio.sleep(fault.pause_s)
            names = [name for name in fault.names if name not in self._broken][: fault.count]
            shown = f"{fault.kind} {', '.join(names) or 'nobody'}, {fault.for_s:.2f} s"
            self.log.append(f"after {fault.pause_s:.2f} s {shown}")
            self._broken.update(names)
            number = signal.Signals[f"SIG{fault.kind}"]
            for name in names:  # kill all before waiting, so that they die at the same moment
                self.supervisor.signal(name, number)
            for name in names:
                task = asyncio.create_task(self._mend(name, fault))
                self._tasks.add(task)
        await asyncio.gather(*self._tasks)

    async def _mend(self, name: str, fault: Fault) -> None:
        if fault.kind != "STOP":
            async with asyncio.timeout(60):
                while self._member_state(name) != "dead":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await asyncio.sleep(fault.for_s)
        if fault.kind == "STOP":
            self.supervisor.signal(name, signal.SIGCONT)
        else:
            await self.supervisor.resume(name)
        self._broken.discard(name)

    def _member_state(self, name: str) -> str:
        member = self.supervisor.cluster.member(name)
        assert member is not None
        return member.state


@dataclass(slots=True)
class Outcome:
    record: Record
    faults: list[str]
    wrong: list[str]
    stored: int


Trouble = Callable[[Breaker, Record], Awaitable[None]]


def random_faults(rng: random.Random, count: int) -> Trouble:
    async def trouble(breaker: Breaker, record: Record) -> None:
        await breaker.run(draw_faults(rng, count))

    return trouble


async def run_round(
    folder: Path,
    rng: random.Random,
    trouble: Trouble,
    metadata_url: str = "",
    *,
    bookie: Mapping[str, Any] = SMALL_BOOKIE,
    make_supervisor: Callable[[Plan], Supervisor] = Supervisor,
    rate: float = 150,
    quorums: Sequence[tuple[int, int, int]] = QUORUMS,
) -> Outcome:
    """Run a cluster and its users, disturb it, wait until all is well, and audit it."""
    partitions = rng.randrange(2, 5)
    ensemble, write_quorum, ack_quorum = rng.choice(quorums)
    plan = Plan(
        folder=folder,
        bookies=BOOKIES,
        brokers=BROKERS,
        port_base=0,
        metadata_url=metadata_url,
        session_timeout_ms=SESSION_MS,
        restart=False,
        sections={"bookie": bookie, "broker": SMALL_BROKER},
    )
    supervisor = make_supervisor(plan)
    breaker = Breaker(supervisor)
    record = Record()
    await supervisor.start()
    try:
        urls = supervisor.cluster.urls
        async with AsyncClient(urls, attempt_s=5, retry_s=SETTLE_S, rng=rng) as client:
            await client.create_topic(
                TOPIC,
                partitions=partitions,
                ensemble_size=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                rollover={"entries": 150},
            )
            await client.subscribe(TOPIC, SUBSCRIPTION, type="shared", ack_timeout_s=3)
            publishers = [
                Publisher(client, record, f"p{n}", encoding="ndjson" if n == 2 else "batch")
                for n in range(3)
            ]
            consumers = [
                Consumer(client.subscription(TOPIC, SUBSCRIPTION), record, rng, partitions, name)
                for name in ("c0", "c1")
            ]
            exclusive = await client.subscribe(TOPIC, Follower.NAME, ack_timeout_s=1)
            follower = Follower(exclusive, partitions, record)
            async with asyncio.TaskGroup() as group:
                publishing = [group.create_task(one.run(rate)) for one in publishers]
                consuming = [group.create_task(one.run()) for one in consumers]
                consuming.append(group.create_task(follower.run()))
                await trouble(breaker, record)
                for one in publishers:
                    one.stopping = True
                async with asyncio.timeout(SETTLE_S):
                    await asyncio.gather(*publishing)
                loop = asyncio.get_running_loop()
                deadline = loop.time() + SETTLE_S
                while True:
                    # Read again each time: a send without an answer may still be stored.
                    found = await stored(urls, partitions)
                    ends = [sum(number == n for number, _ in found) for n in range(partitions)]
                    settled = record.consumed == set(found) and follower.done == ends
                    if settled or loop.time() >= deadline:
                        break
                    await asyncio.sleep(0.1)
                for task in consuming:
                    task.cancel()
        for name in (SUBSCRIPTION, Follower.NAME):
            record.history.add_done("auditor", Call.DRAIN, group=name)
        note_read(record, "auditor", texts(found))
        wrong: list[str] = []
        if record.consumed != set(found):
            left = sorted(set(found) - record.consumed)
            wrong.append(f"{len(left)} messages not acked in time, for example {left[:5]}")
        if follower.done != ends:
            wrong.append(f"the follower came to {follower.done}, not to {ends}")
        for member in supervisor.cluster.members:
            supervisor.signal(member.name, signal.SIGKILL)
        await _until_dead(supervisor)
        await asyncio.gather(*(supervisor.resume(one.name) for one in supervisor.cluster.members))
        again = await stored(urls, partitions)
        if again | found != again:
            wrong.append(f"after kill -9 of everything {len(again)} of {len(found)} are there")
        note_read(record, "auditor after a restart", texts(again))
        wrong += problems(record, again)
        wrong += errors_in_logs(folder)
    except BaseException as error:
        error.add_note("faults so far:\n  " + "\n  ".join(breaker.log))
        error.add_note("last warnings:\n  " + "\n  ".join(last_warnings(folder)))
        raise
    finally:
        await supervisor.stop()
    wrong += await ledger_problems(folder, supervisor.cluster.metadata_url)
    return Outcome(record, breaker.log, wrong, len(found))


async def _until_dead(supervisor: Supervisor) -> None:
    async with asyncio.timeout(30):
        while any(member.state != "dead" for member in supervisor.cluster.members):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
