"""What one broker tells another to which it hands a partition on: first that it will, then how.

    owner                                    heir
    serves    ── Foretold ─────────────▶     makes its ledgers, knows the topic
              ◀──────────── prepared ──
    drains, closes its ledgers, lets go
              ── Handed, with the end ──▶     claims, looks, one compare-and-set, serves
              ◀────────────── it serves ──

If the heir does not answer the first call, nothing was closed. If anything goes wrong after that,
it is a take-over like any other: the partition is unowned, and whoever claims it recovers it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.broker.partition.ending import Foretold, PartitionEnd
from octavo.broker.types import BrokerInfo, PartitionName


class Handed(NamedTuple):
    """What the heir is told once the partition is released for it."""

    incarnation: str
    """Of the topic."""
    placed: bool = False
    """It is given on purpose, whatever the preference says: it stays until that broker goes."""
    end: PartitionEnd | None = None
    """How it was left; None: find out."""
    by: str = ""
    """The id of the broker that hands it on."""
    why: str = ""
    """Its reason, in words."""


AskHeir = Callable[[BrokerInfo, PartitionName, Handed], Awaitable[None]]
"""Has another broker claim and open a partition that was released for it; returns when it serves.
Raises what a call to another broker does."""
ForetellHeir = Callable[[BrokerInfo, PartitionName, Foretold], Awaitable[None]]
"""Has another broker make ready for a partition; returns when it is. Raises the same."""
