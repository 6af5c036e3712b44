"""Answer the operations of other brokers: find the partition here, run, answer.

Operations on a partition begin in the order in which they came. An operation that changes something
is not cancelled once it has begun: that would save no work, and the caller would not learn the
outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog

from octavo.broker.errors import MessageNotFound, NotOwner, OffsetBeyondEnd, PartitionMoving
from octavo.broker.operations import group_calls, large
from octavo.broker.operations.bodies import Asker, Bodies
from octavo.broker.operations.brokers import run_at_broker
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    BrokerOperation,
    GroupOperation,
    Leases,
    LocalOperation,
    PartitionOperation,
    Receive,
    Refusal,
    Request,
    Settle,
    decode_request,
    encode_answer,
)
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import (
    BeginBody,
    BeginUpload,
    BodyOperation,
    LargeStored,
)
from octavo.broker.operations.links import Reply
from octavo.broker.operations.local import Rules, run
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName
from octavo.protocol.codes import OctavoError
from octavo.security.principal import Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from octavo.broker.broker import Broker
    from octavo.broker.groups.coordinator import Groups

_log = structlog.get_logger()
Done = TypeVar("Done")


class Serving:
    def __init__(
        self,
        broker: Broker,
        rules: Rules,
        refusal_of: Callable[[BaseException], Refusal],
        is_ready: Callable[[], bool],
        enter: Callable[[], object],
        leave: Callable[[], object],
        groups: Groups,
    ) -> None:
        """Serve operations; `enter` and `leave` bracket each: a stop waits for them."""
        self._broker = broker
        self._rules = rules
        self._refusal_of = refusal_of
        self._is_ready = is_ready
        self._enter = enter
        self._leave = leave
        self._groups = groups
        self._turns: dict[PartitionName, asyncio.Lock] = {}
        self._looking: dict[PartitionName, int] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._bodies = Bodies()

    def describe(self) -> dict[str, int]:
        return {
            "work": len(self._work),
            "looking": sum(self._looking.values()),
            **self._bodies.describe(),
        }

    def lose(self, asker: Asker) -> None:
        self._bodies.lose(asker)

    def close(self) -> None:
        self._bodies.close()

    async def answer(self, payload: bytes, deadline_s: float, asker: Asker) -> Reply:
        """Answer a request; raise only when cancelled."""
        self._enter()
        try:
            request = decode_request(payload)
            found = await self._run(request, deadline_s, asker)
            return Reply(encode_answer(found), False, self._undoes(request, found))
        except msgspec.DecodeError as error:
            refusal = Refusal(400, "unknown-operation", f"this broker cannot read it: {error}")
        except Exception as error:
            refusal = self._refusal_of(error)
        finally:
            self._leave()
        return Reply(encode_answer(refusal.cut()), True)

    def _undoes(self, request: Request, answer: AnyAnswer) -> Callable[[], object] | None:
        operation = request.operation
        if not (isinstance(operation, Receive) and isinstance(answer, Leases) and answer.count):
            return None
        unread = Settle(operation.name, operation.subscription, unread=answer.ack_ids)
        return lambda: self._keep(self._take_back(request, unread))

    async def _take_back(self, request: Request, unread: Settle) -> None:
        partition = self._broker.ownership.at_hand(unread.name, request.incarnation)
        if partition is None:
            return
        with suppress(OctavoError):
            await self.execute(partition, unread, request.caller.identity)

    def _keep(self, work: Coroutine[Any, Any, Done]) -> asyncio.Task[Done]:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._kept)
        return task

    def _kept(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, OctavoError):
            _log.error("operation_failed", reason=repr(error), exc_info=error)

    async def _run(self, request: Request, deadline_s: float, asker: Asker) -> AnyAnswer:
        if not self._is_ready():
            raise NotOwner("this broker is starting or stopping")
        operation, identity = request.operation, request.caller.identity
        self._rules.admit(identity, operation, asker.address)
        if isinstance(operation, BrokerOperation):
            return await asyncio.shield(self._keep(run_at_broker(self._broker, operation)))
        if isinstance(operation, GroupOperation):
            work = group_calls.run(self._broker, self._groups, operation, identity, self._rules)
            return await self._rules.measured(identity, operation.group.namespace, work)
        name = operation.name
        ownership = self._broker.ownership
        partition = None
        if name not in self._looking:
            partition = ownership.at_hand(name, request.incarnation)
        if partition is not None:
            return await self._begin(operation, identity, partition, asker)
        async with self._turn(name):
            owner = await ownership.owner_of(name, forwarded=True, incarnation=request.incarnation)
            if not owner.local:
                raise NotOwner(f"{name} is served by broker {owner.broker_id} at {owner.url}")
            partition = await ownership.partition(name)
            if asyncio.get_running_loop().time() >= deadline_s:
                raise PartitionMoving(f"{name} was opened too late for this call")
            begun = asyncio.ensure_future(self._begin(operation, identity, partition, asker))
            try:
                await asyncio.sleep(0)  # let it begin before later operations
            except asyncio.CancelledError:
                begun.cancel()
                raise
        return await begun

    async def _begin(
        self,
        operation: PartitionOperation,
        identity: Identity,
        partition: Partition,
        asker: Asker,
    ) -> AnyAnswer:
        rule, namespace = RULES[type(operation)], operation.name.namespace
        if not (rule.is_inner or rule.continues):
            self._rules.owned(namespace)
        work: Awaitable[AnyAnswer]
        if isinstance(operation, BodyOperation):
            work = self._take_body(partition, operation, identity, asker)
        else:
            work = self.execute(partition, operation, identity)
        if not rule.is_inner:
            work = self._rules.measured(identity, namespace, work)
        try:
            if rule.may_repeat:
                return await work
            return await asyncio.shield(self._keep(_awaited(work)))
        except (MessageNotFound, OffsetBeyondEnd):  # the next owner may have the message
            await partition.prove()
            raise

    async def execute(
        self, partition: Partition, operation: LocalOperation, identity: Identity
    ) -> AnyAnswer:
        return await run(
            self._broker, partition, operation, identity, self._rules, self._refusal_of
        )

    async def _take_body(
        self, partition: Partition, operation: BodyOperation, identity: Identity, asker: Asker
    ) -> AnyAnswer:
        if not isinstance(operation, BeginBody):
            return await self._bodies.run(asker, operation)
        namespace, message = operation.name.namespace, large.head_of(operation)
        room = self._rules.room(identity, namespace, asker.broker_id)

        async def store(pieces: Pieces) -> LargeStored | None:
            try:
                if isinstance(operation, BeginUpload):
                    return await large.store_upload(
                        partition, operation, pieces, room.hold, self._rules
                    )
                async with aclosing(large.counted(pieces, room.hold, large.HELD_BYTES)) as coming:
                    await partition.copy_large(operation.upload, message, coming)
                return None
            finally:
                room.release()

        async def measured(pieces: Pieces) -> LargeStored | None:
            return await self._rules.measured(identity, namespace, store(pieces))

        return await self._bodies.begin(asker, operation, measured)

    @asynccontextmanager
    async def _turn(self, name: PartitionName) -> AsyncIterator[None]:
        lock = self._turns.setdefault(name, asyncio.Lock())
        self._looking[name] = self._looking.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._looking[name] -= 1
            if not self._looking[name]:
                del self._looking[name], self._turns[name]


async def _awaited(work: Awaitable[Done]) -> Done:
    return await work
