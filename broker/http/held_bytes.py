"""How many bytes of request bodies are in memory, and a bound on that, shared between peers.

What readers have not taken yet, long answers and what subscriptions' streams hold, counts as well,
up to half.

Bytes count when they have arrived, never when they were announced. One address may hold three
quarters of the bound, and a known principal half of it, also by calls that other brokers pass on.
So there is always room for another one. A body that finds no room waits a moment, and its sender is
then told to come back.

While more than half is taken, bodies that come slowly lose their places, the slowest first: the
more is taken, the faster a body has to come to keep what it holds (`pace_least`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from octavo.broker.errors import Overloaded
from octavo.security.principal import ANONYMOUS, Identity

ROOM_WAIT_S = 2.0
"""How long a body waits for room before its sender is told to come back."""
PACE_FULL_BYTES_S = 64 * 1024
"""So fast a body has to come when all room is taken; not at all when half of it is."""


def share_of(identity: Identity) -> str:
    """The principal whose share a call's bytes count in; empty where nobody has proved it."""
    return "" if identity.name == ANONYMOUS.name else identity.name


def pace_least(held: int, bytes_max: int) -> float:
    """How many bytes a second a body has to bring to keep its place; 0: it may take its time."""
    half = bytes_max // 2
    return 0.0 if held <= half else PACE_FULL_BYTES_S * (held - half) / (bytes_max - half)


class HeldBytes:
    """The count of one broker."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._peer_bytes_max = bytes_max - bytes_max // 4
        self._held = 0
        self._going_out = 0
        self._principal_bytes_max = bytes_max // 2
        self._by_peer: Counter[str] = Counter()
        self._by_principal: Counter[str] = Counter()
        self.quota_of: Callable[[str], int | None] = lambda _: None
        """How many bytes a principal may have by its quota."""
        self._waiting: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

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

    @property
    def pace_least(self) -> float:
        """How many bytes a second a body has to bring now to keep its place."""
        return pace_least(self._held, self._bytes_max)

    async def take(self, peer: str, size: int, principal: str = "") -> None:
        """Count `size` more bytes; waits a moment for room. Raises `Overloaded`.

        `principal`: whose they are; empty where no one has proved who they are.
        """
        if not self.try_take(peer, size, principal):
            await self._wait_for_room(peer, size, principal)
            self._count(peer, size, principal)

    def try_take(self, peer: str, size: int, principal: str = "") -> bool:
        """The same without a wait: whether there was room."""
        if not self._has_room(peer, size, principal):
            return False
        self._count(peer, size, principal)
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

    def give_back(self, peer: str, size: int, principal: str = "") -> None:
        """These bytes are free again."""
        self._held -= size
        assert self._held >= 0
        _less(self._by_peer, peer, size)
        if principal:
            _less(self._by_principal, principal, size)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _count(self, peer: str, size: int, principal: str = "") -> None:
        self._held += size
        self._by_peer[peer] += size
        if principal:
            self._by_principal[principal] += size

    def _has_room(self, peer: str, size: int, principal: str) -> bool:
        of_principal = self._by_principal.get(principal, 0) + size if principal else 0
        return (
            self._held + size <= self._bytes_max
            and self._by_peer[peer] + size <= self._peer_bytes_max
            and of_principal <= self._bytes_max_of(principal)
        )

    def _bytes_max_of(self, principal: str) -> int:
        quota = self.quota_of(principal) if principal else None
        most = self._principal_bytes_max
        return most if quota is None else min(quota, most)

    async def _given_back(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            del self._waiting[waiter]

    async def _wait_for_room(self, peer: str, size: int, principal: str) -> None:
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                while not self._has_room(peer, size, principal):
                    await self._given_back()
        except TimeoutError:
            whose = f"{self._by_peer[peer]} of them from {peer}"
            if principal:
                whose += f" and {self._by_principal[principal]} of {principal}"
            raise Overloaded(
                f"this broker holds {self._held} bytes of request bodies, {whose}; its bounds are "
                f"{self._bytes_max}, {self._peer_bytes_max} for an address and "
                f"{self._bytes_max_of(principal)} for a principal: come back in a moment, or ask "
                "another broker"
            ) from None


def _less(held: Counter[str], whose: str, size: int) -> None:
    held[whose] -= size
    assert held[whose] >= 0
    if not held[whose]:
        del held[whose]
