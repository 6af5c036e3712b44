"""Single messages for partitions of other brokers, passed on together.

Of brokers behind a load balancer that knows no owners, most get calls that are another one's. Each
passed on by itself is two calls of HTTP; what comes while some are under way goes in one instead,
as it would at its owner (partition/gathering.py): a record batch, made here, stored there as it is.

Promises: a message is answered as its owner would; all of a batch or none; an outcome that is not
known is told as such to all of it. Keeps nothing: a crash cuts the callers' connections as well.
"""

from __future__ import annotations

from functools import partial

import msgspec

from octavo.broker.http.api import answers
from octavo.broker.http.broker_calls import partition_path
from octavo.broker.http.call import RECORD_BATCH
from octavo.broker.http.services import Services
from octavo.broker.partition.gathering import Gathering, Joined
from octavo.broker.types import MessageId, Owner, PartitionName, Published
from octavo.protocol.records import Record
from octavo.security.principal import Identity

TARGETS_KEPT = 1024
"""Partitions with their owners, of each caller; beyond, those with nothing under way are let go."""


class PassedOn:
    """By one broker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._gatherings: dict[tuple[PartitionName, Owner, Identity], Gathering] = {}

    def join(self, name: PartitionName, owner: Owner, record: Record, identity: Identity) -> Joined:
        """Pass a message on to the partition's owner, perhaps with others of the same caller."""
        gathering = self._gatherings.get((name, owner, identity))
        if gathering is None:
            if len(self._gatherings) >= TARGETS_KEPT:
                self._gatherings = {k: one for k, one in self._gatherings.items() if not one.idle}
            gathering = Gathering(partial(self._pass_on, name, owner, identity))
            self._gatherings[name, owner, identity] = gathering
        return gathering.join(record)

    async def _pass_on(
        self, name: PartitionName, owner: Owner, identity: Identity, batch: bytes
    ) -> Published:
        services = self._services
        services.metrics.forwarded.inc()
        path = f"{partition_path(name)}/messages"
        reply = await services.peers.ask(
            services.broker.broker_id,
            owner,
            "POST",
            path,
            batch,
            {"Content-Type": RECORD_BATCH},
            identity=identity,
        )
        said = msgspec.json.decode(reply.body, type=_Stored)
        at = MessageId.parse(said.first.id)
        last = said.first.offset + said.count - 1
        return Published(said.first.offset, last, at.ledger_id, at.entry_id, said.count, False)


class _First(msgspec.Struct):
    offset: int
    id: answers.IdText


class _Stored(msgspec.Struct):
    count: int
    first: _First
