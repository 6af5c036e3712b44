"""The live brokers: our own registration, the other brokers under a watch, and preferences.

A broker is alive as long as its ephemeral record stands. `membership.py` computes which live broker
is preferred for a partition; all brokers compute the same answer. A free partition is claimed by
the preferred one of all live brokers. A served partition is handed over only to a broker that has
settled: both this and that broker have been up for a while, and our own session had no break. So
short-lived brokers do not move partitions back and forth. A drained broker (broker_status.py) is
not preferred for any partition as long as another live broker is not drained.
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
"""Size of the cache of preferences. They are computed each second for every topic served here, and
a broker should serve fewer topics than this."""
_TAKEN_SESSIONS_MAX = 2
"""If a record stands after this many session timeouts, it does not come from our last run."""


def encode_broker(info: BrokerInfo, run: str) -> bytes:
    """Encode a broker's registration, which is also the value of owner records.

    `run` differs at every start of a broker.
    """
    fields = {"v": 1, "id": info.broker_id, "url": info.url, "run": run, "leases": True}
    packed: bytes = msgpack.packb(fields)
    return packed


def reads_leases(value: bytes) -> bool:
    """Whether the broker of this record reads leases in state ledgers.

    Brokers of version 0.1 do not, and cannot open a partition whose state ledger has leases.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, msgpack.UnpackException):
        return bool(msgpack.unpackb(value)["leases"])
    return False


def decode_broker(value: bytes) -> BrokerInfo | None:
    """Return the broker that wrote the record; None when the record cannot be decoded."""
    with contextlib.suppress(ValueError, KeyError, TypeError, msgpack.UnpackException):
        fields = msgpack.unpackb(value)
        return BrokerInfo(str(fields["id"]), str(fields["url"]))
    return None


class BrokerRegistry:
    """Our registration and the set of all live brokers."""

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
        """When this broker first saw each record."""
        self._undisturbed_since_s = self._changed_s = 0.0
        self._watch: Watch | None = None
        self._registered = False
        self._namesake: bytes | None = None
        self._namesake_seen_s = 0.0
        self._namesake_for_s = 0.0
        self._strangers = LogLimiter()
        """Counts owners that are not live brokers."""
        self._alarm = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.statuses = BrokerStatuses(store, on_gone, spawn)
        self.own = BrokerInfo("", "")
        self.live: dict[str, BrokerInfo] = {}
        self._gone = GoneBrokers()

    async def start(self, own: BrokerInfo, value: bytes) -> None:
        """Register this broker and read which other brokers are live."""
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
        """Withdraw the registration, so that other brokers are preferred."""
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
        """Return the live brokers as last seen, sorted by id; this broker is included."""
        return [info for _, info in sorted(self.live.items())]

    def gone(self) -> list[GoneBroker]:
        """Return the brokers that were live within the last hour and are gone, sorted by id."""
        return self._gone.at(asyncio.get_running_loop().time())

    def preferred(self, topic: TopicName, partitions: int) -> tuple[BrokerInfo, ...]:
        """Return the broker that should own each partition of a topic, if it were free now."""
        live, able = self._able()
        return tuple(live[one] for one in self._preferred(topic, partitions, able))

    def preferred_of(self, name: PartitionName, partitions: int) -> BrokerInfo:
        """Return the broker that should own one partition, without computing the others."""
        live, able = self._able()
        return live[self._preferred(name.topic_name, partitions, able)[name.partition]]

    def _able(self) -> tuple[dict[str, BrokerInfo], tuple[str, ...]]:
        """Return the live brokers, and the sorted ids of brokers that may own a free partition."""
        live = self.live or {self.own.broker_id: self.own}
        return live, self.undrained() or tuple(sorted(live))

    @property
    def changed_s(self) -> float:
        """When a broker last came, went or was drained, or our session ended."""
        changed_s = (self._changed_s, self._undisturbed_since_s, self.statuses.changed_s)
        return max(*changed_s, *self._up_since_s.values())

    @property
    def is_connected(self) -> bool:
        """Whether this broker is registered and has its session."""
        return self._registered and self.has_session

    @property
    def has_session(self) -> bool:
        """Whether the metadata store has confirmed this broker's session in time."""
        return self._store.session_state is SessionState.CONNECTED

    @property
    def all_read_leases(self) -> bool:
        """Whether every live broker, as last seen, reads leases in state ledgers."""
        return all(map(reads_leases, self._values.values()))

    @property
    def is_draining(self) -> bool:
        return self.statuses.own.draining

    def undrained(self) -> tuple[str, ...]:
        """Return the live brokers that are not drained, as last seen; sorted."""
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
        """Whether a broker is live and has not restarted after `since_s` (the loop's clock)."""
        return broker_id in self.live and self._up_since_s.get(broker_id, math.inf) <= since_s

    def is_other(self, owner: BrokerInfo) -> bool:
        """Whether this is another registered broker, as far as this broker knows."""
        return owner.broker_id != self.own.broker_id and self.live.get(owner.broker_id) == owner

    async def check_registered(self, owner: BrokerInfo) -> None:
        """Check that an owner is a registered broker: calls go to no other address.

        Raises `OWNER_NOT_REGISTERED`, and errors of reading records.
        """
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
        """Return the error for a broker id that no live broker has."""
        return BROKER_NOT_FOUND(
            f"no live broker is called {broker_id[:200]}; there are: {', '.join(sorted(self.live))}"
        )

    def settled(self) -> tuple[str, ...]:
        """Return the brokers that have been up long enough to be given served partitions; sorted.

        Without drained brokers. Empty if this broker has not settled or has no session.
        """
        settled_since_s = asyncio.get_running_loop().time() - self._settle_s
        if not self.is_connected or self._undisturbed_since_s > settled_since_s:
            return ()
        return tuple(one for one in self.undrained() if self._up_since_s[one] <= settled_since_s)

    def successor(
        self, name: PartitionName, partitions: int, settled: tuple[str, ...]
    ) -> str | None:
        """Return the settled broker that should be given a served partition, if any.

        A successor must be preferred among all live brokers, because calls are sent there after the
        move, and also among the settled brokers alone, so that the partition stays if the unsettled
        brokers leave. Computes one partition, not all of the topic.
        """
        if not settled:
            return None
        wanted = self._preferred(name.topic_name, partitions, settled)[name.partition]
        return wanted if wanted == self.preferred_of(name, partitions).broker_id else None

    def _session_changed(self, state: SessionState) -> None:
        # A new session owns nothing: register again, then read which brokers are live.
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
        """Handle a taken broker id: our last run has it, whose session has not ended, or another
        broker."""
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
        # A broker that restarted under its id has lost its partitions, like a broker that is gone.
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
