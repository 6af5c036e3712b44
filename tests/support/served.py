"""Run work at a partition's owner for another broker, as `Serving` runs operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.broker.broker import Broker
from octavo.broker.errors import MessageNotFound, NotOwner, OffsetBeyondEnd
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName

Value = TypeVar("Value")


async def served(
    broker: Broker,
    name: PartitionName,
    incarnation: str | None,
    work: Callable[[Partition], Awaitable[Value]],
) -> Value:
    """Return what `work` returns on the partition here. Raises `NotOwner` if it is not here."""
    owner = await broker.ownership.owner_of(name, forwarded=True, incarnation=incarnation)
    if not owner.local:
        raise NotOwner(f"{name} is served by broker {owner.broker_id} at {owner.url}")
    partition = await broker.ownership.partition(name)
    try:
        return await work(partition)
    except (MessageNotFound, OffsetBeyondEnd):
        await partition.prove()
        raise
