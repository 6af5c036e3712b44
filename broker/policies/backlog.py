"""What a subscription has not acked, held against its topic's quota. Pure.

What counts is what is kept for it: the bytes from its first unacked offset to the end, acked ones
in between included, for no ledger goes before. Of a part of a ledger the bytes are estimated by its
messages. A quota is judged for each subscription by itself; the one that is furthest beyond its
bound, the slowest, is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """A ledger's messages from `start` on, before `end`, and the bytes of them all."""

    start: int
    end: int
    bytes: int


class Backlog(NamedTuple):
    """Of one subscription in one partition. `age_ms`: its oldest message is that old at least."""

    subscription: str
    unacked_from: int
    bytes: int
    age_ms: int


class Quota(NamedTuple):
    """None: no bound."""

    bytes: int | None
    age_ms: int | None

    def excess(self, backlog: Backlog) -> float:
        """By how much a backlog is beyond it: 1.0 is the bound itself, more is too much."""
        found = 0.0
        if self.bytes is not None:
            found = backlog.bytes / self.bytes
        if self.age_ms is not None:
            found = max(found, backlog.age_ms / self.age_ms)
        return found

    def slowest(self, backlogs: Iterable[Backlog]) -> Backlog | None:
        """The backlog that is furthest beyond; None when none is."""
        beyond = [one for one in backlogs if self.excess(one) > 1.0]
        return max(beyond, key=lambda one: (self.excess(one), one.subscription), default=None)

    def said_of(self, backlog: Backlog) -> str:
        """In words: whose it is, how much, and what is allowed."""
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
    """What is stored from `offset` on; `stored` ascends."""
    total = 0
    for part in reversed(stored):
        if part.end <= offset:
            break
        count = part.end - max(part.start, offset)
        total += -(-part.bytes * count // max(1, part.end - part.start))
    return total


def room_from(bytes_max: int, stored: Sequence[Stored]) -> int:
    """The first offset from which on no more than `bytes_max` are stored."""
    left = bytes_max
    first = stored[-1].end if stored else 0
    for part in reversed(stored):
        if part.bytes > left:
            return part.end - (part.end - part.start) * left // part.bytes
        left -= part.bytes
        first = part.start
    return first
