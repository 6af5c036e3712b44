"""Two consumers share the aircraft of a topic, and their broker is killed.

The subscription is `key_shared`: each aircraft belongs to one consumer, in order. The owner of a
partition is killed meanwhile; unacked messages are delivered again, still in order.
"""

from __future__ import annotations

import asyncio
import signal

from octavo.client.client import AsyncClient
from octavo.client.errors import Conflict
from octavo.client.subscription import Subscription
from octavo.examples.flights import Flights
from octavo.examples.screen import Screen
from octavo.standalone.supervisor import Supervisor

TOPIC = "public/turnarounds"
SUBSCRIPTION = "ground-crew"
PARTITIONS = 2
CREWS = ("crew-east", "crew-west")
FLIGHTS_MAX = 2_000
RECEIVE_MAX = 20
"""Large enough that many messages are leased when the broker dies."""
TIMEOUT_S = 40.0


class Work:
    def __init__(self) -> None:
        self._first: dict[str, list[int]] = {}
        """By aircraft: its flights, in the order of their first deliveries."""
        self._seen: dict[int, int] = {}
        self._crews: dict[str, set[str]] = {}
        self._flights_of: dict[str, set[int]] = {}

    def see(self, crew: str, aircraft: str, row: int) -> None:
        if row not in self._seen:
            self._first.setdefault(aircraft, []).append(row)
        self._seen[row] = self._seen.get(row, 0) + 1
        self._crews.setdefault(aircraft, set()).add(crew)
        self._flights_of.setdefault(crew, set()).add(row)

    @property
    def found(self) -> int:
        return len(self._seen)

    @property
    def again(self) -> int:
        return sum(self._seen.values()) - len(self._seen)

    @property
    def unordered(self) -> list[str]:
        return [name for name, rows in self._first.items() if rows != sorted(rows)]

    @property
    def of_both(self) -> int:
        return sum(len(crews) > 1 for crews in self._crews.values())

    def table(self) -> list[tuple[str, int, int]]:
        return [
            (
                crew,
                sum(crew in crews for crews in self._crews.values()),
                len(self._flights_of.get(crew, ())),
            )
            for crew in CREWS
        ]


class Sharing:
    def __init__(
        self, screen: Screen, supervisor: Supervisor, client: AsyncClient, flights: Flights
    ) -> None:
        self._screen = screen
        self._supervisor = supervisor
        self._client = client
        self._flights = flights
        self._rows = [row for row in range(len(flights)) if flights.key(row)][:FLIGHTS_MAX]
        self._work = Work()

    async def run(self) -> None:
        self._screen.headline("Two consumers share the aircraft; the broker that serves them dies")
        await self._client.create_topic(TOPIC, partitions=PARTITIONS)
        crews = [
            await self._client.subscribe(TOPIC, SUBSCRIPTION, type="key_shared", consumer=name)
            for name in CREWS
        ]
        for partition in range(PARTITIONS):
            for crew in crews:  # the broker must know both before there are messages
                await crew.receive(1, partition=partition)
        half = len(self._rows) // 2
        await self._publish(self._rows[:half])
        working = [
            asyncio.create_task(self._at_work(crew, partition))
            for crew in crews
            for partition in range(PARTITIONS)
        ]
        try:
            await self._until_seen(half // 3)
            before = self._work.of_both
            await self._kill_owner()
            await self._publish(self._rows[half:])
            await self._until_seen(len(self._rows))
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        self._judge(before)

    async def _publish(self, rows: list[int]) -> None:
        for at in range(0, len(rows), RECEIVE_MAX):
            burst = rows[at : at + RECEIVE_MAX]
            await self._client.publish_many(
                TOPIC, [(self._flights.key(row), self._flights.value(row)) for row in burst]
            )

    async def _at_work(self, crew: Subscription, partition: int) -> None:
        """Receive and ack. The next owner does not know leases of the killed broker."""
        while True:
            received = await crew.receive(RECEIVE_MAX, wait_s=1.0, partition=partition)
            for one in received:
                self._work.see(crew.consumer, (one.key or b"").decode(), one.json()["row"])
            await asyncio.sleep(0.02)  # simulates the work
            try:
                await crew.ack(received)
            except Conflict:
                continue  # the messages are delivered again

    async def _until_seen(self, wanted: int) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + TIMEOUT_S
        while self._work.found < wanted and loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _kill_owner(self) -> None:
        url = self._client.transport.owner((TOPIC, 0))
        brokers = [one for one in self._supervisor.cluster.of_kind("broker") if one.state != "dead"]
        owner = next((one for one in brokers if one.address == url), brokers[0])
        seen = self._work.found
        self._screen.event(
            "demo",
            f"kill -9 {owner.name}, which serves the crews, {seen:,} flights seen",
            "bold red",
        )
        self._supervisor.signal(owner.name, signal.SIGKILL)

    def _judge(self, of_both_before: int) -> None:
        work, screen = self._work, self._screen
        screen.check(of_both_before == 0, "while nothing had died, no aircraft changed its crew")
        screen.check(
            work.found == len(self._rows),
            f"all {len(self._rows):,} flights came, {work.again:,} of them again after the kill",
        )
        unordered = work.unordered
        screen.check(
            not unordered, f"each aircraft's flights came in order {' '.join(unordered[:5])}"
        )
        screen.table("Shared by key", ("consumer", "aircraft", "flights"), work.table())
