"""Look at a subscription and move it on, without consuming: peek, skip, expire.

Each is done by the owner of the partition that the path names, or by those of all partitions; then
the answer says for each of them what was done. What was done in some before another failed stays
done: the same call again goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw

from octavo.broker.http.api.answers import Moved, MovedIn
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import JSON, Call
from octavo.broker.http.forwarding import all_or_raise, ask_all, ask_partition, at_owner, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition

SKIP_MAX = 2**53
"""More than any partition has, and still a number that JSON keeps."""
PEEK_DEFAULT = 10


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many."""

    messages: Annotated[
        int,
        Meta(
            description="the first so many of each partition that are not acked",
            extra_json_schema={"minimum": 1},
        ),
    ]


class ExpireBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is too old."""

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

    async def here(partition: Partition) -> MovedIn:
        subscription = await partition.subscription(call.subscription)
        acked = await subscription.skip(body.messages)
        return _in(partition, acked, subscription.committed_offset)

    found = await _in_each(call, here, "skip", body)
    return found if isinstance(found, web.StreamResponse) else call.reply(_moved(found))


async def expire(call: Call) -> web.StreamResponse:
    """`POST …/subscriptions/{subscription}/expire`."""
    body = await call.read_json(ExpireBody)
    age_ms = time_ms("older_than", body.older_than)

    async def here(partition: Partition) -> MovedIn:
        subscription = await partition.subscription(call.subscription)
        until_ms = max(0, call.services.clock() - age_ms)
        offset = await partition.resolve(time_ms=until_ms)
        acked = await subscription.ack_before(offset)
        return _in(partition, acked, subscription.committed_offset)

    found = await _in_each(call, here, "expire", body)
    return found if isinstance(found, web.StreamResponse) else call.reply(_moved(found))


def _in(partition: Partition, acked: int, offset: int) -> MovedIn:
    return MovedIn(partition.name.partition, acked, offset)


def _moved(found: list[MovedIn]) -> Moved:
    return Moved(sum(one.acked for one in found), found)


async def _in_each(
    call: Call, here: Callable[[Partition], Awaitable[MovedIn]], word: str, body: Any
) -> list[MovedIn] | web.StreamResponse:
    """At the partition that the path names, answered as such; or at all of them."""
    partitions = (await topic_of(call)).settings.partitions
    name = call.partition
    if name is None and partitions == 1:
        name = call.topic.partition(0)

    async def one(partition: Partition) -> Moved:
        return _moved([await here(partition)])

    if name is not None:

        async def answer(partition: Partition) -> web.StreamResponse:
            return call.reply(await one(partition))

        return await at_owner(call, name, answer)
    path = f"/subscriptions/{call.subscription}/{word}"
    asked = [
        ask_partition(call, call.topic.partition(number), one, "POST", path, body=body, kind=Moved)
        for number in range(partitions)
    ]
    done: list[Moved] = all_or_raise(await ask_all(asked))
    return [moved.partitions[0] for moved in done]


async def peek(call: Call) -> web.StreamResponse:
    """`GET …/subscriptions/{subscription}/peek`."""
    name = call.subscription
    most = call.integer("max", PEEK_DEFAULT, 1, call.services.config.read_messages_max)
    topic, partition = call.topic, call.partition
    partitions = (await topic_of(call)).settings.partitions
    if partition is None and partitions == 1:
        partition = topic.partition(0)

    async def here(open_here: Partition) -> _Peeked:
        call.services.quotas.may_read(topic)
        found = await (await open_here.subscription(name)).peek(most)
        shown = _Peeked()
        for one in found:
            await call.services.broker.open_batches.turns.take(1)
            message = message_out(open_here.name.partition, one.offset, one.message_id, one.record)
            message.delivery_count = one.delivery_count or UNSET
            shown.messages.append(Raw(encode(message)))
        call.services.quotas.given(topic, shown.messages, len(shown.messages))
        return shown

    if partition is not None:

        async def answer(open_here: Partition) -> web.StreamResponse:
            return _answer(call, (await here(open_here)).messages)

        return await at_owner(call, partition, answer)
    path = f"/subscriptions/{name}/peek?max={most}"
    found: list[_Peeked] = all_or_raise(
        await ask_all(
            [
                ask_partition(call, topic.partition(number), here, "GET", path, kind=_Peeked)
                for number in range(partitions)
            ]
        )
    )
    return _answer(call, [message for one in found for message in one.messages][:most])


class _Peeked(msgspec.Struct):
    """What one partition shows."""

    messages: list[Raw] = []


def _answer(call: Call, messages: list[Raw]) -> web.StreamResponse:
    call.messages += len(messages)
    return web.Response(body=encode({"messages": messages}) + b"\n", content_type=JSON)
