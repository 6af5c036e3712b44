"""Brokers in the simulator: the production core, with a call between processes in place of HTTP.

Operations go to an owner by production code (broker_links.py). `at_owner` serves all other work: it
asks its broker for the owner, and asks again while nothing has been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from octavo.broker.broker import Broker
from octavo.broker.cluster.dead_letters import LargeLetter
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import OwnerUnreachable, PartitionMoving
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.problems import refusal_of
from octavo.broker.operations import kinds as operations
from octavo.broker.operations.asking import Asked, Operations, Upload
from octavo.broker.operations.brokers import OwnOperations
from octavo.broker.operations.kinds import (
    AnyAnswer,
    Leases,
    LocalOperation,
    Publish,
    Read,
    Receive,
    Refused,
    Settle,
    Settled,
    numbered,
)
from octavo.broker.operations.large import Pieces, whole_body
from octavo.broker.operations.large_kinds import BodyPiece, LargeRead, LargeStored, OpenBody
from octavo.broker.operations.local import batches_of
from octavo.broker.operations.remote import Remote
from octavo.broker.operations.routing import with_owner
from octavo.broker.partition.partition import Partition
from octavo.broker.types import (
    Owner,
    PartitionName,
    Published,
    StoredBatch,
)
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import OutcomeUnknown
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.writer import AddDone, LedgerWriter
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import Buffer
from tests.sim.broker_links import Door, SimRules, caller_of, error_of, new_remote
from tests.sim.cluster import Cluster
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.metadata_store import SimMetadataStore
from tests.sim.process import Process
from tests.support.served import served

Work = Callable[[Partition], Awaitable[Any]]
CALL_TIMEOUT_S = 1.5
_MOVING_WAIT_S = 0.3


class Stored(NamedTuple):
    published: Published
    epoch: int
    broker_id: str


class SimBroker:
    def __init__(
        self,
        cluster: Cluster,
        name: str,
        limits: Mapping[str, Any],
        peers: dict[str, SimBroker],
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.rng = cluster.loop.stream(f"broker {name}")
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.ledgers: LedgerClient | None = None
        self.store: SimMetadataStore | None = None
        self.held_down = False
        self.remote: Remote | None = None
        self.own: OwnOperations | None = None
        self.door: Door | None = None
        self.operations: Operations | None = None
        self._receives = 0
        self._limits = limits
        self._peers = peers

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def serves(self) -> bool:
        return self.broker is not None

    def parts(self) -> list[object]:
        door = [] if self.door is None else self.door.parts()
        return [self.broker, self.ledgers, self.remote, *door]

    # Life and death

    def start(self) -> None:
        if self.is_alive or self.held_down:
            return
        self.process = self.cluster.new_process(self.name)
        self.process.on_crash.append(self._died)
        self.cluster.network.attach(self.process)
        self.process.spawn(self._live(self.process), self.name)

    def start_later(self, s: float) -> None:
        self.cluster.loop.world_later(s, self.start)

    def kill(self, *, power: bool = False) -> None:
        if self.process is not None:
            self.process.crash(power=power)

    def stop(self) -> None:
        if self.process is not None and self.process.alive and self.broker is not None:
            self.process.spawn(self._stop(self.process, self.broker), "stop")

    def _died(self, _: Process) -> None:
        self.broker = self.ledgers = self.store = self.remote = self.own = self.door = None
        self.operations = None

    async def _live(self, process: Process) -> None:
        cluster = self.cluster
        self.store = store = cluster.metadata_store(process)
        try:
            await store.start()
            self.ledgers = ledgers = LedgerClient(
                store,
                rng=process.rng,
                options=LedgerOptions(**cluster.options.client),
                clock=process.clock_ms,
            )
            watch_ledgers(ledgers, cluster.audit, self.name)
            await ledgers.start()
            config = BrokerConfig(broker_id=self.name, **self._limits)
            broker = Broker(store, ledgers, config, rng=process.rng, clock=process.clock_ms)
            self.remote = new_remote(process, self.name)
            self.own = OwnOperations(self.remote, f"{process.number:x}")
            self.own.connect(broker)
            self.door = door = Door(cluster, process, self.name, broker)
            rules: Any = door.rules
            self.operations = Operations(
                broker, self.remote, rules, refusal_of, _MOVING_WAIT_S, f"{process.number:x}",
                Groups(HttpConfig()),
            )  # fmt: skip
            await door.open()
            await broker.start(f"sim://{self.name}")
            self.broker = broker
            door.serves = True
            cluster.events.add("broker up", self.name)
            await broker.failed
        except OctavoError as error:
            cluster.events.add("broker ends", self.name, error)
            cluster.trace.probe(f"broker.ends.{type(error).__name__}")
            process.crash()
            self.start_later(0.1 + self.rng.random() * 0.2)

    async def _stop(self, process: Process, broker: Broker) -> None:
        self.cluster.trace.probe("topic.handover")
        await broker.close()
        assert self.ledgers is not None
        assert self.store is not None
        await self.ledgers.close()
        try:
            await self.store.close()
        except OctavoError:
            pass
        assert self.door is not None
        assert self.remote is not None
        self.door.close()
        await self.remote.close()
        # The server cuts off calls without a caller; only then have all errors been seen.
        cut = [one for one in process.tasks if one.get_name().startswith("call from")]
        for call in cut:
            call.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        self.cluster.loop.look_for_unseen_errors(process)
        self.cluster.events.add("broker stopped", self.name)
        process.crash()
        self.start_later(self.rng.random() * 0.4)

    # Calls

    async def at_owner(
        self,
        name: PartitionName,
        work: Work,
        *,
        incarnation: str | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """Run `work` at the partition's owner, as a call through the network.

        `wait_s` is how long the owner is asked to hold the call, as in
        `octavo.broker.http.forwarding`.
        """
        process = self.process
        if process is None:
            raise PartitionMoving(f"broker {self.name} is not ready")

        async def there(owner: Owner) -> Any:
            peer = self._peers[owner.broker_id]
            ask = partial(peer.serve, name, work, owner.incarnation)
            self.cluster.trace.probe("topic.forwarded")
            try:
                return await self.cluster.network.call(
                    process, owner.broker_id, ask, CALL_TIMEOUT_S + wait_s
                )
            except ConnectionRefusedError as error:
                raise OwnerUnreachable(f"{owner.broker_id} is not there") from error

        return await self._with_owner(name, work, there, incarnation)

    async def serve(self, name: PartitionName, work: Work, incarnation: str) -> Any:
        if self.broker is None:
            raise PartitionMoving(f"broker {self.name} is not ready")
        return await served(self.broker, name, incarnation, work)

    async def publish(
        self, name: PartitionName, batch: bytes, *, expected: int | None = None
    ) -> Stored:
        async def here(partition: Partition) -> Stored:
            published = await partition.publish(batch, expected_offset=expected)
            return Stored(published, partition.epoch, self.name)

        async def there(owner: Owner) -> Stored:
            operation = Publish(name, [batch], expected)
            found = await self._ask(owner, operation)
            assert isinstance(found, operations.Stored)
            published = found.fates[0].published
            assert published is not None
            return Stored(published, found.epoch, owner.broker_id)

        return await self._with_owner(name, here, there)

    async def read(
        self, name: PartitionName, offset: int, bytes_max: int, count_max: int, wait_s: float
    ) -> list[StoredBatch]:
        async def here(partition: Partition) -> list[StoredBatch]:
            return await partition.read(
                offset, bytes_max=bytes_max, count_max=count_max, wait_s=wait_s
            )

        async def there(owner: Owner) -> list[StoredBatch]:
            assert self.remote is not None
            operation = Read.of(name, offset, bytes_max, count_max, compacted=False)
            self.cluster.trace.probe("operations.read")
            found = await self.remote.read(owner, caller_of(operation), operation, wait_s)
            return batches_of(found)

        return await self._with_owner(name, here, there)

    async def receive(self, operation: Receive) -> Leases:
        """Lease messages at the partition's owner. Another broker gets an operation."""
        number = self._receives = self._receives + 1
        shipped = numbered(operation, lambda: f"{self.name}.r{number}")
        found, _ = await self.operate(operation, shipped, operation.wait_ms / 1000)
        assert isinstance(found, Leases)
        return found

    async def settle(self, operation: Settle) -> Settled:
        """Ack, give back or extend at the partition's owner."""
        found, _ = await self.operate(operation, operation)
        assert isinstance(found, Settled)
        return found

    async def store_large(self, name: PartitionName, letter: LargeLetter) -> None:
        """Store a copy of a large message, as a broker that has a dead letter does."""

        async def here(partition: Partition) -> None:
            async with aclosing(letter.body.pieces()) as pieces:
                await partition.copy_large(letter.upload, letter.copy, pieces)

        async def there(owner: Owner) -> None:
            assert self.own is not None
            self.cluster.trace.probe("large.sent_on")
            await self.own.store_large(owner, name, letter)

        await self._with_owner(name, here, there)

    async def upload(
        self, upload: Upload, pieces: Callable[[], Pieces], is_spent: Callable[[], bool]
    ) -> LargeStored:
        """Store a client's large message at its owner, as a broker does that a client asked."""
        operations, rules = self._asking()
        name = upload.name
        room = rules.room(caller_of(upload), name.namespace, "of clients")
        asked = Asked()
        try:
            return await operations.upload(
                asked, caller_of(upload), upload, pieces, room.hold,
                owned=lambda: None, may_repeat=lambda: not is_spent(),
            )  # fmt: skip
        except Refused as error:
            raise error_of(error.refusal) from error
        finally:
            room.release()
            self._note_where("uploaded", asked.owner_url)

    async def body(self, name: PartitionName, offset: int) -> bytes:
        """Read the body of a message piece by piece, as a broker does that a client asked."""
        operations, _ = self._asking()
        asked = Asked()

        async def ask(operation: LargeRead) -> BodyPiece:
            found = await operations.at_owner(
                asked, caller_of(operation), operation, owned=lambda: None
            )
            assert isinstance(found, BodyPiece)
            return found

        opening = OpenBody(name, offset)
        try:
            opened = await ask(opening)
            coming = whole_body(opened, opening, ask, lambda _: 0.0)
            body = b"".join([piece async for piece in coming])
        except Refused as error:
            raise error_of(error.refusal) from error
        finally:
            self._note_where("read", asked.owner_url)
        return body

    def _asking(self) -> tuple[Operations, SimRules]:
        if self.operations is None or self.door is None:
            raise PartitionMoving(f"broker {self.name} is not ready")
        return self.operations, self.door.rules

    def _note_where(self, what: str, owner_url: str) -> None:
        where = "here" if owner_url == f"sim://{self.name}" else "there"
        self.cluster.trace.probe(f"large.{what}_{where}")

    async def operate(
        self, operation: LocalOperation, shipped: LocalOperation, wait_s: float = 0.0
    ) -> tuple[AnyAnswer, str]:
        async def here(partition: Partition) -> tuple[AnyAnswer, str]:
            assert self.door is not None
            caller = caller_of(operation)
            return await self.door.serving.execute(partition, operation, caller), self.name

        async def there(owner: Owner) -> tuple[AnyAnswer, str]:
            return await self._ask(owner, shipped, wait_s), owner.broker_id

        found: tuple[AnyAnswer, str] = await self._with_owner(operation.name, here, there)
        return found

    async def _ask(self, owner: Owner, operation: LocalOperation, wait_s: float = 0.0) -> AnyAnswer:
        assert self.remote is not None
        self.cluster.trace.probe("operations.asked")
        return await self.remote.ask(owner, caller_of(operation), operation, wait_s)

    async def _with_owner(
        self,
        name: PartitionName,
        here: Callable[[Partition], Awaitable[Any]],
        there: Callable[[Owner], Awaitable[Any]],
        incarnation: str | None = None,
    ) -> Any:
        broker = self.broker
        if broker is None:
            raise PartitionMoving(f"broker {self.name} is not ready")
        context = SimpleNamespace(
            incarnation=incarnation,
            names_incarnation=incarnation is not None,
            owner_url="",
            served_incarnation="",
        )
        try:
            return await with_owner(
                broker,
                context,
                name,
                here,
                there,
                moving_wait_s=_MOVING_WAIT_S,
                owned=lambda: None,
            )
        except Refused as error:
            raise error_of(error.refusal) from error

    async def with_broker(self, work: Callable[[Broker], Awaitable[Any]]) -> Any:
        if self.broker is None:
            raise PartitionMoving(f"broker {self.name} is not ready")
        return await work(self.broker)


def watch_ledgers(ledgers: LedgerClient, audit: LedgerAudit, name: str) -> None:
    """Tell the referee of the ledgers what a broker adds, and how its adds are answered."""
    create: Any = ledgers.create

    async def watched_create(**settings: Any) -> LedgerWriter:
        writer: LedgerWriter = await create(**settings)
        audit.began(writer.ledger_id, name)
        watch_writer(writer, audit)
        return writer

    put = setattr
    put(ledgers, "create", watched_create)


def watch_writer(writer: LedgerWriter, audit: LedgerAudit) -> None:
    add, ledger_id = writer.add, writer.ledger_id

    def watched_add(payload: Buffer, done: AddDone) -> int:
        def watched(entry_id: int, error: OctavoError | None) -> None:
            if error is None:
                audit.acked(ledger_id, entry_id)
            elif not isinstance(error, OutcomeUnknown):
                audit.refused(ledger_id, entry_id)
            done(entry_id, error)

        entry_id = add(payload, watched)
        audit.sent(ledger_id, entry_id, bytes(payload))
        return entry_id

    put = setattr
    put(writer, "add", watched_add)


async def pause(s: float) -> None:
    await asyncio.sleep(s)
