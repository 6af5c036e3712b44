"""Planned hand-over: spread the partitions over the brokers.

When another broker should have a partition (`membership.py`), this broker closes it, releases it
and asks that broker to claim it; publishers wait some tens of milliseconds. Partitions move one at
a time, with pauses. A partition does not move:
- to or from a broker that has been up for less than `balance_after_ms`;
- if it was opened here less than `balance_after_ms` ago: its giver may have seen other live
  brokers;
- if it was placed here on purpose;
- while the metadata store is away, or this broker stops.

A drained or stopping broker gives all partitions away, several at a time. Once the spread is even,
the most loaded broker gives one partition each `balance_load_pause_ms` to the least loaded broker
(load.py).

A partition that the successor does not claim in time is taken back, and that successor is offered
nothing for twice `balance_after_ms`, doubled at each failure, up to ten minutes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from octavo.broker.cluster.load import (
    MEASURED_EVERY_S,
    Giving,
    LoadRules,
    Loads,
    LoadTurns,
    choose,
    worth_telling,
)
from octavo.broker.cluster.ownership import Held, OwnershipManager
from octavo.broker.cluster.registry import BrokerRegistry
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import BROKER_DRAINING, NoOtherBroker, NotOwner, PartitionUnavailable
from octavo.broker.partition.handover_messages import (
    AnnounceToSuccessor,
    AskSuccessor,
    Handover,
    HandoverNotice,
    HandoverState,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, PartitionName, Work
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_TAKEN_WITHIN_S = 5.0
_PAUSE_S_MAX = 600.0


class _Silence(NamedTuple):
    pauses: Backoff
    ends_s: float


class Patience:
    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._silent: dict[str, _Silence] = {}

    def may_be_given(self, broker_id: str, now_s: float) -> bool:
        silence = self._silent.get(broker_id)
        return silence is None or now_s >= silence.ends_s

    def took_nothing(self, broker_id: str, now_s: float) -> float:
        """Note that the broker did not take a partition; return its pause in seconds."""
        before = self._silent.get(broker_id)
        first_s = min(self._first_s, _PAUSE_S_MAX)
        pauses = Backoff(first_s, _PAUSE_S_MAX, None) if before is None else before.pauses
        pause_s = pauses.next_s()
        self._silent[broker_id] = _Silence(pauses, now_s + pause_s)
        return pause_s

    def took(self, broker_id: str) -> None:
        self._silent.pop(broker_id, None)

    def keep_only(self, broker_ids: Iterable[str]) -> None:
        self._silent = {one: self._silent[one] for one in broker_ids if one in self._silent}


class _InPlace(NamedTuple):
    """Every partition opened until `upto_s` is in its place."""

    among: tuple[tuple[str, ...], ...]
    upto_s: float
    good_until_s: float
    """Check all again at this `upto_s`: topics may have grown."""


class Place(NamedTuple):
    why: str
    preferred: str
    placed: bool
    served_s: float
    load: float


class Balance:
    def __init__(
        self,
        config: BrokerConfig,
        registry: BrokerRegistry,
        owners: OwnershipManager,
        announce_to_successor: AnnounceToSuccessor,
        ask_successor: AskSuccessor,
    ) -> None:
        self._config = config
        self._registry = registry
        self._owners = owners
        self._announce_to_successor = announce_to_successor
        self._ask_successor = ask_successor
        # A partition that was taken back stays for `balance_after_ms` anyway.
        self._patience = Patience(2 * config.balance_after_ms / 1000)
        self._settled: tuple[str, ...] = ()
        self._in_place: _InPlace | None = None
        self.clock: Callable[[], float] = asyncio.get_running_loop().time
        self.measure_of: Callable[[Partition], Work] = lambda partition: partition.work
        self._rules = LoadRules(
            config.balance_load_floor,
            config.balance_load_percent / 100,
            config.balance_load_pause_ms / 1000,
            config.balance_load_rest_ms / 1000,
        )
        self._loads = Loads()
        self._load_turns = LoadTurns(self._rules)
        self._measured_s = -math.inf
        self._told: int | None = None
        self._told_s = -math.inf
        self.moved = 0

    def to_move(self) -> dict[PartitionName, str]:
        if self._registry.is_draining:
            return self._all()
        return self._misplaced(self._registry.settled(), -math.inf)

    def _misplaced(self, settled: tuple[str, ...], after_s: float) -> dict[PartitionName, str]:
        own = self._registry.own.broker_id
        if own not in settled or len(settled) == 1:
            return {}
        found = {}
        served = self._owners.served_since(self._opened_by_s(), placed=False, after_s=after_s)
        for name, partitions in served:
            successor = self._registry.successor(name, partitions, settled)
            if successor is not None and successor != own:
                found[name] = successor
        return found

    def _opened_by_s(self) -> float:
        return asyncio.get_running_loop().time() - self._config.balance_after_ms / 1000

    def _newly_to_move(self) -> dict[PartitionName, str]:
        """Return `to_move`, without partitions that were found in place among the same brokers.

        Brokers seldom change, and checking all partitions each time costs too much.
        """
        settled = self._registry.settled()
        among, upto_s = (settled, self._registry.undrained()), self._opened_by_s()
        before = self._in_place
        is_known = before is not None and before.among == among and upto_s < before.good_until_s
        found = self._misplaced(settled, before.upto_s if before and is_known else -math.inf)
        if found:
            self._in_place = None
        elif before is not None and is_known:
            self._in_place = before._replace(upto_s=upto_s)
        else:
            good_until_s = upto_s + self._config.balance_after_ms / 1000
            self._in_place = _InPlace(among, upto_s, good_until_s)
        return found

    def _still_goes(self, name: PartitionName, successor: str) -> bool:
        settled = self._registry.settled()
        try:
            held = self._owners.held_here(name)
        except NotOwner:
            return False
        if held.placed or held.since_s > self._opened_by_s():
            return False
        is_asked = self._registry.own.broker_id in settled and not self._registry.is_draining
        return is_asked and self._registry.successor(name, held.partitions, settled) == successor

    def _all(self) -> dict[PartitionName, str]:
        now_s = asyncio.get_running_loop().time()
        found = {}
        for name, partitions in self._owners.served_since(now_s):
            successor = self._registry.preferred_of(name, partitions).broker_id
            if successor != self._registry.own.broker_id:
                found[name] = successor
        return found

    def measure(self) -> None:
        if self.clock() - self._measured_s >= MEASURED_EVERY_S:
            self._measured_s = self.clock()
            work = ((one.name, self.measure_of(one)) for one in self._owners.open_partitions())
            self._loads.measure(work, self._measured_s)

    def load(self) -> float:
        return self._loads.total(lambda name: self._owners.partitions_of(name) is not None)

    def load_of(self, name: PartitionName) -> float:
        return self._loads.of(name)

    def load_to_tell(self) -> int:
        now_s = self.clock()
        since_s = now_s - self._told_s
        told = worth_telling(self._told, self.load(), self._rules.floor, since_s)
        if told != self._told:
            self._told, self._told_s = told, now_s
        return told

    def place_of(self, name: PartitionName) -> Place:
        held = self._owners.held_here(name)
        served_s = asyncio.get_running_loop().time() - held.since_s
        wanted = self._registry.preferred_of(name, held.partitions).broker_id
        why = self._why(held, wanted, served_s)
        if held.came:
            why = f"{held.came}; {why}"
        return Place(why, wanted, held.placed, served_s, self._loads.of(name))

    def _why(self, held: Held, wanted: str, served_s: float) -> str:
        own = self._registry.own.broker_id
        if held.is_moving:
            return "it is being handed on to another broker at this moment"
        if self._registry.is_draining and wanted != own:
            return f"{own} is being emptied and gives it to {wanted}"
        if held.placed:
            return (
                f"it was put on {own} for its load or by hand, and stays until that broker goes or "
                "is drained, or it is moved again"
            )
        if wanted == own:
            return (
                f"{own} should have it by the even spread of the topic's partitions "
                f"({held.partitions}) over the live brokers ({len(self._registry.live)})"
            )
        after_s = self._config.balance_after_ms / 1000
        if served_s < after_s:
            wait = f"it was opened {served_s:.0f} s ago, and stays for {after_s:g} s"
        elif wanted not in self._registry.settled():
            wait = f"{own} or {wanted} has not been up for {after_s:g} s, or has no session"
        elif not self._may_be_given(wanted):
            wait = f"{wanted} did not take its last partition, and is given none for a while"
        else:
            wait = "its turn comes"
        return f"by the even spread {wanted} should have it, and will be given it: {wait}"

    def to_give(self) -> Giving | None:
        now_s, own = self.clock(), self._registry.own.broker_id
        settled = self._registry.settled()
        if (
            not self._config.balance_by_load
            or self.load() <= self._rules.floor
            or settled != self._registry.undrained()
            or not self._load_turns.may_move(now_s, self._registry.changed_s)
        ):
            return None
        told = {one: self._registry.statuses.of(one).load for one in settled}
        loads = {one: float(load) for one, load in told.items() if load is not None}
        if len(loads) + (own not in loads) < len(settled):
            return None
        rested = self._owners.served_since(now_s - self._rules.rest_s)
        movable = {name: self._loads.of(name) for name, _ in rested}
        return choose(own, loads | {own: self.load()}, movable, self._rules)

    async def _give(self) -> None:
        giving = self.to_give()
        if giving is None or not self._may_be_given(giving.to):
            return
        self._load_turns.tried(self.clock())
        _log.info(
            "load_given_away",
            partition=str(giving.partition),
            to=giving.to,
            load=round(giving.load),
            own_load=round(giving.own),
            heirs_load=round(giving.successors),
            mean_load=round(giving.mean),
        )
        why = (
            f"its own load was {giving.own:.0f}, the mean of all brokers {giving.mean:.0f}, and "
            f"that of {giving.to} {giving.successors:.0f}"
        )
        await self._move(giving.partition, self._registry.live[giving.to], why, placed=True)

    def check_others(self) -> None:
        others = [one for one in self._registry.undrained() if one != self._registry.own.broker_id]
        if not others:
            raise NoOtherBroker(
                "no other broker could take the partitions of "
                f"{self._registry.own.broker_id}: start one, or undo the drain of another"
            )

    async def unload(self, name: PartitionName, to: str) -> BrokerInfo:
        """Hand over an open partition; return its new owner.

        A broker named by `to` keeps the partition as long as it lives. If `to` is empty, the
        preferred broker gets it; if that is this broker, it reopens the partition.
        """
        own, partitions = self._registry.own, self._owners.partitions_of(name)
        if partitions is None:
            raise NotOwner(f"{name} is not served by this broker")
        successor = (
            self._registry.live.get(to) if to else self._registry.preferred_of(name, partitions)
        )
        if successor is None:
            raise self._registry.no_such_broker(to)
        if to and to not in self._registry.undrained():
            raise BROKER_DRAINING(f"broker {to} is being drained: undo that first, or name another")
        if successor.broker_id == own.broker_id:
            await self._owners.open_anew(name, placed=bool(to))
            return own
        why = f"an unload asked for {to}" if to else "an unload asked for the broker to have it"
        if not await self._move(name, successor, why, placed=bool(to)):
            raise PartitionUnavailable(
                f"{name} was not taken by {successor.broker_id}; it stays here"
            )
        return successor

    async def look(self) -> None:
        settled, before = self._registry.settled(), self._settled
        self._settled = settled
        if any(one not in before for one in settled):
            # Claim partitions that were released for us before.
            self._owners.reconcile()
        self._patience.keep_only(settled)
        if self._registry.is_draining:
            await self._empty()
            return
        found = self._newly_to_move()
        for name, successor in found.items():
            if self._still_goes(name, successor) and self._may_be_given(successor):
                why = f"by the even spread {successor} should have it"
                await self._move(name, self._registry.live[successor], why)
                await asyncio.sleep(self._config.balance_pause_ms / 1000)
        if not found:
            await self._give()

    async def give_all(self) -> None:
        while self._takers():
            before = self.moved
            await self._empty()
            if self.moved == before:  # another call is moving the rest
                await asyncio.sleep(self._config.balance_pause_ms / 1000)

    def _takers(self) -> set[str]:
        return {successor for successor in self.to_move().values() if self._may_be_given(successor)}

    async def _empty(self) -> None:
        left = iter(self.to_move().items())

        async def some() -> None:
            for name, successor in left:
                found = self._registry.live.get(successor)
                if not self._registry.is_draining:
                    return
                if found is not None and self._may_be_given(successor):
                    await self._move(name, found, self._why_empty())

        await asyncio.gather(*(some() for _ in range(self._config.drain_moves_max)))

    def _why_empty(self) -> str:
        own = self._registry.own.broker_id
        return f"{own} stops" if self._owners.is_leaving else f"{own} is being drained"

    def _may_be_given(self, successor: str) -> bool:
        return self._patience.may_be_given(successor, asyncio.get_running_loop().time())

    async def _move(
        self, name: PartitionName, successor: BrokerInfo, why: str, *, placed: bool = False
    ) -> bool:
        """Hand a partition over; return whether another broker has it then."""
        if not self._owners.may_be_handed_on(name):
            return False
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        reason, own = "it did not answer", self._registry.own.broker_id

        async def announce(foretold: HandoverNotice) -> bool:
            nonlocal reason
            try:
                async with asyncio.timeout(_TAKEN_WITHIN_S):
                    await self._announce_to_successor(successor, name, foretold)
            except (OctavoError, OSError, TimeoutError) as error:
                reason = str(error) or repr(error)
                return False
            return True

        async def ask(incarnation: str, end: HandoverState | None) -> None:
            nonlocal reason
            try:
                await self._ask_successor(
                    successor, name, Handover(incarnation, placed, end, own, why)
                )
            except (OctavoError, OSError, TimeoutError) as error:
                reason = str(error) or repr(error)

        owner = await self._owners.hand_on(name, successor, announce, ask, _TAKEN_WITHIN_S)
        duration_ms = round((loop.time() - started_s) * 1000, 1)
        if owner is None:
            _log.warning(
                "handover_not_taken",
                partition=str(name),
                to=successor.broker_id,
                duration_ms=duration_ms,
                reason=reason,
                again_in_s=self._patience.took_nothing(successor.broker_id, loop.time()),
            )
            return False
        self._patience.took(successor.broker_id)
        self.moved += 1
        _log.info(
            "partition_handed_on",
            partition=str(name),
            broker=self._registry.own.broker_id,
            to=owner.broker_id,
            duration_ms=duration_ms,
        )
        return True
