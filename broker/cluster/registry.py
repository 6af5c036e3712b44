"""The live brokers: our own registration, the others under a watch, and preferences.

The preferred of all live brokers (`membership.py`) claims a free partition. A served partition is
handed over only to a settled broker: both have been up for a while, and our session had no break,
so that short-lived brokers do not move partitions back and forth. A drained broker is preferred
only if all are drained.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import structlog

from octavo.broker.cluster.broker_status import BrokerStatuses
from octavo.broker.cluster.membership import GoneBroker, GoneBrokers, preferred_brokers
from octavo.broker.errors import BROKER_NOT_FOUND, OWNER_NOT_REGISTERED, BrokerError, BrokerIdTaken
from octavo.broker.types import BrokerInfo, PartitionName, TopicName
from octavo.metadata.election import Ownership
from octavo.metadata.paths import is_safe_name
from octavo.metadata.store import MetadataStore, RecordNotFound, SessionState, Watch
from octavo.metadata.topics import BROKERS_ROOT, broker_path
from octavo.protocol.codes import OctavoError
from octavo.protocol.log_limiter import LogLimiter

_log = structlog.get_logger()
_RETRY_S = 0.2
_TOPICS_REMEMBERED = 32_768
"""Size of the cache of preferences, which are needed each second for every topic served here."""
_TAKEN_SESSIONS_MAX = 2
"""A record that stands after this many session timeouts is not our last run's."""


def encode_broker(info: BrokerInfo, run: str) -> bytes:
    """Encode a broker's record; `run` differs at each start."""
    fields = {"v": 1, "id": info.broker_id, "url": info.url, "run": run, "leases": True}
    packed: bytes = msgpack.packb(fields)
    return packed


def reads_leases(value: bytes) -> bool:
    """Return whether the broker of this record reads leases in state ledgers.

    Brokers of version 0.1 cannot open a partition whose state ledger has leases.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, msgpack.UnpackException):
        return bool(msgpack.unpackb(value)["leases"])
    return False


def decode_broker(value: bytes) -> BrokerInfo | None:
    with contextlib.suppress(ValueError, KeyError, TypeError, msgpack.UnpackException):
        fields = msgpack.unpackb(value)
        return BrokerInfo(str(fields["id"]), str(fields["url"]))
    return None


class BrokerRegistry:
    def __init__(
        self,
        store: MetadataStore,
        ownership: Ownership,
        settle_ms: int,
        on_gone: Callable[[], None],
        on_taken: Callable[[BrokerIdTaken], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._settle_s = settle_ms / 1000
        self._preferred = functools.lru_cache(_TOPICS_REMEMBERED)(preferred_brokers)
        self._on_gone = on_gone
        self._on_taken = on_taken
        self._spawn = spawn
        self._value = b""
        self._values: dict[str, bytes] = {}
        """The records as last read; a broker's record differs after each start."""
        self._up_since_s: dict[str, float] = {}
        """When this broker first saw each broker."""
        self._undisturbed_since_s = self._changed_s = 0.0
        self._watch: Watch | None = None
        self._registered = False
        self._namesake: bytes | None = None
        self._namesake_seen_s = 0.0
        self._namesake_for_s = 0.0
        self._strangers = LogLimiter()
        self._alarm = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.statuses = BrokerStatuses(store, on_gone, spawn)
        self.own = BrokerInfo("", "")
        self.live: dict[str, BrokerInfo] = {}
        self._gone = GoneBrokers()

    async def start(self, own: BrokerInfo, value: bytes) -> None:
        self.own, self._value = own, value
        self.statuses.start(own.broker_id, value)
        self._registered = True
        self._undisturbed_since_s = asyncio.get_running_loop().time()
        self._watch = self._store.watch_children(BROKERS_ROOT, self._alarm.set)
        self._store.on_session(self._session_changed)
        await self._register()
        await self._reload()
        self._following = asyncio.create_task(self._follow(), name="broker registry")

    async def leave(self) -> None:
        self._registered = False
        if self.own.broker_id:  # else the start has failed before it
            await self._ownership.release(broker_path(self.own.broker_id))

    async def close(self) -> None:
        self.statuses.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def brokers(self) -> list[BrokerInfo]:
        return [info for _, info in sorted(self.live.items())]

    def gone(self) -> list[GoneBroker]:
        return self._gone.at(asyncio.get_running_loop().time())

    def preferred(self, topic: TopicName, partitions: int) -> tuple[BrokerInfo, ...]:
        live, able = self._able()
        return tuple(live[one] for one in self._preferred(topic, partitions, able))

    def preferred_of(self, name: PartitionName, partitions: int) -> BrokerInfo:
        live, able = self._able()
        return live[self._preferred(name.topic_name, partitions, able)[name.partition]]

    def _able(self) -> tuple[dict[str, BrokerInfo], tuple[str, ...]]:
        live = self.live or {self.own.broker_id: self.own}
        return live, self.undrained() or tuple(sorted(live))

    @property
    def changed_s(self) -> float:
        """Return when a broker last came, went or was drained, or our session ended."""
        changed_s = (self._changed_s, self._undisturbed_since_s, self.statuses.changed_s)
        return max(*changed_s, *self._up_since_s.values())

    @property
    def is_connected(self) -> bool:
        return self._registered and self.has_session

    @property
    def has_session(self) -> bool:
        return self._store.session_state is SessionState.CONNECTED

    @property
    def all_read_leases(self) -> bool:
        return all(map(reads_leases, self._values.values()))

    @property
    def is_draining(self) -> bool:
        return self.statuses.own.draining

    def undrained(self) -> tuple[str, ...]:
        drained = self.statuses.drained
        own = self.own.broker_id
        return tuple(
            sorted(
                one
                for one in self.live
                if (not self.is_draining if one == own else one not in drained)
            )
        )

    def is_up_since(self, broker_id: str, since_s: float) -> bool:
        """Return whether a broker lives and did not restart after `since_s` (loop time)."""
        return broker_id in self.live and self._up_since_s.get(broker_id, math.inf) <= since_s

    def is_other(self, owner: BrokerInfo) -> bool:
        return owner.broker_id != self.own.broker_id and self.live.get(owner.broker_id) == owner

    async def check_registered(self, owner: BrokerInfo) -> None:
        """Check that an owner is a registered broker: calls go to no other address."""
        if self.live.get(owner.broker_id) == owner:
            return
        if is_safe_name(owner.broker_id):  # our watch may be late
            value = await self._read(owner.broker_id)
            if value is not None and decode_broker(value) == owner:
                self._alarm.set()
                return
        if count := self._strangers.count(asyncio.get_running_loop().time()):
            _log.warning(
                "owner_not_registered",
                owner=owner.broker_id,
                url=owner.url[:200],
                count=count,
            )
        raise OWNER_NOT_REGISTERED(
            f"the metadata names broker {owner.broker_id} as the owner, but no live broker is "
            "registered by that name at that address; nothing is sent to it. The partition is "
            "served again when that record goes, at the end of its session"
        )

    def no_such_broker(self, broker_id: str) -> BrokerError:
        return BROKER_NOT_FOUND(
            f"no live broker is called {broker_id[:200]}; there are: {', '.join(sorted(self.live))}"
        )

    def settled(self) -> tuple[str, ...]:
        """Return the brokers up long enough to be given served partitions, sorted, not drained."""
        settled_since_s = asyncio.get_running_loop().time() - self._settle_s
        if not self.is_connected or self._undisturbed_since_s > settled_since_s:
            return ()
        return tuple(one for one in self.undrained() if self._up_since_s[one] <= settled_since_s)

    def successor(
        self, name: PartitionName, partitions: int, settled: tuple[str, ...]
    ) -> str | None:
        """Return the settled broker that should be given a served partition, if any.

        It must be preferred among all live brokers, because calls are sent there, and among the
        settled brokers alone, so that the partition stays if the unsettled leave.
        """
        if not settled:
            return None
        wanted = self._preferred(name.topic_name, partitions, settled)[name.partition]
        return wanted if wanted == self.preferred_of(name, partitions).broker_id else None

    def _session_changed(self, state: SessionState) -> None:
        # A new session owns nothing: register again, then read the live brokers.
        self._undisturbed_since_s = asyncio.get_running_loop().time()
        if state is SessionState.CONNECTED:
            self._alarm.set()
        else:
            _log.warning("metadata_session", broker=self.own.broker_id, state=state.value)

    async def _follow(self) -> None:
        while True:
            await self._alarm.wait()
            self._alarm.clear()
            try:
                if self._registered:
                    await self.statuses.tell_again()
                    await self._register()
                await self._reload()
            except Exception as error:  # continue after a bug, too, and log it
                bug = None if isinstance(error, OctavoError) else error
                _log.warning("brokers_not_read", reason=str(error), exc_info=bug)
                await asyncio.sleep(_RETRY_S)
                self._alarm.set()

    async def _register(self) -> None:
        path = broker_path(self.own.broker_id)
        if not self._ownership.held(path):
            claim = await self._ownership.claim(path, self._value)
            if not claim.held:
                self._is_taken(claim.owner)
                return
        self._namesake = None

    def _is_taken(self, owner: bytes) -> None:
        """Handle a taken id: of our last run, whose session has not ended, or another broker."""
        now_s = asyncio.get_running_loop().time()
        if owner != self._namesake:
            self._namesake, self._namesake_for_s = owner, 0.0
            _log.warning("broker_id_taken", broker=self.own.broker_id)
        else:  # count only time in which the store answered: while it is away, no session ends
            self._namesake_for_s += min(now_s - self._namesake_seen_s, 2 * _RETRY_S)
        self._namesake_seen_s = now_s
        if self._namesake_for_s > _TAKEN_SESSIONS_MAX * self._store.session_timeout_ms / 1000:
            other = decode_broker(owner)
            where = other.url if other is not None else "an unknown address"
            self._on_taken(
                BrokerIdTaken(
                    f"broker id {self.own.broker_id} belongs to a live broker at {where}: "
                    "give this broker another broker_id, or stop the other broker"
                )
            )
        else:
            self._spawn(self._again())

    async def _again(self) -> None:
        await asyncio.sleep(_RETRY_S)
        self._alarm.set()

    async def _reload(self) -> None:
        names = await self._store.children(BROKERS_ROOT)
        values = dict(zip(names, await asyncio.gather(*map(self._read, names)), strict=True))
        if self._registered:
            values[self.own.broker_id] = self._value
        else:
            values.pop(self.own.broker_id, None)
        found = {name: info for name, v in values.items() if (info := decode_broker(v or b""))}
        # A broker that restarted under its id has lost its partitions.
        gone = sorted(n for n, value in self._values.items() if values.get(n) != value)
        self._values = {name: value for name, value in values.items() if value is not None}
        await self.statuses.follow(
            {name: self._values[name] for name in found if name != self.own.broker_id}
        )
        now_s = asyncio.get_running_loop().time()
        self._up_since_s = {
            name: now_s if name in gone else self._up_since_s.get(name, now_s) for name in found
        }
        self._gone.follow(self.live, found, now_s)
        if found != self.live or gone:
            self.live, self._changed_s = found, now_s
            _log.info("brokers_changed", live=sorted(found), gone=gone)
            if gone:
                self._on_gone()

    async def _read(self, name: str) -> bytes | None:
        try:
            return (await self._store.get(broker_path(name))).value
        except RecordNotFound:
            return None
