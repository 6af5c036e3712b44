"""A real cluster, its users, and one who breaks it: the parts of tests with random faults.

One seed gives the faults: which processes are killed (SIGKILL), stopped past their session
(SIGSTOP, SIGCONT) or asked to leave (SIGTERM), for how long, and what overlaps. What the machine
makes of it in time is not given by the seed, so a replay tries the same faults, not the same
interleaving. The users write down what they were told; `problems` compares that with what the
cluster holds in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from octavo import AsyncClient
from octavo.client.errors import ClientError, Conflict
from octavo.client.producer import Receipt
from octavo.client.subscription import Subscription
from octavo.client.types import Delivery
from octavo.standalone.supervisor import Plan, Supervisor

TOPIC = "chaos"
SUBSCRIPTION = "readers"
BOOKIES = 4
BROKERS = 2
SESSION_MS = 2_000
SETTLE_S = 90.0
"""After the last fault everything must be answered within it."""
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

Place = tuple[int, int]
"""Partition and offset."""


class Fault(NamedTuple):
    """`pause_s` after the one before it, `count` of `names` suffer `kind` for `for_s`.

    The first ones that are not broken already.
    """

    pause_s: float
    kind: str
    names: tuple[str, ...]
    count: int
    for_s: float


def draw_faults(rng: random.Random, count: int) -> Iterator[Fault]:
    """The faults of a round."""
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


@dataclass(slots=True)
class Record:
    """What the users were told."""

    sent: dict[str, str] = field(default_factory=dict)
    """Key of each text that was sent."""
    acked: dict[str, Place] = field(default_factory=dict)
    """Where each acked text is; the offset is -1 when the broker no longer knew it."""
    failed: list[str] = field(default_factory=list)
    """Calls that failed, in words."""
    delivered: Counter[Place] = field(default_factory=Counter)
    consumed: set[Place] = field(default_factory=set)
    """Whose ack was durable."""
    texts: dict[Place, str] = field(default_factory=dict)
    """What was delivered at each place."""
    wrong: list[str] = field(default_factory=list)


class Publisher:
    """An idempotent producer that sends numbered texts under a few keys until told to stop."""

    def __init__(
        self,
        client: AsyncClient,
        record: Record,
        name: str,
        *,
        keys: int = 7,
        encoding: Literal["batch", "ndjson"] = "batch",
    ) -> None:
        self._client = client
        self._record = record
        self._name = name
        self._keys = keys
        self._encoding = encoding
        self.stopping = False

    async def run(self, rate: float) -> None:
        """Send about `rate` messages a second; return when all are answered."""
        producer = await self._client.producer(
            TOPIC,
            producer_id=self._name,
            encoding=self._encoding,
            batch_bytes=1_000,
            linger_ms=5,
            pending_bytes_max=100_000,
        )
        notes: list[asyncio.Task[None]] = []
        number = 0
        while not self.stopping:
            for _ in range(5):
                text, key = f"{self._name}-{number}", f"{self._name}-k{number % self._keys}"
                receipt = await producer.send(text, key=key)
                self._record.sent[text] = key
                notes.append(asyncio.create_task(self._note(receipt, text)))
                number += 1
            await asyncio.sleep(5 / rate)
        with contextlib.suppress(ClientError):  # each receipt says it too
            await producer.flush()
        await asyncio.gather(*notes)
        await producer.close()

    async def _note(self, receipt: Receipt, text: str) -> None:
        try:
            position = await receipt
        except ClientError as error:
            self._record.failed.append(f"{text}: {error}")
            return
        self._record.acked[text] = (position.partition, position.offset)


class Consumer:
    """A consumer of the shared subscription: receives, dawdles, acks some, lets some time out."""

    def __init__(self, subscription: Subscription, record: Record, rng: random.Random) -> None:
        self._subscription = subscription
        self._record = record
        self._rng = rng

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            done_before = frozenset(self._record.consumed)
            try:
                received = await self._subscription.receive(40, wait_s=0.5)
            except ClientError as error:
                self._record.failed.append(f"receive: {error}")
                continue
            for one in received:
                self._take(one, done_before)
            await asyncio.sleep(self._rng.uniform(0, 0.05))
            kept = [one for one in received if self._rng.random() > 0.03]
            if kept:
                await self._ack(kept)

    def _take(self, one: Delivery, done_before: frozenset[Place]) -> None:
        place = (one.partition, one.offset)
        self._record.delivered[place] += 1
        text = self._record.texts.setdefault(place, one.text())
        if text != one.text():
            self._record.wrong.append(f"{place} was delivered as {text!r} and as {one.text()!r}")
        if place in done_before:
            self._record.wrong.append(f"{place} was delivered after its ack was durable")

    async def _ack(self, kept: list[Delivery]) -> None:
        stale: set[str] = set()
        try:
            await self._subscription.ack(kept)
        except Conflict as error:
            # The leases of these ended (take-over, time); everything else took effect.
            stale = set(error.problem.get("stale", ()))
            if error.code != "stale-lease" or not stale:
                self._record.failed.append(f"ack: {error}")
                return
        except ClientError as error:
            self._record.failed.append(f"ack: {error}")
            return
        self._record.consumed |= {
            (one.partition, one.offset) for one in kept if one.ack_id not in stale
        }


class Follower:
    """The consumer of an exclusive subscription: takes each partition in order, acks up to."""

    def __init__(self, subscription: Subscription, partitions: int, record: Record) -> None:
        self._subscription = subscription
        self._record = record
        self.done = [0] * partitions
        """Per partition the offset before which all is acked, durably."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for partition in range(len(self.done)):
                try:
                    received = await self._subscription.receive(60, partition=partition)
                    self._take(partition, [one.offset for one in received])
                    if received:
                        await self._subscription.ack_up_to(received[-1])
                        self.done[partition] = received[-1].offset + 1
                except ClientError as error:
                    self._record.failed.append(f"following {partition}: {error}")
            await asyncio.sleep(0.02)

    def _take(self, partition: int, offsets: list[int]) -> None:
        """They must go on right behind what is acked, without a gap: nobody else takes any."""
        first = self.done[partition]
        if offsets and offsets != [*range(first, first + len(offsets))]:
            shown = f"{offsets[:3]} … {offsets[-1]}"
            self._record.wrong.append(f"following {partition}: after {first - 1} came {shown}")


class Breaker:
    """Breaks the members of a supervised cluster, and mends them."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._broken: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.log: list[str] = []

    async def run(self, faults: Iterator[Fault]) -> None:
        """One fault after another; they may overlap, but nobody suffers two at a time."""
        for fault in faults:
            await asyncio.sleep(fault.pause_s)
            names = [name for name in fault.names if name not in self._broken][: fault.count]
            shown = f"{fault.kind} {', '.join(names) or 'nobody'}, {fault.for_s:.2f} s"
            self.log.append(f"after {fault.pause_s:.2f} s {shown}")
            self._broken.update(names)
            number = signal.Signals[f"SIG{fault.kind}"]
            for name in names:  # all first: so that they are gone at the same moment
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


async def stored(urls: list[str], partitions: int) -> dict[Place, tuple[str, str]]:
    """Text and key of every message that the topic holds."""
    async with AsyncClient(urls) as client:
        return {
            (partition, message.offset): (message.text(), (message.key or b"").decode())
            for partition in range(partitions)
            async for message in client.messages(TOPIC, partition=partition)
        }


def problems(record: Record, found: dict[Place, tuple[str, str]], partitions: int) -> list[str]:
    """All ways in which the cluster broke its promises, in words; [] when it kept them."""
    wrong = [*record.wrong, *(f"call failed: {text}" for text in record.failed)]
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for place, (text, key) in found.items():
        places[text].append(place)
        if record.sent.get(text) != key:
            wrong.append(f"{place} holds {text!r} under key {key!r}, which nobody sent")
    for text, place in record.acked.items():
        if text not in places:
            wrong.append(f"lost: {text} was acked at {place}")
        elif place[1] >= 0 and places[text] != [place]:
            wrong.append(f"{text} was acked at {place} and is at {places[text]}")
    wrong += [f"stored twice: {text} at {at}" for text, at in places.items() if len(at) > 1]
    for partition in range(partitions):
        offsets = sorted(offset for number, offset in found if number == partition)
        if offsets != [*range(len(offsets))]:
            wrong.append(f"partition {partition} has holes in its offsets: {_holes(offsets)}")
    wrong += _out_of_order(found)
    wrong += [f"{place} was never delivered" for place in sorted(set(found) - set(record.texts))]
    for place, text in record.texts.items():
        if found.get(place, ("",))[0] != text:
            wrong.append(f"{place} was delivered as {text!r} and holds {found.get(place)}")
    return wrong


def _out_of_order(found: dict[Place, tuple[str, str]]) -> Iterator[str]:
    """Per key the numbers of its texts must ascend with the offsets."""
    latest: dict[str, tuple[int, Place]] = {}
    for place in sorted(found):
        text, key = found[place]
        number = int(text.rpartition("-")[2])
        before = latest.get(key)
        if before is not None and (before[0] >= number or before[1][0] != place[0]):
            yield f"key {key}: {text} at {place} comes after number {before[0]} at {before[1]}"
        latest[key] = (number, place)


def _holes(offsets: list[int]) -> list[int]:
    return sorted(set(range(offsets[-1] + 1)) - set(offsets))[:10]


def errors_in_logs(folder: Path) -> list[str]:
    """Log lines with a stack trace: mistakes in the program, whatever the faults were."""
    return [
        f"{path.name}: {line}"
        for path in sorted((folder / "logs").glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if not line.startswith("{") or "Traceback" in line
    ]


@dataclass(slots=True)
class Outcome:
    """What a round came to."""

    record: Record
    faults: list[str]
    wrong: list[str]


Trouble = Callable[[Breaker, Record], Awaitable[None]]
"""What happens while the users are at work; all is mended when it returns."""


def random_faults(rng: random.Random, count: int) -> Trouble:
    """`count` faults that `rng` draws."""

    async def trouble(breaker: Breaker, record: Record) -> None:
        await breaker.run(draw_faults(rng, count))

    return trouble


async def run_round(
    folder: Path, rng: random.Random, trouble: Trouble, metadata_url: str = ""
) -> Outcome:
    """One cluster, its users, trouble, and the audit after all is well again."""
    partitions = rng.randrange(2, 5)
    ensemble, write_quorum, ack_quorum = rng.choice(QUORUMS)
    plan = Plan(
        folder=folder,
        bookies=BOOKIES,
        brokers=BROKERS,
        port_base=0,
        metadata_url=metadata_url,
        session_timeout_ms=SESSION_MS,
        restart=False,
        sections={"bookie": SMALL_BOOKIE, "broker": SMALL_BROKER},
    )
    supervisor = Supervisor(plan)
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
                Consumer(client.subscription(TOPIC, SUBSCRIPTION), record, rng) for _ in range(2)
            ]
            exclusive = await client.subscribe(TOPIC, "follower", ack_timeout_s=1)
            follower = Follower(exclusive, partitions, record)
            async with asyncio.TaskGroup() as group:
                publishing = [group.create_task(one.run(rate=150)) for one in publishers]
                consuming = [group.create_task(one.run()) for one in (*consumers, follower)]
                await trouble(breaker, record)
                for one in publishers:
                    one.stopping = True
                async with asyncio.timeout(SETTLE_S):
                    await asyncio.gather(*publishing)
                found = await stored(urls, partitions)
                loop = asyncio.get_running_loop()
                deadline = loop.time() + SETTLE_S
                ends = [sum(number == n for number, _ in found) for n in range(partitions)]
                while loop.time() < deadline:
                    if record.consumed == set(found) and follower.done == ends:
                        break
                    await asyncio.sleep(0.1)
                for task in consuming:
                    task.cancel()
        wrong = problems(record, found, partitions)
        if record.consumed != set(found):
            left = sorted(set(found) - record.consumed)
            wrong.append(f"{len(left)} messages not acked in time, for example {left[:5]}")
        if follower.done != ends:
            wrong.append(f"the follower came to {follower.done}, not to {ends}")
        for member in supervisor.cluster.members:  # and once more from what is on the disks
            supervisor.signal(member.name, signal.SIGKILL)
        await _until_dead(supervisor)
        await asyncio.gather(*(supervisor.resume(one.name) for one in supervisor.cluster.members))
        again = await stored(urls, partitions)
        if again != found:
            wrong.append(f"after kill -9 of everything {len(again)} of {len(found)} are there")
        wrong += errors_in_logs(folder)
    except BaseException as error:
        error.add_note("faults so far:\n  " + "\n  ".join(breaker.log))
        raise
    finally:
        await supervisor.stop()
    return Outcome(record, breaker.log, wrong)


async def _until_dead(supervisor: Supervisor) -> None:
    async with asyncio.timeout(30):
        while any(member.state != "dead" for member in supervisor.cluster.members):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
