"""Operations that brokers ask for themselves: hand-overs, deletions, letters, audit events,
drains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from octavo.broker.errors import LargeNotTaken, NotOwner, TopicIsStream
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.routes import ROUTES
from octavo.broker.internal_topics import AUDIT_PARTITION
from octavo.broker.log.ledger_list import Contents
from octavo.broker.operations.bodies import Asker
from octavo.broker.operations.brokers import letter_error, run_at_broker
from octavo.broker.operations.kinds import (
    Drain,
    FindUnused,
    Prepare,
    Refusal,
    Refused,
    StoreCopy,
    Take,
    WriteAudit,
    decode_refusal,
    decode_request,
    encode_request,
)
from octavo.broker.operations.local import run
from octavo.broker.operations.serving import Serving
from octavo.broker.partition.handover_messages import Handover, HandoverNotice, HandoverState
from octavo.broker.types import BrokerInfo, Owner, PartitionName, TopicName
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import Identity
from tests.support.memory_cluster import Running, running

TOPIC = TopicName("public", "one")
ASKER = Asker("peer", "10.0.0.1")
NAME = TOPIC.partition(0)
NODE = Identity("node:b1", source="node")
END = HandoverState(3, 7, 11, Contents(12, 4000, 5, 9, 1), 8, (b"\x00\xff", b""))
BATCH = build_batch([Record(b"k", b"v")])


def asking(two: Running) -> tuple[Any, BrokerInfo, Owner]:
    """The core of b1, which asks b0."""
    url = two.servers[0].url
    return two.servers[1]._broker, BrokerInfo("b0", url), Owner("b0", url, False, "i0")


async def test_a_hand_over_arrives_as_it_was_sent() -> None:
    async with running(2) as two:
        await two.api.put("/v1/topics/public/one")
        broker, successor, _ = asking(two)
        came: list[Any] = []

        async def prepare(name: PartitionName, foretold: HandoverNotice) -> None:
            came.append((name, foretold))

        async def take(name: PartitionName, handed: Handover) -> None:
            came.append((name, handed))

        owners: Any = two.brokers["b0"].ownership
        owners.prepare, owners.take = prepare, take
        notice = HandoverNotice("i0", 3, True)
        await broker.announce_to_peer(successor, NAME, notice)
        handed = Handover("i0", True, END, "b1", "b1 is being drained")
        await broker.ask_peer(successor, NAME, handed)
        assert came == [(NAME, notice), (NAME, handed)]


async def test_a_deletion_and_a_letter_reach_the_other_broker() -> None:
    async with running(2) as two:
        await two.api.put("/v1/topics/public/one")
        broker, peer, owner = asking(two)
        await two.move("public/one", "b0")
        let_go: list[tuple[TopicName, str]] = []

        async def lets_go(name: TopicName, incarnation: str) -> list[int]:
            let_go.append((name, incarnation))
            return [0, 4]

        two.brokers["b0"].let_go = lets_go  # type: ignore[method-assign]
        assert await broker.tell_peer(peer, TOPIC, "i0") == [0, 4]
        assert let_go == [(TOPIC, "i0")]
        incarnation = (await two.partition("public/one")).incarnation
        owner = owner._replace(incarnation=incarnation)
        await broker.letters.pass_on(owner, NAME, BATCH)
        assert two.next_offset("public/one") == 1
        unused = await two.partition("public/one")
        asked: list[tuple[Any, ...]] = []
        unused.is_unused = lambda *how: bool(asked.append(how)) or True  # type: ignore[method-assign]
        unused.is_subscription_unused = (  # type: ignore[method-assign]
            lambda *how: bool(asked.append(how))
        )
        assert await broker.inactive.ask(owner, NAME, 60_000, 1.5, "")
        assert not await broker.inactive.ask(owner, NAME, 60_000, 0.0, "s")
        assert asked == [(60_000, 1.5), ("s", 60_000, 0.0)]


async def test_audit_events_are_stored_as_the_brokers_own() -> None:
    stored: list[Any] = []

    async def publish(batch: bytes, **how: Any) -> None:
        stored.append((batch, how))

    partition, nothing = SimpleNamespace(publish=publish), None
    await run(nothing, partition, WriteAudit(AUDIT_PARTITION, BATCH), NODE, nothing, nothing)  # type: ignore[arg-type]
    assert stored == [(BATCH, {"own": True})]


def test_no_route_is_left_for_them() -> None:
    inner = {route.name for route in ROUTES if route.inner}
    assert inner == {"operations"}


async def test_a_drain_for_another_broker_is_refused() -> None:
    """Two brokers behind one changed address must not drain each other."""
    broker: Any = SimpleNamespace(broker_id="b0")
    with pytest.raises(NotOwner, match="this is broker b0, not b1"):
        await run_at_broker(broker, Drain("b1", True))


@pytest.mark.parametrize(
    ("part", "value"),
    [(0, "prepare"), (1, ["public", "one"]), (2, ["i0", "three", True]), (2, ["i0"])],
)
def test_a_broker_reads_with_care_what_it_is_told(part: int, value: Any) -> None:
    right = encode_request(NODE, "i0", Prepare(NAME, HandoverNotice("i0", 3, True)))
    wrong = msgspec.msgpack.decode(right)
    assert decode_request(msgspec.msgpack.encode(wrong)).operation
    wrong[2][part] = value if part else "no-such-operation"
    with pytest.raises(msgspec.DecodeError):
        decode_request(msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize("kind", [TopicIsStream, LargeNotTaken])
def test_a_topic_that_takes_no_copies_says_so_through_another_broker(kind: Any) -> None:
    """The copy then goes to a second topic; any other refusal is tried again."""
    found = letter_error(Refused(Refusal(409, kind.name, "no copies here")))
    assert type(found) is kind
    assert str(found) == "no copies here"
    other = Refused(Refusal(409, "other", "no"))
    assert letter_error(other) is other
    assert other.code == "other"


class World:
    """A serving broker whose partition and ownership wait."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()
        self.charged: list[str] = []
        partition: Any = SimpleNamespace(store_copy=self.waits, is_unused=lambda *_: True)
        ownership = SimpleNamespace(at_hand=lambda *_: partition, take=self.waits)

        async def measured(_: Any, __: Any, work: Awaitable[Any]) -> Any:
            self.charged.append("processor time")
            return await work

        rules: Any = SimpleNamespace(
            admit=lambda *_: None, owned=self.charged.append, measured=measured
        )
        broker: Any = SimpleNamespace(ownership=ownership, broker_id="b0")
        self.is_ready = True
        self.serving = Serving(
            broker,
            rules,
            lambda error: Refusal(409, getattr(error, "name", "bug"), str(error)),
            lambda: self.is_ready,
            lambda: None,
            lambda: None,
            Groups(HttpConfig()),
        )
        self.done = 0

    async def waits(self, *_: Any) -> None:
        self.begun.set()
        await self.end.wait()
        self.done += 1

    def ask(self, operation: Any) -> asyncio.Task[Any]:
        payload = encode_request(NODE, "i0", operation)
        deadline_s = asyncio.get_running_loop().time() + 60
        return asyncio.ensure_future(self.serving.answer(payload, deadline_s, ASKER))


@pytest.mark.parametrize("operation", [Take(NAME, Handover("i0")), StoreCopy(NAME, BATCH)])
async def test_what_has_begun_goes_on_when_the_asking_broker_gives_up(operation: Any) -> None:
    """A partition that is being claimed is opened, and a copy that is being stored is stored."""
    world = World()
    asked = world.ask(operation)
    await world.begun.wait()
    asked.cancel()
    await asyncio.wait((asked,))
    assert world.serving.describe()["work"] == 1
    world.end.set()
    while world.serving.describe()["work"]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert world.done == 1


async def test_no_quota_counts_them() -> None:
    """Else a namespace that has used its quota up would lose dead letters, and keep dead topics."""
    world = World()
    world.end.set()
    for operation in (StoreCopy(NAME, BATCH), FindUnused(NAME, 1, 0), Take(NAME, Handover("i0"))):
        assert not (await world.ask(operation)).is_refused
    assert not world.charged


async def test_a_broker_that_is_not_ready_takes_nothing() -> None:
    world = World()
    world.is_ready = False
    reply = await world.ask(Take(NAME, Handover("i0")))
    assert decode_refusal(reply.payload).code == "not-owner"
    assert not world.begun.is_set()
