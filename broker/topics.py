"""Namespaces, topics and subscriptions as this broker knows them: records, cached, kept by watches.

The topic's record is the truth; the records of its partitions are made by their first owner. A
lookup costs nothing once the record is in memory; a watch tells when it changes (remembered.py).
Every change is a compare-and-set: of two brokers that change a topic at once one is told to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from typing import Any, cast

import structlog

from broker.errors import (
    InvalidSettings,
    NamespaceNotEmpty,
    NamespaceNotFound,
    SettingsConflict,
    SubscriptionNotFound,
    TopicNotFound,
)
from broker.remembered import Remembered
from broker.state_log import delete_quietly
from broker.types import (
    DEFAULT_NAMESPACE,
    PartitionName,
    StartPosition,
    SubscriptionInfo,
    SubscriptionSettings,
    SubscriptionType,
    TopicInfo,
    TopicName,
    TopicSettings,
    checked_name,
)
from ledger.ledgers import LedgerClient
from metadata.compactions import compacted_ledgers
from metadata.offloads import is_only_copy
from metadata.store import RecordExists, RecordNotFound, VersionConflict, Watch
from metadata.topics import NamespaceRecord, SubscriptionRecord, TopicRecord, TopicStore
from metadata.topics import TopicSettings as StoredSettings
from protocol.codes import OctavoError

_log = structlog.get_logger()
_CHANGES_TRIED_MAX = 8
_STALE_SUBSCRIPTIONS_MAX = 1_000
"""Of a topic with more in memory, those that nobody asked for since the last alarm are dropped."""
_SETTING_NAMES = tuple(field.name for field in fields(TopicSettings))
_PARTITIONS_KEY = "partitions"
"""In a subscription's record: how many partitions the topic had when it was made."""


class _Known:
    """A topic in memory."""

    __slots__ = ("info", "subscriptions", "watches")

    def __init__(self, info: Remembered[TopicInfo]) -> None:
        self.info = info
        self.subscriptions: dict[str, Remembered[SubscriptionInfo]] = {}
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
        ledgers: LedgerClient,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_deleted: Callable[[TopicName], None],
    ) -> None:
        self._records = records
        self._ledgers = ledgers
        self._clock = clock
        self._spawn = spawn
        self._on_deleted = on_deleted
        self._known: dict[TopicName, _Known] = {}

    def close(self) -> None:
        """Watch no more."""
        for known in self._known.values():
            for watch in known.watches:
                watch.cancel()
        self._known.clear()

    # Namespaces

    async def create_namespace(self, name: str) -> bool:
        """See `Broker.create_namespace`."""
        checked_name("namespace", name)
        try:
            await self._records.create_namespace(name, NamespaceRecord(self._clock()))
        except RecordExists:
            return False
        return True

    async def delete_namespace(self, name: str) -> None:
        """See `Broker.delete_namespace`."""
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
        """All names, sorted."""
        return await self._records.list_namespaces()

    async def _check_namespace(self, name: str) -> None:
        try:
            await self._records.read_namespace(checked_name("namespace", name))
        except RecordNotFound as error:
            raise NamespaceNotFound(
                f"there is no namespace {name!r}; PUT /v1/namespaces/{name} makes it"
            ) from error

    # Topics

    async def create_topic(
        self, name: TopicName, settings: TopicSettings
    ) -> tuple[TopicInfo, bool]:
        """See `Broker.create_topic`."""
        await self._check_namespace(name.namespace)
        record = TopicRecord(_stored(settings), self._clock())
        try:
            await self._records.create_topic(*name, record)
        except RecordExists:
            found = await self._read(name)
            if found.settings != settings:
                raise SettingsConflict(
                    f"topic {name} exists with other settings: {_differences(found, settings)}"
                ) from None
            return found, False
        self._drop(name)
        return await self.get(name), True

    async def get(self, name: TopicName) -> TopicInfo:
        """The topic, from memory if possible. Raises `TopicNotFound`."""
        known = self._known.get(name)
        if known is not None and (fresh := known.info.fresh) is not None:
            return fresh
        return await self._found(name, newest=False)

    async def _found(self, name: TopicName, *, newest: bool) -> TopicInfo:
        info = self._watch(name).info
        try:
            return await (info.newest() if newest else info.value())
        except TopicNotFound:
            self._drop(name)
            raise

    def settings_of(self, name: TopicName, fallback: TopicSettings) -> TopicSettings:
        """The newest settings in memory."""
        known = self._known.get(name)
        last = None if known is None else known.info.last
        return fallback if last is None else last.settings

    async def update(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        """See `Broker.update_topic`."""
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
            stored = replace(_stored(settings), extra=record.settings.extra)
            with contextlib.suppress(VersionConflict):
                await self._records.write_topic(*name, replace(record, settings=stored), version)
                self._changed(name)
                return await self._found(name, newest=True)
        raise SettingsConflict(f"topic {name} is being changed by others; try again")

    async def delete(self, name: TopicName) -> None:
        """See `Broker.delete_topic`."""
        await self._mark_deleting(name)
        self._changed(name)
        for number in await self._records.list_partitions(*name):
            await self._delete_partition(name.partition(number))
        with contextlib.suppress(RecordNotFound):
            await self._records.delete_topic(*name)
        self._drop(name)

    async def topics_in(self, namespace: str) -> list[str]:
        """See `Broker.list_topics`."""
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

    async def _mark_deleting(self, name: TopicName) -> None:
        for _ in range(_CHANGES_TRIED_MAX):
            try:
                record, version = await self._records.read_topic(*name)
                if not record.deleting:
                    record = replace(record, deleting=True)
                    await self._records.write_topic(*name, record, version)
                return
            except RecordNotFound as error:
                raise _no_topic(name) from error
            except VersionConflict:
                continue
        raise SettingsConflict(f"topic {name} is being changed by others; try again")

    async def _delete_partition(self, name: PartitionName) -> None:
        """First the record, so that its owner cannot add a ledger to it any more; then those."""
        for _ in range(_CHANGES_TRIED_MAX):
            try:
                record, version = await self._records.read_partition(*name)
                await self._records.delete_partition(*name, version)
            except VersionConflict:
                continue
            except RecordNotFound:
                return
            ledger_ids = [
                link.ledger_id for link in record.ledgers if not is_only_copy(link.offload)
            ]
            if record.state_ledger is not None:
                ledger_ids.append(record.state_ledger)
            ledger_ids += compacted_ledgers(record)
            await asyncio.gather(*(delete_quietly(self._ledgers, one) for one in ledger_ids))
            return
        raise SettingsConflict(f"partition {name} is being changed by its owner; try again")

    # Subscriptions

    async def create_subscription(
        self, topic: TopicName, name: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        """See `Broker.create_subscription`."""
        checked_name("subscription", name)
        partitions = (await self.get(topic)).settings.partitions
        record = SubscriptionRecord(
            type=settings.type,
            start=settings.start,
            ack_timeout_ms=settings.ack_timeout_ms,
            created_ms=self._clock(),
            extra={_PARTITIONS_KEY: partitions},
        )
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

    async def subscription(self, topic: TopicName, name: str) -> SubscriptionInfo:
        """The subscription, from memory if possible. Raises `SubscriptionNotFound`."""
        known = self._known.get(topic)
        found = None if known is None else known.subscriptions.get(name)
        if known is None or found is None:
            await self.get(topic)
            checked_name("subscription", name)
            known = self._watch(topic)
            new = Remembered(lambda: self._read_subscription(topic, name), self._spawn)
            found = known.subscriptions.setdefault(name, new)
        try:
            return await found.value()
        except SubscriptionNotFound:
            known.subscriptions.pop(name, None)
            raise

    async def list_subscriptions(self, topic: TopicName) -> list[SubscriptionInfo]:
        """See `Broker.list_subscriptions`."""
        await self.get(topic)
        found = []
        for name in await self._records.list_subscriptions(*topic):
            with contextlib.suppress(SubscriptionNotFound):
                found.append(await self.subscription(topic, name))
        return found

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        """See `Broker.delete_subscription`."""
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
        except RecordNotFound as error:
            raise _no_subscription(topic, name) from error
        settings = SubscriptionSettings(
            type=cast(SubscriptionType, record.type),
            start=cast(StartPosition, record.start),
            ack_timeout_ms=record.ack_timeout_ms,
        )
        partitions = record.extra.get(_PARTITIONS_KEY, 0)
        return SubscriptionInfo(name, settings, record.created_ms, partitions)

    # The cache

    async def _read(self, name: TopicName) -> TopicInfo:
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound as error:
            raise _no_topic(name) from error
        if record.deleting:
            raise _no_topic(name)
        return TopicInfo(name, _settings(record.settings), record.created_ms)

    def _reading_of(self, name: TopicName) -> Callable[[], Coroutine[Any, Any, TopicInfo]]:
        """Reads the topic and notices a namesake."""
        before: TopicInfo | None = None

        async def read() -> TopicInfo:
            nonlocal before
            info = await self._read(name)
            known, before = before, info
            if known is not None and known.created_ms != info.created_ms:
                # Deleted and made again between two looks: what is open here was the old one's.
                self._on_deleted(name)
            return info

        return read

    def _watch(self, name: TopicName) -> _Known:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Known(Remembered(self._reading_of(name), self._spawn))
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

    def _drop(self, name: TopicName) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            for watch in known.watches:
                watch.cancel()


def _stored(settings: TopicSettings) -> StoredSettings:
    return StoredSettings(**{name: getattr(settings, name) for name in _SETTING_NAMES})


def _settings(stored: StoredSettings) -> TopicSettings:
    return TopicSettings(**{name: getattr(stored, name) for name in _SETTING_NAMES})


def _differences(found: TopicInfo, wanted: TopicSettings) -> str:
    return ", ".join(
        f"{name} is {getattr(found.settings, name)}, not {getattr(wanted, name)}"
        for name in _SETTING_NAMES
        if getattr(found.settings, name) != getattr(wanted, name)
    )


def _no_topic(name: TopicName) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {name}; PUT /v1/topics/{name} makes it")


def _no_subscription(topic: TopicName, name: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(
        f"topic {topic} has no subscription {name!r}; "
        f"PUT /v1/topics/{topic}/subscriptions/{name} makes it"
    )
