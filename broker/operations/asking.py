"""Run operations for clients, at the broker that owns the partition or coordinates the group.

`Operations.run` applies the client's rules and charges the answer. HTTP checks the rules itself
and calls `at_owner` and `at_coordinator`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from octavo.broker.errors import SchemaMismatch
from octavo.broker.groups.coordinator import coordinator_of
from octavo.broker.operations import group_calls
from octavo.broker.operations.brokers import run_at_broker
from octavo.broker.operations.kinds import (
    AcquireAccess,
    AnyAnswer,
    Await,
    Drain,
    GroupOperation,
    Heartbeat,
    LocalOperation,
    Receive,
    Refusal,
    Refused,
    numbered,
)
from octavo.broker.operations.large import (
    HELD_BYTES_MIN,
    SENT_HELD_BYTES,
    Hold,
    Pieces,
    counted,
    store_upload,
)
from octavo.broker.operations.large_kinds import BeginUpload, LargeStored
from octavo.broker.operations.local import run
from octavo.broker.operations.routing import Context, with_owner
from octavo.broker.operations.stream_kinds import AwaitStream, ReadStream
from octavo.broker.types import Owner, PartitionName
from octavo.protocol.records import Record, build_batch

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.groups.coordinator import Groups
    from octavo.broker.operations.remote import Remote
    from octavo.broker.operations.rules import BrokerRules
    from octavo.broker.partition.partition import Partition
    from octavo.security.principal import Identity


class Asked:
    names_incarnation = False

    def __init__(self) -> None:
        self.incarnation: str | None = None
        self.owner_url = ""
        self.served_incarnation = ""


class Upload(NamedTuple):
    name: PartitionName
    upload: str
    message: Record
    access: int | None = None


class Operations:
    def __init__(
        self,
        broker: Broker,
        remote: Remote,
        rules: BrokerRules,
        refusal_of: Callable[[BaseException], Refusal],
        moving_wait_s: float,
        run_id: str,
        groups: Groups,
    ) -> None:
        self._broker = broker
        self._remote = remote
        self._rules = rules
        self._refusal_of = refusal_of
        self._moving_wait_s = moving_wait_s
        self._run_id = run_id
        self._groups = groups
        self._receives = itertools.count()
        self._uploads = itertools.count()

    async def run(
        self, identity: Identity, operation: LocalOperation | GroupOperation | Drain, peer: str
    ) -> AnyAnswer:
        rules = self._rules
        await rules.begin(identity, operation, peer)
        if isinstance(operation, Drain):
            return await self.at_broker(Asked(), identity, operation)
        if isinstance(operation, GroupOperation):
            asked = self.at_coordinator(Asked(), identity, operation)
            return await rules.measured(identity, operation.group.namespace, asked)
        topic = operation.name.topic_name
        work = self.at_owner(
            Asked(), identity, operation, owned=lambda: rules.owned(topic.namespace)
        )
        try:
            answer = await rules.measured(identity, topic.namespace, work)
        except SchemaMismatch as error:
            if rules.hides_schema(identity, topic):
                raise error.without_reason() from None
            raise
        except Refused as error:
            if error.refusal.code == SchemaMismatch.name and rules.hides_schema(identity, topic):
                index = error.refusal.extra.get("message_in_batch")
                raise SchemaMismatch("", index).without_reason() from None
            raise
        rules.end(identity, operation, answer)
        return answer

    async def at_owner(
        self,
        context: Context,
        identity: Identity,
        operation: LocalOperation,
        *,
        owned: Callable[[], None],
        at_hand: Callable[[Partition], Awaitable[AnyAnswer]] | None = None,
    ) -> AnyAnswer:
        """Run an operation here or at the owner.

        `owned` is called before work begins here; `at_hand` runs the operation here with the
        caller's data.
        """
        shipped = operation
        if isinstance(operation, Receive):
            shipped = numbered(operation, lambda: f"{self._run_id}.r{next(self._receives)}")

        async def here(partition: Partition) -> AnyAnswer:
            if at_hand is not None:
                return await at_hand(partition)
            return await run(
                self._broker, partition, operation, identity, self._rules, self._refusal_of
            )

        async def there(owner: Owner) -> AnyAnswer:
            if isinstance(operation, ReadStream):
                return await self._remote.read_stream(owner, identity, operation)
            return await self._remote.ask(owner, identity, shipped, _wait_s(operation))

        return await with_owner(
            self._broker,
            context,
            operation.name,
            here,
            there,
            moving_wait_s=self._moving_wait_s,
            owned=owned,
        )

    async def upload(
        self,
        context: Context,
        identity: Identity,
        upload: Upload,
        pieces: Callable[[], Pieces],
        hold: Hold,
        *,
        owned: Callable[[], None],
        may_repeat: Callable[[], bool],
    ) -> LargeStored:
        """Send an upload; `pieces` is called again for a new owner while `may_repeat`."""
        name, given_name, message, access = upload
        head = build_batch([message])

        def begin() -> BeginUpload:
            body = f"{self._run_id}.u{next(self._uploads)}"
            return BeginUpload(name, body, given_name, head, access)

        async def here(partition: Partition) -> LargeStored:
            return await store_upload(partition, begin(), pieces(), hold, self._rules)

        async def there(owner: Owner) -> LargeStored:
            await hold(HELD_BYTES_MIN)
            coming = counted(pieces(), hold, SENT_HELD_BYTES)
            measured = partial(self._rules.measured, identity, name.namespace)
            stored = await self._remote.send_body(owner, identity, begin(), coming, measured)
            assert stored is not None
            return stored

        return await with_owner(
            self._broker,
            context,
            name,
            here,
            there,
            moving_wait_s=self._moving_wait_s,
            owned=owned,
            may_repeat=may_repeat,
        )

    async def at_coordinator(
        self, context: Context, identity: Identity, operation: GroupOperation
    ) -> AnyAnswer:
        """Ask the group's coordinator.

        That broker answers even if it takes another for the coordinator, so a call is forwarded
        once.
        """
        broker = self._broker
        found = coordinator_of(operation.group, broker.registry.brokers())
        if found is None or found.broker_id == broker.broker_id:
            return await group_calls.run(broker, self._groups, operation, identity, self._rules)
        context.owner_url = found.url
        owner = Owner(found.broker_id, found.url, local=False)
        return await self._remote.ask(owner, identity, operation, _wait_s(operation))

    async def at_broker(self, context: Context, identity: Identity, operation: Drain) -> AnyAnswer:
        registry = self._broker.registry
        if operation.broker == self._broker.broker_id:
            return await run_at_broker(self._broker, operation)
        found = {one.broker_id: one for one in registry.brokers()}.get(operation.broker)
        if found is None:
            raise registry.no_such_broker(operation.broker)
        context.owner_url = found.url
        owner = Owner(found.broker_id, found.url, False)
        return await self._remote.ask(owner, identity, operation)


def _wait_s(operation: LocalOperation | GroupOperation) -> float:
    if isinstance(operation, Await | Receive | AcquireAccess | AwaitStream | Heartbeat):
        return operation.wait_ms / 1000
    return 0.0
