"""Find a partition's owner, work here or there, and wait during a take-over.

The only such loop. It begins again only while nothing was done: the broker is not the owner, was
not reached, or the partition moves. An unanswered operation is repeated only if it changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from octavo.broker.errors import (
    MessageNotFound,
    NotOwner,
    OffsetBeyondEnd,
    OwnerUnreachable,
    PartitionMoving,
    TopicChanged,
    TopicReplaced,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.types import BrokerInfo, Owner, PartitionName
from octavo.protocol.backoff import Backoff

if TYPE_CHECKING:
    from octavo.broker.broker import Broker

FIRST_PAUSE_S = 0.02
PAUSE_S_MAX = 0.5
"""A change of the owner ends a pause early."""
_NOT_KNOWN_HERE = (MessageNotFound, OffsetBeyondEnd)
"""A new owner may have what is missing here."""

Result = TypeVar("Result")


class Context(Protocol):
    incarnation: str | None
    owner_url: str
    served_incarnation: str

    @property
    def names_incarnation(self) -> bool: ...


async def with_owner(
    broker: Broker,
    context: Context,
    name: PartitionName,
    here: Callable[[Partition], Awaitable[Result]],
    there: Callable[[Owner], Awaitable[Result]],
    *,
    moving_wait_s: float,
    owned: Callable[[], None],
    may_repeat: Callable[[], bool] = lambda: True,
) -> Result:
    """Run `here` or `there`, where the owner is.

    While the partition moves, repeat within `moving_wait_s` and while `may_repeat`. `owned` is
    called before work begins here.
    """
    ownership = broker.ownership
    loop = asyncio.get_running_loop()
    deadline = loop.time() + moving_wait_s
    pauses = Backoff(FIRST_PAUSE_S, PAUSE_S_MAX, None)  # a wait that ends with the news

    def too_late() -> bool:
        return loop.time() + pauses.pause_s > deadline

    while True:
        seen = ownership.owner_changes(name)
        try:
            owner = await ownership.owner_of(name, incarnation=context.incarnation)
            if not owner.local:
                await broker.registry.check_registered(BrokerInfo(owner.broker_id, owner.url))
            context.owner_url = owner.url
            context.served_incarnation = owner.incarnation
            if owner.local:
                partition = await ownership.partition(name)
                owned()
                try:
                    return await here(partition)
                except _NOT_KNOWN_HERE:
                    await partition.prove()
                    raise
            return await there(owner)
        except TopicChanged as error:
            # This broker or the caller knew an old incarnation: read again.
            if error.looked and context.names_incarnation:
                raise TopicReplaced(str(error)) from error
            broker.topics.forget(name.topic_name)
            if error.looked or too_late() or not may_repeat():
                raise
        except (NotOwner, PartitionMoving, OwnerUnreachable):
            if too_late() or not may_repeat():
                raise
            ownership.doubt_owner(name)  # a watch may be late
            await ownership.until_owner_changes(name, seen, pauses.next_s())
