"""Messages from an owner to the heir of a partition: first that it comes, then how it ends.

    owner                                    heir
    serves    ── Foretold ─────────────▶     makes its ledgers, knows the topic
              ◀──────────── prepared ──
    drains, closes its ledgers, lets go
              ── Handed, with the end ──▶     claims, looks, one compare-and-set, serves
              ◀────────────── it serves ──

If the heir does not answer the first message, the owner has not closed anything. If a later step
fails, it is a take-over like any other: the partition is free, and the broker that claims it
recovers it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.broker.partition.ending import Foretold, PartitionEnd
from octavo.broker.types import BrokerInfo, PartitionName


class Handed(NamedTuple):
    """Tells the heir that the partition has been released for it."""

    incarnation: str
    """The topic's incarnation."""
    placed: bool = False
    """Whether it is given on purpose: then it stays while the heir lives, whatever the preference.
    """
    end: PartitionEnd | None = None
    """How the partition ends; None: the heir has to find out."""
    by: str = ""
    """The id of the broker that hands it on."""
    why: str = ""
    """That broker's reason, in words."""


AskHeir = Callable[[BrokerInfo, PartitionName, Handed], Awaitable[None]]
"""Asks another broker to claim and open a partition released for it; returns when it serves. Raises
what a call to another broker raises."""
ForetellHeir = Callable[[BrokerInfo, PartitionName, Foretold], Awaitable[None]]
"""Asks another broker to prepare for a partition; returns when it has. Raises the same errors."""
