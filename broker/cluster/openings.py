"""Open some partitions at a time, first those for which a client waits: a take-over may bring
thousands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable


class Openings:
    def __init__(self, at_once: int) -> None:
        self._at_once = self._free = at_once
        self._line: OrderedDict[Hashable, asyncio.Future[None]] = OrderedDict()
        self._hurried: OrderedDict[Hashable, asyncio.Future[None]] = OrderedDict()

    def describe(self) -> dict[str, int]:
        return {
            "turns": self._at_once - self._free,
            "waiting": _waiting(self._line, self._hurried),
        }

    def waits_in_vain(self) -> str:
        return (
            "openings wait for a turn, and one is free"
            if self._free and _waiting(self._line, self._hurried)
            else ""
        )

    @contextlib.asynccontextmanager
    async def turn(self, one: Hashable) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(one)
        try:
            yield
        finally:
            self._next()

    def hurry(self, one: Hashable) -> None:
        """Put this opening before all for which no client waits."""
        if (came := self._line.pop(one, None)) is not None:
            self._hurried[one] = came

    async def _wait(self, one: Hashable) -> None:
        came = self._line[one] = asyncio.get_running_loop().create_future()
        try:
            await came
        except asyncio.CancelledError:
            if came.done() and not came.cancelled():
                self._next()  # it has its turn: pass it on
            raise

    def _next(self) -> None:
        for line in (self._hurried, self._line):
            while line:
                _, came = line.popitem(last=False)
                if not came.done():  # skip a cancelled waiter
                    came.set_result(None)
                    return
        self._free += 1


def _waiting(*lines: OrderedDict[Hashable, asyncio.Future[None]]) -> int:
    return sum(not one.done() for line in lines for one in line.values())
