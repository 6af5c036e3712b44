"""Planned hand-over: every broker its share, also of what is served already.

A partition that another broker should have (`preference.py`) is closed here, released, and claimed
by that broker at once, for it watches what it is preferred for; its publishers wait for some tens
of milliseconds. One after the other, with a pause between two. Nothing moves

- to a broker that has not been up for `balance_after_ms`, or by one that has not (members.py);
- that was opened here less than `balance_after_ms` ago: whoever gave it saw other brokers;
- while the metadata store is away, or this broker stops.

What the heir does not claim in time is taken back.
"""

from __future__ import annotations

import asyncio

import structlog

from broker.config import BrokerConfig
from broker.members import Members
from broker.ownership import Owners
from broker.types import PartitionName

_log = structlog.get_logger()
_TAKEN_WITHIN_S = 5.0


class Balance:
    """Moves what one broker serves and others should."""

    def __init__(self, config: BrokerConfig, members: Members, owners: Owners) -> None:
        self._config = config
        self._members = members
        self._owners = owners
        self._settled: tuple[str, ...] = ()
        self.moved = 0
        """Partitions handed on since the start."""

    def to_move(self) -> dict[PartitionName, str]:
        """What is to be handed on as things stand, and to whom."""
        settled = self._members.settled()
        own = self._members.own.broker_id
        if own not in settled:
            return {}
        opened_by_s = asyncio.get_running_loop().time() - self._config.balance_after_ms / 1000
        found = {}
        for name, partitions in self._owners.served_since(opened_by_s):
            heir = self._members.heirs(name.topic_name, partitions, settled)[name.partition]
            if heir is not None and heir != own:
                found[name] = heir
        return found

    async def look(self) -> None:
        """Hand on what is to be moved; called now and then."""
        settled, before = self._members.settled(), self._settled
        self._settled = settled
        if any(one not in before for one in settled):
            # Watch what we are to be given, and take what was released unseen.
            self._owners.reconcile()
        for name in self.to_move():
            if name in self.to_move():
                await self._move(name)
                await asyncio.sleep(self._config.balance_pause_ms / 1000)

    async def _move(self, name: PartitionName) -> None:
        started_s = asyncio.get_running_loop().time()
        owner = await self._owners.hand_on(name, _TAKEN_WITHIN_S)
        duration_ms = round((asyncio.get_running_loop().time() - started_s) * 1000, 1)
        if owner is None:
            _log.warning("handover_not_taken", partition=str(name), duration_ms=duration_ms)
            return
        self.moved += 1
        _log.info(
            "partition_handed_on",
            partition=str(name),
            broker=self._members.own.broker_id,
            to=owner.broker_id,
            duration_ms=duration_ms,
        )
