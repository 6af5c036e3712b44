"""Compares a subscription's backlog with its topic's quota. Pure.

All bytes from its first unacked offset to the end count, including acked messages in between,
because their ledgers are kept too. The bytes of a part of a ledger are estimated from its number
of messages. A quota applies to each subscription separately; errors name the slowest subscription,
which is furthest beyond its bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """A ledger's messages from `start` on, before `end`, and their bytes."""

    start: int
    end: int
    bytes: int


class Backlog(NamedTuple):
    """A subscription's backlog in a partition. `age_ms`: the minimal age of its oldest message."""

    subscription: str
    unacked_from: int
    bytes: int
    age_ms: int


class Quota(NamedTuple):
    """Bounds of a backlog; None: no bound."""

    bytes: int | None
    age_ms: int | None

    def excess(self, backlog: Backlog) -> float:
        """Return the backlog's share of the bound: 1.0 is the bound itself, more is too much."""
        found = 0.0
        if self.bytes is not None:
            found = backlog.bytes / self.bytes
        if self.age_ms is not None:
            found = max(found, backlog.age_ms / self.age_ms)
        return found

    def slowest(self, backlogs: Iterable[Backlog]) -> Backlog | None:
        """Return the backlog that is furthest beyond its bound; None if none is."""
        beyond = [one for one in backlogs if self.excess(one) > 1.0]
        return max(beyond, key=lambda one: (self.excess(one), one.subscription), default=None)

    def said_of(self, backlog: Backlog) -> str:
        """Describe a backlog over its quota: its subscription, its size, and the quota."""
        said = []
        if self.bytes is not None and backlog.bytes > self.bytes:
            said.append(f"{backlog.bytes} bytes are kept for it, and the quota is {self.bytes}")
        if self.age_ms is not None and backlog.age_ms > self.age_ms:
            said.append(
                f"its oldest message is {backlog.age_ms / 1000:g} s old, and the quota is "
                f"{self.age_ms / 1000:g} s"
            )
        return (
            f"subscription {backlog.subscription!r} has not acked offset {backlog.unacked_from}: "
            + "; ".join(said)
        )


def bytes_from(offset: int, stored: Sequence[Stored]) -> int:
    """Return the bytes stored from `offset` on; `stored` ascends."""
    total = 0
    for part in reversed(stored):
        if part.end <= offset:
            break
        count = part.end - max(part.start, offset)
        total += -(-part.bytes * count // max(1, part.end - part.start))
    return total


def room_from(bytes_max: int, stored: Sequence[Stored]) -> int:
    """Return the first offset from which on at most `bytes_max` bytes are stored."""
    left = bytes_max
    first = stored[-1].end if stored else 0
    for part in reversed(stored):
        if part.bytes > left:
            return part.end - (part.end - part.start) * left // part.bytes
        left -= part.bytes
        first = part.start
    return first
