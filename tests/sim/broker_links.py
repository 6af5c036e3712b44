"""Operations between simulated brokers: production code from the upgrade to the partition.

Only the HTTP around it is missing. The referee compares the caller that the owner sees with the
expected caller (X25).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from octavo.broker import errors as broker_errors
from octavo.broker.broker import Broker
from octavo.broker.errors import ErrorCode
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.held_bytes import HeldBytes
from octavo.broker.http.problems import problem_from, refusal_of
from octavo.broker.operations.asking import Upload
from octavo.broker.operations.bodies import Asker
from octavo.broker.operations.frames import keys_of
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    AnyOperation,
    Leases,
    LocalOperation,
    PartitionOperation,
    Prepare,
    Publish,
    Receive,
    Refusal,
    Settle,
    StoreCopy,
    Take,
)
from octavo.broker.operations.large import Room
from octavo.broker.operations.large_kinds import BeginUpload
from octavo.broker.operations.links import AnsweringLink, Reply
from octavo.broker.operations.remote import Place, Proof, Remote, hello_of, seals_of
from octavo.broker.operations.serving import Serving
from octavo.broker.operations.upgrade import Nonces, answer_head, read_upgrade
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Delivery, GroupName, SlowedBy, StoredBatch, TopicName
from octavo.security.principal import Identity
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

Value = TypeVar("Value")
PORT = 80
LARGE_BYTES_MAX = 10_000
_BODIES_BYTES_MAX = 64 * 1024 * 1024
_KEY = b"the key of calls between simulated brokers"
_BY_NAME = {
    kind.name: kind
    for kind in reversed(vars(broker_errors).values())
    if isinstance(kind, type)
    and issubclass(kind, broker_errors.BrokerError)
    and "http_status" in vars(kind)
    # ledgers have an error of that name too
    and kind.name != broker_errors.PublishOutcomeUnknown.name
}
"""If two classes share a name: the first, more general class."""
_CODES = {code.name: code for code in vars(broker_errors).values() if isinstance(code, ErrorCode)}
_PROBES: dict[type[AnyOperation], str] = {
    StoreCopy: "letters.passed_on", Prepare: "fleet.prepared", Take: "fleet.asked",
}  # fmt: skip


class SimSettings:
    """Bounds of waits between brokers, below those of clients."""

    peer_connect_timeout_ms = 400
    peer_answer_timeout_ms = 1_200


class SimRules:
    """Rules without quotas and permissions, which other loads test. Here the referee checks the
    caller."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._memory = HeldBytes(_BODIES_BYTES_MAX)

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return self._memory.describe()

    def admit(self, identity: Identity, operation: AnyOperation, peer: str) -> None:
        self._cluster.trace.probe("operations.served")
        wanted = caller_of(operation)
        is_own = RULES[type(operation)].is_inner  # a broker asks on its own behalf
        if probe := _PROBES.get(type(operation)):
            self._cluster.trace.probe(probe)
        if isinstance(operation, Settle) and operation.unread:
            self._cluster.trace.probe("operations.unread")
            is_own = True
        if is_own:
            wanted = identity if identity.is_node else Identity("node:of the broker that asks")
        if identity != wanted:
            self._cluster.audit.fail(f"X25 {wanted.name} asks, and the owner is told {identity}")

    async def measured(self, identity: Identity, namespace: str, work: Awaitable[Value]) -> Value:
        return await work

    def owned(self, namespace: str) -> None: ...

    def may_publish(self, topic: TopicName) -> None: ...

    def stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def not_stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def published(self, size: int, messages: int) -> None: ...

    def may_read(self, topic: TopicName) -> None: ...

    def given(self, topic: TopicName, batches: list[StoredBatch], messages: int) -> None: ...

    def delivered(self, topic: TopicName, leases: Leases) -> None: ...

    def shown(self, topic: TopicName, messages: list[Delivery]) -> None: ...

    def gave(self, topic: TopicName, size: int, messages: int) -> None: ...

    def large_bytes_max(self, topic: TopicName) -> int:
        del topic
        return LARGE_BYTES_MAX

    def room(self, identity: Identity, namespace: str, broker_id: str) -> Room:
        del identity, namespace
        return Room(self._memory, broker_id, ())

    def rates_of(self, topic: TopicName) -> SlowedBy:
        del topic
        return SlowedBy((), ())

    def may_consume(self, identity: Identity, topic: TopicName, subscription: str) -> bool:
        del identity, topic, subscription
        return True

    def may_found_group(self, identity: Identity, name: GroupName, groups: Groups) -> None: ...

    def bound(self, identity: Identity, batch: bytes) -> bytes:
        del identity
        return batch

    def bound_name(self, identity: Identity, producer: str) -> str:
        del identity
        return producer

    def message_bytes_max(self, topic: TopicName) -> int | None:
        del topic
        return None


def caller_of(operation: AnyOperation | Upload) -> Identity:
    """Return the identity that has to ask for this operation. It follows from the operation."""
    mark = "reader"
    if isinstance(operation, Publish):
        mark = f"publisher-{len(operation.batches[0])}"
    elif isinstance(operation, Receive):
        mark = f"consumer-{operation.consumer}"
    elif isinstance(operation, Upload | BeginUpload):
        mark = f"uploader-{operation.upload}"
    elif isinstance(operation, Settle):
        mark = f"acker-{len(operation.acks)}"
    return Identity(f"user:{mark}", source="token")


def new_remote(process: Process, name: str) -> Remote:
    own = Identity(f"node:{name}", source="node")

    def draw_nonce() -> str:
        return f"{process.rng.getrandbits(128):032x}"

    async def dial(place: Place, protocol: Callable[[], asyncio.Protocol]) -> object:
        loop = asyncio.get_running_loop()
        return await loop.create_connection(protocol, place.host, place.port)

    return Remote(name, SimSettings(), Proof(_KEY, draw_nonce), dial, own)


class WatchedServing(Serving):
    """Tells the referees of each finished operation, in the same step of the loop."""

    told: list[Callable[[Partition, PartitionOperation, AnyAnswer], None]]

    async def execute(
        self, partition: Partition, operation: LocalOperation, identity: Identity
    ) -> AnyAnswer:
        answer = await super().execute(partition, operation, identity)
        for tell in self.told:
            tell(partition, operation, answer)
        return answer


class Door:
    def __init__(self, cluster: Cluster, process: Process, name: str, broker: Broker) -> None:
        self._process = process
        self._name = name
        self._nonces = Nonces()
        self.groups = Groups(HttpConfig())
        self._links: list[AnsweringLink] = []
        self.serves = False
        """Whether the broker has started, and does not stop."""
        self.rules = SimRules(cluster)
        self.serving = WatchedServing(
            broker,
            self.rules,
            refusal_of,
            lambda: self.serves,
            _nothing,
            _nothing,
            self.groups,
        )
        self.serving.told = cluster.on_operation

    def parts(self) -> list[object]:
        return [self.serving, *self._links]

    async def open(self) -> None:
        await asyncio.get_running_loop().create_server(lambda: _Upgrade(self), self._name, PORT)

    def close(self) -> None:
        self.serves = False
        for link in self._links:
            link.end("this broker stops")
        self.serving.close()

    def accept(self, head: bytes, transport: asyncio.Transport) -> asyncio.Protocol | None:
        """Return the answering end of the connection, or None when the caller is not a broker."""
        lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
        headers = {name: value for name, _, value in lines}
        found = read_upgrade(headers, _KEY)
        if found is None or found.answering != self._name or not self.serves:
            return None
        if not self._nonces.is_new(found.nonce):
            return None
        nonce = f"{self._process.rng.getrandbits(128):032x}"
        keys = keys_of(_KEY, found.asking, self._name, (found.nonce, nonce))
        asker = Asker(found.asking, found.asking)
        run = partial(self._run, asker)
        link = AnsweringLink(hello_of(self._name), *seals_of(keys, is_tls=False), run)
        link.closed.add_done_callback(lambda _: self.serving.lose(asker))
        self._links.append(link)
        transport.write(answer_head(nonce))
        return link

    async def _run(self, asker: Asker, payload: bytes, deadline_s: float) -> Reply:
        return await self.serving.answer(payload, deadline_s, asker)


class _Upgrade(asyncio.Protocol):
    def __init__(self, door: Door) -> None:
        self._door = door
        self._came = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, _ = self._came.partition(b"\r\n\r\n")
        if not end:
            return
        assert self._transport is not None
        link = self._door.accept(head, self._transport)
        if link is None:
            self._transport.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            self._transport.close()
            return
        self._transport.set_protocol(link)
        link.connection_made(self._transport)


def error_of(refusal: Refusal) -> Exception:
    """Rebuild the owner's error from its problem. Clients check its class."""
    kind = _BY_NAME.get(refusal.code)
    if kind is None:
        code = _CODES.get(refusal.code)
        return code(refusal.detail, **refusal.extra) if code else problem_from(refusal)
    error: Exception = kind.__new__(kind, refusal.detail)
    for member, attribute in kind.problem_members:
        if member in refusal.extra:
            setattr(error, attribute, refusal.extra[member])
    return error


def _nothing() -> None: ...
