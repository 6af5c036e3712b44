"""Own partitions: claim them, take them over, hand them over (states: ownership_states.py).

When a broker vanishes, each survivor takes at once the partitions for which it is now preferred. An
unused partition stays without an owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple

import structlog

from octavo.broker.cluster.openings import Openings
from octavo.broker.cluster.ownership_states import (
    HERE,
    ON_ITS_WAY,
    WAITS,
    Event,
    Route,
    State,
    after,
    begins_release,
    known_route,
    may,
    route,
)
from octavo.broker.cluster.registry import BrokerRegistry, decode_broker
from octavo.broker.cluster.topics import Topics
from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    NotOwner,
    PartitionMoving,
    PartitionNotFound,
    TopicChanged,
    TopicNotFound,
    unavailable,
)
from octavo.broker.log.record import OwnershipLost
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.handover_messages import Handover, HandoverNotice, HandoverState
from octavo.broker.partition.partition import Partition, PartitionOpening
from octavo.broker.types import (
    BrokerInfo,
    Owner,
    PartitionName,
    PartitionState,
    TopicInfo,
    TopicName,
    TopicSettings,
)
from octavo.metadata.election import Ownership
from octavo.metadata.store import RecordNotFound, Watch
from octavo.metadata.topics import TopicStore, owner_path
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_LOOKUPS_AT_ONCE = 64
_OPENINGS_AT_ONCE = 8
"""An opening takes 10 to 20 ms of processor time; more at once only lengthen the loop's turns."""
_ABANDONED_AT_ONCE = 4
_TOPIC_DELETED = "its topic was deleted"
_ASKED_EVERY_S = 0.25
_GIVEN_LOOKS = 100
_GIVEN_PAUSE_S = 0.005
"""Pause between tries to claim a record that its owner is releasing (one write)."""
_ASKED_WITHIN_S = 1.0
"""How long a released partition is left to the successor that was asked."""
_ENDED_WITHIN_S = 10.0
"""A broker that came up at most this long before a take-over had the partition in its previous run.
"""
_NOWHERE = PartitionName("", "", -1)
_SERVING = (PartitionState.OPEN, PartitionState.REOPENING)


class Held(NamedTuple):
    partitions: int
    placed: bool
    since_s: float
    is_moving: bool
    came: str
    """How it came here, in words; empty when no broker served it before."""


class _Claimed(Exception):
    def __init__(self, owner: bytes) -> None:
        super().__init__()
        self.owner = owner


class Lookup:
    __slots__ = ("changed", "changes", "owner", "released_by", "released_s", "watch")

    def __init__(self, owner: WatchedRecord[BrokerInfo | None]) -> None:
        self.owner = owner
        self.released_by: BrokerInfo | None = None
        """The last owner, if the partition was free at `released_s`."""
        self.released_s = 0.0
        self.changes = 0
        self.changed = asyncio.Event()
        self.watch: Watch | None = None

    def found_free(self, now_s: float) -> None:
        if (before := self.owner.last) is not None:
            self.released_by, self.released_s = before, now_s

    def alarm(self) -> None:
        self.owner.alarm()
        self.changes += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def until_owned(self, ask: Callable[[], Awaitable[None]]) -> BrokerInfo:
        """Wait until a broker owns the partition; call `ask` repeatedly to get it claimed."""
        while (owner := await self.owner.newest()) is None:
            changed = self.changed
            await ask()
            self.owner.alarm()
            if await self.owner.newest() is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASKED_EVERY_S):
                        await changed.wait()
                self.owner.alarm()
        return owner


class Lookups:
    """The owners as last read, each under a watch."""

    def __init__(
        self,
        ownership: Ownership,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_change: Callable[[PartitionName], None],
    ) -> None:
        self._ownership = ownership
        self._spawn = spawn
        self._on_change = on_change
        self._lookups: dict[PartitionName, Lookup] = {}

    def __len__(self) -> int:
        return len(self._lookups)

    def of(self, name: PartitionName) -> Lookup:
        lookup = self._lookups.get(name)
        if lookup is None:
            path = owner_path(*name)

            async def read() -> BrokerInfo | None:
                value = await self._ownership.owner(path)
                if value is not None:
                    return decode_broker(value)
                made.found_free(asyncio.get_running_loop().time())
                return None

            made = lookup = self._lookups[name] = Lookup(WatchedRecord(read, self._spawn))
            lookup.watch = self._ownership.watch(path, lambda: self._changed(name))
        return lookup

    def former_owner(self, name: PartitionName) -> BrokerInfo | None:
        lookup = self._lookups.get(name)
        return None if lookup is None else lookup.released_by

    def at_hand(self, name: PartitionName) -> BrokerInfo | None:
        lookup = self._lookups.get(name)
        return None if lookup is None else lookup.owner.fresh

    def released_by(self, name: PartitionName, now_s: float) -> BrokerInfo | None:
        lookup = self._lookups.get(name)
        if lookup is None or now_s - lookup.released_s > _ASKED_WITHIN_S:
            return None
        return lookup.released_by

    async def until_owned(self, name: PartitionName, is_left: Callable[[], bool]) -> None:
        lookup = self._lookups.get(name)
        while lookup is not None and await lookup.owner.newest() is None and is_left():
            await lookup.changed.wait()

    def alarm(self, names: Iterable[PartitionName]) -> None:
        for name in names:
            if (lookup := self._lookups.get(name)) is not None:
                lookup.alarm()

    def note(self, name: PartitionName, owner: BrokerInfo | None) -> None:
        lookup = self._lookups.get(name)
        if lookup is not None:
            lookup.owner.note(owner)

    def released(self, name: PartitionName) -> None:
        lookup = self._lookups.get(name)
        if lookup is not None:
            lookup.owner.note(None)
            lookup.alarm()

    def changes(self, name: PartitionName) -> int:
        lookup = self._lookups.get(name)
        return 0 if lookup is None else lookup.changes

    async def until_changed(self, name: PartitionName, seen: int, timeout_s: float) -> None:
        lookup = self._lookups.get(name)
        if lookup is None:
            await asyncio.sleep(timeout_s)
        elif lookup.changes == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await lookup.changed.wait()

    def forget(self, topic: TopicName | None = None) -> None:
        for name in list(self._lookups):
            if topic is None or name.topic_name == topic:
                lookup = self._lookups.pop(name)
                lookup.alarm()
                if lookup.watch is not None:
                    lookup.watch.cancel()

    def _changed(self, name: PartitionName) -> None:
        self._lookups[name].alarm()
        self._on_change(name)


class Tenure:
    """The time from a claim until the partition is closed or lost."""

    __slots__ = (
        *("came", "end", "error", "former", "left", "name", "opened", "opening", "partition"),
        *("placed", "since_s", "task"),
    )

    def __init__(self, name: PartitionName, opening: PartitionOpening) -> None:
        self.name = name
        self.opening = opening
        self.end: HandoverState | None = None
        """How the last owner left the partition; for the first attempt to open it."""
        self.placed = False
        """Given to this broker on purpose, whatever the preference."""
        self.came = ""
        """Which broker handed it over, and why; empty: this broker claimed it by itself."""
        self.former: BrokerInfo | None = None
        self.partition: Partition | None = None
        self.since_s = 0.0
        self.opened = asyncio.Event()
        self.left = asyncio.Event()
        self.error: OctavoError | None = None
        self.task: asyncio.Task[None] | None = None


class _Holding:
    __slots__ = ("expiry", "prepared", "release", "state", "successor", "tenure")

    def __init__(self) -> None:
        self.state = State.AWAY
        self.tenure: Tenure | None = None
        self.prepared: PartitionOpening | None = None
        """Set in `PREPARED`, until `expiry`."""
        self.expiry: asyncio.TimerHandle | None = None
        self.successor: BrokerInfo | None = None
        """Set in `HANDED` and `FREED`, if the successor knows how the partition ends."""
        self.release: asyncio.Task[None] | None = None


_AWAY = _Holding()
"""Stands for every partition that is away."""


class OwnershipManager:
    def __init__(
        self,
        context: PartitionContext,
        config: BrokerConfig,
        topics: Topics,
        records: TopicStore,
        ownership: Ownership,
        registry: BrokerRegistry,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._context = context
        self._config = config
        self._topics = topics
        self._records = records
        self._ownership = ownership
        self._registry = registry
        self._spawn = spawn
        self._value = b""
        self._holdings: dict[PartitionName, _Holding] = {}
        """The partitions whose state is not "away"."""
        self._names: dict[str, PartitionName] = {}
        """Partitions with a tenure, by path of the ownership record."""
        self._awaited: dict[PartitionName, int] = {}
        """Partitions released a moment ago for successors that were asked."""
        self._outstanding: dict[PartitionName, None] = {}
        """Claimed here, and the record may still stand; checked when the topic is deleted."""
        self._lookups = Lookups(ownership, spawn, self._owner_changed)
        self._openings = Openings(_OPENINGS_AT_ONCE)
        self._leaving = False
        self._stopping = False
        self._reconciling = False
        self._reconcile_again = False
        ownership.on_lost(self._claim_lost)

    def describe(self) -> dict[str, int]:
        states = Counter(holding.state for holding in self._holdings.values())
        lasting = (State.AWAY, State.CLAIMING, State.SERVING)
        under_way = {state.value: states[state] for state in State if state not in lasting}
        return under_way | {"awaited": len(self._awaited)}

    def start(self, value: bytes) -> None:
        self._value = value

    def open_partitions(self) -> list[Partition]:
        return [
            one.partition
            for one in self.tenures()
            if one.partition is not None and one.partition.state in _SERVING
        ]

    def tenures(self) -> list[Tenure]:
        return [one.tenure for one in self._holdings.values() if one.tenure is not None]

    def _of(self, name: PartitionName) -> _Holding:
        return self._holdings.get(name, _AWAY)

    def _tenure_of(self, name: PartitionName) -> Tenure | None:
        return self._of(name).tenure

    def _on(self, name: PartitionName, event: Event) -> _Holding:
        holding = self._holdings.get(name) or _Holding()
        before, holding.state = holding.state, after(holding.state, event)
        self._holdings[name] = holding
        if before is State.PREPARED:
            assert holding.expiry is not None
            holding.expiry.cancel()
            holding.expiry = None
        if holding.prepared is not None and holding.state is not State.CLAIMING:
            self._spawn(holding.prepared.close())
            holding.prepared = None
        if begins_release(before, holding.state):
            # The state forbids claims before the release task runs.
            holding.release = self._spawn(self._release(name, is_leftover=event is Event.RELEASE))
        if holding.state is State.AWAY:
            del self._holdings[name]
        return holding

    def served_since(
        self, upto_s: float, *, placed: bool = True, after_s: float = -math.inf
    ) -> list[tuple[PartitionName, int]]:
        return [
            (one.name, one.opening.settings().partitions)
            for one in self.tenures()
            if after_s < one.since_s <= upto_s
            and one.partition is not None
            and one.partition.state is PartitionState.OPEN
            and (placed or not one.placed)
        ]

    def may_be_handed_on(self, name: PartitionName) -> bool:
        return self._of(name).state is State.SERVING

    def held_here(self, name: PartitionName) -> Held:
        tenure = self._tenure_of(name)
        if tenure is None or tenure.partition is None:
            raise NotOwner(f"{name} is not served by this broker")
        settings, is_moving = tenure.opening.settings(), self._of(name).state in ON_ITS_WAY
        came = tenure.came or self._how_claimed(tenure, tenure.partition.epoch)
        return Held(settings.partitions, tenure.placed, tenure.since_s, is_moving, came)

    def _how_claimed(self, tenure: Tenure, epoch: int) -> str:
        if epoch <= 1:
            return ""
        own, former = self._registry.own.broker_id, tenure.former
        if former is None:
            return "it was taken over, because its last broker was gone or had released it"
        if former.broker_id == own:
            return f"{own} served it before, lost it or was restarted, and took it again"
        how = "ended or lost its session"
        if self._registry.is_up_since(former.broker_id, tenure.since_s - _ENDED_WITHIN_S):
            how = "released it"
        return f"{own} took it over, because {former.broker_id}, which served it before, {how}"

    @property
    def is_leaving(self) -> bool:
        return self._leaving

    def held(self) -> int:
        return len(self._names)

    def partitions_of(self, name: PartitionName) -> int | None:
        tenure = self._tenure_of(name)
        if tenure is None or tenure.partition is None:
            return None
        return tenure.opening.settings().partitions

    async def owner_of(
        self, name: PartitionName, *, forwarded: bool = False, incarnation: str | None = None
    ) -> Owner:
        """Return the partition's owner; claim and open it here if it is free and we are preferred.

        `forwarded`: another broker takes us for the owner; then claim a free partition whatever the
        preference. `local` in the answer is true only when `partition` will succeed at once.
        """
        info = await self._check_exists(name, incarnation)
        holding = self._of(name)
        to = known_route(holding.state, has_successor=holding.successor is not None)
        owner = None
        if to is None:
            owner = await self._lookups.of(name).owner.value()
            holding = self._of(name)
            to = known_route(holding.state, has_successor=holding.successor is not None)
        if to is None:
            to = route(
                holding.state,
                owner and owner.broker_id,
                self._registry.own.broker_id,
                lambda: self._preferred(name, info.settings).broker_id,
                is_forwarded=forwarded,
                is_left=self._is_left(name),
                is_stopping=self._stopping,
            )
        if to is Route.WAIT:
            otherwise = "is being handed " + ("over by this broker" if self._stopping else "on")
            raise PartitionMoving(f"{name} {WAITS.get(holding.state, otherwise)}; ask again")
        if to is Route.HERE or to is Route.CLAIM:
            return await self._here(name, info)
        if to is Route.SUCCESSOR:
            owner = holding.successor
        elif to is Route.PREFERRED:
            owner = self._preferred(name, info.settings)
        assert owner is not None
        return Owner(owner.broker_id, owner.url, False, info.incarnation)

    async def _here(self, name: PartitionName, info: TopicInfo) -> Owner:
        tenure = self._claim(name, info.incarnation, info.settings)
        if tenure.opening.incarnation != info.incarnation:  # also a claim that another call began
            info = await self._topics.newest(name.topic_name)
            if tenure.opening.incarnation != info.incarnation:
                self._abandon(tenure, "its topic was deleted")
            raise PartitionMoving(f"the topic of {name} was deleted and made again; ask again")
        return await self._wait_until_open(tenure)

    def owner_changes(self, name: PartitionName) -> int:
        return self._lookups.changes(name)

    async def until_owner_changes(self, name: PartitionName, seen: int, timeout_s: float) -> None:
        await self._lookups.until_changed(name, seen, timeout_s)

    def doubt_owner(self, name: PartitionName) -> None:
        """Read the owner from the store again: the supposed owner refused."""
        self._lookups.of(name).owner.alarm()

    async def partition(self, name: PartitionName) -> Partition:
        tenure = self._tenure_of(name)
        if tenure is None or tenure.partition is None:
            raise NotOwner(f"{name} is not served by this broker")
        return tenure.partition

    def at_hand(self, name: PartitionName, incarnation: str) -> Partition | None:
        tenure = self._tenure_of(name)
        if tenure is None or tenure.error is not None or tenure.opening.incarnation != incarnation:
            return None
        return tenure.partition

    def other_at_hand(self, name: PartitionName, incarnation: str) -> Owner | None:
        owner = self._lookups.at_hand(name)
        if owner is None or self._of(name).state in HERE or not self._registry.is_other(owner):
            return None
        return Owner(owner.broker_id, owner.url, False, incarnation)

    def reconcile(self) -> None:
        self._lookups.alarm(tuple(self._awaited))
        self._take_free_soon()

    def _take_free_soon(self) -> None:
        self._reconcile_again = True
        if not self._reconciling and not self._stopping:
            self._reconciling = True
            self._spawn(self._reconcile())

    def topic_deleted(self, topic: TopicName) -> None:
        held = [one for one in self.tenures() if one.name.topic_name == topic]
        for tenure in held[:_ABANDONED_AT_ONCE]:
            self._abandon(tenure, _TOPIC_DELETED)
        if more := held[_ABANDONED_AT_ONCE:]:
            self._spawn(self._abandon_in_turns(more, _TOPIC_DELETED, []))
        self._lookups.forget(topic)

    async def _abandon_in_turns(self, held: list[Tenure], why: str, served: list[int]) -> None:
        """Abandon partitions in turns: each takes milliseconds, and there may be thousands."""
        for count, one in enumerate(held):
            if count and count % _ABANDONED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._tenure_of(one.name) is one:  # else it ended meanwhile
                if one.partition is not None and one.partition.state in _SERVING:
                    served.append(one.name.partition)
                self._abandon(one, why)

    async def let_go(self, topic: TopicName, incarnation: str) -> list[int]:
        """Stop serving this incarnation; return the partitions that were served."""
        held = [
            one
            for one in self.tenures()
            if one.name.topic_name == topic and one.opening.incarnation == incarnation
        ]
        served: list[int] = []
        await self._abandon_in_turns(held, _TOPIC_DELETED, served)
        # A failed release, or a claim whose caller did not wait, may have left a record.
        left = [name for name in self._outstanding if name.topic_name == topic]
        for count, name in enumerate(left):
            if count and count % _ABANDONED_AT_ONCE == 0:
                await asyncio.sleep(0)  # each of them begins a release
            if self._of(name).state is State.PREPARED:
                self._on(name, Event.EXPIRE)
            if name in self._outstanding and may(self._of(name).state, Event.RELEASE):
                self._on(name, Event.RELEASE)
        return served

    def take_no_more(self) -> None:
        self._leaving = True

    async def hand_over(self) -> None:
        """Close and release every partition for the preferred brokers.

        Without a session, partitions are abandoned, and the next owners recover them.
        """
        self._leaving = self._stopping = True
        for name, holding in list(self._holdings.items()):
            if holding.state is State.PREPARED:
                self._on(name, Event.EXPIRE)
        if not self._registry.has_session:
            for tenure in self.tenures():
                self._abandon(tenure, "this broker stops, out of reach of its metadata store")
        try:
            async with asyncio.timeout(self._config.handover_timeout_ms / 1000):
                await asyncio.gather(*(self._close(tenure) for tenure in self.tenures()))
        except TimeoutError:
            left = self.tenures()
            _log.warning("handover_incomplete", partitions=[str(one.name) for one in left])
            for tenure in left:
                self._abandon(tenure, "this broker is stopping")
        self._lookups.forget()

    async def hand_on(
        self,
        name: PartitionName,
        successor: BrokerInfo,
        announce: Callable[[HandoverNotice], Awaitable[bool]],
        ask: Callable[[str, HandoverState | None], Coroutine[Any, Any, None]],
        timeout_s: float,
    ) -> BrokerInfo | None:
        """Hand a partition to a successor; return the owner, or None if this broker keeps it.

        `announce` lets the successor prepare; false: it refuses, and nothing happens.
        `ask(incarnation, end)` tells it to claim the released partition. If no broker owns it
        within `timeout_s`, this broker takes it back.
        """
        tenure = self._tenure_of(name)
        if self._stopping or self._of(name).state is not State.SERVING:
            return None
        assert tenure is not None
        assert tenure.partition is not None
        self._on(name, Event.OFFER)
        is_ready = False
        try:
            is_ready = await announce(tenure.partition.announce())
        finally:
            if self._is_offered(tenure) and not is_ready:
                self._on(name, Event.DECLINED)
        if not self._is_offered(tenure):
            return None
        self._on(name, Event.YIELD)
        incarnation, lookup = tenure.opening.incarnation, self._lookups.of(name)
        taking: asyncio.Task[None] | None = None
        end: HandoverState | None = None
        owner: BrokerInfo | None = None
        take_back = True

        def drained(left: HandoverState | None) -> None:
            nonlocal end, taking
            holding = self._leave(tenure, Event.CLOSED, "was handed over")
            if (end := left) is not None:  # the ledgers are being closed meanwhile
                holding.successor = successor
                taking = self._spawn(ask(incarnation, end))

        try:
            try:
                async with asyncio.timeout(self._config.handover_timeout_ms / 1000):
                    await self._hand_off(tenure, tenure.partition, drained)
            except TimeoutError:
                _log.warning("handover_incomplete", partitions=[str(name)])
            with contextlib.suppress(TimeoutError, OctavoError):
                async with asyncio.timeout(timeout_s):
                    if taking is not None:
                        await asyncio.wait((taking,))
                        lookup.alarm()
                    owner = await lookup.until_owned(lambda: ask(incarnation, end))
        except asyncio.CancelledError:  # this broker stops: another broker takes over
            take_back = False
            raise
        finally:
            is_back = owner is None or owner.broker_id == self._registry.own.broker_id
            self._end_hand_over(tenure, take_back=take_back and is_back and not self._stopping)
        return None if is_back else owner

    def _is_offered(self, tenure: Tenure) -> bool:
        holding = self._of(tenure.name)
        return holding.tenure is tenure and holding.state is State.OFFERED

    def _end_hand_over(self, tenure: Tenure, *, take_back: bool) -> None:
        name, opening = tenure.name, tenure.opening
        self._of(name).successor = None
        if take_back and self._of(name).state is State.FREED:
            self._claim(name, opening.incarnation, opening.settings(), Event.TAKE_BACK)
        else:
            self._on(name, Event.TAKE_BACK if take_back else Event.SETTLED)

    async def prepare(self, name: PartitionName, foretold: HandoverNotice) -> None:
        """Prepare for a partition that its owner is about to hand to us."""
        info = await self._known(name, foretold.incarnation)
        self._check_may_be_given(name)
        opening = self._opening(name, info.incarnation, info.settings)
        await opening.opener.prepare(foretold)
        try:
            self._check_may_be_given(name)
        except PartitionMoving:
            await opening.close()
            raise
        holding = self._on(name, Event.PREPARE)  # closes ledgers of an earlier preparation
        holding.prepared = opening
        holding.expiry = asyncio.get_running_loop().call_later(
            self._config.handover_timeout_ms / 1000, self._on, name, Event.EXPIRE
        )
        self._lookups.of(name)  # watched from now on

    def _check_may_be_given(self, name: PartitionName) -> None:
        if self._leaving or not may(self._of(name).state, Event.PREPARE):
            raise PartitionMoving(f"{name} cannot be given to this broker now")

    async def take(self, name: PartitionName, handed: Handover) -> None:
        """Claim a partition that its owner has released for us; return when it is open."""
        info = await self._known(name, handed.incarnation)
        state = self._of(name).state
        is_expected = state is State.PREPARED or state in HERE
        if self._stopping or (self._leaving and not is_expected):
            raise PartitionMoving(f"{name} cannot be given to this broker: it stops")
        # The claim tells the record's owner, without depending on a watch.
        if state not in HERE and not may(state, Event.CLAIM):
            raise PartitionMoving(f"{name} is on its way from this broker; ask again")
        tenure = self._claim(name, info.incarnation, info.settings)
        if state not in HERE:
            tenure.end = handed.end
        await self._wait_until_open(tenure)
        tenure.placed = handed.placed
        if handed.by:
            tenure.came = f"{handed.by} handed it over: {handed.why}"

    async def _known(self, name: PartitionName, incarnation: str) -> TopicInfo:
        """Return the topic of that incarnation, even if only an earlier incarnation was known."""
        try:
            return await self._check_exists(name, incarnation)
        except TopicChanged as error:
            if error.looked:
                raise
            self._topics.forget(name.topic_name)
            return await self._check_exists(name, incarnation)

    async def open_anew(self, name: PartitionName, *, placed: bool) -> None:
        tenure = self._tenure_of(name)
        if tenure is None or self._stopping or self._of(name).state is not State.SERVING:
            raise NotOwner(f"{name} is not served by this broker")
        await self._close(tenure)
        if not may(self._of(name).state, Event.CLAIM) and self._tenure_of(name) is None:
            raise PartitionMoving(f"{name} is being released by this broker; ask again")
        again = self._claim(name, tenure.opening.incarnation, tenure.opening.settings())
        again.placed = placed
        again.came = f"{self._registry.own.broker_id} closed and reopened it, for an unload"
        await self._wait_until_open(again)

    def _claim(
        self,
        name: PartitionName,
        incarnation: str,
        settings: TopicSettings,
        event: Event = Event.CLAIM,
    ) -> Tenure:
        holding = self._of(name)
        if holding.tenure is not None:
            return holding.tenure
        holding = self._on(name, event)
        opening, holding.prepared = holding.prepared, None
        if opening is not None and opening.incarnation != incarnation:
            self._spawn(opening.close())
            opening = None
        tenure = Tenure(name, opening or self._opening(name, incarnation, settings))
        holding.tenure = tenure
        self._names[owner_path(*name)] = name
        self._outstanding[name] = None
        tenure.task = asyncio.create_task(self._run(tenure), name=f"claim {name}")
        return tenure

    def _opening(
        self, name: PartitionName, incarnation: str, settings: TopicSettings
    ) -> PartitionOpening:
        def newest() -> TopicSettings:
            return self._topics.settings_of(name.topic_name, settings)

        return PartitionOpening(name, incarnation, self._context, newest, self._partition_lost)

    async def _run(self, tenure: Tenure) -> None:
        pauses = self._context.reopen_pauses()
        name, path = tenure.name, owner_path(*tenure.name)
        while self._tenure_of(name) is tenure:
            try:
                partition = None
                end, tenure.end = tenure.end, None
                if end is not None:
                    partition = await tenure.opening.open_as_left(
                        end, lambda: self._claim_given(path)
                    )
                if partition is None:
                    async with self._openings.turn(tenure):
                        if end is None:
                            await self._claim_record(path)
                        partition = await tenure.opening.open()
                self._opened(tenure, partition)
                return
            except _Claimed as claimed:
                if self._tenure_of(name) is tenure:
                    self._leave(tenure, Event.TAKEN, "was claimed by another broker")
                self._lookups.note(name, decode_broker(claimed.owner))
                return
            except (OwnershipLost, RecordNotFound, TopicNotFound) as error:
                self._topics.forget(name.topic_name)  # it may be deleted without our knowledge
                if self._tenure_of(name) is tenure:
                    self._leave(tenure, Event.LOST, f"cannot be opened: {error}")
                return
            except Exception as error:  # waiting callers must get an error for a bug, too
                reason = str(error) if isinstance(error, OctavoError) else repr(error)
                tenure.error = unavailable(f"{name} cannot be opened: {reason}", error)
                tenure.opened.set()
                bug = None if isinstance(error, OctavoError) else error
                _log.warning(
                    "partition_not_opened", partition=str(name), reason=reason, exc_info=bug
                )
            await asyncio.sleep(pauses.next_s())

    async def _claim_record(self, path: str) -> None:
        claim = await self._ownership.claim(path, self._value)
        if not claim.held:
            raise _Claimed(claim.owner)

    async def _claim_given(self, path: str) -> None:
        """Claim a record that its owner is releasing for us; retry for half a second."""
        giver: bytes | None = None
        for _ in range(_GIVEN_LOOKS):
            try:
                await self._claim_record(path)
                return
            except _Claimed as claimed:
                if giver not in (None, claimed.owner):
                    raise
                giver = claimed.owner
            await asyncio.sleep(_GIVEN_PAUSE_S)
        raise _Claimed(giver or b"")

    def _opened(self, tenure: Tenure, partition: Partition) -> None:
        name = tenure.name
        if self._tenure_of(name) is not tenure:
            partition.abandon("its claim was lost while it was being opened")
            return
        self._on(name, Event.OPENED)
        tenure.partition = partition
        tenure.error = None
        tenure.since_s = asyncio.get_running_loop().time()
        tenure.former = self._lookups.former_owner(name)
        tenure.opened.set()
        self._lookups.note(name, self._registry.own)

    async def _wait_until_open(self, tenure: Tenure) -> Owner:
        name = tenure.name
        if not tenure.opened.is_set():  # a served partition needs no timer
            self._openings.hurry(tenure)
            try:
                async with asyncio.timeout(self._config.claim_wait_ms / 1000):
                    await tenure.opened.wait()
            except TimeoutError:
                raise PartitionMoving(f"{name} is being opened by this broker; ask again") from None
        if isinstance(tenure.error, NotOwner):
            raise PartitionMoving(f"{tenure.error}; ask again")
        if tenure.error is not None:
            raise tenure.error
        own = self._registry.own
        return Owner(own.broker_id, own.url, True, tenure.opening.incarnation)

    def _leave(self, tenure: Tenure, event: Event, why: str) -> _Holding:
        name = tenure.name
        holding = self._holdings[name]
        assert holding.tenure is tenure
        holding.tenure = None
        del self._names[owner_path(*name)]
        self._on(name, event)
        assert holding.state not in HERE
        if tenure.partition is None:
            self._spawn(tenure.opening.close())
        tenure.error = NotOwner(f"{name} {why}")
        tenure.opened.set()
        tenure.left.set()
        return holding

    def _claim_lost(self, path: str) -> None:
        """Abandon the partition, which another broker may own at any moment."""
        tenure = self._tenure_of(self._names.get(path, _NOWHERE))
        if tenure is not None:
            self._abandon(tenure, "this broker's session has ended")

    def _abandon(self, tenure: Tenure, why: str) -> None:
        """Give the partition up: another broker may own it at any moment."""
        if tenure.partition is not None:
            tenure.partition.abandon(why)  # which calls `_partition_lost`, unless it is closing
        else:
            _log.warning("partition_lost", partition=str(tenure.name), reason=why)
            self._lost(tenure)

    def _partition_lost(self, partition: Partition) -> None:
        tenure = self._tenure_of(partition.name)
        if tenure is not None and tenure.partition is partition:
            self._lost(tenure)

    def _lost(self, tenure: Tenure) -> None:
        self._leave(tenure, Event.LOST, "was lost")
        if tenure.task is not None:
            tenure.task.cancel()

    async def _release(self, name: PartitionName, *, is_leftover: bool) -> None:
        """Release the record; then a claim is possible, even if the release failed.

        `is_leftover`: a record of ours may stand that this process does not know.
        """
        path = owner_path(*name)
        try:
            if is_leftover and await self._ownership.owner(path) == self._value:
                await self._ownership.claim(path, self._value)
            await self._ownership.release(path)
            if is_leftover:
                self._outstanding.pop(name, None)
            self._lookups.released(name)
        except OctavoError as error:
            _log.warning("claim_not_released", path=path, reason=str(error))
        finally:
            self._on(name, Event.RELEASED)

    async def _hand_off(
        self,
        tenure: Tenure,
        partition: Partition,
        on_drained: Callable[[HandoverState | None], None],
    ) -> None:
        """Close the partition for a successor; release its record once pending work is stored."""
        holding = self._holdings[tenure.name]
        try:
            await partition.hand_off(on_drained)
        finally:
            if not tenure.left.is_set():
                on_drained(None)
        assert holding.release is not None
        await asyncio.wait((holding.release,))

    async def _close(self, tenure: Tenure) -> None:
        name = tenure.name
        if self._tenure_of(name) is not tenure:
            return
        holding = self._holdings[name]
        if tenure.task is not None and not tenure.task.done():
            tenure.task.cancel()
            await asyncio.gather(tenure.task, return_exceptions=True)
        if holding.state in (State.YIELDING, State.CLOSING):  # another task closes it
            await tenure.left.wait()
        elif holding.tenure is tenure:
            try:
                if tenure.partition is not None:
                    self._on(name, Event.CLOSE)
                    await tenure.partition.close(graceful=True)
            finally:
                self._leave(tenure, Event.CLOSED, "was handed over")
        if holding.release is not None:
            await asyncio.wait((holding.release,))

    def _preferred(self, name: PartitionName, settings: TopicSettings) -> BrokerInfo:
        return self._registry.preferred_of(name, settings.partitions)

    async def _check_exists(self, name: PartitionName, incarnation: str | None = None) -> TopicInfo:
        info = await self._topics.get(name.topic_name, incarnation)
        if not 0 <= name.partition < info.settings.partitions:
            info = await self._topics.newest(name.topic_name)  # the topic may have grown
        if not 0 <= name.partition < info.settings.partitions:
            raise PartitionNotFound(
                f"topic {name.topic_name} has partitions 0 to {info.settings.partitions - 1}, "
                f"not {name.partition}"
            )
        return info

    def _owner_changed(self, name: PartitionName) -> None:
        if not self._stopping:
            self._spawn(self._take_released(name))

    async def _take_released(self, name: PartitionName) -> None:
        # A live broker has asked a successor, perhaps not us. If the hand-over fails, it takes the
        # partition back; if it dies, `reconcile` runs.
        self._awaited[name] = self._awaited.get(name, 0) + 1
        try:
            with contextlib.suppress(TimeoutError, OctavoError):
                async with asyncio.timeout(_ASKED_WITHIN_S):
                    await self._lookups.until_owned(name, lambda: self._is_left(name))
        finally:
            self._awaited[name] -= 1
            if not self._awaited[name]:
                del self._awaited[name]
        await self._take_if_free(name, used=True)

    def _is_left(self, name: PartitionName) -> bool:
        if self._of(name).state is State.PREPARED:  # this broker is the successor
            return True
        before = self._lookups.released_by(name, asyncio.get_running_loop().time())
        return before is not None and self._registry.is_other(before)

    async def _take_if_free(self, name: PartitionName, *, used: bool) -> None:
        """Claim a free partition for which we are preferred; unless `used`, only if opened
        before.
        """
        try:
            state = self._of(name).state
            if state in HERE or self._stopping:
                if state not in ON_ITS_WAY:
                    await self._verify_own(name)
                return
            if not may(state, Event.CLAIM):
                return
            info = await self._check_exists(name)
            own = self._preferred(name, info.settings).broker_id == self._registry.own.broker_id
            if (
                own
                and await self._lookups.of(name).owner.newest() is None
                and (used or (await self._records.read_partition(*name))[0].epoch)
                and may(self._of(name).state, Event.CLAIM)
            ):
                self._claim(name, info.incarnation, info.settings)
        except (TopicNotFound, PartitionNotFound, RecordNotFound):
            return  # deleted meanwhile, or never opened
        except OctavoError as error:
            _log.warning("owner_not_read", partition=str(name), reason=str(error))
            # Not `reconcile`: a session's end changes thousands of records, and each change would
            # read all others.
            self._take_free_soon()

    async def _verify_own(self, name: PartitionName) -> None:
        """Abandon a partition if its changed record is no longer ours."""
        tenure = self._tenure_of(name)
        if tenure is None or tenure.partition is None:
            return
        owner = await self._ownership.owner(owner_path(*name))
        if owner != self._value and self._tenure_of(name) is tenure:
            self._abandon(tenure, "its ownership record is gone")

    async def _reconcile(self) -> None:
        pauses = self._context.reopen_pauses()
        try:
            while self._reconcile_again and not self._stopping:
                self._reconcile_again = False
                try:
                    await self._take_all_free()
                except Exception as error:  # retry after a bug, too, and log it
                    bug = None if isinstance(error, OctavoError) else error
                    _log.warning("topics_not_read", reason=str(error), exc_info=bug)
                    self._reconcile_again = True
                if self._reconcile_again:
                    await asyncio.sleep(pauses.next_s())
        finally:
            self._reconciling = False

    async def _take_all_free(self) -> None:
        own = self._registry.own
        wanted = [
            name
            for topic in await self._topics.all_topics()
            for number, broker in enumerate(
                self._registry.preferred(topic.name, topic.settings.partitions)
            )
            if broker.broker_id == own.broker_id
            and self._of(name := topic.name.partition(number)).state not in HERE
        ]
        for start in range(0, len(wanted), _LOOKUPS_AT_ONCE):
            batch = wanted[start : start + _LOOKUPS_AT_ONCE]
            await asyncio.gather(*(self._take_if_free(name, used=False) for name in batch))
