"""An owner that had been deposed unawares refused for good what its successor would take.

A broker was cut off, another took its partition over and stored the producer's next batch. Back
again, the first one was asked before it heard that its session was over: "expected sequence 154,
got 158". Nothing was stored, nothing lost, but a producer gives up at that, with all that it had
sent after. Likewise an offset "beyond the end" ends a reader, and a mismatch of `If-Match` is not
true. That a repeat is answered by the owner of that moment was proved already; so is now whatever
is refused for what the partition lacks. Found by a container that was disconnected, on a busy
machine; publishers of the simulator went on after such a gap, and it was excused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from octavo.broker.broker import Broker
from octavo.broker.errors import NotOwner, PartitionUnavailable
from octavo.broker.http.api.durable_streams import end_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import MessageId, PartitionName, SubscriptionSettings
from tests.support.cluster import TOPIC, Cluster, batch, make_topic, owned

SUCCESSORS_LEDGER = 2
"""After the first owner's data and state ledgers."""


def numbered(first: int) -> bytes:
    return batch(2, tag=f"m{first}", producer_id=7, producer_epoch=0, base_sequence=first)


async def two_owners(cluster: Cluster) -> tuple[Broker, Partition, Broker, PartitionName]:
    """The one that was deposed and has not heard of it; its partition; the one that owns it."""
    old = await cluster.start("A")
    new = await cluster.start("B")
    name = await make_topic(old.broker)
    partition = await owned(old.broker, name)
    settings = SubscriptionSettings(type="exclusive")
    info, _ = await old.broker.topics.create_subscription(TOPIC, "s", settings)
    await partition.subscribe(info)
    await partition.publish(numbered(0))
    await old.vanish()
    successor = await owned(new.broker, name)
    stored = await successor.publish(numbered(2))
    assert stored.first_offset == 2
    return old.broker, partition, new.broker, name


async def test_a_sequence_that_only_the_successor_expects(cluster: Cluster) -> None:
    _, deposed, new, name = await two_owners(cluster)
    with pytest.raises(NotOwner):
        await deposed.publish(numbered(4))
    assert (await (await new.ownership.partition(name)).publish(numbered(4))).first_offset == 4


async def test_an_offset_that_only_the_successor_has_next(cluster: Cluster) -> None:
    _, deposed, new, name = await two_owners(cluster)
    with pytest.raises(NotOwner):
        await deposed.publish(batch(1), expected_offset=4)
    successor = await new.ownership.partition(name)
    assert (await successor.publish(batch(1), expected_offset=4)).first_offset == 4


async def read(partition: Partition) -> None:
    await partition.read(4, bytes_max=1, count_max=1)


async def look_up(partition: Partition) -> None:
    await partition.position(MessageId(SUCCESSORS_LEDGER, 0, 0))


async def end_of_a_stream(partition: Partition) -> None:
    """Seed 166 of profile `stream`: a fork was refused for where its source was said to end."""
    assert await end_of(partition, 4) == 4


@pytest.mark.parametrize("work", [read, look_up, end_of_a_stream])
async def test_what_only_the_successor_has(
    cluster: Cluster, work: Callable[[Partition], Awaitable[None]]
) -> None:
    """Asked by way of the production proxy, which would go on to the successor, could it look."""
    old, _, new, name = await two_owners(cluster)
    successor = await new.ownership.partition(name)
    assert successor.stats().ledgers[-1][0] == SUCCESSORS_LEDGER
    with pytest.raises((NotOwner, PartitionUnavailable)):
        await cluster.at_owner(old, name, work)
    await work(successor)
