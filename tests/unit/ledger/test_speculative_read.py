"""Replicas are asked one after another: at once after a failure, in parallel to a slow one.
Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.read.speculative_read import AllFailed, Answer, SpeculativeRead
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace

PATIENCE_S = 2.0


class Replicas:
    """Each answers when the story says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Answer[str]] = {}

    def ask(self, replica: str, answer: Answer[str]) -> None:
        self.asked.append(replica)
        self.answers[replica] = answer

    def fails(self, replica: str) -> None:
        self.answers[replica](BookieUnavailable(replica, "down"), None)

    def gives(self, replica: str) -> None:
        self.answers[replica](None, f"of {replica}")

    async def race(self, names: str) -> asyncio.Task[tuple[str, str]]:
        race = asyncio.create_task(SpeculativeRead([*names], self.ask, PATIENCE_S).run())
        await asyncio.sleep(0.0)
        return race


def told(story: Callable[[Replicas], Awaitable[None]]) -> None:
    """Check that no callback of the loop raised."""
    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(story(Replicas()))
        assert loop.errors == []
    finally:
        loop.close()


def test_behind_the_last_nobody_is_asked_when_patience_ends() -> None:
    """The patience belonged to the failed replica, and ended with it."""

    async def story(replicas: Replicas) -> None:
        race = await replicas.race("ab")
        replicas.fails("a")
        assert replicas.asked == ["a", "b"]
        await asyncio.sleep(3 * PATIENCE_S)
        replicas.gives("b")
        assert await race == ("b", "of b")

    told(story)


def test_who_was_handed_the_question_has_a_patience_of_its_own() -> None:
    async def story(replicas: Replicas) -> None:
        race = await replicas.race("abc")
        await asyncio.sleep(PATIENCE_S / 2)
        replicas.fails("a")
        await asyncio.sleep(0.9 * PATIENCE_S)
        assert replicas.asked == ["a", "b"]
        await asyncio.sleep(0.2 * PATIENCE_S)
        assert replicas.asked == ["a", "b", "c"]
        replicas.gives("b")
        assert await race == ("b", "of b")

    told(story)


def test_a_slow_one_gets_company_and_may_still_win() -> None:
    async def story(replicas: Replicas) -> None:
        race = await replicas.race("abc")
        await asyncio.sleep(5 * PATIENCE_S)
        assert replicas.asked == ["a", "b", "c"]
        replicas.fails("b")
        replicas.gives("a")
        replicas.gives("c")
        assert await race == ("a", "of a")

    told(story)


def test_it_has_failed_when_all_have() -> None:
    async def story(replicas: Replicas) -> None:
        race = await replicas.race("ab")
        await asyncio.sleep(2 * PATIENCE_S)
        replicas.fails("b")
        await asyncio.sleep(PATIENCE_S)
        assert not race.done()
        replicas.fails("a")
        with pytest.raises(AllFailed) as failed:
            await race
        assert set(failed.value.answers) == {"a", "b"}

    told(story)
