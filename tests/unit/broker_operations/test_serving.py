"""Operations of other brokers are served, also when their caller leaves meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import NotOwner, SequenceGap
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.config import HttpConfig
from octavo.broker.operations.bodies import Asker
from octavo.broker.operations.kinds import Publish, Refusal, decode_refusal, encode_request
from octavo.broker.operations.serving import Serving
from octavo.broker.types import PartitionName
from octavo.security.principal import ANONYMOUS

ASKER = Asker("peer", "10.0.0.1")
NAME = PartitionName("public", "orders", 0)


class World:
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
        payload = encode_request(ANONYMOUS, "1", Publish(NAME, [b"batch"]))
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
    world = World(SequenceGap("expected sequence 4, got 6", 4))
    with capture_logs() as logs:
        await world.goes_and_it_ends()
    assert not world.unseen
    assert not logs


async def test_a_bug_in_it_is_told_all_the_same() -> None:
    world = World(ValueError("a bug"))
    with capture_logs() as logs:
        await world.goes_and_it_ends()
    assert [log["event"] for log in logs] == ["operation_failed"]
    assert not world.unseen


@pytest.mark.parametrize("turns", range(6))
async def test_a_caller_may_go_at_any_moment(turns: int) -> None:
    """Also while the partition is sought, and in the turn in which the operation begins."""
    world = World(NotOwner("another broker has it"), is_open=False)
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
    world = World(SequenceGap("expected sequence 4, got 6", 4))
    world.end.set()
    reply = await world.ask()
    assert decode_refusal(reply.payload).detail.startswith("expected sequence 4")
