"""One broker: which topics there are, which partitions are served here, who serves the others.

A broker keeps nothing: whatever must last is in ledgers and in the metadata store. It promises
that a partition it serves has been recovered first, and that it stops serving when its session
or the partition's ledger is taken from it. Correctness rests on fencing, not on ownership.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.partition import Partition
from broker.types import (
    BrokerInfo,
    Owner,
    PartitionName,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicInfo,
    TopicName,
    TopicSettings,
)
from metadata.store import MetadataStore


class Broker:
    """The broker core of one process. One per process; safe to use after `start`."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: object,
        config: BrokerConfig,
        *,
        rng: random.Random,
        clock: Callable[[], int],
    ) -> None:
        self.config = config

    @property
    def broker_id(self) -> str:
        """Unique in the cluster."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where this broker is reached, as it told the others."""
        raise NotImplementedError

    async def start(self, url: str) -> None:
        """Register as reachable at `url` (bind first, then call this) and take part."""
        raise NotImplementedError

    async def close(self) -> None:
        """Hand every partition over and leave."""
        raise NotImplementedError

    # Namespaces

    async def create_namespace(self, name: str) -> bool:
        """True if it is new, False if it was there. Raises `InvalidName`."""
        raise NotImplementedError

    async def delete_namespace(self, name: str) -> None:
        """Raises `NamespaceNotFound`, `NamespaceNotEmpty`."""
        raise NotImplementedError

    async def list_namespaces(self) -> list[str]:
        """All names, sorted; `public` is always there."""
        raise NotImplementedError

    # Topics

    async def create_topic(
        self, name: TopicName, settings: TopicSettings
    ) -> tuple[TopicInfo, bool]:
        """The topic, and whether it is new. Raises `SettingsConflict`, `NamespaceNotFound`."""
        raise NotImplementedError

    async def get_topic(self, name: TopicName) -> TopicInfo:
        """Cheap: kept in memory and dropped by a watch. Raises `TopicNotFound`."""
        raise NotImplementedError

    async def update_topic(self, name: TopicName, settings: TopicSettings) -> TopicInfo:
        """New settings; partitions may only grow. Raises `TopicNotFound`, `InvalidSettings`."""
        raise NotImplementedError

    async def delete_topic(self, name: TopicName) -> None:
        """Delete the topic, its ledgers and cursors. Raises `TopicNotFound`."""
        raise NotImplementedError

    async def list_topics(self, namespace: str) -> list[str]:
        """The topics' names, sorted. Raises `NamespaceNotFound`."""
        raise NotImplementedError

    # Subscriptions of a topic (each partition has a cursor of its own, see Partition.subscribe)

    async def create_subscription(
        self, topic: TopicName, name: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        """The subscription, and whether it is new; then call `Partition.subscribe` at every owner.

        A partition that is missed makes its cursor when it is first used. Raises
        `SettingsConflict`, `TopicNotFound`, `InvalidName`.
        """
        raise NotImplementedError

    async def get_subscription(self, topic: TopicName, name: str) -> SubscriptionInfo:
        """Raises `SubscriptionNotFound`, `TopicNotFound`."""
        raise NotImplementedError

    async def list_subscriptions(self, topic: TopicName) -> list[SubscriptionInfo]:
        """Sorted by name. Raises `TopicNotFound`."""
        raise NotImplementedError

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        """Its cursors vanish with it. Raises `SubscriptionNotFound`, `TopicNotFound`."""
        raise NotImplementedError

    # Ownership

    async def owner_of(self, name: PartitionName, *, forwarded: bool = False) -> Owner:
        """Who serves the partition; claims and opens it when nobody does and it should be us.

        `forwarded`: another broker sent the request here, believing that we should serve: claim
        an unowned partition whatever the preference (ends ping-pong). `local` is true only when
        `partition` will succeed at once. Raises `PartitionMoving`, `TopicNotFound`,
        `PartitionNotFound`, `PartitionUnavailable`.
        """
        raise NotImplementedError

    async def partition(self, name: PartitionName) -> Partition:
        """The local, open one. Raises `NotOwner`."""
        raise NotImplementedError

    def partitions(self) -> list[Partition]:
        """All that are open here, for statistics."""
        raise NotImplementedError

    def brokers(self) -> list[BrokerInfo]:
        """The live brokers as last seen, this one included, sorted by id."""
        raise NotImplementedError
