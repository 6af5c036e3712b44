"""Namespaces, topics, partitions and subscriptions: paths, and calls on their records.

    /octavo/namespaces/<ns>
    /octavo/topics/<ns>/<topic>
    /octavo/topics/<ns>/<topic>/partitions/<n>
    /octavo/topics/<ns>/<topic>/subscriptions/<sub>
    /octavo/owners/<ns>/<topic>/<n>            ephemeral, see election.py
    /octavo/changes/<ns>/<topic>               ephemeral: the broker that changes or deletes it
    /octavo/incarnations/<incarnation>         empty; exists exactly as long as its topic
    /octavo/brokers/<id>                       ephemeral
    /octavo/standings/<id>                     ephemeral, see broker/cluster/broker_status.py

Names are validated where users give them (broker/types.py); here a bad name is an AssertionError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from octavo.metadata.paths import join
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataStore,
    RecordExists,
    RecordNotFound,
    VersionConflict,
    Watch,
)
from octavo.metadata.topic_records import (
    BackoffRecord,
    CompactedLedger,
    CompactionRecord,
    ForkRecord,
    NamespaceRecord,
    OffloadIntent,
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    RetiredLedger,
    SubscriptionRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from octavo.metadata.topic_settings import AutoCreate, Policies, TopicSettings

__all__ = [
    "BROKERS_ROOT",
    "OWNERS_ROOT",
    "STANDINGS_ROOT",
    "AutoCreate",
    "BackoffRecord",
    "CompactedLedger",
    "CompactionRecord",
    "ForkRecord",
    "NamespaceRecord",
    "OffloadIntent",
    "OffloadRecord",
    "PartitionLedger",
    "PartitionRecord",
    "Policies",
    "RetiredLedger",
    "SubscriptionRecord",
    "TopicRecord",
    "TopicSettings",
    "TopicStore",
    "broker_path",
    "changes_path",
    "owner_path",
    "standing_path",
]

NAMESPACES_ROOT = "/octavo/namespaces"
TOPICS_ROOT = "/octavo/topics"
OWNERS_ROOT = "/octavo/owners"
CHANGES_ROOT = "/octavo/changes"
BROKERS_ROOT = "/octavo/brokers"
STANDINGS_ROOT = "/octavo/standings"
OFFLOADS_ROOT = "/octavo/offloads"
INCARNATIONS_ROOT = "/octavo/incarnations"
_DELETES_TRIED_MAX = 8

R = TypeVar("R")


def owner_path(namespace: str, topic: str, partition: int) -> str:
    return join(OWNERS_ROOT, namespace, topic, str(partition))


def changes_path(namespace: str, topic: str) -> str:
    return join(CHANGES_ROOT, namespace, topic)


def broker_path(broker_id: str) -> str:
    return join(BROKERS_ROOT, broker_id)


def standing_path(broker_id: str) -> str:
    return join(STANDINGS_ROOT, broker_id)


def topic_path(namespace: str, topic: str) -> str:
    return join(TOPICS_ROOT, namespace, topic)


def partition_path(namespace: str, topic: str, partition: int) -> str:
    assert partition >= 0
    return join(TOPICS_ROOT, namespace, topic, "partitions", str(partition))


def _guard_path(incarnation: str | None) -> str | None:
    return None if incarnation is None else join(INCARNATIONS_ROOT, incarnation)


def subscription_path(namespace: str, topic: str, subscription: str) -> str:
    return join(TOPICS_ROOT, namespace, topic, "subscriptions", subscription)


class TopicStore:
    """Stores topics' records; every change is a compare-and-set on the version that was read.

    Reads raise `RecordNotFound` and `BadRecord`, creates `RecordExists`, writes `VersionConflict`.

    Versions start at 0 again when a topic is created again. So a guarded topic has a companion
    record, named by its incarnation; its partitions' records are only written while that exists.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def sync(self) -> None:
        await self._store.sync()

    # -- namespaces

    async def create_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        await self._create(join(NAMESPACES_ROOT, namespace), record)

    async def read_namespace(self, namespace: str) -> tuple[NamespaceRecord, int]:
        return await self._read(NamespaceRecord, join(NAMESPACES_ROOT, namespace))

    async def write_namespace(self, namespace: str, record: NamespaceRecord, version: int) -> int:
        return await self._write(join(NAMESPACES_ROOT, namespace), record, version)

    def watch_namespace(self, namespace: str, on_change: Callable[[], None]) -> Watch:
        return self._store.watch(join(NAMESPACES_ROOT, namespace), on_change)

    async def delete_namespace(self, namespace: str, version: int = ANY_VERSION) -> None:
        """Delete a namespace. Raises `RecordExists` if there are topics in it."""
        if await self.list_topics(namespace):
            raise RecordExists(f"namespace {namespace} still has topics")
        await self._store.delete(join(NAMESPACES_ROOT, namespace), version)
        for root in (TOPICS_ROOT, OWNERS_ROOT, CHANGES_ROOT):
            await self._remove_empty(join(root, namespace))

    async def list_namespaces(self) -> list[str]:
        return await self._store.children(NAMESPACES_ROOT)

    # -- topics

    async def create_topic(self, namespace: str, topic: str, record: TopicRecord) -> None:
        """Create the topic's record; the records of its partitions are created separately."""
        path, beside = topic_path(namespace, topic), _guard_path(record.guard)
        await self._create(path, record, beside)

    async def read_topic(self, namespace: str, topic: str) -> tuple[TopicRecord, int]:
        return await self._read(TopicRecord, topic_path(namespace, topic))

    async def write_topic(
        self, namespace: str, topic: str, record: TopicRecord, version: int
    ) -> int:
        return await self._write(topic_path(namespace, topic), record, version)

    async def delete_topic(self, namespace: str, topic: str, guard: str | None = None) -> None:
        """Remove the topic's record last.

        The caller marks the topic `deleting` first, so that no broker adds to it.
        """
        path = topic_path(namespace, topic)
        for attempt in range(_DELETES_TRIED_MAX):
            for folder in ("partitions", "subscriptions"):
                for name in await self._store.children(f"{path}/{folder}"):
                    await self._remove(f"{path}/{folder}/{name}")
                await self._remove(f"{path}/{folder}")
            try:
                return await self._store.delete(path, beside=_guard_path(guard))
            except RecordExists:
                if attempt == _DELETES_TRIED_MAX - 1:
                    raise
        return None

    async def take_up_leftover(self, namespace: str, topic: str, record: TopicRecord) -> None:
        """Put `record` on the path of a deleted topic, which late records below it have kept.

        Raises `RecordNotFound` without such a path, `RecordExists` if it has a record,
        `VersionConflict` if it got one meanwhile.
        """
        path = topic_path(namespace, topic)
        value, version = await self._store.get(path)
        if value:
            raise RecordExists(f"a record stands at {path}")
        await self._write(path, record, version)

    async def remove_owners_folder(self, namespace: str, topic: str) -> None:
        """Keep the folder if an owner's record exists."""
        await self._remove_empty(join(OWNERS_ROOT, namespace, topic))

    async def list_owners_folders(self, namespace: str) -> list[str]:
        return await self._store.children(join(OWNERS_ROOT, namespace))

    async def list_topics(self, namespace: str) -> list[str]:
        return await self._store.children(join(TOPICS_ROOT, namespace))

    def watch_topic(self, namespace: str, topic: str, on_change: Callable[[], None]) -> Watch:
        return self._store.watch(topic_path(namespace, topic), on_change)

    # -- partitions

    async def create_partition(
        self, namespace: str, topic: str, partition: int, record: PartitionRecord
    ) -> None:
        await self._create(partition_path(namespace, topic, partition), record)

    async def read_partition(
        self, namespace: str, topic: str, partition: int
    ) -> tuple[PartitionRecord, int]:
        return await self._read(PartitionRecord, partition_path(namespace, topic, partition))

    async def write_partition(
        self,
        namespace: str,
        topic: str,
        partition: int,
        record: PartitionRecord,
        version: int,
        *,
        guard: str | None = None,
    ) -> int:
        """Write a record; with `guard`, raise `RecordNotFound` unless that topic still exists."""
        path = partition_path(namespace, topic, partition)
        return await self._write(path, record, version, _guard_path(guard))

    async def delete_partition(
        self, namespace: str, topic: str, partition: int, version: int = ANY_VERSION
    ) -> None:
        await self._store.delete(partition_path(namespace, topic, partition), version)

    async def list_partitions(self, namespace: str, topic: str) -> list[int]:
        """Return the partitions that have a record, ascending."""
        names = await self._store.children(join(topic_path(namespace, topic), "partitions"))
        return sorted(int(name) for name in names)

    # -- subscriptions

    async def create_subscription(
        self, namespace: str, topic: str, subscription: str, record: SubscriptionRecord
    ) -> None:
        await self._create(subscription_path(namespace, topic, subscription), record)

    async def read_subscription(
        self, namespace: str, topic: str, subscription: str
    ) -> tuple[SubscriptionRecord, int]:
        path = subscription_path(namespace, topic, subscription)
        return await self._read(SubscriptionRecord, path)

    async def delete_subscription(
        self, namespace: str, topic: str, subscription: str, version: int = ANY_VERSION
    ) -> None:
        await self._store.delete(subscription_path(namespace, topic, subscription), version)

    async def list_subscriptions(self, namespace: str, topic: str) -> list[str]:
        return await self._store.children(join(topic_path(namespace, topic), "subscriptions"))

    def watch_subscriptions(
        self, namespace: str, topic: str, on_change: Callable[[], None]
    ) -> Watch:
        path = join(topic_path(namespace, topic), "subscriptions")
        return self._store.watch_children(path, on_change)

    # -- offloads

    async def create_intent(self, uuid: str, record: OffloadIntent) -> None:
        await self._create(join(OFFLOADS_ROOT, uuid), record)

    async def read_intent(self, uuid: str) -> OffloadIntent:
        return (await self._read(OffloadIntent, join(OFFLOADS_ROOT, uuid)))[0]

    async def delete_intent(self, uuid: str) -> None:
        """Delete the intent of a copy of which nothing is left."""
        await self._remove(join(OFFLOADS_ROOT, uuid))

    async def list_intents(self) -> list[str]:
        """List the intents of copies that exist, may exist, or are being made."""
        return await self._store.children(OFFLOADS_ROOT)

    # -- helpers

    async def _create(self, path: str, record: object, beside: str | None = None) -> None:
        value = encode_record(record)
        while True:
            try:
                await self._store.create(path, value, beside=beside)
                return None
            except RecordExists:
                # Only another record's parent, without a value: it is free, and may be removed any
                # moment.
                with contextlib.suppress(RecordNotFound):
                    found, version = await self._store.get(path)
                    if found:
                        raise
                    return await self._put_on_the_way(path, value, version, beside)

    async def _put_on_the_way(
        self, path: str, value: bytes, version: int, beside: str | None
    ) -> None:
        if beside is not None:
            await self._store.create(beside, b"")
        try:
            await self._store.put(path, value, version, beside=beside)
        except (VersionConflict, RecordNotFound) as error:
            if beside is not None:
                await self._remove(beside)
            if isinstance(error, RecordNotFound):
                raise
            raise RecordExists(f"a record already stands at {path}") from error

    async def _read(self, kind: type[R], path: str) -> tuple[R, int]:
        value, version = await self._store.get(path)
        if not value:
            raise RecordNotFound(f"no record at {path}")
        return decode_record(kind, path, value), version

    async def _write(
        self, path: str, record: object, version: int, beside: str | None = None
    ) -> int:
        assert version != ANY_VERSION, "topic records are only ever changed by compare-and-set"
        return await self._store.put(path, encode_record(record), version, beside=beside)

    async def _remove(self, path: str) -> None:
        with contextlib.suppress(RecordNotFound):
            await self._store.delete(path)

    async def _remove_empty(self, path: str) -> None:
        with contextlib.suppress(RecordExists):
            await self._remove(path)
