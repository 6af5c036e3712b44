"""Whose turn it is to be opened: some at a time, and first what somebody waits for.

A broker that starts, or survives a large one, opens thousands of partitions, which takes a while.
Who asks for one of them meanwhile does not wait for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable


class Openings:
    """`at_once` have a turn at the same time; the others stand in line."""

    def __init__(self, at_once: int) -> None:
        self._at_once = self._free = at_once
        self._line: OrderedDict[Hashable, asyncio.Future[None]] = OrderedDict()
        self._hurried: OrderedDict[Hashable, asyncio.Future[None]] = OrderedDict()

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {
            "turns": self._at_once - self._free,
            "waiting": _waiting(self._line, self._hurried),
        }

    def waits_in_vain(self) -> str:
        """Say what waits though nothing keeps it waiting; empty when nothing does."""
        return (
            "openings wait for a turn, and one is free"
            if self._free and _waiting(self._line, self._hurried)
            else ""
        )

    @contextlib.asynccontextmanager
    async def turn(self, one: Hashable) -> AsyncIterator[None]:
        """The block is its turn. It stands in line once at a time."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(one)
        try:
            yield
        finally:
            self._next()

    def hurry(self, one: Hashable) -> None:
        """Somebody waits for it: it goes before all for which that is not so."""
        if (came := self._line.pop(one, None)) is not None:
            self._hurried[one] = came

    async def _wait(self, one: Hashable) -> None:
        came = self._line[one] = asyncio.get_running_loop().create_future()
        try:
            await came
        except asyncio.CancelledError:
            if came.done() and not came.cancelled():
                self._next()  # its turn came at this moment
            raise

    def _next(self) -> None:
        for line in (self._hurried, self._line):
            while line:
                _, came = line.popitem(last=False)
                if not came.done():  # else it waits no longer
                    came.set_result(None)
                    return
        self._free += 1


def _waiting(*lines: OrderedDict[Hashable, asyncio.Future[None]]) -> int:
    return sum(not one.done() for line in lines for one in line.values())
