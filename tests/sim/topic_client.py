"""A client process of the topics, which asks brokers by name, as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.broker.cluster.dead_letters import LargeLetter
from octavo.broker.operations.asking import Upload
from octavo.broker.operations.kinds import Leases, Receive, Settle, Settled
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import LargeStored
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, Published, StoredBatch
from octavo.protocol.codes import OctavoError
from tests.sim.brokers import CALL_TIMEOUT_S, SimBroker
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

EXPECTED = (OctavoError, OSError, TimeoutError)
"""Errors of a broker or the network; any other error is a bug."""
RETRY_S = 0.04


class TopicClient:
    """A client process; when it dies, another takes its place."""

    def __init__(
        self, load: TopicLoad, name: str, life: Callable[[TopicClient], Coroutine[Any, Any, None]]
    ) -> None:
        self.load = load
        self.name = name
        self.rng = load.cluster.loop.stream(f"topic client {name}")
        self.process: Process | None = None
        self.run = 0
        self.is_done = False
        self._life = life
        self._owners: dict[PartitionName, str] = {}

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.run += 1
        self.is_done = False
        self.process = self.load.cluster.new_process(self.name)
        self.process.spawn(self._live(), self.name)

    def crash(self) -> None:
        if self.process is not None:
            self.process.crash(power=self.rng.random() < 0.5)

    async def _live(self) -> None:
        try:
            await self._life(self)
            self.is_done = True
        except Exception as error:
            self.load.audit.fail(f"client {self.name} ended with {error!r}")
            raise

    async def ask(
        self,
        name: PartitionName,
        work: Callable[[Partition], Coroutine[Any, Any, Any]],
        wait_s: float = 0.0,
    ) -> Any:
        return await self._call(
            name, lambda broker: broker.at_owner(name, work, wait_s=wait_s), wait_s
        )

    async def publish(
        self, name: PartitionName, batch: bytes, *, expected: int | None = None
    ) -> Published:
        found = await self._call(name, lambda one: one.publish(name, batch, expected=expected))
        published: Published = found.published
        return published

    async def read(
        self, name: PartitionName, offset: int, bytes_max: int, count_max: int, wait_s: float
    ) -> list[StoredBatch]:
        found: list[StoredBatch] = await self._call(
            name, lambda one: one.read(name, offset, bytes_max, count_max, wait_s), wait_s
        )
        return found

    async def receive(self, operation: Receive) -> Leases:
        found: Leases = await self._call(
            operation.name, lambda one: one.receive(operation), operation.wait_ms / 1000
        )
        return found

    async def settle(self, operation: Settle) -> Settled:
        found: Settled = await self._call(operation.name, lambda one: one.settle(operation))
        return found

    async def store_large(self, name: PartitionName, letter: LargeLetter, wait_s: float) -> None:
        """Have a broker store a copy of a large message at its owner. Raises `EXPECTED`."""
        await self._call(name, lambda one: one.store_large(name, letter), wait_s)

    async def upload(
        self, upload: Upload, pieces: Callable[[SimBroker], Pieces], wait_s: float
    ) -> LargeStored:
        """Have any broker store a large message at its owner. Raises `EXPECTED`.

        `pieces` gives the body for the broker that is asked; it can be sent only once.
        """
        begun: list[SimBroker] = []

        def ask(one: SimBroker) -> Coroutine[Any, Any, LargeStored]:
            async def sent() -> Pieces:
                begun.append(one)
                async with aclosing(pieces(one)) as coming:
                    async for piece in coming:
                        yield piece

            return one.upload(upload, sent, lambda: bool(begun))

        found: LargeStored = await self._call(upload.name, ask, wait_s)
        return found

    async def body(self, name: PartitionName, offset: int, wait_s: float) -> bytes:
        found: bytes = await self._call(name, lambda one: one.body(name, offset), wait_s)
        return found

    async def _call(
        self,
        name: PartitionName,
        call: Callable[[SimBroker], Coroutine[Any, Any, Any]],
        wait_s: float = 0.0,
    ) -> Any:
        load = self.load
        known = [one for one, broker in load.brokers.items() if not broker.held_down]
        if not known:
            raise ConnectionRefusedError("no broker is to run any more")
        broker = load.brokers[self._owners.get(name) or self.rng.choice(known)]
        assert self.process is not None
        try:
            answer = await load.cluster.network.call(
                self.process,
                broker.name,
                partial(call, broker),
                CALL_TIMEOUT_S + wait_s,
            )
            self._owners[name] = broker.name
            return answer
        except EXPECTED as error:
            self._owners.pop(name, None)
            load.cluster.trace.probe(f"topic.answer.{type(error).__name__}")
            raise
        except Exception as error:
            load.audit.fail(f"broker answered {self.name} with {error!r}")
            raise TimeoutError from error

    async def with_broker(self, work: Any) -> Any:
        load = self.load
        at = self.rng.choice([one for one in load.brokers.values() if not one.held_down])
        assert self.process is not None
        ask = partial(at.with_broker, work)
        return await load.cluster.network.call(self.process, at.name, ask, CALL_TIMEOUT_S)

    async def ask_retrying(
        self, name: PartitionName, work: Callable[[Partition], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Repeat until there is an answer; only for work that may be done twice."""
        while True:
            try:
                return await self.ask(name, work)
            except EXPECTED:
                await self.pause(RETRY_S)

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))
