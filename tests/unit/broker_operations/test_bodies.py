"""Bodies of large messages that another broker sends piece by piece: whole, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from octavo.broker.cluster.dead_letters import LargeLetter, ValueSource
from octavo.broker.errors import Overloaded, PartitionMoving, TopicIsStream
from octavo.broker.operations import bodies as bodies_module
from octavo.broker.operations.bodies import BODIES_MAX, Bodies
from octavo.broker.operations.brokers import OwnOperations
from octavo.broker.operations.kinds import (
    GIVEN_UP,
    AddPiece,
    BeginLargeCopy,
    Done,
    EndBody,
    PieceTaken,
)
from octavo.broker.types import Owner, PartitionName
from octavo.protocol.large import PIECE_BYTES, BrokenBody
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import Identity
from tests.support.cluster import until

NAME = PartitionName("public", "dead", 0)
COPY = Record(b"k", b"", [("kind", b"film")], 1)
HEAD = build_batch([COPY])
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
        self.own = Identity("node:b0", source="node")
        self.asked: list[Any] = []
        self.told: list[Any] = []

    async def ask(self, owner: Owner, identity: Identity, operation: Any) -> Any:
        assert (owner, identity) == (OWNER, self.own)
        self.asked.append(operation)
        return await self.bodies.run(self.partition, operation)

    def tell(self, owner: Owner, operation: Any) -> None:
        self.told.append(operation)

    async def begin(self, body: str = "b") -> None:
        assert await self.bodies.run(self.partition, BeginLargeCopy(NAME, body, "u", HEAD)) == (
            Done()
        )

    async def add(self, number: int, data: bytes = b"x", body: str = "b") -> bool:
        found = await self.bodies.run(self.partition, AddPiece(NAME, body, number, data))
        assert isinstance(found, PieceTaken)
        return found.wants_more

    async def end(self, pieces: int, body: str = "b") -> None:
        await self.bodies.run(self.partition, EndBody(NAME, body, pieces))

    async def send(self, source: Any) -> None:
        remote: Any = self
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
    assert [type(one) for one in world.asked] == [BeginLargeCopy, AddPiece, EndBody]
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
        await world.bodies.run(world.partition, told)
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


async def test_bodies_are_bounded_in_number() -> None:
    world = World()
    for number in range(BODIES_MAX):
        await world.begin(f"b{number}")
    with pytest.raises(Overloaded):
        await world.begin("one more")
    await world.end(0, "b0")
    await world.begin("one more")
    world.bodies.close()
    assert not any(world.bodies.describe().values())


async def test_a_head_of_several_messages_is_refused() -> None:
    world = World()
    two = build_batch([COPY, COPY])
    with pytest.raises(BrokenBody, match="2 messages"):
        await world.bodies.run(world.partition, BeginLargeCopy(NAME, "b", "u", two))
