"""Limit the bodies in memory, by shares of addresses, principals and namespaces.

Answers that readers have not taken may use half of the limit. An address may hold three quarters, a
known principal half, with its forwarded calls: so others have room. Bytes count when they arrive. A
body without room waits a moment, then is refused.

While more than half is taken, slow bodies lose their places: the more is taken, the faster a body
must arrive (`pace_least`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from octavo.broker.errors import Overloaded

ROOM_WAIT_S = 2.0
NAMESPACE = "namespace:"
PACE_FULL_BYTES_S = 64 * 1024
"""The speed that a body needs when all room is taken; none is needed while half is free."""


def pace_least(held: int, bytes_max: int) -> float:
    half = bytes_max // 2
    return 0.0 if held <= half else PACE_FULL_BYTES_S * (held - half) / (bytes_max - half)


class HeldBytes:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._peer_bytes_max = bytes_max - bytes_max // 4
        self._held = 0
        self._going_out = 0
        self._principal_bytes_max = bytes_max // 2
        self._by_peer: Counter[str] = Counter()
        self._by_subject: Counter[str] = Counter()
        self.quota_of: Callable[[str], int | None] = lambda _: None
        self._waiting: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

    def describe(self) -> dict[str, int]:
        return {
            "bytes": self._held,
            "going_out": self._going_out,
            "peers": len(self._by_peer),
            "subjects": len(self._by_subject),
            "waiting": sum(not one.done() for one in self._waiting),
        }

    @property
    def total(self) -> int:
        return self._held

    @property
    def pressed(self) -> bool:
        return self._held > self._bytes_max // 2

    @property
    def pace_least(self) -> float:
        return pace_least(self._held, self._bytes_max)

    async def take(self, peer: str, size: int, *subjects: str) -> None:
        """Count more bytes, in the shares of `subjects`: principal and namespace."""
        if not self.try_take(peer, size, *subjects):
            await self._wait_for_room(peer, size, subjects)
            self._count(peer, size, subjects)

    def try_take(self, peer: str, size: int, *subjects: str) -> bool:
        if not self._has_room(peer, size, subjects):
            return False
        self._count(peer, size, subjects)
        return True

    def part(self, size: int) -> int:
        """Return `size`, bounded so that it always finds room."""
        return min(size, self._bytes_max // 8)

    def has_room_to_send(self, size: int) -> bool:
        """Return whether the bytes may be sent: half of the limit is for bodies."""
        return (
            self._going_out + size <= self._bytes_max // 2 and self._held + size <= self._bytes_max
        )

    async def room_to_send(self, size: int) -> None:
        while not self.has_room_to_send(size):
            await self._given_back()

    def count_going_out(self, peer: str, size: int) -> None:
        """Count bytes to send, even without room; negative: fewer."""
        self._going_out += size
        if size > 0:
            self._count(peer, size)
        else:
            self.give_back(peer, -size)

    def check_answer(self, peer: str, size: int) -> None:
        """Check that an answer may be sent now; one answer at a time always may."""
        peer_max = self._bytes_max // 2 - self._bytes_max // 8
        if self._going_out and not (
            self.has_room_to_send(size) and self._by_peer[peer] + size <= peer_max
        ):
            raise Overloaded(
                f"this broker holds {self._going_out} bytes of answers that their readers have not "
                f"taken, {peer} has {self._by_peer[peer]} bytes here; the limits are "
                f"{self._bytes_max // 2} and {peer_max}: read what was sent, come back in a "
                "moment, ask for less (max_bytes=), or ask another broker"
            )

    def give_back(self, peer: str, size: int, *subjects: str) -> None:
        self._held -= size
        assert self._held >= 0
        _less(self._by_peer, peer, size)
        for subject in subjects:
            _less(self._by_subject, subject, size)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _count(self, peer: str, size: int, subjects: tuple[str, ...] = ()) -> None:
        self._held += size
        self._by_peer[peer] += size
        for subject in subjects:
            self._by_subject[subject] += size

    def _has_room(self, peer: str, size: int, subjects: tuple[str, ...]) -> bool:
        return (
            self._held + size <= self._bytes_max
            and self._by_peer[peer] + size <= self._peer_bytes_max
            and not any(self._is_over(subject, size) for subject in subjects)
        )

    def _is_over(self, subject: str, size: int) -> bool:
        return self._by_subject.get(subject, 0) + size > self._bytes_max_of(subject)

    def _bytes_max_of(self, subject: str) -> int:
        is_namespace = subject.startswith(NAMESPACE)
        most = self._bytes_max if is_namespace else self._principal_bytes_max
        quota = self.quota_of(subject)
        return most if quota is None else min(quota, most)

    async def _given_back(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            del self._waiting[waiter]

    async def _wait_for_room(self, peer: str, size: int, subjects: tuple[str, ...]) -> None:
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                while not self._has_room(peer, size, subjects):
                    await self._given_back()
        except TimeoutError:
            raise Overloaded(self._no_room(peer, size, subjects)) from None

    def _no_room(self, peer: str, size: int, subjects: tuple[str, ...]) -> str:
        over = [subject for subject in subjects if self._is_over(subject, size)]
        told = [
            f"{self._by_subject[subject]} of {subject}, whose "
            f"{'share' if self.quota_of(subject) is None else 'quota of memory'} is "
            f"{self._bytes_max_of(subject)}"
            for subject in over
        ]
        return (
            f"this broker holds {self._held} bytes of request bodies, {self._by_peer[peer]} of "
            f"them from {peer}" + "".join(f" and {one}" for one in told) + f"; its bounds are "
            f"{self._bytes_max}, and {self._peer_bytes_max} for an address, and there is no room "
            f"for {size} more: come back in a moment, or ask another broker"
        )


def _less(held: Counter[str], whose: str, size: int) -> None:
    held[whose] -= size
    assert held[whose] >= 0
    if not held[whose]:
        del held[whose]
