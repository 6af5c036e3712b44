"""A cancelled call gives back what it has taken, wherever it waits, and wakes the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import pytest

from octavo.broker.cluster.openings import Openings
from octavo.broker.http.held_bytes import HeldBytes
from octavo.broker.operations.batch_proofs import _Line
from octavo.broker.partition.message_batcher import MessageBatcher
from octavo.broker.types import Published
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from octavo.security.identity.password_checks import PasswordChecks
from tests.support.kit.cancelling import TURNS, cancelled_at
from tests.support.kit.quiescence import in_use
from tests.unit.broker.test_publisher import Bench

_STEPS_MAX = 50


class Scene(Protocol):
    async def prepare(self) -> None: ...

    async def ask(self) -> object: ...

    def let_go(self) -> None: ...

    async def end(self) -> object: ...


class OpeningScene:
    def __init__(self) -> None:
        self.one = Openings(1)
        self.stay = asyncio.Event()

    async def prepare(self) -> None:
        self.first = asyncio.create_task(self._turn("first", self.stay.wait))

    async def _turn(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        async with self.one.turn(name):
            await work()

    async def ask(self) -> None:
        await self._turn("asked", lambda: asyncio.sleep(0))

    def let_go(self) -> None:
        self.stay.set()

    async def end(self) -> object:
        await self.first
        await self._turn("next", lambda: asyncio.sleep(0))
        return self.one


class HeldScene:
    def __init__(self) -> None:
        self.one = HeldBytes(100)

    async def prepare(self) -> None:
        await self.one.take("other", 75)
        self.one.try_take("more", 25)

    async def ask(self) -> None:
        await self.one.take("asked", 50)
        try:
            await asyncio.sleep(0)
        finally:
            self.one.give_back("asked", 50)

    def let_go(self) -> None:
        self.one.give_back("other", 75)

    async def end(self) -> object:
        self.one.give_back("more", 25)
        await self.one.take("next", 75)
        self.one.give_back("next", 75)
        return self.one


class SendingScene(HeldScene):
    """Bytes going out: half of the bound."""

    async def prepare(self) -> None:
        self.one.count_going_out("other", 50)

    async def ask(self) -> None:
        await self.one.room_to_send(10)
        self.one.count_going_out("asked", 10)
        try:
            await asyncio.sleep(0)
        finally:
            self.one.count_going_out("asked", -10)

    def let_go(self) -> None:
        self.one.count_going_out("other", -50)

    async def end(self) -> object:
        await self.one.room_to_send(50)
        return self.one


class ProofScene:
    def __init__(self) -> None:
        self.one = _Line()

    async def prepare(self) -> None:
        await self.one.enter("other")

    async def ask(self) -> None:
        await self.one.enter("asked")
        try:
            await asyncio.sleep(0)
        finally:
            self.one.leave()

    def let_go(self) -> None:
        self.one.leave()

    async def end(self) -> object:
        await self.one.enter("next")
        self.one.leave()
        return self.one


class GatheringScene:
    def __init__(self) -> None:
        self.stored = asyncio.Event()
        self.one = MessageBatcher(self._publish)

    async def _publish(self, batch: bytes) -> Published:
        await self.stored.wait()
        count = read_header(batch).record_count
        return Published(0, count - 1, 1, 0, count, False)

    async def prepare(self) -> None:
        self.others = [asyncio.create_task(self._message()) for _ in range(8)]
        await asyncio.sleep(0)

    async def _message(self) -> object:
        return await self.one.publish(Record(None, b"x", (), 5))

    async def ask(self) -> object:
        return await self._message()

    def let_go(self) -> None:
        self.stored.set()

    async def end(self) -> object:
        await asyncio.gather(*self.others)
        await self._message()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.one


class PublisherScene:
    """A publish that finds no room, and one in progress."""

    def __init__(self, size: int) -> None:
        self.bench = Bench(inflight_bytes_max=300)
        self.size = size

    async def prepare(self) -> None:
        self.first = self.bench.publish()
        await asyncio.sleep(0)

    async def ask(self) -> object:
        batch = build_batch([Record(None, b"x" * self.size, (), 0)])
        return await self.bench.publisher.publish(batch, read_header(batch), None)

    def let_go(self) -> None:
        self._confirm()

    def _confirm(self) -> None:
        writer = self.bench.writer
        writer.confirm(len(writer.added) - writer.answered)
        if len(writer.added) > writer.answered:
            self._confirm()

    async def end(self) -> object:
        await self.first
        last = self.bench.publish()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._confirm()
        await last
        return self.bench.publisher


class PasswordScene:
    def __init__(self) -> None:
        self.one = PasswordChecks(1, 80)
        self.turn = asyncio.Event()

    async def prepare(self) -> None:
        await self.one._turn.acquire()

    async def ask(self) -> object:
        return await self.one.run("10.0.0.1", lambda: True, lambda: None)

    def let_go(self) -> None:
        self.one._turn.release()

    async def end(self) -> object:
        assert await self.one.run("10.0.0.1", lambda: True, lambda: None)
        self.one.close()
        return self.one


SCENES: dict[str, Callable[[], Scene]] = {
    "openings": OpeningScene,
    "held bytes": HeldScene,
    "bytes that go out": SendingScene,
    "proofs": ProofScene,
    "gathering": GatheringScene,
    "publish that waits": lambda: PublisherScene(400),
    "publish under way": lambda: PublisherScene(1),
    "passwords": PasswordScene,
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", SCENES)
async def test_cancelled_at_each_await_it_leaves_nothing_behind(name: str, late: bool) -> None:
    """A call that is cancelled as its turn comes must not keep that turn."""
    reached = 0
    for step in range(1, _STEPS_MAX):
        scene = SCENES[name]()
        await scene.prepare()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        waited = await cancelled_at(scene.ask, step, late=late, meanwhile=scene.let_go)
        async with asyncio.timeout(20):
            one = await scene.end()
        assert in_use(one) == {}, f"cancelled at its await {step}"
        if not waited:
            break
        reached += 1
    assert reached, "it waits somewhere"
    assert reached < _STEPS_MAX - 1
