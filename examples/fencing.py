"""`octavo demo fencing`: shows that two brokers that both believe to own a topic cannot both write.

A partition's owner is paused (SIGSTOP) for longer than its session lasts, in the middle of a
publish. The other broker takes over the partition, by the six steps of ledger recovery. Then the
old owner is resumed (SIGCONT). It does not know about the take-over and writes, and the bookies
refuse its adds.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.broker.http.broker_calls import KEY_USE, BrokerProof
from octavo.client.client import AsyncClient
from octavo.client.transport import BATCH_TYPE
from octavo.clock import wall_clock_ms
from octavo.examples.following import LogEvent, LogFollower
from octavo.examples.screen import Screen
from octavo.ledger.client import LedgerClient
from octavo.log_messages import in_words, recovery_step_in_words
from octavo.logs import configure_logging
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import ANONYMOUS
from octavo.standalone.cluster_file import Member
from octavo.standalone.supervisor import Plan, Supervisor

TOPIC = "public/accounts"
BEFORE, AFTER = 50, 10
ROUNDS_MAX = 4
SESSION_TIMEOUT_MS = 2_000
EVENT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
IN_FLIGHT = b"written by a broker that does not know that its time is over"
IN_FLIGHT_BATCH = build_batch([Record(None, IN_FLIGHT)])
CALLER = "fencing-demo"
"""The demo calls as a broker, because a broker does not forward another broker's call."""


async def run_fencing(folder: Path) -> int:
    """Run the demo; return the exit code, 0 if every check passed."""
    configure_logging(service="demo", form="console", level="error")
    with Screen() as screen:
        screen.headline("Fencing: a stopped owner, a take-over, and a broker that wakes too late")
        supervisor = Supervisor(
            Plan(
                folder=folder,
                port_base=0,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                restart=False,
                log_level="debug",
            )
        )
        await supervisor.start()
        store = open_store(supervisor.cluster.metadata_url)
        follower = LogFollower(folder / "logs")
        following = asyncio.create_task(follower.run())
        try:
            await store.start()
            proof = BrokerProof((await cluster_secret(store)).key(KEY_USE), secrets.token_hex(8))
            client = AsyncClient(supervisor.cluster.urls)
            await Fencing(screen, supervisor, follower, client, store, proof).run()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await store.close()
            await supervisor.stop()
        failed = screen.checks_failed
        screen.headline("all checks passed" if not failed else f"{failed} checks FAILED")
        return 1 if failed else 0


@dataclass(slots=True)
class Scene:
    """The roles of the brokers."""

    old: Member
    new: Member
    ledger_id: int
    acked: list[str]


class Fencing:
    """A run of the demo; `run` calls the acts in their order."""

    def __init__(
        self,
        screen: Screen,
        supervisor: Supervisor,
        follower: LogFollower,
        client: AsyncClient,
        store: MetadataStore,
        proof: BrokerProof,
    ) -> None:
        self.screen = screen
        self.supervisor = supervisor
        self.follower = follower
        self.client = client
        self._proof = proof
        self._stopped_at = 0
        self.ledgers = LedgerClient(store, rng=random.SystemRandom(), clock=wall_clock_ms)

    async def run(self) -> None:
        """Play the whole story."""
        await self.ledgers.start()
        try:
            scene = await self._an_owner_writes()
            for _ in range(ROUNDS_MAX):
                in_flight = await self._the_owner_stops(scene)
                recovered = await self._another_takes_over(scene)
                if await self._the_owner_wakes(scene, in_flight):
                    break
                scene = await self._once_more(scene)
            else:
                self.screen.check(False, f"fenced in one of {ROUNDS_MAX} rounds")
            await self._what_is_left(scene, recovered)
        finally:
            await self.client.close()
            await self.ledgers.close()

    # ---- act 1

    async def _an_owner_writes(self) -> Scene:
        screen = self.screen
        screen.headline("1. One broker owns the partition and writes its ledger")
        await self.client.create_topic(
            TOPIC, partitions=1, ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        acked = [f"payment {n}" for n in range(BEFORE)]
        for text in acked:
            await self.client.publish(TOPIC, text)  # one after the other, so each is an entry
        url = self.client.transport.owner((TOPIC, 0))
        brokers = self.supervisor.cluster.of_kind("broker")
        old = next(one for one in brokers if one.address == url)
        new = next(one for one in brokers if one.address != url)
        ledger_id = await self._newest_ledger()
        metadata = await self.ledgers.metadata(ledger_id)
        screen.event(old.name, f"owns {TOPIC} and has {BEFORE} messages acked, an entry each")
        self._show_record(metadata)
        screen.check(metadata.state is LedgerState.OPEN, f"ledger {ledger_id} is OPEN")
        return Scene(old, new, ledger_id, acked)

    # ---- act 2

    async def _the_owner_stops(self, scene: Scene) -> InFlight:
        screen = self.screen
        screen.headline(f"2. {scene.old.name} stops in the middle of a publish (SIGSTOP)")
        screen.note(
            "It is not dead: its sockets are open, its memory says 'I am the owner'. This is what\n"
            "a long garbage collection or a frozen virtual machine looks like from outside."
        )
        in_flight = await InFlight.begin(scene.old, self._proof)
        async with AsyncClient(scene.old.address) as witness:
            for _ in range(2):
                await witness.brokers()  # its answer shows that it has read the publish's begin
        self._stopped_at = len(self.follower.events)
        self.supervisor.signal(scene.old.name, signal.SIGSTOP)
        screen.event("demo", f"SIGSTOP {scene.old.name} (pid {scene.old.pid})", "bold red")
        await in_flight.finish()
        screen.event("demo", "the publish is completely in its socket now; nobody reads it yet")
        return in_flight

    # ---- act 3

    async def _another_takes_over(self, scene: Scene) -> LedgerMetadata:
        screen = self.screen
        new = scene.new.name
        screen.headline(f"3. Its session ends after {SESSION_TIMEOUT_MS} ms; {new} takes over")
        screen.note(
            f"{new} may not just open a new ledger: the old owner might still get entries acked\n"
            f"into ledger {scene.ledger_id}, behind its back. It first closes that ledger, for\n"
            "all, at one last entry. Six steps:"
        )
        self.follower.listeners.append(lambda event: self._show_step(event, scene))
        taken = await self.follower.wait_for(
            lambda event: event.event == "partition_taken_over" and event.node == new,
            EVENT_TIMEOUT_S,
            since=self._stopped_at,
        )
        self.follower.listeners.clear()
        screen.check(taken is not None, f"{new} took the partition over")
        steps = self._steps(scene)
        self._check_steps(steps)
        recovered = await self.ledgers.metadata(scene.ledger_id)
        self._show_record(recovered)
        screen.check(
            recovered.state is LedgerState.CLOSED and recovered.last_entry >= 0,
            f"ledger {scene.ledger_id} is CLOSED at entry {recovered.last_entry}",
        )
        await self.client.close()
        self.client = AsyncClient(scene.new.address)  # the paused broker does not answer
        for number in range(len(scene.acked), len(scene.acked) + AFTER):
            await self.client.publish(TOPIC, f"payment {number}")
            scene.acked.append(f"payment {number}")
        newest = await self._newest_ledger()
        screen.event(new, f"{AFTER} more messages acked, into ledger {newest}")
        screen.check(newest != scene.ledger_id, f"the new owner writes ledger {newest}")
        return recovered

    def _steps(self, scene: Scene) -> list[LogEvent]:
        return [
            event
            for event in self.follower.events
            if event.event == "recovery_step"
            and event.node == scene.new.name
            and event.fields.get("ledger") == scene.ledger_id
        ]

    def _check_steps(self, steps: list[LogEvent]) -> None:
        screen = self.screen
        states = [str(one.fields["state"]) for one in steps if "state" in one.fields]
        path = " -> ".join(dict.fromkeys(states))
        screen.check(path == "OPEN -> IN_RECOVERY -> CLOSED", f"the record went {path}")
        numbers = {one.fields["step"] for one in steps}
        screen.check({1, 2, 3, 4, 6} <= numbers, "the steps are all in the new owner's log")
        fenced = [one for one in steps if one.fields["what"] == "FenceAnswered"]
        screen.check(
            len(fenced) >= 2, f"{len(fenced)} of 3 bookies answered the fence (2 would do: Qw-Qa+1)"
        )
        back = [one for one in steps if one.fields["what"] == "WrittenBack"]
        if back:
            first, last = back[0].fields["first_entry"], back[-1].fields["last_entry"]
            entries = f"Entry {last} was" if first == last else f"Entries {first} to {last} were"
            screen.note(
                f"{entries} found, though no bookie knew this to be confirmed: it may have\n"
                "been acked, so it was written back and belongs to the ledger now."
            )

    def _show_step(self, event: LogEvent, scene: Scene) -> None:
        if event.event == "recovery_step":
            found = event.fields
            if found.get("ledger") != scene.ledger_id or event.node != scene.new.name:
                return
            if found["what"] == "EntryAnswered" and found["answer"] == "absent":
                return
            self.screen.event(event.node, recovery_step_in_words(found))
        elif event.event == "partition_taken_over" and event.node == scene.new.name:
            self._show_event(event)

    def _show_event(self, event: LogEvent) -> None:
        said = in_words(event.event, event.fields)
        if said is not None:
            self.screen.event(event.node, said[1], said[0])

    # ---- act 4

    async def _the_owner_wakes(self, scene: Scene, in_flight: InFlight) -> bool:
        """Whether it ran into the fence. It may also have noticed its lost session first."""
        screen = self.screen
        old = scene.old.name
        screen.headline(f"4. {old} wakes up (SIGCONT) and finishes the publish it had begun")
        screen.note(
            "It has heard of nothing. It adds the message to its ledger as the next entry and\n"
            "sends it to the three bookies. They know better."
        )
        since = len(self.follower.events)
        self.supervisor.signal(old, signal.SIGCONT)
        screen.event("demo", f"SIGCONT {old}", "bold green")
        status, problem = await in_flight.answer()
        code = problem.get("code", "")
        screen.event(old, f"answers the publish: {status} {code}: {problem.get('detail', '')}")
        screen.check(status >= 400, f"the publish was not acked (status {status}, {code})")
        if code == "not-owner":
            screen.note(
                "This time it looked at its session before it wrote, so nothing reached the\n"
                "bookies. That is luck, and safety must not rest on it: once more."
            )
            return False
        fenced = await self.follower.wait_for(
            lambda event: event.event == "ledger_fenced" and event.node == old,
            EVENT_TIMEOUT_S,
            since=since,
        )
        if fenced is not None:
            self._show_event(fenced)
        screen.check(fenced is not None, "the bookies answered its add: FENCED")
        status, _ = await (await InFlight.begin(scene.old, self._proof)).finished()
        screen.check(status >= 300, f"another publish at {old} is not acked either ({status})")
        return True

    async def _once_more(self, scene: Scene) -> Scene:
        """Swap the roles: the new owner is paused next."""
        return Scene(scene.new, scene.old, await self._newest_ledger(), scene.acked)

    # ---- act 5

    async def _what_is_left(self, scene: Scene, recovered: LedgerMetadata) -> None:
        screen = self.screen
        screen.headline("5. What is left")
        found = [message.text() async for message in self.client.messages(TOPIC)]
        screen.check(found == scene.acked, f"all {len(scene.acked)} acked messages, once, in order")
        screen.check(
            IN_FLIGHT.decode() not in found, "nothing of the publish that was refused is there"
        )
        now = await self.ledgers.metadata(scene.ledger_id)
        screen.check(
            now == recovered,
            f"ledger {scene.ledger_id} is what it was at its close: last entry {now.last_entry}",
        )
        position = await self.client.publish(TOPIC, "and it goes on")
        screen.check(
            position.offset == len(scene.acked), f"the next message got offset {position.offset}"
        )

    # ---- helpers

    async def _newest_ledger(self) -> int:
        topic = await self.client.topic(TOPIC)
        ledgers = topic.stats["partitions"][0]["ledgers"]
        return int(ledgers[-1]["id"])

    def _show_record(self, found: LedgerMetadata) -> None:
        closed = found.state is LedgerState.CLOSED
        self.screen.table(
            f"Metadata of ledger {found.ledger_id}",
            ("state", "E/Qw/Qa", "last entry", "bookies"),
            [
                (
                    found.state.name,
                    f"{found.ensemble_size}/{found.write_quorum}/{found.ack_quorum}",
                    str(found.last_entry) if closed else "not known yet",
                    ", ".join(found.fragments[-1].bookies),
                )
            ],
        )


class InFlight:
    """A publish on its own socket, of which half is sent when the broker is paused."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls, broker: Member, proof: BrokerProof) -> InFlight:
        """Connect; send the head and half of the body."""
        host, _, port = broker.address.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = f"/v1/topics/{TOPIC}/partitions/0/messages"
        not_passed_on: dict[str, str] = {}
        proof.enter(not_passed_on, CALLER, broker.name, "POST", path, ANONYMOUS)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: {BATCH_TYPE}\r\nContent-Length: {len(IN_FLIGHT_BATCH)}\r\n"
            + "".join(f"{name}: {text}\r\n" for name, text in not_passed_on.items())
            + "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + IN_FLIGHT_BATCH[:10])
        await writer.drain()
        return cls(reader, writer)

    async def finish(self) -> None:
        """Send the rest; the kernel accepts it even while the broker is paused."""
        self._writer.write(IN_FLIGHT_BATCH[10:])
        await self._writer.drain()

    async def finished(self) -> tuple[int, dict[str, Any]]:
        """Send the rest and wait for the answer."""
        await self.finish()
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Return status and problem; status 599 if the connection ended without an answer."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                data = await self._reader.read()
        except (TimeoutError, OSError):
            data = b""
        self._writer.close()
        head, _, body = data.partition(b"\r\n\r\n")
        words = head.split(b" ", 2)
        if len(words) < 2:
            return 599, {"code": "no-answer", "detail": "the connection ended without an answer"}
        try:
            problem = json.loads(body)
        except ValueError:
            problem = {}
        return int(words[1]), problem if isinstance(problem, dict) else {}
