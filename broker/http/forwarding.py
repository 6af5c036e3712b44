"""Answer any call at any broker: run it at the partition's owner, return the answer.

Another owner gets operations (broker/operations), not HTTP. An unanswered operation that changes
something is not repeated: the client gets a 504, outcome unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from typing import Any, TypeVar

from aiohttp import web

from octavo.broker.errors import TopicChanged, TopicReplaced
from octavo.broker.http.call import Call
from octavo.broker.http.problems import problem_from
from octavo.broker.operations import routing
from octavo.broker.operations.asking import Upload
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    GroupOperation,
    LocalOperation,
    Refused,
)
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import LargeStored
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName, TopicInfo
from octavo.security.principal import Identity

ASKED_AT_ONCE = 64

Result = TypeVar("Result")


async def with_owner(
    call: Call,
    name: PartitionName,
    here: Callable[[Partition], Awaitable[Result]],
    there: Callable[[Owner], Awaitable[Result]],
    *,
    may_repeat: Callable[[], bool] = lambda: True,
) -> Result:
    services = call.services
    try:
        return await routing.with_owner(
            services.broker,
            call,
            name,
            here,
            there,
            moving_wait_s=services.config.moving_wait_ms / 1000,
            owned=lambda: services.quotas.owned(call, name.namespace),
            may_repeat=may_repeat,
        )
    except Refused as error:
        raise problem_from(error.refusal) from error


async def topic_of(call: Call) -> TopicInfo:
    """Return the topic. Raises `TopicReplaced` when the caller means an earlier incarnation."""
    try:
        info = await call.services.broker.topics.get(call.topic, call.incarnation)
    except TopicChanged as error:
        raise TopicReplaced(str(error)) if call.names_incarnation else error from error
    call.served_incarnation = info.incarnation
    if call.partition is None:  # the number of partitions must not change during the call
        call.incarnation = info.incarnation
    return info


Handle = Callable[[Partition], Awaitable[web.StreamResponse]]
Ship = Callable[[Owner], Awaitable[web.StreamResponse]]


async def at_owner(call: Call, name: PartitionName, here: Handle, ship: Ship) -> web.StreamResponse:
    async def there(owner: Owner) -> web.StreamResponse:
        if _prefers_redirect(call):
            return _redirect(call, owner)
        return await ship(owner)

    return await with_owner(call, name, here, there, may_repeat=lambda: not call.body_is_spent)


async def redirected(
    call: Call, name: PartitionName, path: str | None = None
) -> web.StreamResponse | None:
    """Return a 307 to another owner if the caller wants it; `path`: if it differs there."""
    if not _prefers_redirect(call):
        return None

    async def here(_: Partition) -> None:
        return None

    async def there(owner: Owner) -> web.StreamResponse:
        return _redirect(call, owner, path)

    return await with_owner(call, name, here, there)


async def note_owner(call: Call, name: PartitionName) -> None:
    async def nothing(_: object) -> None:
        return None

    await with_owner(call, name, nothing, nothing)


def _redirect(call: Call, owner: Owner, path: str | None = None) -> web.Response:
    location = owner.url + (path or call.request.raw_path)
    headers = {"Location": location, "Preference-Applied": "redirect"}
    return web.Response(status=307, headers=headers)


async def operate(
    call: Call,
    operation: LocalOperation,
    kind: type[Result],
    *,
    is_part: bool = False,
    identity: Identity | None = None,
    at_hand: Callable[[Partition], Awaitable[AnyAnswer]] | None = None,
) -> Result:
    """Run an operation here or at its owner; `is_part`: the call has no single owner."""
    services, name = call.services, operation.name
    before = call.owner_url

    def owned() -> None:
        if not RULES[type(operation)].continues:
            services.quotas.owned(call, name.namespace)

    try:
        found = await services.operations.at_owner(
            call,
            identity or call.identity,
            operation,
            owned=owned,
            at_hand=at_hand,
        )
    except Refused as error:
        raise problem_from(error.refusal) from error
    finally:
        if is_part:
            call.owner_url = before
    assert isinstance(found, kind)
    return found


async def upload(call: Call, asked: Upload, pieces: Callable[[], Pieces]) -> LargeStored:
    services = call.services
    try:
        return await services.operations.upload(
            call,
            call.identity,
            asked,
            pieces,
            call.hold,
            owned=lambda: services.quotas.owned(call, asked.name.namespace),
            may_repeat=lambda: not call.body_is_spent,
        )
    except Refused as error:
        raise problem_from(error.refusal) from error


async def operate_group(call: Call, operation: GroupOperation, kind: type[Result]) -> Result:
    try:
        found = await call.services.operations.at_coordinator(call, call.identity, operation)
    except Refused as error:
        raise problem_from(error.refusal) from error
    assert isinstance(found, kind)
    return found


async def ask_all(asked: Sequence[Coroutine[Any, Any, Result]]) -> list[Result | BaseException]:
    """Ask all, one in each turn of the loop: work here takes about a millisecond."""
    beginning = asyncio.Lock()
    left = iter(enumerate(asked))
    found: dict[int, Result | BaseException] = {}

    async def work() -> None:
        for place, ask in left:
            try:
                async with beginning:
                    await asyncio.sleep(0)
                found[place] = await ask
            except (Exception, asyncio.CancelledError) as error:
                ask.close()
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                found[place] = error

    try:
        await asyncio.gather(*(work() for _ in range(min(len(asked), ASKED_AT_ONCE))))
    finally:
        for _, ask in left:
            ask.close()
    return [found[place] for place in range(len(asked))]


def all_or_raise(found: Sequence[Result | BaseException]) -> list[Result]:
    results: list[Result] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


def _prefers_redirect(call: Call) -> bool:
    return any(
        wish.strip().lower() == "redirect"
        for value in call.request.headers.getall("Prefer", ())
        for wish in value.split(",")
    )
