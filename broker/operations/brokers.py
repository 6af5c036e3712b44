"""Brokers' own operations: hand-overs, deletions, their own messages. `OwnOperations` asks other
brokers. `run_at_broker` answers operations on a broker rather than a partition. Each operation is
sent once: the caller decides whether to ask again.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from octavo.broker.errors import LargeNotTaken, NotOwner, TopicIsStream
from octavo.broker.internal_topics import AUDIT_PARTITION
from octavo.broker.operations.kinds import (
    AnyAnswer,
    AnyOperation,
    BrokerOperation,
    Done,
    Drain,
    Drained,
    FindUnused,
    LetGo,
    Prepare,
    Refused,
    Released,
    StoreCopy,
    Take,
    Unused,
    WriteAudit,
)
from octavo.broker.operations.large_kinds import BeginLargeCopy
from octavo.broker.types import Owner
from octavo.protocol.records import build_batch

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.cluster.dead_letters import LargeLetter
    from octavo.broker.operations.remote import Remote
    from octavo.broker.partition.handover_messages import Handover, HandoverNotice
    from octavo.broker.types import BrokerInfo, PartitionName, TopicName

Answer = TypeVar("Answer", bound=AnyAnswer)
_TAKES_NO_COPIES = {kind.name: kind for kind in (TopicIsStream, LargeNotTaken)}
"""Refusals after which a copy goes to another topic."""


async def run_at_broker(broker: Broker, operation: BrokerOperation) -> AnyAnswer:
    if isinstance(operation, LetGo):
        return Released(await broker.let_go(operation.topic, operation.incarnation))
    if isinstance(operation, Drain):
        if operation.broker != broker.broker_id:
            raise NotOwner(f"this is broker {broker.broker_id}, not {operation.broker}")
        await (broker.drain() if operation.draining else broker.undrain())
        standing = broker.standing()
        return Drained(standing.draining, standing.partitions)
    if isinstance(operation, Prepare):
        await broker.ownership.prepare(operation.name, operation.foretold)
    else:
        await broker.ownership.take(operation.name, operation.handed)
    return Done()


class OwnOperations:
    def __init__(self, remote: Remote, run_id: str) -> None:
        self._remote = remote
        self._run_id = run_id
        self._bodies = itertools.count()

    def connect(self, broker: Broker) -> None:
        broker.tell_peer = self.let_go
        broker.announce_to_peer = self.prepare
        broker.ask_peer = self.take
        broker.letters.pass_on = self.store_copy
        broker.letters.pass_large_on = self.store_large
        broker.inactive.ask = self.is_unused

    async def let_go(self, peer: BrokerInfo, topic: TopicName, incarnation: str) -> list[int]:
        operation = LetGo(topic, incarnation)
        return (await self._ask(_at(peer, incarnation), operation, Released)).partitions

    async def prepare(
        self, successor: BrokerInfo, name: PartitionName, foretold: HandoverNotice
    ) -> None:
        await self._ask(_at(successor, foretold.incarnation), Prepare(name, foretold), Done)

    async def take(self, successor: BrokerInfo, name: PartitionName, handed: Handover) -> None:
        await self._ask(_at(successor, handed.incarnation), Take(name, handed), Done)

    async def is_unused(
        self, owner: Owner, name: PartitionName, for_ms: int, retire_s: float, subscription: str
    ) -> bool:
        operation = FindUnused(name, for_ms, round(retire_s * 1000), subscription)
        return (await self._ask(owner, operation, Unused)).is_unused

    async def store_copy(self, owner: Owner, name: PartitionName, batch: bytes) -> None:
        try:
            await self._ask(owner, StoreCopy(name, batch), Done)
        except Refused as error:
            raise letter_error(error) from error

    async def store_large(self, owner: Owner, name: PartitionName, letter: LargeLetter) -> None:
        try:
            await self._store_large(owner, name, letter)
        except Refused as error:
            raise letter_error(error) from error

    async def _store_large(self, owner: Owner, name: PartitionName, letter: LargeLetter) -> None:
        body = f"{self._run_id}.b{next(self._bodies)}"
        begin = BeginLargeCopy(name, body, letter.upload, build_batch([letter.copy]))
        await self._remote.send_body(owner, self._remote.own, begin, letter.body.pieces())

    async def write_audit(self, owner: Owner, batch: bytes) -> None:
        await self._ask(owner, WriteAudit(AUDIT_PARTITION, batch), Done)

    async def _ask(self, owner: Owner, operation: AnyOperation, kind: type[Answer]) -> Answer:
        found = await self._remote.ask(owner, self._remote.own, operation)
        assert isinstance(found, kind)
        return found


def letter_error(error: Refused) -> Exception:
    kind = _TAKES_NO_COPIES.get(error.code)
    return error if kind is None else kind(error.refusal.detail)


def _at(broker: BrokerInfo, incarnation: str) -> Owner:
    return Owner(broker.broker_id, broker.url, False, incarnation)
