"""Take bodies that another broker sends piece by piece, and give each to the work that stores it.

`BeginLargeCopy` begins the work, `AddPiece` gives it a piece, and `EndBody` returns when all of the
body is stored. A piece is answered when the work has taken the piece before it, so that at most two
pieces of a body wait here. A body whose next piece does not come in time is given up, and nothing
of it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from octavo.broker.errors import Overloaded, PartitionMoving
from octavo.broker.operations.kinds import (
    AddPiece,
    BeginLargeCopy,
    BodyOperation,
    Done,
    PieceTaken,
)
from octavo.broker.partition.partition import Partition
from octavo.protocol.large import BrokenBody
from octavo.protocol.records import read_records

BODIES_MAX = 16
"""Limit of bodies that come at the same time; each takes up to 8 MiB of memory."""
IDLE_S = 30.0
"""A body is given up when its next piece does not come within this time."""

Pieces = AsyncGenerator[bytes, None]


class Bodies:
    """The bodies that other brokers send to this broker."""

    def __init__(self) -> None:
        self._bodies: dict[str, _Body] = {}

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"bodies": len(self._bodies)}

    async def run(self, partition: Partition, operation: BodyOperation) -> Done | PieceTaken:
        """Run an operation on a body. Raises what its work raises, `PartitionMoving` (nothing of
        the body is stored), `Overloaded`."""
        if isinstance(operation, BeginLargeCopy):
            self._begin(partition, operation)
            return Done()
        body = self._bodies.get(operation.body)
        if body is None:
            raise PartitionMoving(
                f"broker has no body {operation.body} of {operation.name}: begin it again"
            )
        if isinstance(operation, AddPiece):
            return PieceTaken(await body.add(operation.number, operation.data))
        await body.end(operation.pieces)
        return Done()

    def _begin(self, partition: Partition, operation: BeginLargeCopy) -> None:
        if len(self._bodies) >= BODIES_MAX:
            raise Overloaded(
                f"{BODIES_MAX} bodies of large messages come from other brokers; ask again"
            )
        records = [*read_records(operation.head)]
        if len(records) != 1:
            raise BrokenBody(f"{len(records)} messages are said to have one body")

        async def store(pieces: Pieces) -> None:
            async with aclosing(pieces):
                await partition.copy_large(operation.upload, records[0], pieces)

        key = operation.body
        self._bodies[key] = _Body(store, lambda: self._bodies.pop(key, None))

    def close(self) -> None:
        """Give up all bodies: this broker stops."""
        for body in tuple(self._bodies.values()):
            body.give_up()


class _Body:
    """A body that comes in pieces. `forget` is called when no more operations on it may come."""

    def __init__(
        self, store: Callable[[Pieces], Awaitable[None]], forget: Callable[[], object]
    ) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._next = 0
        self._forget = forget
        self._work = asyncio.ensure_future(store(self._come()))
        self._work.add_done_callback(_look)
        self._timer = self._expect()

    async def add(self, number: int, data: bytes) -> bool:
        """Give the work a piece; return whether it wants more."""
        if number != self._next:
            raise PartitionMoving(f"piece {number} came where {self._next} belongs: begin again")
        self._next += 1
        self._timer.cancel()
        try:
            await self._give(data)
        finally:
            self._timer = self._expect()
        if not self._work.done():
            return True
        await self._result()
        return False

    async def end(self, pieces: int) -> None:
        """Return when the whole body is stored, or is given up because it is not whole."""
        self._timer.cancel()
        try:
            if pieces != self._next:
                self._work.cancel()
            else:
                await self._give(None)
            await self._result()
        finally:
            self._forget()

    def give_up(self) -> None:
        """Store nothing of it."""
        self._timer.cancel()
        self._work.cancel()
        self._forget()

    async def _give(self, data: bytes | None) -> None:
        """Return when the work has room for this, or is done."""
        putting = asyncio.ensure_future(self._pieces.put(data))
        try:
            await asyncio.wait((putting, self._work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()

    async def _result(self) -> None:
        """Return when the work is done. Raises what it raises."""
        await asyncio.wait((self._work,))
        if self._work.cancelled():
            raise PartitionMoving("the body did not come whole: begin it again")
        self._work.result()

    async def _come(self) -> Pieces:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def _expect(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(IDLE_S, self.give_up)


def _look(work: asyncio.Future[None]) -> None:
    """Look at how the work ended: the asking broker may have gone meanwhile."""
    if not work.cancelled():
        work.exception()
