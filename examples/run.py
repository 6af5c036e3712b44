"""`octavo demo`: every flight of 2013 through a cluster that loses a bookie and a broker.

Two producers (NDJSON, record batches) publish to four partitions. Meanwhile a bookie is killed
(there is no spare), a fourth joins, and a partition's owner is killed. All messages are consumed
and compared with the source. At the end the topic is forked, and two consumers share keys
(`sharing`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.client.client import AsyncClient
from octavo.client.producer import Producer
from octavo.client.subscription import Subscription
from octavo.client.types import Delivery
from octavo.examples.checking import FlightCheck, Verdict
from octavo.examples.flights import Flights, load_flights
from octavo.examples.following import LogEvent, LogFollower
from octavo.examples.screen import Screen
from octavo.examples.sharing import Sharing
from octavo.log_messages import in_words
from octavo.logs import configure_logging
from octavo.standalone.supervisor import Plan, Supervisor

TOPIC = "public/flights"
PARTITIONS = 4
SUBSCRIPTION = "accounting"
BOOKIE_TO_KILL = "bookie-2"
SESSION_TIMEOUT_MS = 3_000
EVENT_TIMEOUT_S = 40.0
CONSUME_TIMEOUT_S = 20.0
"""After this long without a message, missing messages count as lost."""
RECEIVE_MAX = 2_000
SEND_BURST_MAX = 200
FORMS = ("NDJSON", "record batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    folder: Path
    rows: int | None = None
    kill: bool = True


class Gates:
    """Points at which publishing waits for the next event, so that no event comes too late."""

    def __init__(self, total: int) -> None:
        self._gates = [(int(total * share), asyncio.Event()) for share in (0.25, 0.50, 0.75)]

    def open(self, number: int) -> None:
        self._gates[number][1].set()

    def open_all(self) -> None:
        for _, event in self._gates:
            event.set()

    async def pass_at(self, sent: int) -> None:
        for at, event in self._gates:
            if sent >= at:
                await event.wait()


async def run_demo(options: DemoOptions) -> int:
    configure_logging(service="demo", form="console", level="error")
    with Screen() as screen:
        screen.headline("Octavo: 336,776 flights, three copies, three kills")
        supervisor = Supervisor(
            Plan(
                folder=options.folder,
                port_base=0,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                restart=False,
            )
        )
        loading = asyncio.create_task(asyncio.to_thread(load_flights, options.rows))
        try:
            await supervisor.start()
        except BaseException:
            loading.cancel()
            raise
        follower = LogFollower(options.folder / "logs")
        follower.listeners.append(Narrator(screen))
        following = asyncio.create_task(follower.run())
        try:
            async with AsyncClient(supervisor.cluster.urls) as client:
                await Demo(screen, supervisor, follower, client, await loading).run(options.kill)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await supervisor.stop()
        failed = screen.checks_failed
        screen.headline("all checks passed" if not failed else f"{failed} checks FAILED")
        return 1 if failed else 0


class Narrator:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._told: set[tuple[str, str]] = set()

    def __call__(self, event: LogEvent) -> None:
        said = in_words(event.event, event.fields)
        if said is None:
            return
        style, text = said
        if event.event == "ensemble_change_delayed":
            if (event.node, text) in self._told:
                return
            self._told.add((event.node, text))
        self._screen.event(event.node, text, style)


class Demo:
    def __init__(
        self,
        screen: Screen,
        supervisor: Supervisor,
        follower: LogFollower,
        client: AsyncClient,
        flights: Flights,
    ) -> None:
        self.screen = screen
        self.supervisor = supervisor
        self.follower = follower
        self.client = client
        self.flights = flights
        self._producers: list[Producer] = []
        self._sent = 0

    async def run(self, kill: bool) -> None:
        cluster = self.supervisor.cluster
        for member in cluster.members:
            self.screen.event(member.name, f"ready at {member.address}, pid {member.pid}")
        topic = await self.client.create_topic(
            TOPIC, partitions=PARTITIONS, ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        self.screen.event("topic", f"{topic.name}: {PARTITIONS} partitions, E=3 Qw=3 Qa=2")
        publish_rate = await self._publish(kill)
        verdict, consume_rate = await self._consume()
        if kill:
            await self._bring_back()
        await self._fork()
        if kill:
            await Sharing(self.screen, self.supervisor, self.client, self.flights).run()
        self._judge(verdict, publish_rate, consume_rate)

    async def _publish(self, kill: bool) -> float:
        total = len(self.flights)
        self.screen.headline(
            f"Publish {total:,} flights, keyed by aircraft: half NDJSON, half record batches"
        )
        ndjson = await self.client.producer(TOPIC, producer_id="flights-ndjson", encoding="ndjson")
        batch = await self.client.producer(TOPIC, producer_id="flights-batch")
        self._producers = [ndjson, batch]
        gates = Gates(total)
        self.screen.begin("publish", total)
        showing = asyncio.create_task(self._show_progress())
        story = asyncio.create_task(self._story(gates) if kill else _open(gates))
        try:
            await self._send_all(ndjson, batch, gates)
            await asyncio.gather(*(producer.flush() for producer in self._producers))
            await story
        finally:
            for task in (story, showing):
                task.cancel()
            await asyncio.gather(story, showing, return_exceptions=True)
        self.screen.progress(self._stored)
        return self.screen.end()

    @property
    def _stored(self) -> int:
        return sum(producer.stored_count for producer in self._producers)

    async def _send_all(self, ndjson: Producer, batch: Producer, gates: Gates) -> None:
        """Send every row once, in order; all rows of an aircraft use the same producer."""
        flights = self.flights
        burst = min(SEND_BURST_MAX, max(1, len(flights) // 50))
        for row in range(len(flights)):
            key = flights.key(row)
            producer = ndjson if _by_ndjson(key, row) else batch
            if not producer.has_room:
                await producer.until_room()
            producer.send_nowait(
                flights.value(row), key=key, timestamp_ms=flights.timestamp_ms(row)
            )
            self._sent = row + 1
            if row % burst == 0:
                await asyncio.sleep(0)  # let the loop handle answers
                await gates.pass_at(row)

    async def _show_progress(self) -> None:
        while True:
            self.screen.progress(self._stored)
            await asyncio.sleep(0.25)

    async def _story(self, gates: Gates) -> None:
        try:
            await self._until_sent(0.10)
            await self._kill_bookie(gates)
            await self._until_sent(0.40)
            await self._add_bookie(gates)
            await self._until_sent(0.65)
            await self._kill_owner(gates)
        finally:
            gates.open_all()

    async def _kill_bookie(self, gates: Gates) -> None:
        since = len(self.follower.events)
        self.screen.event("demo", f"kill -9 {BOOKIE_TO_KILL}", "bold red")
        self.supervisor.signal(BOOKIE_TO_KILL, signal.SIGKILL)
        gates.open(0)
        await self._expect(
            "ensemble_change_delayed",
            "the writers noticed, found no spare bookie, and went on with the ack quorum",
            since,
        )

    async def _add_bookie(self, gates: Gates) -> None:
        since = len(self.follower.events)
        member = await self.supervisor.add_bookie()
        self.screen.event("demo", f"{member.name} joins at {member.address}", "bold green")
        gates.open(1)
        await self._expect(
            "ensemble_changed", f"{member.name} took the dead bookie's place in open ledgers", since
        )

    async def _kill_owner(self, gates: Gates) -> None:
        since = len(self.follower.events)
        url = self.client.transport.owner((TOPIC, 0))
        brokers = self.supervisor.cluster.of_kind("broker")
        owner = next((one for one in brokers if one.address == url), brokers[0])
        self.screen.event("demo", f"kill -9 {owner.name}, owner of partition 0", "bold red")
        self.supervisor.signal(owner.name, signal.SIGKILL)
        gates.open(2)
        await self._expect(
            "partition_taken_over",
            f"the other broker recovered {owner.name}'s ledgers and serves its partitions",
            since,
            lambda event: event.node != owner.name,
        )

    async def _expect(
        self,
        name: str,
        meaning: str,
        since: int,
        wanted: Callable[[LogEvent], bool] = lambda _: True,
    ) -> None:
        found = await self.follower.wait_for(
            lambda event: event.event == name and wanted(event), EVENT_TIMEOUT_S, since=since
        )
        self.screen.check(found is not None, f"{name}: {meaning}")

    async def _until_sent(self, share: float) -> None:
        while self._stored < len(self.flights) * share:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _consume(self) -> tuple[Verdict, float]:
        total = len(self.flights)
        self.screen.headline(f"Consume through the subscription {SUBSCRIPTION!r} and compare")
        check = FlightCheck(self.flights)
        consumer = await self.client.subscribe(TOPIC, SUBSCRIPTION, ack_timeout_s=60)
        self.screen.begin("consume", total)
        await asyncio.gather(
            *(self._consume_partition(consumer, check, number) for number in range(PARTITIONS))
        )
        self._see(check, await consumer.receive(RECEIVE_MAX))  # must be empty
        self.screen.progress(check.found)
        return check.verdict(), self.screen.end()

    async def _consume_partition(
        self, consumer: Subscription, check: FlightCheck, number: int
    ) -> None:
        """Receive, compare, acknowledge, until all rows are found or no more messages come."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONSUME_TIMEOUT_S
        acking: asyncio.Task[None] | None = None
        while check.found < len(self.flights) and loop.time() < deadline:
            received = await consumer.receive(RECEIVE_MAX, wait_s=1.0, partition=number)
            self._see(check, received)
            if acking is not None:
                await acking
                acking = None
            if received:
                acking = asyncio.create_task(consumer.ack(received))
                deadline = loop.time() + CONSUME_TIMEOUT_S
            self.screen.progress(check.found)
        if acking is not None:
            await acking

    def _see(self, check: FlightCheck, received: list[Delivery]) -> None:
        for one in received:
            check.see(one.partition, one.offset, one.key, one.json())

    async def _bring_back(self) -> None:
        self.screen.headline("Start the killed processes again")
        dead = [one for one in self.supervisor.cluster.members if one.state == "dead"]
        for member in dead:
            await self.supervisor.resume(member.name)
            self.screen.event(member.name, "is back", "bold green")
        ids = {str(one["id"]) for one in await self.client.bookies()}
        self.screen.check(BOOKIE_TO_KILL in ids, f"{len(ids)} bookies are up: {sorted(ids)}")

    async def _fork(self) -> None:
        self.screen.headline("Fork the topic in the middle of each partition")
        ends = {n: await self.client.offset(TOPIC, partition=n) for n in range(PARTITIONS)}
        middle = {number: end // 2 for number, end in ends.items()}
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        fork = await self.client.fork_topic(TOPIC, "flights-half", at=middle)
        took_ms = (loop.time() - began_s) * 1000
        name = str(fork.name)
        self.screen.event("fork", f"{name} at {middle}, in {took_ms:.0f} ms, no data copied")
        forked = {n: await self.client.offset(name, partition=n) for n in range(PARTITIONS)}
        self.screen.check(forked == middle, "each partition of the fork ends where it was forked")
        alike = [await self._last_alike(name, n, end - 1) for n, end in middle.items() if end]
        self.screen.check(all(alike), "its last messages are the topic's at the same offsets")
        at = await self.client.publish(name, {"flight": "of the fork"}, partition=0)
        self.screen.check(at.offset == middle[0], "a message published into the fork follows them")
        await self.client.delete_topic(name)
        whole = {n: await self.client.offset(TOPIC, partition=n) for n in range(PARTITIONS)}
        self.screen.check(whole == ends, "the fork is deleted, and the topic as it was")

    async def _last_alike(self, fork: str, number: int, offset: int) -> bool:
        mine, theirs = [
            (await self.client.read(one, partition=number, start=offset, limit=1))[0]
            for one in (fork, TOPIC)
        ]
        return (mine.offset, mine.key, mine.value) == (offset, theirs.key, theirs.value)

    def _judge(self, found: Verdict, publish_rate: float, consume_rate: float) -> None:
        screen = self.screen
        screen.headline("Every row against the source")
        screen.check(not found.lost, f"none lost{_examples(found.lost)}")
        screen.check(not found.doubled, f"none stored twice{_examples(found.doubled)}")
        screen.check(not found.altered, f"every column as in the source{_examples(found.altered)}")
        screen.check(
            not found.misplaced, f"an aircraft stays in its partition{_examples(found.misplaced)}"
        )
        screen.check(not found.unordered, f"order kept per aircraft{_examples(found.unordered)}")
        screen.check(not found.gaps, f"offsets without gaps {' '.join(found.gaps)}")
        screen.table(
            "Summary",
            ("what", "figure"),
            [
                ("flights in the source", found.expected),
                ("different flights found", found.found),
                ("aircraft", found.keys),
                *(
                    (f"published as {form}", producer.stored_count)
                    for form, producer in zip(FORMS, self._producers, strict=True)
                ),
                ("delivered more than once", found.redelivered),
                ("published", f"{publish_rate:,.0f}/s, three copies, kills included"),
                ("consumed and acknowledged", f"{consume_rate:,.0f}/s"),
                ("whole demonstration", f"{screen.elapsed_s:.1f} s"),
            ],
        )


def _by_ndjson(key: str | None, row: int) -> bool:
    return bool(sum(key.encode()) & 1) if key else bool(row & 1)


async def _open(gates: Gates) -> None:
    gates.open_all()


def _examples(rows: list[int]) -> str:
    if not rows:
        return ""
    shown = ", ".join(map(str, rows[:5]))
    return f": {len(rows):,} rows, for example {shown}"
