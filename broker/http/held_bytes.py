"""How many bytes of request bodies are in memory, and a bound on that, shared between peers.

What readers have not taken yet, long answers and what subscriptions' streams hold, counts as well,
up to half.

Counted is what has arrived, never what was announced. One peer (an address) may hold three
quarters of the bound, so that there is always room for another. Whoever finds no room waits a
moment and is then told to come back; while more than half is taken, a body that stands still loses
its place (`Call` looks at `pressed`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from octavo.broker.errors import Overloaded

ROOM_WAIT_S = 2.0
"""How long a body waits for room before its sender is told to come back."""


class HeldBytes:
    """The count of one broker."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._peer_bytes_max = bytes_max - bytes_max // 4
        self._held = 0
        self._going_out = 0
        self._by_peer: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {
            "bytes": self._held,
            "going_out": self._going_out,
            "peers": len(self._by_peer),
            "waiting": sum(not one.done() for one in self._waiting),
        }

    @property
    def total(self) -> int:
        """Bytes in memory now."""
        return self._held

    @property
    def pressed(self) -> bool:
        """Whether who does not use its place should lose it."""
        return self._held > self._bytes_max // 2

    async def take(self, peer: str, size: int) -> None:
        """Count `size` more bytes; waits a moment for room. Raises `Overloaded`."""
        if not self.try_take(peer, size):
            await self._wait_for_room(peer, size)
            self._count(peer, size)

    def try_take(self, peer: str, size: int) -> bool:
        """The same without a wait: whether there was room."""
        if not self._has_room(peer, size):
            return False
        self._count(peer, size)
        return True

    def part(self, size: int) -> int:
        """No more than a part of the bound, so that there is room for it at all."""
        return min(size, self._bytes_max // 8)

    def has_room_to_send(self, size: int) -> bool:
        """Whether so much more may go out: half of the bound is for bodies alone."""
        return (
            self._going_out + size <= self._bytes_max // 2 and self._held + size <= self._bytes_max
        )

    async def room_to_send(self, size: int) -> None:
        """Wait until they may."""
        while not self.has_room_to_send(size):
            await self._given_back()

    def count_going_out(self, peer: str, size: int) -> None:
        """Count what is to be sent, also where there is no room; below 0: no more."""
        self._going_out += size
        if size > 0:
            self._count(peer, size)
        else:
            self.give_back(peer, -size)

    def check_answer(self, peer: str, size: int) -> None:
        """Whether an answer of `size` bytes may go out. It is there already, so nothing waits; one
        is always possible. Raises `Overloaded`.
        """
        peer_max = self._bytes_max // 2 - self._bytes_max // 8
        if self._going_out and not (
            self.has_room_to_send(size) and self._by_peer[peer] + size <= peer_max
        ):
            raise Overloaded(
                f"this broker holds {self._going_out} bytes of answers that their readers have not "
                f"taken, {peer} has {self._by_peer[peer]} bytes here; the bounds are "
                f"{self._bytes_max // 2} and {peer_max}: take what was sent, come back in a "
                "moment, ask for less (max_bytes=), or ask another broker"
            )

    def give_back(self, peer: str, size: int) -> None:
        """These bytes are free again."""
        self._held -= size
        self._by_peer[peer] -= size
        assert self._held >= 0
        assert self._by_peer[peer] >= 0
        if not self._by_peer[peer]:
            del self._by_peer[peer]
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _count(self, peer: str, size: int) -> None:
        self._held += size
        self._by_peer[peer] += size

    def _has_room(self, peer: str, size: int) -> bool:
        return (
            self._held + size <= self._bytes_max
            and self._by_peer[peer] + size <= self._peer_bytes_max
        )

    async def _given_back(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    async def _wait_for_room(self, peer: str, size: int) -> None:
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                while not self._has_room(peer, size):
                    await self._given_back()
        except TimeoutError:
            raise Overloaded(
                f"this broker holds {self._held} bytes of request bodies, {self._by_peer[peer]} of "
                f"them from {peer}; its bounds are {self._bytes_max} and {self._peer_bytes_max}: "
                "come back in a moment, or ask another broker"
            ) from None
