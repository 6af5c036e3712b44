"""Subscriptions: create, show, delete, seek, peek, skip, expire.

A call with a partition in its path goes to that owner. A call on the topic goes to all owners, and
returns each owner's result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, cast

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw, UnsetType

from octavo.broker.errors import SubscriptionNotFound, TopicNotFound
from octavo.broker.http.api.answers import (
    DeadLetters,
    Moved,
    MovedIn,
    Subscription,
    SubscriptionFigures,
)
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.api.read import position_of
from octavo.broker.http.api.topic_body import (
    TIME,
    SubscriptionBody,
    show_subscription_settings,
    subscription_settings,
    telling_differences,
    time_ms,
)
from octavo.broker.http.api.topics import each_partition, subscription_figures
from octavo.broker.http.call import JSON, Call, time_hint
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    operate,
    redirected,
    topic_of,
)
from octavo.broker.http.problems import Problem
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.operations import kinds as operations
from octavo.broker.operations.kinds import (
    DescribeSubscription,
    Seek,
    Subscribe,
    at_of,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.dead_letters import with_dead_letters
from octavo.broker.types import (
    MessageId,
    PartitionName,
    SubscriptionInfo,
    SubscriptionSettings,
    SubscriptionStats,
    TopicName,
)
from octavo.security.rules import Kind, Operation, Resource

RECORDS_A_SUBSCRIPTION = 20
TELL_OWNERS_S = 1.0
TELL_PAUSE_S = 0.05


async def put_subscription(call: Call) -> web.StreamResponse:
    name = call.subscription
    topic = call.topic
    broker = call.services.broker
    partition = call.partition
    if partition is not None:
        info = await broker.topics.subscription(topic, name)
        if (elsewhere := await redirected(call, partition)) is not None:
            return elsewhere
        return call.reply(_plain(await _subscribe(call, partition, info)))
    body = await call.read_json(SubscriptionBody, required=False)
    await topic_of(call)
    settings = with_dead_letters(topic, name, subscription_settings(body))
    await _check_dead_letters(call, settings)
    with telling_differences():
        await call.services.quotas.check_subscriptions(topic, name)
        info, created = await broker.topics.create_subscription(topic, name, settings)
    partitions = (await topic_of(call)).settings.partitions
    asked = [
        _subscribe(call, topic.partition(number), info, is_part=True)
        for number in range(partitions)
    ]
    all_or_raise(await ask_all(asked))
    return call.reply(_show(topic, info), status=201 if created else 200)


async def _check_dead_letters(call: Call, settings: SubscriptionSettings) -> None:
    """Check the right to publish dead letters: the broker publishes later on its own behalf."""
    for text, sub in (
        (settings.dead_letter_topic, settings.dead_letter_subscription),
        (settings.retry_topic, settings.retry_subscription),
    ):
        if text:
            await _check_letter_topic(call, TopicName.parse(text), sub)
    texts = (settings.dead_letter_topic, settings.retry_topic)
    await call.services.quotas.check_topics(*(TopicName.parse(text) for text in texts if text))


async def _check_letter_topic(call: Call, target: TopicName, sub: str) -> None:
    check_not_internal(target)
    if not call.services.gate.secured:
        return
    topic = Resource(Kind.TOPIC, str(target))
    call.check(Operation.PRODUCE, topic)
    topics = call.services.broker.topics
    try:
        await topics.get(target)
    except TopicNotFound:
        namespace = Resource(Kind.NAMESPACE, target.namespace)
        if not call.services.gate.may(call.identity, Operation.CREATE, namespace):
            call.check(Operation.CREATE, topic)
    else:
        with contextlib.suppress(SubscriptionNotFound):
            await topics.subscription(target, sub)
            return
    call.check(Operation.CREATE, Resource(Kind.SUBSCRIPTION, f"{target}/{sub}"))
    call.check(Operation.CONSUME, topic)


async def _subscribe(
    call: Call, name: PartitionName, info: SubscriptionInfo, *, is_part: bool = False
) -> SubscriptionStats:
    async def at_hand(partition: Partition) -> SubscriptionStats:
        return (await partition.subscribe(info)).stats()

    operation = Subscribe(name, info.name)
    return await operate(call, operation, SubscriptionStats, is_part=is_part, at_hand=at_hand)


async def list_subscriptions(call: Call) -> web.StreamResponse:
    topic = call.topic
    await topic_of(call)
    found = await call.services.broker.topics.list_subscriptions(topic)
    shown: list[bytes] = []
    turns = call.services.broker.open_batches.turns
    for info in found:
        await turns.take(RECORDS_A_SUBSCRIPTION)
        if call.may_see(Kind.SUBSCRIPTION, topic.namespace, topic.topic, info.name):
            shown.append(msgspec.json.encode(_show(topic, info)))
    body = b'{"subscriptions":[' + b",".join(shown) + b"]}\n"
    return web.Response(body=body, content_type=JSON)


async def get_subscription(call: Call) -> web.StreamResponse:
    name = call.subscription
    topic = call.topic
    broker = call.services.broker
    partitions = (await topic_of(call)).settings.partitions

    async def figures(partition: PartitionName, *, is_part: bool = False) -> dict[str, Any]:
        operation = DescribeSubscription(partition, name)
        stats = await operate(call, operation, SubscriptionStats, is_part=is_part)
        return _plain(stats, partition.partition)

    if call.partition is not None:
        if (elsewhere := await redirected(call, call.partition)) is not None:
            return elsewhere
        return call.reply(await figures(call.partition))
    info = await broker.topics.subscription(topic, name)
    found = await each_partition(
        [figures(topic.partition(n), is_part=True) for n in range(partitions)]
    )
    shown = _show(topic, info)
    for figure in ("backlog", "unacked_ranges", "leased", "redelivering", "delayed"):
        setattr(shown, figure, sum(one.get(figure, 0) for one in found))
    shown.held_back = next((one["held_back"] for one in found if one.get("held_back")), None)
    shown.dead_letters = _sum_of(one["dead_letters"] for one in found if "dead_letters" in one)
    shown.retries = _sum_of(one["retries"] for one in found if "retries" in one)
    shown.partitions = cast(list[SubscriptionFigures], found)  # as their owners said them
    return call.reply(shown)


async def delete_subscription(call: Call) -> web.StreamResponse:
    partitions = (await topic_of(call)).settings.partitions
    await call.services.broker.topics.delete_subscription(call.topic, call.subscription)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TELL_OWNERS_S):
            await ask_all([_tell_gone(call, number) for number in range(partitions)])
    return web.Response(status=204)


async def _tell_gone(call: Call, number: int) -> None:
    asked = DescribeSubscription(call.topic.partition(number), call.subscription)
    own = call.services.own_identity
    while True:
        await operate(call, asked, SubscriptionStats, is_part=True, identity=own)
        await asyncio.sleep(TELL_PAUSE_S)  # the call raises once it has heard


def _show(topic: TopicName, info: SubscriptionInfo) -> Subscription:
    settings = show_subscription_settings(info.settings)
    return Subscription(info.name, str(topic), settings, info.created_ms)


def _sum_of(figures: Iterable[dict[str, Any]]) -> DeadLetters:
    letters = [*figures]
    return DeadLetters(
        sum(one["waiting"] for one in letters),
        sum(one["sent"] for one in letters),
        next((one["problem"] for one in letters if one["problem"]), None),
    )


def _plain(stats: SubscriptionStats, number: int | UnsetType = UNSET) -> dict[str, Any]:
    figures = subscription_figures(stats)
    figures.partition = number
    found: dict[str, Any] = msgspec.to_builtins(figures)
    return found


class SeekBody(msgspec.Struct, forbid_unknown_fields=True):
    """The new place of the cursor."""

    schema_name: ClassVar = "Seek"

    to: Annotated[
        int | str,
        Meta(description="earliest, latest, an offset, a message id, or an RFC 3339 time"),
    ]


async def seek(call: Call) -> web.StreamResponse:
    name = call.subscription
    topic = call.topic
    target = (await call.read_json(SeekBody)).to
    position = position_of(str(target))
    if position is None:
        raise Problem(
            422,
            "invalid-position",
            f"to is {target!r:.60}; it must be earliest, latest, an offset, a message id or an "
            f"RFC 3339 time{time_hint(str(target))}",
        )

    partition = call.partition
    partitions = (await topic_of(call)).settings.partitions
    if partition is None and partitions == 1:
        partition = topic.partition(0)
    if partition is not None:
        if (elsewhere := await redirected(call, partition)) is not None:
            return elsewhere
        moved = await operate(call, Seek(partition, name, at_of(position)), operations.Moved)
        return call.reply(_sought({partition.partition: moved}))
    if isinstance(position, int | MessageId):
        raise Problem(
            422,
            "partition-required",
            f"{topic} has {partitions} partitions, and an offset or message id is for one: use "
            f"/v1/topics/{topic}/partitions/0/subscriptions/{name}/seek",
        )
    asked = [
        operate(
            call,
            Seek(topic.partition(number), name, at_of(position)),
            operations.Moved,
            is_part=True,
        )
        for number in range(partitions)
    ]
    return call.reply(_sought(dict(enumerate(all_or_raise(await ask_all(asked))))))


def _sought(found: dict[int, operations.Moved]) -> dict[str, Any]:
    return {
        "partitions": [{"partition": number, "offset": one.offset} for number, one in found.items()]
    }


SKIP_MAX = 2**53
PEEK_DEFAULT = 10


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages to ack."""

    schema_name: ClassVar = "Skip"

    messages: Annotated[
        int,
        Meta(
            description="so many of the first unacked messages, in each partition",
            extra_json_schema={"minimum": 1},
        ),
    ]


class ExpireBody(msgspec.Struct, forbid_unknown_fields=True):
    """The age from which messages are too old."""

    schema_name: ClassVar = "Expire"

    older_than: Annotated[int | float | str, Meta(description=TIME)]


async def skip(call: Call) -> web.StreamResponse:
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
    body = await call.read_json(ExpireBody)
    age_ms = time_ms("older_than", body.older_than)

    return await _in_each(call, lambda name: operations.Expire(name, call.subscription, age_ms))


Make = Callable[[PartitionName], operations.Skip | operations.Expire]


async def _in_each(call: Call, make: Make) -> web.StreamResponse:
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
