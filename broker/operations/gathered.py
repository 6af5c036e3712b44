"""Send single messages for partitions of other brokers together.

Behind a load balancer that does not know owners, most calls reach a broker that does not own the
partition. Messages that come while others are under way go to the owner in a shared record batch,
as at the owner (partition/message_batcher.py); the owner stores the batch unchanged.

Promises: each message gets the answer that the owner would give; all messages of a batch are stored
or none; if the outcome is unknown, each caller gets that answer. Nothing is stored here.
"""

from __future__ import annotations

from functools import partial

from octavo.broker.operations.remote import Remote
from octavo.broker.partition.message_batcher import Joined, MessageBatcher
from octavo.broker.types import Owner, PartitionName, Published
from octavo.protocol.records import Record
from octavo.security.principal import Identity

TARGETS_KEPT = 1024
"""The most targets (partition, owner and caller); beyond it, idle targets are dropped."""


class RemoteBatchers:
    """Gather single messages of this broker's callers, by partition, owner and caller."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._gatherings: dict[tuple[PartitionName, Owner, Identity], MessageBatcher] = {}

    def join(self, name: PartitionName, owner: Owner, record: Record, identity: Identity) -> Joined:
        """Send a message to the partition's owner, perhaps with others of the same caller."""
        gathering = self._gatherings.get((name, owner, identity))
        if gathering is None:
            if len(self._gatherings) >= TARGETS_KEPT:
                self._gatherings = {k: one for k, one in self._gatherings.items() if not one.idle}
            gathering = MessageBatcher(partial(self._publish, name, owner, identity))
            self._gatherings[name, owner, identity] = gathering
        return gathering.join(record)

    async def _publish(
        self, name: PartitionName, owner: Owner, identity: Identity, batch: bytes
    ) -> Published:
        found = await self._remote.publish(owner, identity, name, [batch])
        published = found.fates[0].published
        assert published is not None, "what refuses a batch that is alone refuses the operation"
        return published
