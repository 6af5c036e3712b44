"""Look at a subscription and move its cursor, without consuming: peek, skip, expire.

The owner of the partition in the path does it. Without a partition, the owners of all partitions do
it, and the answer says for each what was done. If an owner fails, the work of the other owners
stays done, and a repeated call continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw

from octavo.broker.http.api.answers import Moved, MovedIn
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import JSON, Call
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    operate,
    redirected,
    topic_of,
)
from octavo.broker.http.problems import Problem
from octavo.broker.operations import kinds as operations
from octavo.broker.types import PartitionName

SKIP_MAX = 2**53
"""More messages than any partition has, but still a number that JSON keeps exactly."""
PEEK_DEFAULT = 10


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many."""

    schema_name: ClassVar = "Skip"

    messages: Annotated[
        int,
        Meta(
            description="the first so many of each partition that are not acked",
            extra_json_schema={"minimum": 1},
        ),
    ]


class ExpireBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is too old."""

    schema_name: ClassVar = "Expire"

    older_than: Annotated[int | float | str, Meta(description=TIME)]


async def skip(call: Call) -> web.StreamResponse:
    """`POST …/subscriptions/{subscription}/skip`."""
    body = await call.read_json(SkipBody)
    if not 1 <= body.messages <= SKIP_MAX:
        raise Problem(
            422,
            "invalid-settings",
            f"messages is {body.messages}; it must be between 1 and {SKIP_MAX}",
        )

    return await _in_each(
        call, lambda name: operations.Skip(name, call.subscription, body.messages)
    )


async def expire(call: Call) -> web.StreamResponse:
    """`POST …/subscriptions/{subscription}/expire`."""
    body = await call.read_json(ExpireBody)
    age_ms = time_ms("older_than", body.older_than)

    return await _in_each(call, lambda name: operations.Expire(name, call.subscription, age_ms))


Make = Callable[[PartitionName], operations.Skip | operations.Expire]


async def _in_each(call: Call, make: Make) -> web.StreamResponse:
    """Move the cursor in the partition of the path, or in all partitions."""
    partitions = (await topic_of(call)).settings.partitions
    name = call.partition
    if name is None and partitions == 1:
        name = call.topic.partition(0)
    if name is not None:
        if (elsewhere := await redirected(call, name)) is not None:
            return elsewhere
        moved = [await operate(call, make(name), operations.Moved)]
        names = [name]
    else:
        names = [call.topic.partition(number) for number in range(partitions)]
        asked = [operate(call, make(one), operations.Moved, is_part=True) for one in names]
        moved = all_or_raise(await ask_all(asked))
    shown = [
        MovedIn(of.partition, one.acked, one.offset) for of, one in zip(names, moved, strict=True)
    ]
    return call.reply(Moved(sum(one.acked for one in shown), shown))


async def peek(call: Call) -> web.StreamResponse:
    """`GET …/subscriptions/{subscription}/peek`."""
    name = call.subscription
    most = call.integer("max", PEEK_DEFAULT, 1, call.services.config.read_messages_max)
    topic, partition = call.topic, call.partition
    partitions = (await topic_of(call)).settings.partitions
    if partition is None and partitions == 1:
        partition = topic.partition(0)

    async def shown(number: int, found: operations.Peeked) -> list[Raw]:
        messages: list[Raw] = []
        for one in found.deliveries:
            await call.services.broker.open_batches.turns.take(1)
            message = message_out(number, one.offset, one.message_id, one.record)
            message.delivery_count = one.delivery_count or UNSET
            messages.append(Raw(encode(message)))
        return messages

    if partition is not None:
        if (elsewhere := await redirected(call, partition)) is not None:
            return elsewhere
        peek_here = operations.Peek(partition, name, most)
        peeked = await operate(call, peek_here, operations.Peeked)
        return _answer(call, await shown(partition.partition, peeked))
    asked = [
        operate(
            call,
            operations.Peek(topic.partition(number), name, most),
            operations.Peeked,
            is_part=True,
        )
        for number in range(partitions)
    ]
    messages: list[Raw] = []
    for number, found in enumerate(all_or_raise(await ask_all(asked))):
        messages += await shown(number, found)
    return _answer(call, messages[:most])


def _answer(call: Call, messages: list[Raw]) -> web.StreamResponse:
    call.messages += len(messages)
    return web.Response(body=encode({"messages": messages}) + b"\n", content_type=JSON)
