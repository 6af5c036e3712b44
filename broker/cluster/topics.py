"""Namespaces, topics and subscriptions: their records, cached in memory and kept fresh by watches.

The topic's record is authoritative; the first owner of a partition makes the partition's record.
Every change is a compare-and-set, after which a loser reads again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import structlog

from octavo.broker.cluster.deletion import Deletions
from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.errors import (
    NAMESPACE_NOT_EMPTY,
    TOO_MANY_SUBSCRIPTIONS,
    InvalidSettings,
    NamespaceNotFound,
    SettingsConflict,
    SubscriptionNotFound,
    TopicChanged,
    TopicDeleting,
    TopicNotFound,
)
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.subscriptions.dead_letters import beside, retrying, with_dead_letters
from octavo.broker.types import (
    DEFAULT_NAMESPACE,
    RetryBackoff,
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
from octavo.metadata.topics import (
    BackoffRecord,
    NamespaceRecord,
    Policies,
    SubscriptionRecord,
    TopicRecord,
    TopicStore,
)
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_CHANGES_TRIED_MAX = 8
_CHANGE_WAIT_S = 10.0
_STALE_SUBSCRIPTIONS_MAX = 1_000
"""Above this number, an alarm drops subscriptions not read since the last alarm."""
_PARTITIONS_KEY = "partitions"
"""How many partitions the topic had when the subscription was made."""
_LETTERS_KEY = "letters"
"""Marks a subscription for another subscription's dead letters or retries."""
_SILENT = Policies()


class _Known:
    __slots__ = ("holds", "info", "subscriptions", "watches")

    def __init__(self, info: WatchedRecord[TopicInfo]) -> None:
        self.info = info
        self.holds: tuple[TopicSettings, Policies, TopicSettings] | None = None
        """Settings, the namespace's policies, and the result; needed for every publish."""
        self.subscriptions: dict[str, WatchedRecord[SubscriptionInfo]] = {}
        self.watches: list[Watch] = []

    def subscriptions_changed(self) -> None:
        if len(self.subscriptions) > _STALE_SUBSCRIPTIONS_MAX:
            kept = {name: one for name, one in self.subscriptions.items() if not one.stale}
            self.subscriptions = kept
        for one in tuple(self.subscriptions.values()):
            one.alarm()


class _KnownNamespace:
    __slots__ = ("record", "watch")

    def __init__(self, record: WatchedRecord[NamespaceRecord]) -> None:
        self.record = record
        self.watch: Watch

    @property
    def policies(self) -> Policies:
        last = self.record.last
        return _SILENT if last is None else last.policies


class Topics:
    def __init__(
        self,
        records: TopicStore,
        deletions: Deletions,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_deleted: Callable[[TopicName], None],
        subscriptions_max: int,
    ) -> None:
        self._records = records
        self._deletions = deletions
        self._run = ""
        self._made = 0
        self._clock = clock
        self._spawn = spawn
        self._on_deleted = on_deleted
        self._subscriptions_max = subscriptions_max
        self._known: dict[TopicName, _Known] = {}
        self._namespaces: dict[str, _KnownNamespace] = {}

    def start(self, run: str) -> None:
        self._run = run

    def close(self) -> None:
        for known in self._known.values():
            for watch in known.watches:
                watch.cancel()
        self._known.clear()
        for namespace in self._namespaces.values():
            namespace.watch.cancel()
        self._namespaces.clear()

    async def create_namespace(self, name: str, encrypted: bool | None = None) -> bool:
        """Create a namespace; `encrypted`: whether its later ledgers are; None: no change."""
        checked_name("namespace", name)
        try:
            record = NamespaceRecord(self._clock(), encrypted=bool(encrypted))
            await self._records.create_namespace(name, record)
        except RecordExists:
            if encrypted is not None:
                await self._encrypt(name, encrypted)
            return False
        return True

    async def _encrypt(self, namespace: str, encrypted: bool) -> None:
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._records.read_namespace(namespace)
            with contextlib.suppress(VersionConflict):
                if record.encrypted != encrypted:
                    wanted = replace(record, encrypted=encrypted)
                    await self._records.write_namespace(namespace, wanted, version)
                break
        else:
            raise SettingsConflict(f"namespace {namespace} is being changed by others; try again")
        for topic in await self._records.list_topics(namespace):
            name = TopicName(namespace, topic)
            with contextlib.suppress(TopicNotFound):
                info = await self.newest(name)
                if info.settings.encrypted != encrypted:
                    await self.update(name, replace(info.settings, encrypted=encrypted))

    async def is_encrypted(self, namespace: str) -> bool:
        return (await self._namespace(namespace)).encrypted

    async def namespace(self, name: str) -> NamespaceRecord:
        return await self._namespace(name)

    async def set_policies(
        self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]
    ) -> NamespaceRecord:
        for _ in range(_CHANGES_TRIED_MAX):
            await self._namespace(namespace)
            record, version = await self._records.read_namespace(namespace)
            wanted = change(record)
            if wanted == record:
                return record
            with contextlib.suppress(VersionConflict):
                await self._records.write_namespace(namespace, wanted, version)
                if (known := self._namespaces.get(namespace)) is not None:
                    known.record.alarm()
                return wanted
        raise SettingsConflict(f"namespace {namespace} is being changed by others; try again")

    async def delete_namespace(self, name: str) -> None:
        await self._namespace(name)
        if name == DEFAULT_NAMESPACE:
            raise NAMESPACE_NOT_EMPTY(f"namespace {name!r} always exists")
        try:
            await self._records.delete_namespace(name)
        except RecordExists as error:
            raise NAMESPACE_NOT_EMPTY(
                f"namespace {name!r} still has topics; delete them first"
            ) from error

    async def list_namespaces(self) -> list[str]:
        return await self._records.list_namespaces()

    async def _namespace(self, name: str) -> NamespaceRecord:
        try:
            return (await self._records.read_namespace(checked_name("namespace", name)))[0]
        except RecordNotFound as error:
            raise NamespaceNotFound(
                f"there is no namespace {name!r}; PUT /v1/namespaces/{name} makes it"
            ) from error

    async def create(
        self,
        name: TopicName,
        settings: TopicSettings,
        *,
        own: bool = False,
        for_stream: bool = False,
    ) -> tuple[TopicInfo, bool]:
        """Make a topic, or find it with equal settings; return it, and whether it is new."""
        if not own:
            check_not_internal(name)
        namespace = await self._namespace(name.namespace)
        settings = replace(settings, encrypted=namespace.encrypted)
        incarnation = self.new_incarnation()
        record = TopicRecord(
            settings, self._clock(), incarnation=incarnation, guarded=True,
            stream=for_stream or None,
        )  # fmt: skip
        while True:
            try:
                await self._records.create_topic(*name, record)
            except RecordExists:
                if (found := await self._standing(name)) is None:
                    continue
                # A topic older than its namespace's encryption may not be marked.
                if replace(found.settings, encrypted=settings.encrypted) != settings:
                    raise SettingsConflict(
                        f"topic {name} exists with other settings", found.settings, settings
                    ) from None
                return found, False
            self.forget(name)
            info = TopicInfo(name, settings, record.created_ms, incarnation)
            return info._replace(for_stream=for_stream), True

    def new_incarnation(self) -> str:
        self._made += 1
        return f"{self._run}-{self._made}"

    async def _standing(self, name: TopicName) -> TopicInfo | None:
        """Read the topic; if it is being deleted, wait, then return None."""
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound:
            return None
        if record.deleting:
            await self._deletions.finish(name, record.identity)
            return None
        if not record.stands:
            self._deletions.take_up(name)
            raise TopicDeleting(f"topic {name} is being forked; ask again in a moment")
        return _info_of(name, record)

    async def get(self, name: TopicName, incarnation: str | None = None) -> TopicInfo:
        """Return the topic. Raises `TopicNotFound`; `TopicChanged` for another `incarnation`."""
        info = self.fresh(name)
        if info is None:
            info = await self._found(name, newest=False)
        if incarnation and info.incarnation != incarnation:
            info = await self.newest(name)  # this broker or the caller may be out of date
            if info.incarnation != incarnation:
                raise TopicChanged(
                    f"topic {name} was deleted, and another one was made in its place",
                    looked=True,
                )
        return info

    def fresh(self, name: TopicName) -> TopicInfo | None:
        known = self._known.get(name)
        return None if known is None else known.info.fresh

    async def _found(self, name: TopicName, *, newest: bool) -> TopicInfo:
        try:
            return await self._known_or_read(name, newest=newest)
        except TopicNotFound:
            # A topic made before the call must be found, though a shared reading began earlier or a
            # server is behind.
            await self._records.sync()
            found = await self._read(name)
            await self.policies_of(name.namespace)
            return found

    async def _known_or_read(self, name: TopicName, *, newest: bool) -> TopicInfo:
        info = self._watch(name).info
        try:
            found = await (info.newest() if newest else info.value())
            await self.policies_of(name.namespace)
            return found
        except TopicNotFound:
            self.forget(name)
            raise

    async def newest(self, name: TopicName) -> TopicInfo:
        self._watch(name).info.alarm()
        return await self._found(name, newest=True)

    def settings_of(self, name: TopicName, fallback: TopicSettings) -> TopicSettings:
        """Return the newest known settings; the namespace's policies fill gaps."""
        known = self._known.get(name)
        last = None if known is None else known.info.last
        settings = fallback if last is None else last.settings
        namespace = self._namespaces.get(name.namespace)
        policies = _SILENT if namespace is None else namespace.policies
        if known is None:
            return settings.under(policies)
        if known.holds is None or known.holds[:2] != (settings, policies):
            known.holds = (settings, policies, settings.under(policies))
        return known.holds[2]

    async def policies_of(self, namespace: str) -> Policies:
        known = self._namespaces.get(namespace)
        if known is None:
            new = WatchedRecord(lambda: self._read_namespace(namespace), self._spawn)
            known = self._namespaces[namespace] = _KnownNamespace(new)
            known.watch = self._records.watch_namespace(
                namespace, lambda: self._namespace_changed(namespace)
            )
        try:
            await known.record.value()
        except OctavoError as error:
            # The topic must open all the same: without policies more is kept.
            _log.warning("namespace_not_read", namespace=namespace, reason=str(error))
        return known.policies

    async def _read_namespace(self, namespace: str) -> NamespaceRecord:
        try:
            return (await self._records.read_namespace(namespace))[0]
        except RecordNotFound:
            return NamespaceRecord()

    def _namespace_changed(self, namespace: str) -> None:
        if (known := self._namespaces.get(namespace)) is not None:
            known.record.alarm()
            self._spawn(self._reread_namespace(namespace))

    async def _reread_namespace(self, namespace: str) -> None:
        await self.policies_of(namespace)

    async def update(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        """Change a topic's settings; partitions may only grow."""
        try:
            async with asyncio.timeout(_CHANGE_WAIT_S), self._deletions.alone(name) as check:
                await self._update(name, settings, check)
        except TimeoutError as error:
            raise TopicDeleting(
                f"topic {name} is being changed or deleted by another broker; ask again"
            ) from error
        return await self.newest(name)

    async def _undeleted(self, name: TopicName) -> tuple[TopicRecord, int]:
        try:
            record, version = await self._records.read_topic(*name)
        except RecordNotFound as error:
            raise _no_topic(name) from error
        if not record.stands:
            raise _no_topic(name)
        return record, version

    async def _update(
        self, name: TopicName, settings: TopicSettings, check: Callable[[], None]
    ) -> None:
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._undeleted(name)
            if settings.partitions < record.settings.partitions:
                raise InvalidSettings(
                    f"topic {name} has {record.settings.partitions} partitions; it can get more, "
                    f"not fewer (asked for {settings.partitions})"
                )
            wanted = replace(settings, extra=record.settings.extra)
            check()
            with contextlib.suppress(VersionConflict):
                await self._records.write_topic(*name, replace(record, settings=wanted), version)
                return
        raise SettingsConflict(f"topic {name} is being changed by others; try again")

    async def delete(self, name: TopicName, incarnation: str | None = None) -> None:
        """Delete the topic. Raises `TopicNotFound`, `TopicChanged` for another `incarnation`.

        Raises `TopicDeleting` when it takes long: the deletion continues.
        """
        await self._records.sync()
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound as error:
            raise _no_topic(name) from error
        if incarnation and record.identity != incarnation:
            raise TopicChanged(f"topic {name} was deleted and made again", looked=True)
        await self._deletions.finish(name, record.identity)
        self.forget(name)

    async def names_in(self, namespace: str) -> list[str]:
        await self._namespace(namespace)
        return await self._records.list_topics(namespace)

    async def all_topics(self) -> list[TopicInfo]:
        found: list[TopicInfo] = []
        for namespace in await self._records.list_namespaces():
            for topic in await self._records.list_topics(namespace):
                with contextlib.suppress(TopicNotFound):
                    found.append(await self.get(TopicName(namespace, topic)))
        return found

    # Subscriptions (for each partition's cursor see Partition.subscribe)

    async def create_subscription(
        self,
        topic: TopicName,
        name: str,
        settings: SubscriptionSettings,
        *,
        for_letters: bool = False,
    ) -> tuple[SubscriptionInfo, bool]:
        """Make a subscription, or find it with equal settings; return it, and whether it is new.

        Then call `Partition.subscribe` at every owner; a missed partition makes its cursor at the
        first use. Makes dead-letter and retry topics first.
        """
        checked_name("subscription", name)
        settings = with_dead_letters(topic, name, settings)
        info = await self.newest(topic)
        if not for_letters:
            await self._check_room_for(topic, name)
        await self._make_letter_topics(info, name, settings)
        record = SubscriptionRecord(
            type=settings.type,
            start=settings.start,
            ack_timeout_ms=settings.ack_timeout_ms,
            created_ms=self._clock(),
            incarnation=info.incarnation,
            retry_backoff=settings.retry_backoff and BackoffRecord(*settings.retry_backoff),
            max_deliveries=settings.max_deliveries,
            dead_letter_topic=settings.dead_letter_topic,
            dead_letter_subscription=settings.dead_letter_subscription,
            extra={_PARTITIONS_KEY: info.settings.partitions}
            | ({_LETTERS_KEY: True} if for_letters else {}),
            consumer_timeout_ms=settings.consumer_timeout_ms,
            max_unacked=settings.max_unacked,
            max_unacked_per_consumer=settings.max_unacked_per_consumer,
            filter_headers=dict(settings.filter_headers),
            filter_key_prefix=settings.filter_key_prefix,
            durable=settings.durable,
            retry_topic=settings.retry_topic,
            retry_subscription=settings.retry_subscription,
            retry_deliveries=settings.retry_deliveries,
        )
        await self._remove_leftover(topic, name, info.incarnation)
        try:
            await self._records.create_subscription(*topic, name, record)
        except RecordExists:
            found = await self._read_subscription(topic, name)
            if found.settings != settings:
                raise SettingsConflict(
                    f"subscription {name!r} of {topic} exists with other settings",
                    found.settings,
                    settings,
                ) from None
            return found, False
        return await self._read_subscription(topic, name), True

    async def _make_letter_topics(
        self, origin: TopicInfo, name: str, settings: SubscriptionSettings
    ) -> None:
        """Make the topics for dead letters and retries, replicated like the origin.

        Each has a subscription, without which retention would delete the letters.
        """
        if not settings.dead_letter_topic and not settings.retry_topic:
            return
        is_new = True
        with contextlib.suppress(SubscriptionNotFound):
            found = await self._read_subscription(origin.name, name)
            if found.settings != settings:
                return  # the settings differ: the caller refuses it next
            is_new = False
        targets = (
            (settings.dead_letter_topic, settings.dead_letter_subscription),
            (settings.retry_topic, settings.retry_subscription),
        )
        for text, subscription in targets if is_new else ():
            if text:
                await self._check_letters(origin, TopicName.parse(text), subscription)
        if text := settings.dead_letter_topic:
            shared = SubscriptionSettings(type="shared")
            await self._make_letters(origin, text, settings.dead_letter_subscription, shared)
        if text := settings.retry_topic:
            shared = retrying(name, settings)
            partitions = origin.settings.partitions
            await self._make_letters(origin, text, settings.retry_subscription, shared, partitions)

    async def _make_letters(
        self,
        origin: TopicInfo,
        text: str,
        subscription: str,
        settings: SubscriptionSettings,
        partitions: int = 1,
    ) -> None:
        target = TopicName.parse(text)
        try:
            await self.newest(target)
        except TopicNotFound:
            own = origin.settings
            quorums = TopicSettings(
                partitions=partitions,
                ensemble_size=own.ensemble_size,
                write_quorum=own.write_quorum,
                ack_quorum=own.ack_quorum,
            )
            with contextlib.suppress(SettingsConflict):  # another call made it meanwhile
                await self.create(target, quorums)
        await self.mark_letters(target)
        with contextlib.suppress(SettingsConflict):  # an existing subscription keeps copies, too
            await self.create_subscription(target, subscription, settings, for_letters=True)

    async def letters_beside(
        self, origin: TopicName, topic: TopicName, info: SubscriptionInfo
    ) -> TopicName:
        """Make the topic for copies that `topic` does not take, if needed."""
        settings = info.settings
        retries = bool(settings.retry_topic)
        other = TopicName(topic.namespace, beside(topic.topic, retries=retries))
        name = settings.retry_subscription if retries else settings.dead_letter_subscription
        try:
            await self.subscription(other, name)
        except (SubscriptionNotFound, TopicNotFound):
            own = await self.get(origin)
            made = retrying(info.name, settings) if retries else SubscriptionSettings(type="shared")
            partitions = own.settings.partitions if retries else 1
            await self._make_letters(own, str(other), name, made, partitions)
        return other

    async def mark_letters(self, name: TopicName) -> TopicInfo:
        info = await self.get(name)
        for _ in range(_CHANGES_TRIED_MAX):
            if info.has_letters:
                return info
            record, version = await self._undeleted(name)
            with contextlib.suppress(VersionConflict):
                if not record.letters:
                    await self._records.write_topic(*name, replace(record, letters=True), version)
            info = await self.newest(name)
        raise SettingsConflict(f"topic {name} is being changed by others; try again")

    async def _check_letters(self, origin: TopicInfo, target: TopicName, subscription: str) -> None:
        """Raise `InvalidSettings` if copies would be in clear text, or might be removed.

        Policies may remove messages of a subscription that was not made for letters.
        """
        try:
            info = await self.newest(target)
            encrypted = info.settings.encrypted
        except TopicNotFound:
            info, encrypted = None, await self.is_encrypted(target.namespace)
        if origin.settings.encrypted and not encrypted:
            raise InvalidSettings(
                f"topic {origin.name} is encrypted, and {target} is not, or would not be: copies "
                "of its messages would be stored in clear text; name a topic of an encrypted "
                "namespace"
            )
        if info is None:
            return
        with contextlib.suppress(SubscriptionNotFound):
            found = await self._read_subscription(target, subscription)
            policies = self.settings_of(target, info.settings).policies
            quota = (policies.backlog_bytes, policies.backlog_age_ms)
            evicts = policies.backlog_policy == "evict" and quota != (None, None)
            takes = [
                word
                for word, holds in (
                    ("ttl", policies.ttl_ms is not None),
                    ("backlog_quota with the policy evict", evicts),
                    ("subscription_expiry", policies.subscription_expiry_ms is not None),
                )
                if holds
            ]
            if takes and not found.has_letters:
                raise InvalidSettings(
                    f"subscription {subscription!r} of {target} was not made for copies of "
                    f"messages, and that topic's {' and '.join(takes)} would remove them: "
                    "name another subscription there, which is then made, or set the policy to off"
                )

    async def _remove_leftover(self, topic: TopicName, name: str, incarnation: str) -> None:
        """Remove a subscription's record that was made after an earlier topic's deletion."""
        with contextlib.suppress(RecordNotFound, VersionConflict):
            record, version = await self._records.read_subscription(*topic, name)
            if record.incarnation not in ("", incarnation):
                await self._records.delete_subscription(*topic, name, version)

    async def subscription(self, topic: TopicName, name: str) -> SubscriptionInfo:
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

    async def _check_room_for(self, topic: TopicName, name: str) -> None:
        """Check the limit, which brokers that make subscriptions at once may exceed."""
        names = await self._records.list_subscriptions(*topic)
        if len(names) >= self._subscriptions_max and name not in names:
            raise TOO_MANY_SUBSCRIPTIONS(
                f"topic {topic} has {len(names)} subscriptions, and may have "
                f"{self._subscriptions_max} (subscriptions_max): delete some, or make another topic"
            )

    async def list_subscriptions(self, topic: TopicName) -> list[SubscriptionInfo]:
        await self.get(topic)
        found = []
        for name in await self._records.list_subscriptions(*topic):
            with contextlib.suppress(SubscriptionNotFound):
                found.append(await self.subscription(topic, name))
        return found

    async def delete_subscription(
        self, topic: TopicName, name: str, created_ms: int | None = None
    ) -> None:
        await self.get(topic)
        checked_name("subscription", name)
        try:
            if created_ms is None:
                await self._records.delete_subscription(*topic, name)
            else:
                record, version = await self._records.read_subscription(*topic, name)
                if record.created_ms != created_ms:
                    raise _no_subscription(topic, name)
                await self._records.delete_subscription(*topic, name, version)
        except (RecordNotFound, VersionConflict) as error:
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
            retry_backoff=_backoff_of(record),
            max_deliveries=record.max_deliveries,
            dead_letter_topic=record.dead_letter_topic,
            dead_letter_subscription=record.dead_letter_subscription,
            consumer_timeout_ms=record.consumer_timeout_ms,
            max_unacked=record.max_unacked,
            max_unacked_per_consumer=record.max_unacked_per_consumer,
            filter_headers=tuple(sorted(record.filter_headers.items())),
            filter_key_prefix=record.filter_key_prefix,
            durable=record.durable,
            retry_topic=record.retry_topic,
            retry_subscription=record.retry_subscription,
            retry_deliveries=record.retry_deliveries,
        )
        partitions = record.extra.get(_PARTITIONS_KEY, 0)
        has_letters = bool(record.extra.get(_LETTERS_KEY))
        return SubscriptionInfo(name, settings, record.created_ms, partitions, has_letters)

    async def _check_incarnation(
        self, topic: TopicName, name: str, record: SubscriptionRecord
    ) -> None:
        """Records of older versions name no incarnation."""
        if not record.incarnation or record.incarnation == (await self.get(topic)).incarnation:
            return
        if record.incarnation != (await self.newest(topic)).incarnation:
            raise _no_subscription(topic, name)

    async def _read(self, name: TopicName) -> TopicInfo:
        try:
            record, _ = await self._records.read_topic(*name)
        except RecordNotFound as error:
            raise _no_topic(name) from error
        if not record.stands and not record.deleting:
            raise TopicNotFound(f"topic {name} is being forked; ask again in a moment")
        if record.deleting:
            raise TopicNotFound(
                f"topic {name} is being deleted; PUT /v1/topics/{name} waits for that and "
                "makes it again"
            )
        return _info_of(name, record)

    def _reading_of(self, name: TopicName) -> Callable[[], Coroutine[Any, Any, TopicInfo]]:
        before: TopicInfo | None = None

        async def read() -> TopicInfo:
            nonlocal before
            info = await self._read(name)
            known, before = before, info
            if known is not None and known.incarnation != info.incarnation:
                # Deleted and made again: the subscriptions in memory are the old topic's.
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
        try:
            await self._found(name, newest=True)
        except TopicNotFound:
            self._on_deleted(name)
        except OctavoError as error:
            _log.warning("topic_not_read", topic=str(name), reason=str(error))

    def forget(self, name: TopicName) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            for watch in known.watches:
                watch.cancel()


def _backoff_of(record: SubscriptionRecord) -> RetryBackoff | None:
    stored = record.retry_backoff
    if stored is None:
        return None
    return RetryBackoff(stored.first_ms, stored.most_ms, stored.factor)


def _no_topic(name: TopicName) -> TopicNotFound:
    return TopicNotFound(f"there is no topic {name}; PUT /v1/topics/{name} makes it")


def _no_subscription(topic: TopicName, name: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(
        f"topic {topic} has no subscription {name!r}; "
        f"PUT /v1/topics/{topic}/subscriptions/{name} makes it"
    )


def _info_of(name: TopicName, record: TopicRecord) -> TopicInfo:
    return TopicInfo(
        name, record.settings, record.created_ms, record.identity, record.fork, bool(record.stream),
        bool(record.letters),
    )  # fmt: skip
