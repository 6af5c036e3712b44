"""Send single messages for other brokers' partitions together.

Behind a load balancer most calls reach a broker that is not the owner. Messages that come while
others are under way share a batch, as at the owner; each gets the owner's answer, and all of a
batch are stored or none.
"""

from __future__ import annotations

from functools import partial

from octavo.broker.operations.remote import Remote
from octavo.broker.partition.message_batcher import Joined, MessageBatcher
from octavo.broker.types import Owner, PartitionName, Published
from octavo.protocol.records import Record
from octavo.security.principal import Identity

TARGETS_KEPT = 1024
"""Targets (partition, owner, caller); beyond it, idle targets are dropped."""


class RemoteBatchers:
    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._gatherings: dict[tuple[PartitionName, Owner, Identity], MessageBatcher] = {}

    def join(self, name: PartitionName, owner: Owner, record: Record, identity: Identity) -> Joined:
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
