"""Planned hand-over: every broker its share, also of what is served already.

A partition that another broker should have (`preference.py`) is closed here, released, and claimed
by that broker at once, for it is asked to, and watches what it is preferred for besides; its
publishers wait for some tens of milliseconds. One after the other, with a pause between two.
Nothing moves

- to a broker that has not been up for `balance_after_ms`, or by one that has not (registry.py);
- that was opened here less than `balance_after_ms` ago: whoever gave it saw other brokers;
- while the metadata store is away, or this broker stops.

What the heir does not claim in time is taken back, and the heir is given nothing for a while: ten
seconds, and twice as long each time, so that nothing is closed again and again in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import structlog

from octavo.broker.cluster.ownership import OwnershipManager
from octavo.broker.cluster.registry import BrokerRegistry
from octavo.broker.config import BrokerConfig
from octavo.broker.types import BrokerInfo, PartitionName
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_TAKEN_WITHIN_S = 5.0
_PAUSE_S_MAX = 600.0

AskHeir = Callable[[BrokerInfo, PartitionName, str], Awaitable[None]]
"""Has another broker serve the partition of a topic of this incarnation, as any call that is passed
on to it does. Raises what a call to another broker does."""


class _Silence(NamedTuple):
    """Of a broker that did not take what it should have."""

    pauses: Backoff
    ends_s: float


class Patience:
    """Which brokers are given nothing for now. Pure; times are of one steady clock."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._silent: dict[str, _Silence] = {}

    def may_be_given(self, broker_id: str, now_s: float) -> bool:
        """Whether it is time to try."""
        silence = self._silent.get(broker_id)
        return silence is None or now_s >= silence.ends_s

    def took_nothing(self, broker_id: str, now_s: float) -> float:
        """It was given something in vain; for how long nothing is to be tried now, in seconds."""
        before = self._silent.get(broker_id)
        first_s = min(self._first_s, _PAUSE_S_MAX)
        pauses = Backoff(first_s, _PAUSE_S_MAX, None) if before is None else before.pauses
        pause_s = pauses.next_s()
        self._silent[broker_id] = _Silence(pauses, now_s + pause_s)
        return pause_s

    def took(self, broker_id: str) -> None:
        """All is well with it."""
        self._silent.pop(broker_id, None)

    def keep_only(self, broker_ids: Iterable[str]) -> None:
        """The others have gone: whoever comes back begins anew."""
        self._silent = {one: self._silent[one] for one in broker_ids if one in self._silent}


class Balance:
    """Moves what one broker serves and others should."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: BrokerRegistry,
        owners: OwnershipManager,
        ask_heir: AskHeir,
    ) -> None:
        self._config = config
        self._registry = registry
        self._owners = owners
        self._ask_heir = ask_heir
        # A partition that was taken back stays for so long anyhow.
        self._patience = Patience(2 * config.balance_after_ms / 1000)
        self._settled: tuple[str, ...] = ()
        self.moved = 0
        """Partitions handed on since the start."""

    def to_move(self) -> dict[PartitionName, str]:
        """What is to be handed on as things stand, and to whom."""
        settled = self._registry.settled()
        own = self._registry.own.broker_id
        if own not in settled:
            return {}
        opened_by_s = asyncio.get_running_loop().time() - self._config.balance_after_ms / 1000
        found = {}
        for name, partitions in self._owners.served_since(opened_by_s):
            heir = self._registry.heirs(name.topic_name, partitions, settled)[name.partition]
            if heir is not None and heir != own:
                found[name] = heir
        return found

    async def look(self) -> None:
        """Hand on what is to be moved; called now and then."""
        settled, before = self._registry.settled(), self._settled
        self._settled = settled
        if any(one not in before for one in settled):
            # Watch what we are to be given, and take what was released unseen.
            self._owners.reconcile()
        self._patience.keep_only(settled)
        for name, heir in self.to_move().items():
            if self.to_move().get(name) == heir and self._may_be_given(heir):
                await self._move(name, self._registry.live[heir])
                await asyncio.sleep(self._config.balance_pause_ms / 1000)

    def _may_be_given(self, heir: str) -> bool:
        return self._patience.may_be_given(heir, asyncio.get_running_loop().time())

    async def _move(self, name: PartitionName, heir: BrokerInfo) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        reason = "it did not answer"

        async def ask(incarnation: str) -> None:
            nonlocal reason
            try:
                await self._ask_heir(heir, name, incarnation)
            except (OctavoError, OSError, TimeoutError) as error:
                reason = str(error) or repr(error)

        owner = await self._owners.hand_on(name, ask, _TAKEN_WITHIN_S)
        duration_ms = round((loop.time() - started_s) * 1000, 1)
        if owner is None:
            _log.warning(
                "handover_not_taken",
                partition=str(name),
                to=heir.broker_id,
                duration_ms=duration_ms,
                reason=reason,
                again_in_s=self._patience.took_nothing(heir.broker_id, loop.time()),
            )
            return
        self._patience.took(heir.broker_id)
        self.moved += 1
        _log.info(
            "partition_handed_on",
            partition=str(name),
            broker=self._registry.own.broker_id,
            to=owner.broker_id,
            duration_ms=duration_ms,
        )
