"""Take bodies that other brokers send piece by piece, and give each to the work that stores it.

A piece is answered when the work has taken the piece before it: so at most two wait, and slow
bookies slow the sender. A body is given up, and not stored, when its connection ends, when a piece
is late, or when its sender says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.broker.errors import Overloaded, PartitionMoving
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import (
    AddPiece,
    BeginBody,
    BodyStored,
    EndBody,
    LargeStored,
    PieceTaken,
)

BODIES_MAX = 512
BODIES_OF_BROKER_MAX = 128
"""Lower than `BODIES_MAX`, so that a slow broker leaves places for others."""
IDLE_S = 30.0

Work = Callable[[Pieces], Awaitable[LargeStored | None]]


class Asker:
    __slots__ = ("address", "broker_id", "is_gone")

    def __init__(self, broker_id: str, address: str) -> None:
        self.broker_id = broker_id
        self.address = address
        self.is_gone = False


class Bodies:
    def __init__(self) -> None:
        self._bodies: dict[tuple[Asker, str], _Body] = {}

    def describe(self) -> dict[str, int]:
        return {"bodies": len(self._bodies)}

    async def begin(self, asker: Asker, operation: BeginBody, work: Work) -> PieceTaken:
        key = asker, operation.body
        if key in self._bodies:
            raise PartitionMoving(f"body {operation.body} has begun already: begin another")
        if asker.is_gone:
            raise PartitionMoving("the connection of the body has ended")
        self._check_places(asker)
        body = self._bodies[key] = _Body(work, lambda: self._bodies.pop(key, None))
        return PieceTaken(await body.begun())

    async def run(self, asker: Asker, operation: AddPiece | EndBody) -> PieceTaken | BodyStored:
        body = self._bodies.get((asker, operation.body))
        if body is None:
            raise PartitionMoving(
                f"broker has no body {operation.body} of {operation.name}: begin it again"
            )
        if isinstance(operation, AddPiece):
            return PieceTaken(await body.add(operation.number, operation.data))
        return BodyStored(await body.end(operation.pieces))

    def lose(self, asker: Asker) -> None:
        asker.is_gone = True
        for (of, _), body in tuple(self._bodies.items()):
            if of is asker and not body.is_ending:
                body.give_up()

    def close(self) -> None:
        for body in tuple(self._bodies.values()):
            body.give_up()

    def _check_places(self, asker: Asker) -> None:
        of_broker = sum(one.broker_id == asker.broker_id for one, _ in self._bodies)
        if of_broker >= BODIES_OF_BROKER_MAX:
            raise Overloaded(
                f"{BODIES_OF_BROKER_MAX} bodies of large messages come from broker "
                f"{asker.broker_id}; ask again"
            )
        if len(self._bodies) >= BODIES_MAX:
            raise Overloaded(
                f"{BODIES_MAX} bodies of large messages come from other brokers; ask again"
            )


class _Body:
    def __init__(self, work: Work, forget: Callable[[], object]) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._wanted = asyncio.Event()
        self._next = 0
        self._forget = forget
        self.is_ending = False
        self._is_over = False
        self._work = asyncio.ensure_future(_awaited(work(self._come())))
        self._work.add_done_callback(_look)
        self._timer: asyncio.TimerHandle | None = None

    async def begun(self) -> bool:
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait((wanted, self._work), return_when=asyncio.FIRST_COMPLETED)
            if self._work.done():
                await self._result()
        except BaseException:
            self.give_up()
            raise
        finally:
            wanted.cancel()
        self._expect()
        return not self._work.done()

    async def add(self, number: int, data: bytes) -> bool:
        if number != self._next or self.is_ending:
            raise PartitionMoving(f"piece {number} came instead of {self._next}: begin again")
        self._next += 1
        self._expect_nothing()
        try:
            await self._give(data)
        finally:
            self._expect()
        if not self._work.done():
            return True
        await self._result()
        return False

    async def end(self, pieces: int) -> LargeStored | None:
        self._expect_nothing()
        self.is_ending = pieces == self._next
        try:
            if self.is_ending:
                await self._give(None)
            else:
                self._work.cancel()
            return await self._result()
        finally:
            self._forget()

    def give_up(self) -> None:
        self._is_over = True
        self._expect_nothing()
        self._work.cancel()
        self._forget()

    async def _give(self, data: bytes | None) -> None:
        putting = asyncio.ensure_future(self._pieces.put(data))
        try:
            await asyncio.wait((putting, self._work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()

    async def _result(self) -> LargeStored | None:
        await asyncio.wait((self._work,))
        if self._work.cancelled():
            raise PartitionMoving("the body did not come whole: begin it again")
        return self._work.result()

    async def _come(self) -> Pieces:
        self._wanted.set()
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def _expect(self) -> None:
        self._expect_nothing()
        if not (self.is_ending or self._is_over):
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self.give_up)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _look(work: asyncio.Future[LargeStored | None]) -> None:
    if not work.cancelled():
        work.exception()


async def _awaited(work: Awaitable[LargeStored | None]) -> LargeStored | None:
    return await work
