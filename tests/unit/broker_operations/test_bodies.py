"""Bodies of large messages that another broker sends piece by piece: whole, or given up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from octavo.broker.cluster.dead_letters import LargeLetter, ValueSource
from octavo.broker.errors import (
    LargeNotTaken,
    NotOwner,
    Overloaded,
    OwnerUnreachable,
    PartitionMoving,
    SequenceGap,
    TopicIsStream,
)
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.routes import ROUTES
from octavo.broker.internal_topics import AUDIT_PARTITION
from octavo.broker.log.ledger_list import Contents
from octavo.broker.operations import bodies as bodies_module
from octavo.broker.operations import remote as remote_module
from octavo.broker.operations.bodies import BODIES_MAX, BODIES_OF_BROKER_MAX, Asker, Bodies
from octavo.broker.operations.brokers import OwnOperations, letter_error, run_at_broker
from octavo.broker.operations.kinds import (
    Drain,
    FindUnused,
    OperationOutcomeUnknown,
    Prepare,
    Publish,
    Refusal,
    Refused,
    StoreCopy,
    Take,
    WriteAudit,
    decode_refusal,
    decode_request,
    encode_request,
)
from octavo.broker.operations.large import HELD_BYTES, HELD_BYTES_MIN, Room, counted
from octavo.broker.operations.large_kinds import (
    GIVEN_UP,
    AddPiece,
    BeginLargeCopy,
    BodyStored,
    EndBody,
    PieceTaken,
)
from octavo.broker.operations.local import run
from octavo.broker.operations.remote import Remote
from octavo.broker.operations.serving import Serving
from octavo.broker.partition.handover_messages import Handover, HandoverNotice, HandoverState
from octavo.broker.types import BrokerInfo, Owner, PartitionName, TopicName
from octavo.protocol.large import PIECE_BYTES, BrokenBody
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import ANONYMOUS, Identity
from tests.support.cluster import until
from tests.support.memory_cluster import Running, running

NAME = PartitionName("public", "dead", 0)
COPY = Record(b"k", b"", [("kind", b"film")], 1)
HEAD = build_batch([COPY])
nothing: Any = None
OWNER = Owner("b1", "http://b1", False, "i0")


class Partition:
    """A partition that takes copies as fast as `may_take` lets it."""

    def __init__(self) -> None:
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.came: list[bytes] = []
        self.stored: list[tuple[str, Record, bytes]] = []
        self.error: Exception | None = None
        self.given_up = 0
        self.has_it = False

    async def copy_large(self, upload: str, copy: Record, parts: AsyncIterator[bytes]) -> None:
        if self.has_it:
            return
        try:
            async for part in parts:
                if self.error is not None:
                    raise self.error
                self.came.append(part)
                await self.may_take.wait()
        except BaseException:
            self.given_up += 1
            raise
        self.stored.append((upload, copy, b"".join(self.came)))


class World:
    """A broker that sends a body, and a broker that takes it."""

    def __init__(self) -> None:
        self.partition: Any = Partition()
        self.bodies = Bodies()
        self.asker, self.other = Asker("b0", "10.0.0.1"), Asker("b7", "10.0.0.7")
        self.own = Identity("node:b0", source="node")
        self.asked: list[Any] = []
        self.told: list[Any] = []

    async def ask(self, owner: Owner, identity: Identity, operation: Any) -> Any:
        assert (owner, identity) == (OWNER, self.own)
        self.asked.append(operation)
        if isinstance(operation, BeginLargeCopy):
            return await self.bodies.begin(self.asker, operation, self.store)
        return await self.bodies.run(self.asker, operation)

    async def store(self, pieces: Any) -> None:
        async with aclosing(pieces):
            await self.partition.copy_large("u", COPY, pieces)

    def tell(self, owner: Owner, operation: Any) -> None:
        self.told.append(operation)

    async def begin(self, body: str = "b", asker: Asker | None = None) -> bool:
        operation = BeginLargeCopy(NAME, body, "u", HEAD)
        return (await self.bodies.begin(asker or self.asker, operation, self.store)).wants_more

    async def add(self, number: int, data: bytes = b"x", body: str = "b") -> bool:
        found = await self.bodies.run(self.asker, AddPiece(NAME, body, number, data))
        assert isinstance(found, PieceTaken)
        return found.wants_more

    async def end(self, pieces: int, body: str = "b") -> None:
        found = await self.bodies.run(self.asker, EndBody(NAME, body, pieces))
        assert found == BodyStored(None)

    async def send(self, source: Any) -> None:
        remote = Remote("b0", nothing, nothing, nothing, self.own)
        remote.ask = self.ask  # type: ignore[assignment,method-assign]
        remote.tell = self.tell  # type: ignore[method-assign]
        await OwnOperations(remote, "run").store_large(OWNER, NAME, LargeLetter("u", COPY, source))


async def test_a_copy_is_stored_with_its_whole_body() -> None:
    world = World()
    value = bytes(range(256)) * (PIECE_BYTES * 5 // 512)
    await world.send(ValueSource(value))
    ((upload, copy, body),) = world.partition.stored
    assert (upload, copy.key, copy.headers) == ("u", b"k", [("kind", b"film")])
    assert body == value
    assert [type(one) for one in world.asked] == [BeginLargeCopy, *[AddPiece] * 3, EndBody]
    assert not any(world.bodies.describe().values())


async def test_a_copy_that_is_there_already_is_not_sent_again() -> None:
    world = World()
    world.partition.has_it = True
    await world.send(ValueSource(b"x" * 10 * PIECE_BYTES))
    assert [type(one) for one in world.asked] == [BeginLargeCopy, EndBody]
    assert not any(world.bodies.describe().values())


async def test_a_body_that_cannot_be_read_is_given_up_at_once() -> None:
    """Else its ledger and its place would stay until time is up."""
    world = World()

    class Broken:
        size = 3 * PIECE_BYTES

        async def pieces(self) -> AsyncGenerator[bytes, None]:
            yield b"x"
            raise BrokenBody("a piece is missing")

    with pytest.raises(BrokenBody):
        await world.send(Broken())
    (told,) = world.told
    assert told == EndBody(NAME, "run.b0", GIVEN_UP)
    with pytest.raises(PartitionMoving):
        await world.bodies.run(world.asker, told)
    assert world.partition.given_up == 1
    assert not world.partition.stored
    assert not any(world.bodies.describe().values())


async def test_a_topic_that_takes_none_says_so_at_the_next_piece() -> None:
    world = World()
    world.partition.error = TopicIsStream("it is a stream")
    await world.begin()
    found = await asyncio.gather(world.add(0), world.add(1), return_exceptions=True)
    assert isinstance(found[1], TopicIsStream)
    with pytest.raises(TopicIsStream):
        await world.end(2)
    assert not any(world.bodies.describe().values())


@pytest.mark.parametrize("number", [0, 2])
async def test_a_piece_comes_once_and_in_its_place(number: int) -> None:
    world = World()
    await world.begin()
    await world.add(0)
    with pytest.raises(PartitionMoving):
        await world.add(number)
    with pytest.raises(PartitionMoving):
        await world.end(2)
    assert not world.partition.stored, "the body is not whole"
    assert world.partition.given_up == 1
    assert not any(world.bodies.describe().values())


async def test_a_piece_waits_until_the_piece_before_it_was_taken() -> None:
    world = World()
    world.partition.may_take.clear()
    await world.begin()
    await world.add(0)
    await world.add(1)
    third = asyncio.ensure_future(world.add(2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not third.done()
    assert len(world.partition.came) == 1
    world.partition.may_take.set()
    await third
    await world.end(3)
    assert world.partition.stored


async def test_a_body_whose_sender_has_gone_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_module, "IDLE_S", 0.05)
    world = World()
    await world.begin()
    await world.add(0)
    await until(lambda: not any(world.bodies.describe().values()), "it is given up")
    await until(lambda: world.partition.given_up == 1, "and its ledger")
    with pytest.raises(PartitionMoving, match="begin it again"):
        await world.add(1)


async def test_a_long_insertion_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the sender; bookies may take longer."""
    monkeypatch.setattr(bodies_module, "IDLE_S", 0.01)
    world = World()
    world.partition.may_take.clear()
    await world.begin()
    await world.add(0)
    ending = asyncio.ensure_future(world.end(1))
    await asyncio.sleep(0.1)
    world.partition.may_take.set()
    await ending
    assert world.partition.stored


async def test_bodies_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_module, "BODIES_MAX", 3)
    world = World()
    for number in range(3):
        await world.begin(f"b{number}", Asker(f"b{number}", ""))
    with pytest.raises(Overloaded):
        await world.begin("one more")
    world.bodies.close()
    await world.begin("one more")
    world.bodies.close()
    assert not any(world.bodies.describe().values())


async def test_a_slow_broker_takes_no_place_of_the_others() -> None:
    """The places were for all brokers together, and a body that stands still keeps its place for
    half a minute."""
    world = World()
    for number in range(BODIES_OF_BROKER_MAX):
        await world.begin(f"b{number}")
    with pytest.raises(Overloaded, match="broker b0"):
        await world.begin("one more", Asker("b0", "10.0.0.1"))
    await world.begin("b0", world.other)
    assert BODIES_MAX >= 3 * BODIES_OF_BROKER_MAX
    world.bodies.close()
    assert not any(world.bodies.describe().values())


async def test_the_end_of_a_connection_gives_up_its_bodies_alone() -> None:
    world = World()
    await world.begin()
    await world.begin("b", world.other)
    await world.add(0)
    world.bodies.lose(world.asker)
    await until(lambda: world.partition.given_up == 1, "its ledger goes")
    assert world.bodies.describe() == {"bodies": 1}
    with pytest.raises(PartitionMoving):
        await world.begin("late")
    world.bodies.close()
    assert not any(world.bodies.describe().values())


async def test_a_body_that_has_come_is_stored_though_its_sender_goes() -> None:
    """Its insertion may have begun; its sender does not learn how it ended."""
    world = World()
    world.partition.may_take.clear()
    await world.begin()
    await world.add(0)
    ending = asyncio.ensure_future(world.end(1))
    await asyncio.sleep(0)
    world.bodies.lose(world.asker)
    world.partition.may_take.set()
    await ending
    assert world.partition.stored
    assert not any(world.bodies.describe().values())


async def test_what_refuses_a_body_refuses_its_beginning() -> None:
    """Before the client has sent anything that could not be sent again."""
    world = World()

    async def refuse(*_: Any) -> None:
        raise TopicIsStream("it is a stream")

    world.partition.copy_large = refuse
    with pytest.raises(TopicIsStream):
        await world.begin()
    assert not any(world.bodies.describe().values())


async def test_a_body_that_stands_still_is_kept_while_its_sender_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may be slow, or wait for its quota, for longer than the owner waits for a piece."""
    monkeypatch.setattr(bodies_module, "IDLE_S", 0.2)
    monkeypatch.setattr(remote_module, "NOTHING_AFTER_S", 0.02)
    world = World()

    class Slow:
        size = 2

        async def pieces(self) -> AsyncGenerator[bytes, None]:
            yield b"a"
            await asyncio.sleep(0.5)
            yield b"b"

    await world.send(Slow())
    assert world.partition.stored[0][2] == b"ab"


@pytest.mark.parametrize(
    ("at", "raised"),
    [
        (BeginLargeCopy, OwnerUnreachable),
        (AddPiece, OwnerUnreachable),
        (EndBody, OperationOutcomeUnknown),
    ],
)
async def test_an_upload_that_broke_off_has_a_known_outcome(
    at: type[Any], raised: type[Exception]
) -> None:
    """Only its end stores it. So the client may send it again, whether or not it has a name."""
    world = World()
    ask = world.ask

    async def lost(owner: Owner, identity: Identity, operation: Any) -> Any:
        found = await ask(owner, identity, operation)
        if isinstance(operation, at):
            raise OperationOutcomeUnknown("broke off")
        return found

    world.ask = lost  # type: ignore[method-assign]
    with pytest.raises(raised):
        await world.send(ValueSource(b"x"))
    assert [type(one) for one in world.told] == [EndBody] * (at is not EndBody)
    world.bodies.close()


class Memory:
    """Counts what each sender holds, up to a limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: Counter[tuple[str, ...]] = Counter()

    async def take(self, peer: str, size: int, *subjects: str) -> None:
        if self.held[peer, *subjects] + size > self.most:
            raise Overloaded("no room")
        self.held[peer, *subjects] += size

    def give_back(self, peer: str, size: int, *subjects: str) -> None:
        self.held[peer, *subjects] -= size


async def test_the_bytes_of_a_body_are_counted_for_its_broker_and_its_client() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(20):
            yield b"x" * PIECE_BYTES

    memory = Memory(HELD_BYTES)
    room = Room(memory, "b0", ("user:ann",))
    await room.hold(HELD_BYTES_MIN)
    coming = counted(pieces(), room.hold, HELD_BYTES)
    held = [memory.held["broker b0", "user:ann"] async for _ in coming]
    assert held[0] == HELD_BYTES_MIN + PIECE_BYTES, "what has come"
    assert held[-1] == HELD_BYTES, "and never more than is in memory"
    room.release()
    room.release()
    assert not any(memory.held.values())
    memory.most = 2 * PIECE_BYTES
    with pytest.raises(Overloaded):
        [_ async for _ in counted(pieces(), room.hold, HELD_BYTES)]
    room.release()
    assert not any(memory.held.values())


TOPIC = TopicName("public", "one")
ASKER = Asker("peer", "10.0.0.1")
BROKERS_NAME = TOPIC.partition(0)
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
        await broker.announce_to_peer(successor, BROKERS_NAME, notice)
        handed = Handover("i0", True, END, "b1", "b1 is being drained")
        await broker.ask_peer(successor, BROKERS_NAME, handed)
        assert came == [(BROKERS_NAME, notice), (BROKERS_NAME, handed)]


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
        await broker.letters.pass_on(owner, BROKERS_NAME, BATCH)
        assert two.next_offset("public/one") == 1
        unused = await two.partition("public/one")
        asked: list[tuple[Any, ...]] = []
        unused.is_unused = lambda *how: bool(asked.append(how)) or True  # type: ignore[method-assign]
        unused.is_subscription_unused = (  # type: ignore[method-assign]
            lambda *how: bool(asked.append(how))
        )
        assert await broker.inactive.ask(owner, BROKERS_NAME, 60_000, 1.5, "")
        assert not await broker.inactive.ask(owner, BROKERS_NAME, 60_000, 0.0, "s")
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
    right = encode_request(NODE, "i0", Prepare(BROKERS_NAME, HandoverNotice("i0", 3, True)))
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


class BrokersWorld:
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


@pytest.mark.parametrize(
    "operation", [Take(BROKERS_NAME, Handover("i0")), StoreCopy(BROKERS_NAME, BATCH)]
)
async def test_what_has_begun_goes_on_when_the_asking_broker_gives_up(operation: Any) -> None:
    """A partition that is being claimed is opened, and a copy that is being stored is stored."""
    world = BrokersWorld()
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
    world = BrokersWorld()
    world.end.set()
    for operation in (
        StoreCopy(BROKERS_NAME, BATCH),
        FindUnused(BROKERS_NAME, 1, 0),
        Take(BROKERS_NAME, Handover("i0")),
    ):
        assert not (await world.ask(operation)).is_refused
    assert not world.charged


async def test_a_broker_that_is_not_ready_takes_nothing() -> None:
    world = BrokersWorld()
    world.is_ready = False
    reply = await world.ask(Take(BROKERS_NAME, Handover("i0")))
    assert decode_refusal(reply.payload).code == "not-owner"
    assert not world.begun.is_set()


SERVED_NAME = PartitionName("public", "orders", 0)


class ServedWorld:
    """A broker that has the partition open, or has to look for it."""

    def __init__(self, error: BaseException, *, is_open: bool = True) -> None:
        self.error = error
        self.begun = asyncio.Event()
        self.end = asyncio.Event()
        self.unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: self.unseen.append(found))
        partition: Any = SimpleNamespace()

        async def owner_of(*_: Any, **__: Any) -> Any:
            return SimpleNamespace(local=True)

        async def opened(_: Any) -> Any:
            return partition

        async def measured(_: Any, __: Any, work: Any) -> Any:
            return await work

        ownership = SimpleNamespace(
            at_hand=lambda *_: partition if is_open else None, owner_of=owner_of, partition=opened
        )
        rules: Any = SimpleNamespace(admit=lambda *_: None, owned=lambda _: None, measured=measured)
        broker: Any = SimpleNamespace(ownership=ownership)
        self.serving = Serving(
            broker,
            rules,
            lambda error: Refusal(409, "refused", str(error)),
            lambda: True,
            lambda: None,
            lambda: None,
            Groups(HttpConfig()),
        )
        self.serving.execute = self._execute  # type: ignore[assignment,method-assign]

    async def _execute(self, *_: Any) -> Any:
        self.begun.set()
        await self.end.wait()
        raise self.error

    def ask(self) -> asyncio.Task[Any]:
        payload = encode_request(ANONYMOUS, "1", Publish(SERVED_NAME, [b"batch"]))
        deadline_s = asyncio.get_running_loop().time() + 60
        return asyncio.ensure_future(self.serving.answer(payload, deadline_s, ASKER))

    async def goes_and_it_ends(self) -> None:
        """Let the caller leave after the operation has begun; then refuse the operation."""
        asked = self.ask()
        await self.begun.wait()
        asked.cancel()
        await asyncio.wait((asked,))
        assert self.serving.describe()["work"] == 1, "it goes on: it has begun"
        self.end.set()
        while self.serving.describe()["work"]:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_publish_that_is_refused_after_its_caller_has_gone_is_no_error() -> None:
    """Its task ended with an error that no code looked at. Seeds 92000651 and 92000677 found it."""
    world = ServedWorld(SequenceGap("expected sequence 4, got 6", 4))
    with capture_logs() as logs:
        await world.goes_and_it_ends()
    assert not world.unseen
    assert not logs


async def test_a_bug_in_it_is_told_all_the_same() -> None:
    world = ServedWorld(ValueError("a bug"))
    with capture_logs() as logs:
        await world.goes_and_it_ends()
    assert [log["event"] for log in logs] == ["operation_failed"]
    assert not world.unseen


@pytest.mark.parametrize("turns", range(6))
async def test_a_caller_may_go_at_any_moment(turns: int) -> None:
    """Also while the partition is sought, and in the turn in which the operation begins."""
    world = ServedWorld(NotOwner("another broker has it"), is_open=False)
    asked = world.ask()
    for _ in range(turns):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait((asked,))
    world.end.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(world.serving.describe().values())
    assert not world.unseen


async def test_a_refusal_is_the_answer() -> None:
    world = ServedWorld(SequenceGap("expected sequence 4, got 6", 4))
    world.end.set()
    reply = await world.ask()
    assert decode_refusal(reply.payload).detail.startswith("expected sequence 4")
