"""Who serves which partition: claims, take-over, hand-over.

    unowned → claimed (our ephemeral record stands) → opened (recovered, new ledger) → served
                                                       ↓ session over, fenced, deleted: dropped
                                                       ↓ handed over: closed, then released

The ephemeral record is the truth about who should serve; that nobody else's writes succeed is the
ledgers' business (fencing). When a broker vanishes, each survivor takes at once the partitions for
which it is now preferred; a partition that nobody asked for so far stays unowned. One that another
broker should have is handed on to it (balance.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple

import structlog

from octavo.broker.cluster.handing import Handed
from octavo.broker.cluster.openings import Openings
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
from octavo.broker.partition.ending import Foretold, PartitionEnd
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
_OPENINGS_AT_ONCE = 32
"""A survivor of a large broker opens thousands of partitions: not all at the same time."""
_ASKED_EVERY_S = 0.25
_GIVEN_LOOKS = 100
_GIVEN_PAUSE_S = 0.005
"""Between tries to claim what its owner is releasing, which takes it one write."""
_ASKED_WITHIN_S = 1.0
"""So long what a living broker has released is left to whom it has asked."""
_ENDED_WITHIN_S = 10.0
"""A broker that came up so shortly before a partition was taken over had served it in a former
life."""
_NOWHERE = PartitionName("", "", -1)
_SERVING = (PartitionState.OPEN, PartitionState.REOPENING)


class Held(NamedTuple):
    """A partition that is open here."""

    partitions: int
    """Of its topic."""
    placed: bool
    since_s: float
    """By the loop's clock."""
    is_moving: bool
    """It is on its way to another broker."""
    came: str
    """How it came here, in words; empty where no broker served it before."""


class _Claimed(Exception):
    """Another broker's claim stands."""

    def __init__(self, owner: bytes) -> None:
        super().__init__()
        self.owner = owner


class Lookup:
    """Who owns a partition, as last read."""

    __slots__ = ("changed", "changes", "owner", "released_by", "released_s", "watch")

    def __init__(self, owner: WatchedRecord[BrokerInfo | None]) -> None:
        self.owner = owner
        self.released_by: BrokerInfo | None = None
        """Who owned it when it was last found to have no owner, and when that was."""
        self.released_s = 0.0
        self.changes = 0
        self.changed = asyncio.Event()
        """Set at the next change, and then replaced."""
        self.watch: Watch | None = None

    def found_free(self, now_s: float) -> None:
        """It has no owner; who had it last, as far as is known?"""
        if (before := self.owner.last) is not None:
            self.released_by, self.released_s = before, now_s

    def alarm(self) -> None:
        """Whoever waits for another owner looks again."""
        self.owner.alarm()
        self.changes += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def until_owned(self, ask: Callable[[], Awaitable[None]]) -> BrokerInfo:
        """Who owns it, once somebody does; `ask`, now and then, has somebody claim it.

        No watch has to tell: it may be late by any time. Raises what reading records does.
        """
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
    """Who owns which partition, as last read: in memory, each under a watch (watched_record.py).

    All that this broker was asked for or serves. `on_change(name)`: its owner may be another.
    """

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
        """The partition's, made at the first question."""
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
        """The last owner before it was found without one, as far as this broker saw."""
        lookup = self._lookups.get(name)
        return None if lookup is None else lookup.released_by

    def at_hand(self, name: PartitionName) -> BrokerInfo | None:
        """Who owns it, if somebody asked before and no alarm came since."""
        lookup = self._lookups.get(name)
        return None if lookup is None else lookup.owner.fresh

    def released_by(self, name: PartitionName, now_s: float) -> BrokerInfo | None:
        """Who has released it a moment ago, if it was found without an owner since."""
        lookup = self._lookups.get(name)
        if lookup is None or now_s - lookup.released_s > _ASKED_WITHIN_S:
            return None
        return lookup.released_by

    async def until_owned(self, name: PartitionName, is_left: Callable[[], bool]) -> None:
        """Return once somebody owns it, or at an alarm when it `is_left` to nobody any more."""
        lookup = self._lookups.get(name)
        while lookup is not None and await lookup.owner.newest() is None and is_left():
            await lookup.changed.wait()

    def alarm(self, names: Iterable[PartitionName]) -> None:
        """Whoever waits for news of these looks again."""
        for name in names:
            if (lookup := self._lookups.get(name)) is not None:
                lookup.alarm()

    def note(self, name: PartitionName, owner: BrokerInfo | None) -> None:
        """What was learned of an owner by other means."""
        lookup = self._lookups.get(name)
        if lookup is not None:
            lookup.owner.note(owner)

    def released(self, name: PartitionName) -> None:
        """Not ours even before the watch tells: what is remembered of it must not claim it."""
        lookup = self._lookups.get(name)
        if lookup is not None:
            lookup.owner.note(None)
            lookup.alarm()

    def changes(self, name: PartitionName) -> int:
        """How often the partition's owner has changed, as far as this broker has heard."""
        lookup = self._lookups.get(name)
        return 0 if lookup is None else lookup.changes

    async def until_changed(self, name: PartitionName, seen: int, timeout_s: float) -> None:
        """Return once `changes` is no longer `seen`, or when time is up."""
        lookup = self._lookups.get(name)
        if lookup is None:
            await asyncio.sleep(timeout_s)
        elif lookup.changes == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await lookup.changed.wait()

    def forget(self, topic: TopicName | None = None) -> None:
        """Watch the partitions of a topic no more, or none at all."""
        for name in list(self._lookups):
            if topic is None or name.topic_name == topic:
                lookup = self._lookups.pop(name)
                lookup.alarm()
                if lookup.watch is not None:
                    lookup.watch.cancel()

    def _changed(self, name: PartitionName) -> None:
        self._lookups[name].alarm()
        self._on_change(name)


class _Local:
    """A partition that is ours, or is about to be."""

    __slots__ = (
        *("came", "end", "error", "former", "opened", "opening", "partition", "placed"),
        *("since_s", "task"),
    )

    def __init__(self, opening: PartitionOpening) -> None:
        self.opening = opening
        self.end: PartitionEnd | None = None
        """What its last owner said of how it was left, for the first attempt to open it."""
        self.placed = False
        """It was given to us on purpose, whatever the preference says."""
        self.came = ""
        """By whom it was handed on, and why; empty: it was claimed."""
        self.former: BrokerInfo | None = None
        """The owner before, of what was claimed."""
        self.partition: Partition | None = None
        """Once it is open."""
        self.since_s = 0.0
        """When it was opened."""
        self.opened = asyncio.Event()
        """Set when it is open, or when `error` says why it is not (yet)."""
        self.error: OctavoError | None = None
        self.task: asyncio.Task[None] | None = None


class OwnershipManager:
    """The partitions of one broker, and what it knows of the others' ones."""

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
        self._local: dict[PartitionName, _Local] = {}
        self._releasing: dict[PartitionName, int] = {}
        """Whose owner records are being given up."""
        self._names: dict[str, PartitionName] = {}
        """Of `_local`, by the path of the ownership record."""
        self._handing: dict[PartitionName, BrokerInfo | None] = {}
        """On their way to others: not to be claimed by what a watch says. To whom, once drained."""
        self._awaited: dict[PartitionName, int] = {}
        """Released by others a moment ago, and left to whom they have asked."""
        self._prepared: dict[PartitionName, tuple[PartitionOpening, asyncio.TimerHandle]] = {}
        """What others are about to hand to us."""
        self._outstanding: dict[PartitionName, None] = {}
        """Claimed here at some time, of topics that may stand still."""
        self._lookups = Lookups(ownership, spawn, self._owner_changed)
        self._openings = Openings(_OPENINGS_AT_ONCE)
        self._leaving = False
        self._stopping = False
        self._reconciling = False
        self._reconcile_again = False
        ownership.on_lost(self._claim_lost)

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {
            "handing": len(self._handing),
            "releasing": len(self._releasing),
            "awaited": len(self._awaited),
            "prepared": len(self._prepared),
        }

    def start(self, value: bytes) -> None:
        """`value` is what our claims say."""
        self._value = value

    def open_partitions(self) -> list[Partition]:
        """All that are served here."""
        return [
            local.partition
            for local in self._local.values()
            if local.partition is not None and local.partition.state in _SERVING
        ]

    def served_since(
        self, upto_s: float, *, placed: bool = True, after_s: float = -math.inf
    ) -> list[tuple[PartitionName, int]]:
        """What is open here since `upto_s` or longer; with how many partitions its topic has.

        `placed`: also what was placed here on purpose. `after_s`: but not what is longer than that.
        """
        return [
            (name, local.opening.settings().partitions)
            for name, local in self._local.items()
            if after_s < local.since_s <= upto_s
            and local.partition is not None
            and local.partition.state is PartitionState.OPEN
            and (placed or not local.placed)
        ]

    def may_be_handed_on(self, name: PartitionName) -> bool:
        """Whether it is open here, and not on its way already."""
        return self.partitions_of(name) is not None and name not in self._handing

    def held_here(self, name: PartitionName) -> Held:
        """How a partition came to be here. Raises `NotOwner`."""
        local = self._local.get(name)
        if local is None or local.partition is None:
            raise NotOwner(f"{name} is not served by this broker")
        settings, is_moving = local.opening.settings(), name in self._handing
        came = local.came or self._how_claimed(local, local.partition.epoch)
        return Held(settings.partitions, local.placed, local.since_s, is_moving, came)

    def _how_claimed(self, local: _Local, epoch: int) -> str:
        if epoch <= 1:
            return ""
        own, former = self._registry.own.broker_id, local.former
        if former is None:
            return "it was taken over, for the broker that served it before was gone or let it go"
        if former.broker_id == own:
            return f"{own} served it before, too, lost it or was started anew, and took it again"
        how = "ended or lost its session"
        if self._registry.is_up_since(former.broker_id, local.since_s - _ENDED_WITHIN_S):
            how = "let it go"
        return f"{own} took it over, for {former.broker_id}, which served it before, {how}"

    @property
    def is_leaving(self) -> bool:
        """Whether this broker is about to stop."""
        return self._leaving

    def held(self) -> int:
        """How many partitions are served here, or being opened."""
        return len(self._local)

    def partitions_of(self, name: PartitionName) -> int | None:
        """How many partitions its topic has, if this one is open here."""
        local = self._local.get(name)
        if local is None or local.partition is None:
            return None
        return local.opening.settings().partitions

    async def owner_of(
        self, name: PartitionName, *, forwarded: bool = False, incarnation: str | None = None
    ) -> Owner:
        """Who serves the partition; claims and opens it when nobody does and it should be us.

        `forwarded`: another broker sent the request here, believing that we should serve: claim
        an unowned partition whatever the preference (ends ping-pong). `local` is true only when
        `partition` will succeed at once. `incarnation`: of which topic the partition must be.
        Raises `PartitionMoving`, `TopicNotFound`, `PartitionNotFound`, `PartitionUnavailable`,
        `TopicChanged`.
        """
        info = await self._check_exists(name, incarnation)
        local = self._local.get(name)
        if local is None:
            if (heir := self._handing.get(name)) is not None:  # whoever calls may wait there
                return Owner(heir.broker_id, heir.url, False, info.incarnation)
            if name in self._prepared:
                raise PartitionMoving(f"{name} is about to be given to this broker; ask again")
            owner = await self._lookups.of(name).owner.value()
            if owner is not None and owner.broker_id != self._registry.own.broker_id:
                return Owner(owner.broker_id, owner.url, False, info.incarnation)
            if self._stopping:
                raise PartitionMoving(f"{name} is being handed over by this broker")
            if name in self._releasing:
                raise PartitionMoving(f"{name} is being released by this broker; ask again")
            if name in self._handing:
                raise PartitionMoving(f"{name} is being handed on by this broker; ask again")
            preferred = self._preferred(name, info.settings)
            # A record of ours that nobody is releasing is left over from a release that failed:
            # as long as our session lives, nobody else can open the partition.
            ours = owner is not None or preferred.broker_id == self._registry.own.broker_id
            if not ours and not forwarded:
                return Owner(preferred.broker_id, preferred.url, False, info.incarnation)
            if owner is None and not forwarded and self._is_left(name):
                raise PartitionMoving(f"{name} is being handed on; ask again")
            local = self._claim(name, info.incarnation, info.settings)
        if local.opening.incarnation != info.incarnation:  # also a claim that another call began
            info = await self._topics.newest(name.topic_name)
            if local.opening.incarnation != info.incarnation:
                self._abandon(local, "its topic was deleted")
            raise PartitionMoving(f"{name} is of another topic than it was; ask again")
        return await self._wait_until_open(name, local)

    def owner_changes(self, name: PartitionName) -> int:
        """How often the partition's owner has changed, as far as this broker has heard."""
        return self._lookups.changes(name)

    async def until_owner_changes(self, name: PartitionName, seen: int, timeout_s: float) -> None:
        """Return once `owner_changes` is no longer `seen`, or when time is up."""
        await self._lookups.until_changed(name, seen, timeout_s)

    def doubt_owner(self, name: PartitionName) -> None:
        """Who was taken for the owner says no: look in the store before the next answer."""
        self._lookups.of(name).owner.alarm()

    async def partition(self, name: PartitionName) -> Partition:
        """The local, open one. Raises `NotOwner`."""
        local = self._local.get(name)
        if local is None or local.partition is None:
            raise NotOwner(f"{name} is not served by this broker")
        return local.partition

    def at_hand(self, name: PartitionName, incarnation: str) -> Partition | None:
        """The partition of this incarnation of its topic, if it is local and open, and no wait."""
        local = self._local.get(name)
        if local is None or local.error is not None or local.opening.incarnation != incarnation:
            return None
        return local.partition

    def other_at_hand(self, name: PartitionName, incarnation: str) -> Owner | None:
        """The live broker that serves the partition, if that is another one and is known."""
        owner = self._lookups.at_hand(name)
        if owner is None or name in self._local or not self._registry.is_other(owner):
            return None
        return Owner(owner.broker_id, owner.url, False, incarnation)

    def reconcile(self) -> None:
        """Brokers went or came: take what nobody owns and we are preferred for, watch the rest."""
        self._lookups.alarm(tuple(self._awaited))
        self._take_free_soon()

    def _take_free_soon(self) -> None:
        self._reconcile_again = True
        if not self._reconciling and not self._stopping:
            self._reconciling = True
            self._spawn(self._reconcile())

    def topic_deleted(self, topic: TopicName) -> None:
        """Its partitions are served no more, nor looked up."""
        for name in [name for name in self._local if name.topic_name == topic]:
            self._abandon(self._local[name], "its topic was deleted")
        self._lookups.forget(topic)

    async def let_go(self, topic: TopicName, incarnation: str) -> list[int]:
        """Serve this incarnation no more; the partitions that were served here until now."""
        held = [
            local
            for name, local in self._local.items()
            if name.topic_name == topic and local.opening.incarnation == incarnation
        ]
        open_here = [local.partition for local in held if local.partition is not None]
        served = [one.name.partition for one in open_here if one.state in _SERVING]
        for local in held:
            self._abandon(local, "its topic was deleted")
        # A release that failed, or a claim that nobody waited for, has left a record of ours.
        for name in [name for name in self._outstanding if name.topic_name == topic]:
            if name not in self._local and name not in self._releasing:
                self._spawn(self._release_quietly(name, claim=True))
        return served

    def take_no_more(self) -> None:
        """Refuse what other brokers would hand to us: this one is about to stop."""
        self._leaving = True

    async def hand_over(self) -> None:
        """Close every partition and release it; whoever is preferred then claims it at once.

        Without a session they are let go of as they are: nothing can be written down of them, and
        whoever takes one over recovers it.
        """
        self._leaving = self._stopping = True
        for name in list(self._prepared):
            self._unprepare(name)
        if not self._registry.has_session:
            for local in list(self._local.values()):
                self._abandon(local, "this broker stops, out of reach of its metadata store")
        try:
            async with asyncio.timeout(self._config.handover_timeout_ms / 1000):
                await asyncio.gather(*(self._hand_over(name) for name in list(self._local)))
        except TimeoutError:
            _log.warning("handover_incomplete", partitions=[str(name) for name in self._local])
            for local in list(self._local.values()):
                self._abandon(local, "this broker is stopping")
        self._lookups.forget()

    async def hand_on(
        self,
        name: PartitionName,
        heir: BrokerInfo,
        foretell: Callable[[Foretold], Awaitable[bool]],
        ask: Callable[[str, PartitionEnd | None], Coroutine[Any, Any, None]],
        timeout_s: float,
    ) -> BrokerInfo | None:
        """Hand a partition to an heir, and return who has it then; None: still this one.

        `foretell` has the heir make ready; false: it will not take it, and nothing is done.
        `ask(incarnation, end)` has it take what was released; taken back if nobody has it within
        `timeout_s`.
        """
        local = self._local.get(name)
        if local is None or local.partition is None or self._stopping or name in self._handing:
            return None
        lookup = self._lookups.of(name)
        self._handing[name] = None
        try:
            if not await foretell(local.partition.foretell()) or self._local.get(name) is not local:
                return None
            taking: asyncio.Task[None] | None = None
            end: PartitionEnd | None = None

            def drained(left: PartitionEnd | None) -> None:
                nonlocal end, taking
                if (end := left) is not None:  # the ledgers are being closed beside it
                    self._handing[name] = heir
                    taking = self._spawn(ask(local.opening.incarnation, end))

            try:
                async with asyncio.timeout(self._config.handover_timeout_ms / 1000):
                    await self._hand_off(name, local, local.partition, drained)
            except TimeoutError:
                _log.warning("handover_incomplete", partitions=[str(name)])
            with contextlib.suppress(TimeoutError, OctavoError):
                async with asyncio.timeout(timeout_s):
                    if taking is not None:
                        await asyncio.wait((taking,))
                        lookup.alarm()
                    owner = await lookup.until_owned(lambda: ask(local.opening.incarnation, end))
                    return owner if owner.broker_id != self._registry.own.broker_id else None
        finally:
            del self._handing[name]
        if not self._stopping:
            self._claim(name, local.opening.incarnation, local.opening.settings())
        return None

    async def prepare(self, name: PartitionName, foretold: Foretold) -> None:
        """Make ready to be given a partition, soon. Raises what making ledgers raises.

        And `PartitionMoving` when this broker stops or serves it already, `TopicNotFound`,
        `TopicChanged`.
        """
        info = await self._known(name, foretold.incarnation)
        if self._leaving or name in self._local:
            raise PartitionMoving(f"{name} cannot be given to this broker now")
        self._unprepare(name)
        opening = self._opening(name, info.incarnation, info.settings)
        await opening.opener.prepare(foretold)
        self._unprepare(name)
        timer = asyncio.get_running_loop().call_later(
            self._config.handover_timeout_ms / 1000, self._unprepare, name
        )
        self._prepared[name] = opening, timer
        self._lookups.of(name)  # under its watch from now on

    def _unprepare(self, name: PartitionName) -> None:
        """It did not come, or comes anew."""
        opening, timer = self._prepared.pop(name, (None, None))
        if opening is not None and timer is not None:
            timer.cancel()
            self._spawn(opening.close())

    async def take(self, name: PartitionName, handed: Handed) -> None:
        """Claim what its owner has released for us, and return when it is open.

        Raises `PartitionMoving` when another broker has it, and as `owner_of` does.
        """
        info = await self._known(name, handed.incarnation)
        expected = name in self._prepared or name in self._local
        if self._stopping or (self._leaving and not expected):
            raise PartitionMoving(f"{name} cannot be given to this broker: it stops")
        # No look at who owns it: the claim tells, and no watch can be late for that.
        local = self._local.get(name)
        if local is None:
            if name in self._handing or name in self._releasing:
                raise PartitionMoving(f"{name} is on its way from this broker; ask again")
            local = self._claim(name, info.incarnation, info.settings)
            local.end = handed.end
        await self._wait_until_open(name, local)
        local.placed = handed.placed
        if handed.by:
            local.came = f"{handed.by} handed it on: {handed.why}"

    async def _known(self, name: PartitionName, incarnation: str) -> TopicInfo:
        """The topic of that incarnation, also when we had not heard that it was made anew."""
        try:
            return await self._check_exists(name, incarnation)
        except TopicChanged as error:
            if error.looked:
                raise
            self._topics.forget(name.topic_name)
            return await self._check_exists(name, incarnation)

    async def open_anew(self, name: PartitionName, *, placed: bool) -> None:
        """Close a partition in good order, and open it here again."""
        local = self._local.get(name)
        if local is None or self._stopping:
            raise NotOwner(f"{name} is not served by this broker")
        await self._hand_over(name)
        again = self._claim(name, local.opening.incarnation, local.opening.settings())
        again.placed = placed
        again.came = f"{self._registry.own.broker_id} closed and opened it anew, for an unload"
        await self._wait_until_open(name, again)

    # Claims

    def _claim(self, name: PartitionName, incarnation: str, settings: TopicSettings) -> _Local:
        """Begin to claim and open; idempotent while that is under way."""
        local = self._local.get(name)
        if local is None:
            opening, timer = self._prepared.pop(name, (None, None))
            if timer is not None:
                timer.cancel()
            if opening is None or opening.incarnation != incarnation:
                if opening is not None:
                    self._spawn(opening.close())
                opening = self._opening(name, incarnation, settings)
            local = self._local[name] = _Local(opening)
            self._names[owner_path(*name)] = name
            self._outstanding[name] = None
            local.task = asyncio.create_task(self._run(name, local), name=f"claim {name}")
        return local

    def _opening(
        self, name: PartitionName, incarnation: str, settings: TopicSettings
    ) -> PartitionOpening:
        def newest() -> TopicSettings:
            return self._topics.settings_of(name.topic_name, settings)

        return PartitionOpening(name, incarnation, self._context, newest, self._partition_lost)

    async def _run(self, name: PartitionName, local: _Local) -> None:
        """Claim, then open, again and again until it is open or turns out to be another's."""
        pauses = self._context.reopen_pauses()
        path = owner_path(*name)
        while self._local.get(name) is local:
            try:
                partition = None
                end, local.end = local.end, None
                if end is not None:
                    partition = await local.opening.open_as_left(
                        end, lambda: self._claim_given(path)
                    )
                if partition is None:
                    async with self._openings.turn(local):
                        if end is None:
                            await self._claim_record(path)
                        partition = await local.opening.open()
                self._opened(name, local, partition)
                return
            except _Claimed as claimed:
                self._forget(name, local, NotOwner(f"{name} was claimed by another broker"))
                self._lookups.note(name, decode_broker(claimed.owner))
                return
            except (OwnershipLost, RecordNotFound, TopicNotFound) as error:
                self._topics.forget(name.topic_name)  # we may not have heard of its deletion
                self._forget(name, local, NotOwner(f"{name}: {error}"))
                await self._release_quietly(name)
                return
            except Exception as error:  # a bug must not leave everybody waiting in silence
                reason = str(error) if isinstance(error, OctavoError) else repr(error)
                local.error = unavailable(f"{name} cannot be opened: {reason}", error)
                local.opened.set()
                bug = None if isinstance(error, OctavoError) else error
                _log.warning(
                    "partition_not_opened", partition=str(name), reason=reason, exc_info=bug
                )
            await asyncio.sleep(pauses.next_s())

    async def _claim_record(self, path: str) -> None:
        """Raises `_Claimed`, and what claiming does."""
        claim = await self._ownership.claim(path, self._value)
        if not claim.held:
            raise _Claimed(claim.owner)

    async def _claim_given(self, path: str) -> None:
        """The same, of what its owner is releasing for us at this moment."""
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

    def _opened(self, name: PartitionName, local: _Local, partition: Partition) -> None:
        if self._local.get(name) is not local:
            partition.abandon("its claim was lost while it was being opened")
            return
        local.partition = partition
        local.error = None
        local.since_s = asyncio.get_running_loop().time()
        local.former = self._lookups.former_owner(name)
        local.opened.set()
        self._lookups.note(name, self._registry.own)

    async def _wait_until_open(self, name: PartitionName, local: _Local) -> Owner:
        if not local.opened.is_set():  # else each call of a served partition would set a timer
            self._openings.hurry(local)
            try:
                async with asyncio.timeout(self._config.claim_wait_ms / 1000):
                    await local.opened.wait()
            except TimeoutError:
                raise PartitionMoving(f"{name} is being opened by this broker; ask again") from None
        if isinstance(local.error, NotOwner):
            raise PartitionMoving(f"{local.error}; ask again")
        if local.error is not None:
            raise local.error
        own = self._registry.own
        return Owner(own.broker_id, own.url, True, local.opening.incarnation)

    def _forget(self, name: PartitionName, local: _Local, error: NotOwner) -> None:
        if self._local.get(name) is local:
            del self._local[name]
            del self._names[owner_path(*name)]
            if local.partition is None:
                self._spawn(local.opening.close())
        local.error = error
        local.opened.set()

    def _claim_lost(self, path: str) -> None:
        """Our session is over: others may own the partition any moment. Stop acking now."""
        local = self._local.get(self._names.get(path, _NOWHERE))
        if local is not None:
            self._abandon(local, "this broker's session has ended")

    def _abandon(self, local: _Local, why: str) -> None:
        """It is somebody else's, or may be any moment: serve it no more, or cease opening it."""
        if local.partition is not None:
            local.partition.abandon(why)
        else:
            _log.warning("partition_lost", partition=str(local.opening.name), reason=why)
            self._lost(local)

    def _partition_lost(self, partition: Partition) -> None:
        local = self._local.get(partition.name)
        if local is not None and local.partition is partition:
            self._lost(local)

    def _lost(self, local: _Local) -> None:
        name = local.opening.name
        self._forget(name, local, NotOwner(f"{name} was lost"))
        if local.task is not None:
            local.task.cancel()
        self._spawn(self._release_quietly(name))

    def _release_quietly(
        self, name: PartitionName, *, claim: bool = False
    ) -> Coroutine[Any, Any, None]:
        # Noted at once, not when it first runs: a claim in between would hold what is given up.
        self._releasing[name] = self._releasing.get(name, 0) + 1
        return self._release_noted(name, claim=claim)

    async def _release_noted(self, name: PartitionName, *, claim: bool) -> None:
        """`claim`: a record of ours may stand that is not known to be ours."""
        path = owner_path(*name)
        try:
            if claim and await self._ownership.owner(path) == self._value:
                await self._ownership.claim(path, self._value)
            await self._ownership.release(path)
            if claim:
                self._outstanding.pop(name, None)
            self._lookups.released(name)
        except OctavoError as error:
            _log.warning("claim_not_released", path=path, reason=str(error))
        finally:
            self._releasing[name] -= 1
            if not self._releasing[name]:
                del self._releasing[name]

    async def _hand_off(
        self,
        name: PartitionName,
        local: _Local,
        partition: Partition,
        on_drained: Callable[[PartitionEnd | None], None],
    ) -> None:
        """Close it for an heir, and release it meanwhile: what was under way is stored by then."""
        released: asyncio.Task[None] | None = None

        def drained(end: PartitionEnd | None) -> None:
            nonlocal released
            self._forget(name, local, NotOwner(f"{name} was handed over"))
            released = self._spawn(self._release_quietly(name))
            on_drained(end)

        try:
            await partition.hand_off(drained)
        finally:
            if released is None:
                drained(None)
        if released is not None:
            await asyncio.wait((released,))

    async def _hand_over(self, name: PartitionName) -> None:
        local = self._local.get(name)
        if local is None:
            return
        if local.task is not None and not local.task.done():
            local.task.cancel()
            await asyncio.gather(local.task, return_exceptions=True)
        try:
            if local.partition is not None:
                await local.partition.close(graceful=True)
        finally:
            self._forget(name, local, NotOwner(f"{name} was handed over"))
            released = self._spawn(self._release_quietly(name))
        await asyncio.wait((released,))

    def _preferred(self, name: PartitionName, settings: TopicSettings) -> BrokerInfo:
        return self._registry.preferred(name.topic_name, settings.partitions)[name.partition]

    async def _check_exists(self, name: PartitionName, incarnation: str | None = None) -> TopicInfo:
        info = await self._topics.get(name.topic_name, incarnation)
        if not 0 <= name.partition < info.settings.partitions:
            info = await self._topics.newest(name.topic_name)  # it may have grown
        if not 0 <= name.partition < info.settings.partitions:
            raise PartitionNotFound(
                f"topic {name.topic_name} has partitions 0 to {info.settings.partitions - 1}, "
                f"not {name.partition}"
            )
        return info

    # What nobody owns

    def _owner_changed(self, name: PartitionName) -> None:
        if not self._stopping:
            self._spawn(self._take_released(name))

    async def _take_released(self, name: PartitionName) -> None:
        # Who released it lives, so it has asked somebody to take this, perhaps not us. If that
        # fails it takes it back; if it dies meanwhile, that is news of its own.
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
        """Whether a living broker has just released it, for whom it has asked to take it."""
        if name in self._prepared:  # it is we who will be asked
            return True
        before = self._lookups.released_by(name, asyncio.get_running_loop().time())
        return before is not None and self._registry.is_other(before)

    async def _take_if_free(self, name: PartitionName, *, used: bool) -> None:
        """Claim an unowned partition that we are preferred for, if it is in use."""
        try:
            if name in self._handing:
                return
            if name in self._local or self._stopping:
                await self._verify_own(name)
                return
            info = await self._check_exists(name)
            own = self._preferred(name, info.settings).broker_id == self._registry.own.broker_id
            if (
                own
                and await self._lookups.of(name).owner.newest() is None
                and name not in self._releasing
                and (used or (await self._records.read_partition(*name))[0].epoch)
            ):
                self._claim(name, info.incarnation, info.settings)
        except (TopicNotFound, PartitionNotFound, RecordNotFound):
            return  # deleted meanwhile, or never opened by anybody
        except OctavoError as error:
            _log.warning("owner_not_read", partition=str(name), reason=str(error))
            # Not `reconcile`: when a session ends so it is with thousands at once, and each would
            # have all the others look again.
            self._take_free_soon()

    async def _verify_own(self, name: PartitionName) -> None:
        """Somebody touched the record of a partition that is served here: is it still ours?"""
        local = self._local.get(name)
        if local is None or local.partition is None:
            return
        owner = await self._ownership.owner(owner_path(*name))
        if owner != self._value and self._local.get(name) is local:
            self._abandon(local, "its ownership record is gone")

    async def _reconcile(self) -> None:
        pauses = self._context.reopen_pauses()
        try:
            while self._reconcile_again and not self._stopping:
                self._reconcile_again = False
                try:
                    await self._take_all_free()
                except Exception as error:  # a bug must not end the trying in silence
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
            and (name := topic.name.partition(number)) not in self._local
        ]
        for start in range(0, len(wanted), _LOOKUPS_AT_ONCE):
            batch = wanted[start : start + _LOOKUPS_AT_ONCE]
            await asyncio.gather(*(self._take_if_free(name, used=False) for name in batch))
