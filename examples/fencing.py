"""`octavo demo fencing`: two brokers that both believe to own a topic cannot both write.

A partition's owner is paused (SIGSTOP) for longer than its session, with a publish of another
broker in its socket. The other broker takes over. Then the old owner is resumed (SIGCONT) and
writes, and the bookies refuse its adds.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path

from octavo.broker.http.broker_connections import new_remote
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.services import node_identity
from octavo.broker.operations.kinds import OperationOutcomeUnknown, Read, Refused
from octavo.broker.operations.remote import Remote
from octavo.broker.operations.upgrade import KEY_USE
from octavo.broker.types import Owner, TopicName
from octavo.client.client import AsyncClient
from octavo.clock import wall_clock_ms
from octavo.examples.following import LogEvent, LogFollower
from octavo.examples.screen import Screen
from octavo.ledger.client import LedgerClient
from octavo.log_messages import in_words, recovery_step_in_words
from octavo.logs import configure_logging
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore, SessionExpired
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import ANONYMOUS
from octavo.standalone.cluster_file import Member
from octavo.standalone.supervisor import Plan, Supervisor

TOPIC = "public/accounts"
BEFORE, AFTER = 50, 10
ROUNDS_MAX = 4
SESSION_TIMEOUT_MS = 2_000
EVENT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_MS = 60_000
IN_FLIGHT = b"written by a broker that does not know that its time is over"
IN_FLIGHT_BATCH = build_batch([Record(None, IN_FLIGHT)])
PARTITION = TopicName(*TOPIC.split("/")).partition(0)
CALLER = "fencing-demo"
"""As a third broker: an owner does not forward that, but stores or refuses the message."""


async def run_fencing(folder: Path) -> int:
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
        remote: Remote | None = None
        try:
            await store.start()
            key = (await cluster_secret(store)).key(KEY_USE)
            remote = new_remote(
                node_identity(CALLER), CALLER, HttpConfig(peer_answer_timeout_ms=ANSWER_TIMEOUT_MS),
                key, lambda: secrets.token_hex(16), None, lambda: None,
            )  # fmt: skip
            client = AsyncClient(supervisor.cluster.urls)
            await Fencing(screen, supervisor, follower, client, store, remote).run()
        except SessionExpired as error:
            screen.check(
                False,
                f"this demo kept its own metadata session ({error}): the machine is too busy, so "
                "run the demo again",
            )
        finally:
            if remote is not None:
                await remote.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await store.close()
            await supervisor.stop()
        failed = screen.checks_failed
        screen.headline("all checks passed" if not failed else f"{failed} checks FAILED")
        return 1 if failed else 0


@dataclass(slots=True)
class Scene:
    old: Member
    new: Member
    ledger_id: int
    acked: list[str]


class Fencing:
    def __init__(
        self,
        screen: Screen,
        supervisor: Supervisor,
        follower: LogFollower,
        client: AsyncClient,
        store: MetadataStore,
        remote: Remote,
    ) -> None:
        self.screen = screen
        self.supervisor = supervisor
        self.follower = follower
        self.client = client
        self._remote = remote
        self._stopped_at = 0
        self.ledgers = LedgerClient(store, rng=random.SystemRandom(), clock=wall_clock_ms)

    async def run(self) -> None:
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

    async def _the_owner_stops(self, scene: Scene) -> InFlight:
        screen = self.screen
        screen.headline(f"2. {scene.old.name} stops before it reads a publish (SIGSTOP)")
        screen.note(
            "It is not dead: its sockets are open, its memory says 'I am the owner'. This is what\n"
            "a long garbage collection or a frozen virtual machine looks like from outside."
        )
        owner = await self._owner(scene.old)
        read = Read.of(PARTITION, 0, 1024, 1, compacted=False)
        await self._remote.read(owner, ANONYMOUS, read)  # so there is a connection
        self._stopped_at = len(self.follower.events)
        self.supervisor.signal(scene.old.name, signal.SIGSTOP)
        screen.event("demo", f"SIGSTOP {scene.old.name} (pid {scene.old.pid})", "bold red")
        in_flight = InFlight(self._remote, owner)
        await asyncio.sleep(0.1)
        screen.event("demo", "a third broker has sent it a publish; it is in its socket, unread")
        return in_flight

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

    async def _the_owner_wakes(self, scene: Scene, in_flight: InFlight) -> bool:
        """Whether it ran into the fence. It may also have noticed its lost session first."""
        screen = self.screen
        old = scene.old.name
        screen.headline(f"4. {old} wakes up (SIGCONT) and reads the publish")
        screen.note(
            "It has heard of nothing. It adds the message to its ledger as the next entry and\n"
            "sends it to the three bookies. They know better."
        )
        since = len(self.follower.events)
        self.supervisor.signal(old, signal.SIGCONT)
        screen.event("demo", f"SIGCONT {old}", "bold green")
        refusal = await in_flight.refusal()
        screen.event(old, f"answers the publish: {refusal or 'stored'}")
        screen.check(bool(refusal), "the publish was not acked")
        fenced = await self.follower.wait_for(
            lambda event: event.event == "ledger_fenced" and event.node == old,
            EVENT_TIMEOUT_S,
            since=since,
        )
        if fenced is None:
            screen.note(
                "This time it looked at its session before it wrote, so nothing reached the\n"
                "bookies. That is luck, and safety must not rest on it: once more."
            )
            return False
        self._show_event(fenced)
        screen.check(True, "the bookies answered its add: FENCED")
        refusal = await InFlight(self._remote, await self._owner(scene.old)).refusal()
        screen.check(bool(refusal), f"another publish at {old} is not acked either ({refusal})")
        return True

    async def _owner(self, broker: Member) -> Owner:
        topic = await self.client.topic(TOPIC)
        return Owner(broker.name, broker.address, False, str(topic.stats["incarnation"]))

    async def _once_more(self, scene: Scene) -> Scene:
        return Scene(scene.new, scene.old, await self._newest_ledger(), scene.acked)

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
    """A publish of a third broker, which waits in the paused owner's socket."""

    def __init__(self, remote: Remote, owner: Owner) -> None:
        self._asked = asyncio.ensure_future(
            remote.publish(owner, ANONYMOUS, PARTITION, [IN_FLIGHT_BATCH])
        )

    async def refusal(self) -> str:
        """Return why the owner refuses it; empty if it has stored it."""
        try:
            await self._asked
        except Refused as error:
            return f"{error.refusal.status} {error.refusal.code}: {error.refusal.detail}"
        except OperationOutcomeUnknown:
            raise  # it did not answer
        except OctavoError as error:
            return str(error)
        return ""
