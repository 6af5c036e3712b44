"""The status of each broker.

A broker writes its status into an ephemeral record; the others read it under a watch. It is advice:
a broker that reads it late may prefer the wrong broker, but is never wrong about an owner. A record
counts only for the run of the broker that wrote it, so a restarted broker is not drained.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import msgpack
import structlog

from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.metadata.store import (
    MetadataStore,
    MetadataUnavailable,
    RecordExists,
    RecordNotFound,
    SessionState,
    VersionConflict,
    Watch,
)
from octavo.metadata.topics import standing_path
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_TRIES = 4
_RETRY_S = 0.2
"""Pause before a failed reading is repeated: the watch may not fire again."""


class BrokerStatus(NamedTuple):
    draining: bool = False
    partitions: int = 0
    load: int | None = None
    """The load of its partitions (load.py), rounded; None: not told."""


def encode_status(status: BrokerStatus, registered: bytes) -> bytes:
    fields = {"v": 1, "of": registered, **status._asdict()}
    packed: bytes = msgpack.packb(fields)
    return packed


def decode_status(value: bytes, registered: bytes) -> BrokerStatus:
    """Decode a status; the default if it is invalid or for another registration."""
    with contextlib.suppress(ValueError, KeyError, TypeError, msgpack.UnpackException):
        fields = msgpack.unpackb(value)
        if fields["of"] == registered:
            load = fields.get("load")
            return BrokerStatus(
                bool(fields["draining"]),
                int(fields["partitions"]),
                None if load is None else int(load),
            )
    return BrokerStatus()


class _Other:
    __slots__ = ("read", "read_s", "registered", "trying", "watch")

    def __init__(self, registered: bytes, read: WatchedRecord[bytes]) -> None:
        self.registered = registered
        self.read = read
        self.read_s: float | None = None
        self.watch: Watch | None = None
        self.trying: asyncio.Task[None] | None = None


class BrokerStatuses:
    def __init__(
        self,
        store: MetadataStore,
        on_change: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._spawn = spawn
        self._registered = b""
        self._path = ""
        self._told: BrokerStatus | None = BrokerStatus()
        """The status that others can read; None: a write may have failed."""
        self._is_there = False
        self._sessions = 0
        self._turn = asyncio.Lock()
        self._others: dict[str, _Other] = {}
        self._drained: frozenset[str] = frozenset()
        self.own = BrokerStatus()
        self.changed_s = 0.0

    def start(self, broker_id: str, registered: bytes) -> None:
        self._path, self._registered = standing_path(broker_id), registered
        self._store.on_session(self._session_changed)

    @property
    def drained(self) -> frozenset[str]:
        return self._drained

    def of(self, broker_id: str) -> BrokerStatus:
        other = self._others.get(broker_id)
        if other is None or other.read.last is None:
            return BrokerStatus()
        return decode_status(other.read.last, other.registered)

    def age_s(self, broker_id: str) -> float | None:
        """Return how many seconds ago the status was read; None: never."""
        other = self._others.get(broker_id)
        if other is None or other.read_s is None:
            return None
        return asyncio.get_running_loop().time() - other.read_s

    async def tell(self, status: BrokerStatus) -> None:
        self.own = status
        await self.tell_again()

    async def tell_again(self) -> None:
        """Write our status again if the store may not have it."""
        async with self._turn:
            while self._told != self.own:
                self._told, told = None, self.own  # a write that fails may be stored
                sessions = self._sessions
                await self._write(told)
                if sessions == self._sessions:
                    self._told = told

    async def follow(self, registered: Mapping[str, bytes]) -> None:
        for name in [name for name in self._others if name not in registered]:
            self._forget(name)
        for name, value in registered.items():
            other = self._others.get(name)
            if other is None:
                self._others[name] = other = self._begin(name, value)
            other.registered = value
        await asyncio.gather(*(self._look(name) for name in registered))

    def close(self) -> None:
        for name in list(self._others):
            self._forget(name)

    def _begin(self, name: str, registered: bytes) -> _Other:
        path = standing_path(name)

        async def read() -> bytes:
            value = b""
            with contextlib.suppress(RecordNotFound):
                value = (await self._store.get(path)).value
            other.read_s = asyncio.get_running_loop().time()
            return value

        record = WatchedRecord(read, self._spawn)
        other = _Other(registered, record)

        def changed() -> None:
            record.alarm()
            self._spawn(self._look(name))

        other.watch = self._store.watch(path, changed)
        return other

    async def _look(self, name: str) -> None:
        other = self._others.get(name)
        is_read = other is None or await self._is_read(name, other)
        if other is not None and not is_read and other.trying is None:
            other.trying = self._spawn(self._try_again(name, other))
        drained = frozenset(one for one in self._others if self.of(one).draining)
        if drained != self._drained:
            self._drained = drained
            self.changed_s = asyncio.get_running_loop().time()
            self._on_change()

    async def _is_read(self, name: str, other: _Other) -> bool:
        try:
            await other.read.newest()
        except OctavoError as error:
            _log.info("standing_not_read", of=name, reason=str(error))
            return False
        return True

    async def _try_again(self, name: str, other: _Other) -> None:
        while self._others.get(name) is other and other.read.stale:
            await asyncio.sleep(_RETRY_S)
            await self._is_read(name, other)
        other.trying = None
        if self._others.get(name) is other:
            await self._look(name)

    def _forget(self, name: str) -> None:
        other = self._others.pop(name)
        if other.watch is not None:
            other.watch.cancel()

    async def _write(self, status: BrokerStatus) -> None:
        value = encode_status(status, self._registered)
        for _ in range(_TRIES):
            if not self._is_there:  # a record there is from an earlier session
                with contextlib.suppress(RecordNotFound, RecordExists):
                    with contextlib.suppress(RecordNotFound):
                        await self._store.delete(self._path)
                    await self._store.create(self._path, value, ephemeral=True)
                    self._is_there = True
                    return
            else:
                with contextlib.suppress(RecordNotFound, VersionConflict):
                    record = await self._store.get(self._path)
                    await self._store.put(self._path, value, record.version)
                    return
                self._is_there = False
        raise MetadataUnavailable(f"the record of this broker's status changed {_TRIES} times")

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._sessions += 1
            self._told, self._is_there = BrokerStatus(), False
