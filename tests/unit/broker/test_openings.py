"""Partitions wait in line to be opened, and those with waiting callers go first."""

from __future__ import annotations

import asyncio

from octavo.broker.cluster.openings import Openings


class Line:
    """The order of turns; each ends when the test says so."""

    def __init__(self, at_once: int) -> None:
        self.openings = Openings(at_once)
        self.came: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def stand(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
            await asyncio.sleep(0)

    async def _run(self, name: str) -> None:
        async with self.openings.turn(name):
            self.came.append(name)
            await self.ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


async def test_some_at_a_time_in_the_order_in_which_they_came() -> None:
    line = Line(2)
    await line.stand("a", "b", "c", "d")
    assert line.came == ["a", "b"]
    await line.end("b", "a")
    assert line.came == ["a", "b", "c", "d"]
    await line.end("c", "d")
    await line.stand("e", "f", "g")
    assert line.came[4:] == ["e", "f"]
    for task in line.tasks.values():
        task.cancel()


async def test_those_that_somebody_waits_for_go_first_in_the_order_of_the_asking() -> None:
    line = Line(1)
    await line.stand("a", "b", "c", "d", "e")
    for name in ("d", "c", "d", "a", "nobody"):
        line.openings.hurry(name)
    await line.end("a", "d", "c", "b", "e")
    assert line.came == ["a", "d", "c", "b", "e"]


async def test_who_leaves_the_line_takes_no_turn_with_it() -> None:
    line = Line(1)
    await line.stand("a", "b", "c", "d")
    line.openings.hurry("c")
    line.tasks["c"].cancel()
    line.tasks["b"].cancel()
    await line.end("a")
    assert line.came == ["a", "d"]
    await line.stand("e")
    line.ends["d"].set()
    await asyncio.sleep(0)  # d is over, and has called e
    line.tasks["e"].cancel()
    await asyncio.gather(*line.tasks.values(), return_exceptions=True)
    await line.stand("f")
    assert line.came[-1] == "f", "the turn of whoever left is free again"
    line.tasks["f"].cancel()


async def test_an_error_ends_a_turn() -> None:
    openings = Openings(1)
    for _ in range(3):
        try:
            async with openings.turn("a"):
                raise RuntimeError("it cannot be opened")
        except RuntimeError:
            continue
    async with asyncio.timeout(1), openings.turn("b"):
        pass
