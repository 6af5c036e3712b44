"""Bodies of large messages that another broker sends piece by piece: whole, or given up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from octavo.broker.cluster.dead_letters import LargeLetter, ValueSource
from octavo.broker.errors import Overloaded, OwnerUnreachable, PartitionMoving, TopicIsStream
from octavo.broker.operations import bodies as bodies_module
from octavo.broker.operations import remote as remote_module
from octavo.broker.operations.bodies import BODIES_MAX, BODIES_OF_BROKER_MAX, Asker, Bodies
from octavo.broker.operations.brokers import OwnOperations
from octavo.broker.operations.kinds import OperationOutcomeUnknown
from octavo.broker.operations.large import HELD_BYTES, HELD_BYTES_MIN, Room, counted
from octavo.broker.operations.large_kinds import (
    GIVEN_UP,
    AddPiece,
    BeginLargeCopy,
    BodyStored,
    EndBody,
    PieceTaken,
)
from octavo.broker.operations.remote import Remote
from octavo.broker.types import Owner, PartitionName
from octavo.protocol.large import PIECE_BYTES, BrokenBody
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import Identity
from tests.support.cluster import until

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
