"""Namespaces, topics and subscriptions as this broker knows them: records, cached, kept by watches.

The topic's record is the truth; the records of its partitions are made by their first owner. A
lookup costs nothing once the record is in memory; a watch tells when it changes
(watched_record.py). Every change is a compare-and-set: of two brokers that change a topic at once
one is told to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from typing import Any, cast

import structlog

from octavo.broker.cluster.deletion import Deletions
from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.errors import (
    InvalidSettings,
    NamespaceNotEmpty,
    NamespaceNotFound,
    SettingsConflict,
    SubscriptionNotFound,
    TopicChanged,
    TopicDeleting,
    TopicNotFound,
)
from octavo.broker.types import (
    DEFAULT_NAMESPACE,
    StartPosition,
    SubscriptionInfo,
    SubscriptionSettings,
    SubscriptionType,
    TopicInfo,
    TopicName,
    TopicSettings,
    checked_name,
)
from octavo.metadata.store import RecordExists, RecordNotFound, VersionConflict, Watch
from octavo.metadata.topics import NamespaceRecord, SubscriptionRecord, TopicRecord, TopicStore
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_CHANGES_TRIED_MAX = 8
_CHANGE_WAIT_S = 10.0
_STALE_SUBSCRIPTIONS_MAX = 1_000
"""Of a topic with more in memory, those that nobody asked for since the last alarm are dropped."""
_PARTITIONS_KEY = "partitions"
"""In a subscription's record: how many partitions the topic had when it was made."""
_SETTINGS = tuple(field.name for field in fields(TopicSettings))


class _Known:
    """A topic in memory."""

    __slots__ = ("info", "subscriptions", "watches")

    def __init__(self, info: WatchedRecord[TopicInfo]) -> None:
        self.info = info
        self.subscriptions: dict[str, WatchedRecord[SubscriptionInfo]] = {}
        self.watches: list[Watch] = []

    def subscriptions_changed(self) -> None:
        """One was made, deleted, or something may have been missed."""
        if len(self.subscriptions) > _STALE_SUBSCRIPTIONS_MAX:
            kept = {name: one for name, one in self.subscriptions.items() if not one.stale}
            self.subscriptions = kept
        for one in tuple(self.subscriptions.values()):
            one.alarm()


class Topics:
    """The calls on namespaces, topics and subscriptions."""

    def __init__(
        self,
        records: TopicStore,
        deletions: Deletions,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_deleted: Callable[[TopicName], None],
    ) -> None:
        self._records = records
        self._deletions = deletions
        self._run = ""
        self._made = 0
        self._clock = clock
        self._spawn = spawn
        self._on_deleted = on_deleted
        self._known: dict[TopicName, _Known] = {}

    def start(self, run: str) -> None:
        """`run` is unique to this start of this broker."""
        self._run = run

    def close(self) -> None:
        """Watch no more."""
        for known in self._known.values():
            for watch in known.watches:
                watch.cancel()
        self._known.clear()

    # Namespaces

    async def create_namespace(self, name: str) -> bool:
        """True if it is new, False if it was there. Raises `InvalidName`."""
        checked_name("namespace", name)
        try:
            await self._records.create_namespace(name, NamespaceRecord(self._clock()))
        except RecordExists:
            return False
        return True

    async def delete_namespace(self, name: str) -> None:
        """Raises `NamespaceNotFound`, `NamespaceNotEmpty`."""
        await self._check_namespace(name)
        if name == DEFAULT_NAMESPACE:
            raise NamespaceNotEmpty(f"namespace {name!r} is always there")
        try:
            await self._records.delete_namespace(name)
        except RecordExists as error:
            raise NamespaceNotEmpty(
                f"namespace {name!r} still has topics; delete them first"
            ) from error

    async def list_namespaces(self) -> list[str]:
        """All names, sorted; `public` is always there."""
        return await self._records.list_namespaces()

    async def _check_namespace(self, name: str) -> None:
        try:
            await self._records.read_namespace(checked_name("namespace", name))
        except RecordNotFound as error:
            raise NamespaceNotFound(
                f"there is no namespace {name!r}; PUT /v1/namespaces/{name} makes it"
            ) from error

    # Topics

    async def create(self, name: TopicName, settings: TopicSettings) -> tuple[TopicInfo, bool]:
        """The topic, and whether it is new. Raises `SettingsConflict`, `NamespaceNotFound`."""
        await self._check_namespace(name.namespace)
        self._made += 1
        incarnation = f"{self._run}-{self._made}"
        record = TopicRecord(
            _stored(settings), self._clock(), incarnation=incarnation, guarded=True
        )
        while True:
            try:
                await self._records.create_topic(*name, record)
            except RecordExists:
                if (found := await self._standing(name)) is None:
                    continue
                if found.settings != settings:
                    raise SettingsConflict(
                        f"topic {name} exists with other settings: {_differences(found, settings)}"
                    ) from None
                return found, False
            self.forget(name)
            return TopicInfo(name, settings, record.created_ms, incarnation), True

    async def _standing(self, name: TopicName) -> TopicInfo | None:
        """The topic; None when it is gone, after waiting for a deletion. Raises `TopicDeleting`."""
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound:
            return None
        if record.deleting:
            await self._deletions.finish(name, record.identity)
            return None
        return _info_of(name, record)

    async def get(self, name: TopicName, incarnation: str | None = None) -> TopicInfo:
        """Cheap: kept in memory under a watch. Raises `TopicNotFound`.

        With an `incarnation` no other topic of that name will do: raises `TopicChanged`.
        """
        info = self.fresh(name)
        if info is None:
            info = await self._found(name, newest=False)
        if incarnation and info.incarnation != incarnation:
            info = await self.newest(name)  # we or the caller may be behind
            if info.incarnation != incarnation:
                raise TopicChanged(
                    f"topic {name} was deleted, and another one was made in its place",
                    looked=True,
                )
        return info

    def fresh(self, name: TopicName) -> TopicInfo | None:
        """What `get` gives, if nothing has to be read or awaited for it."""
        known = self._known.get(name)
        return None if known is None else known.info.fresh

    async def _found(self, name: TopicName, *, newest: bool) -> TopicInfo:
        info = self._watch(name).info
        try:
            return await (info.newest() if newest else info.value())
        except TopicNotFound:
            self.forget(name)
            raise

    async def newest(self, name: TopicName) -> TopicInfo:
        """The topic as it stands in the store. Raises `TopicNotFound`, `MetadataUnavailable`."""
        self._watch(name).info.alarm()
        return await self._found(name, newest=True)

    def settings_of(self, name: TopicName, fallback: TopicSettings) -> TopicSettings:
        """The newest settings in memory."""
        known = self._known.get(name)
        last = None if known is None else known.info.last
        return fallback if last is None else last.settings

    async def update(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        """New settings; partitions may only grow. Raises `TopicNotFound`, `InvalidSettings`."""
        try:
            async with asyncio.timeout(_CHANGE_WAIT_S), self._deletions.alone(name) as check:
                await self._update(name, settings, check)
        except TimeoutError as error:
            raise TopicDeleting(
                f"topic {name} is being changed or deleted by another broker; ask again"
            ) from error
        return await self.newest(name)

    async def _update(
        self, name: TopicName, settings: TopicSettings, check: Callable[[], None]
    ) -> None:
        for _ in range(_CHANGES_TRIED_MAX):
            try:
                record, version = await self._records.read_topic(*name)
            except RecordNotFound as error:
                raise _no_topic(name) from error
            if record.deleting:
                raise _no_topic(name)
            if settings.partitions < record.settings.partitions:
                raise InvalidSettings(
                    f"topic {name} has {record.settings.partitions} partitions; it can get more, "
                    f"not fewer (asked for {settings.partitions})"
                )
            wanted = replace(_stored(settings), extra=record.settings.extra)
            check()
            with contextlib.suppress(VersionConflict):
                await self._records.write_topic(*name, replace(record, settings=wanted), version)
                return
        raise SettingsConflict(f"topic {name} is being changed by others; try again")

    async def delete(self, name: TopicName, incarnation: str | None = None) -> None:
        """Delete the topic, its ledgers and cursors; nobody serves it any more when this returns.

        With an `incarnation` no other topic of that name: raises `TopicChanged`. Raises
        `TopicNotFound`, and `TopicDeleting` when it takes long: it goes on by itself.
        """
        await self._records.sync()
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound as error:
            raise _no_topic(name) from error
        if incarnation and record.identity != incarnation:
            raise TopicChanged(f"topic {name} is another one, made after it", looked=True)
        await self._deletions.finish(name, record.identity)
        self.forget(name)

    async def names_in(self, namespace: str) -> list[str]:
        """The topics of a namespace, sorted. Raises `NamespaceNotFound`."""
        await self._check_namespace(namespace)
        return await self._records.list_topics(namespace)

    async def all_topics(self) -> list[TopicInfo]:
        """Every topic of every namespace, read where it is not in memory."""
        found: list[TopicInfo] = []
        for namespace in await self._records.list_namespaces():
            for topic in await self._records.list_topics(namespace):
                with contextlib.suppress(TopicNotFound):
                    found.append(await self.get(TopicName(namespace, topic)))
        return found

    # Subscriptions of a topic (each partition has a cursor of its own, see Partition.subscribe)

    async def create_subscription(
        self, topic: TopicName, name: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        """The subscription, and whether it is new; then call `Partition.subscribe` at every owner.

        A partition that is missed makes its cursor when it is first used. Raises
        `SettingsConflict`, `TopicNotFound`, `InvalidName`.
        """
        checked_name("subscription", name)
        info = await self.newest(topic)
        record = SubscriptionRecord(
            type=settings.type,
            start=settings.start,
            ack_timeout_ms=settings.ack_timeout_ms,
            created_ms=self._clock(),
            incarnation=info.incarnation,
            extra={_PARTITIONS_KEY: info.settings.partitions},
        )
        await self._remove_leftover(topic, name, info.incarnation)
        try:
            await self._records.create_subscription(*topic, name, record)
        except RecordExists:
            found = await self._read_subscription(topic, name)
            if found.settings != settings:
                raise SettingsConflict(
                    f"subscription {name!r} of {topic} exists with other settings: {found.settings}"
                ) from None
            return found, False
        return await self._read_subscription(topic, name), True

    async def _remove_leftover(self, topic: TopicName, name: str, incarnation: str) -> None:
        """One that came too late for the deletion of an earlier topic."""
        with contextlib.suppress(RecordNotFound, VersionConflict):
            record, version = await self._records.read_subscription(*topic, name)
            if record.incarnation not in ("", incarnation):
                await self._records.delete_subscription(*topic, name, version)

    async def subscription(self, topic: TopicName, name: str) -> SubscriptionInfo:
        """From memory if possible. Raises `SubscriptionNotFound`, `TopicNotFound`."""
        known = self._known.get(topic)
        found = None if known is None else known.subscriptions.get(name)
        if known is None or found is None:
            await self.get(topic)
            checked_name("subscription", name)
            known = self._watch(topic)
            new = WatchedRecord(lambda: self._read_subscription(topic, name), self._spawn)
            found = known.subscriptions.setdefault(name, new)
        try:
            return await found.value()
        except SubscriptionNotFound:
            known.subscriptions.pop(name, None)
            raise

    async def list_subscriptions(self, topic: TopicName) -> list[SubscriptionInfo]:
        """Sorted by name. Raises `TopicNotFound`."""
        await self.get(topic)
        found = []
        for name in await self._records.list_subscriptions(*topic):
            with contextlib.suppress(SubscriptionNotFound):
                found.append(await self.subscription(topic, name))
        return found

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        """Its cursors vanish with it. Raises `SubscriptionNotFound`, `TopicNotFound`."""
        await self.get(topic)
        try:
            await self._records.delete_subscription(*topic, checked_name("subscription", name))
        except RecordNotFound as error:
            raise _no_subscription(topic, name) from error
        if (known := self._known.get(topic)) is not None:
            known.subscriptions.pop(name, None)

    async def _read_subscription(self, topic: TopicName, name: str) -> SubscriptionInfo:
        try:
            record, _ = await self._records.read_subscription(*topic, name)
            await self._check_incarnation(topic, name, record)
        except RecordNotFound as error:
            raise _no_subscription(topic, name) from error
        settings = SubscriptionSettings(
            type=cast(SubscriptionType, record.type),
            start=cast(StartPosition, record.start),
            ack_timeout_ms=record.ack_timeout_ms,
        )
        partitions = record.extra.get(_PARTITIONS_KEY, 0)
        return SubscriptionInfo(name, settings, record.created_ms, partitions)

    async def _check_incarnation(
        self, topic: TopicName, name: str, record: SubscriptionRecord
    ) -> None:
        """Older versions of the software say none. Raises `SubscriptionNotFound`."""
        if not record.incarnation or record.incarnation == (await self.get(topic)).incarnation:
            return
        if record.incarnation != (await self.newest(topic)).incarnation:
            raise _no_subscription(topic, name)

    # The cache

    async def _read(self, name: TopicName) -> TopicInfo:
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound as error:
            raise _no_topic(name) from error
        if record.deleting:
            raise TopicNotFound(
                f"topic {name} is being deleted; PUT /v1/topics/{name} waits for "
                "that and makes it anew"
            )
        return _info_of(name, record)

    def _reading_of(self, name: TopicName) -> Callable[[], Coroutine[Any, Any, TopicInfo]]:
        """Reads the topic and notices a namesake."""
        before: TopicInfo | None = None

        async def read() -> TopicInfo:
            nonlocal before
            info = await self._read(name)
            known, before = before, info
            if known is not None and known.incarnation != info.incarnation:
                # Deleted and made again between two looks: what is known here was the old one's.
                if (held := self._known.get(name)) is not None:
                    held.subscriptions.clear()
                self._on_deleted(name)
            return info

        return read

    def _watch(self, name: TopicName) -> _Known:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Known(WatchedRecord(self._reading_of(name), self._spawn))
            known.watches = [
                self._records.watch_topic(*name, lambda: self._changed(name)),
                self._records.watch_subscriptions(*name, known.subscriptions_changed),
            ]
        return known

    def _changed(self, name: TopicName) -> None:
        known = self._known.get(name)
        if known is not None:
            known.info.alarm()
            self._spawn(self._reread(name))

    async def _reread(self, name: TopicName) -> None:
        """Settings that changed reach the partitions that are open here; so does a deletion."""
        try:
            await self._found(name, newest=True)
        except TopicNotFound:
            self._on_deleted(name)
        except OctavoError as error:
            _log.warning("topic_not_read", topic=str(name), reason=str(error))

    def forget(self, name: TopicName) -> None:
        """Whoever asks next is told what stands in the store."""
        known = self._known.pop(name, None)
        if known is not None:
            for watch in known.watches:
                watch.cancel()


def _no_topic(name: TopicName) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {name}; PUT /v1/topics/{name} makes it")


def _no_subscription(topic: TopicName, name: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(
        f"topic {topic} has no subscription {name!r}; "
        f"PUT /v1/topics/{topic}/subscriptions/{name} makes it"
    )


def _stored(settings: TopicSettings) -> StoredSettings:
    """As the record has them."""
    return StoredSettings(**{name: getattr(settings, name) for name in _SETTINGS})


def _info_of(name: TopicName, record: TopicRecord) -> TopicInfo:
    """What the record says of the topic."""
    return TopicInfo(name, _settings_of(record.settings), record.created_ms, record.identity)


def _settings_of(stored: StoredSettings) -> TopicSettings:
    return TopicSettings(**{name: getattr(stored, name) for name in _SETTINGS})


def _differences(found: TopicInfo, wanted: TopicSettings) -> str:
    """Of two topics, in words."""
    return ", ".join(
        f"{name} is {getattr(found.settings, name)}, not {getattr(wanted, name)}"
        for name in _SETTINGS
        if getattr(found.settings, name) != getattr(wanted, name)
    )
