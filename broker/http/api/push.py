"""Send a subscription's messages over a lasting connection: as events, lines, or a WebSocket.

Events and lines of NDJSON are acked by separate calls, at any broker; a WebSocket takes acks as
well (sockets.py). The broker that was asked keeps the connection, whichever broker owns the
partitions (feed.py). Sent messages are leased, as by `receive`. So this call is not safe in the
sense of HTTP, and pages of other sites may not make it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from aiohttp import web
from msgspec import Raw

from octavo.broker.http.api.deliveries import (
    CREDITS_MAX,
    DEFAULT_CONSUMER,
    RECEIVE_PARTITIONS_MAX,
    consumer_in,
    generation_in,
    priority_in,
)
from octavo.broker.http.api.feed import AT_ONCE, Feed
from octavo.broker.http.api.read import answer_type
from octavo.broker.http.api.sockets import Socket, wants_socket
from octavo.broker.http.browsers import check_lease
from octavo.broker.http.call import JSON, NDJSON, Call, bad_parameter
from octavo.broker.http.forwarding import topic_of
from octavo.broker.http.pages import EVENTS
from octavo.broker.http.problems import Problem
from octavo.broker.http.stream import LIVES_S, Stream
from octavo.broker.operations.kinds import Receive
from octavo.broker.types import SubscriptionInfo

CREDITS = 1_000
"""The default of `credits`."""


async def stream(call: Call) -> web.StreamResponse:
    """`GET …/subscriptions/{subscription}/stream`."""
    config = call.services.config
    check_lease(call.headers, config.allowed_origins)
    info = await topic_of(call)
    call.incarnation = info.incarnation
    subscription = await call.services.broker.topics.subscription(call.topic, call.subscription)
    form = call.choice("form", "json", "json", "batches")
    asked = Receive(
        call.topic.partition(0),  # the feed names the partition
        call.subscription,
        consumer_in(call, _unnamed(subscription)),
        AT_ONCE,
        as_stored=form == "batches",
        out_max=call.integer("credits", CREDITS, 1, CREDITS_MAX),
        generation=generation_in(call),
        priority=priority_in(call),
    )
    count = info.settings.partitions
    is_socket = wants_socket(call)
    kind = EVENTS if is_socket else answer_type(call, (EVENTS, NDJSON))
    feed = Feed(
        call,
        _partitions(call, count),
        asked,
        topic_partitions=count,
    )
    with call.services.streams.one(), call.services.quotas.stream(call):
        if is_socket:
            return await Socket(call, feed).run()
        if form == "batches":
            raise bad_parameter("form", form, "json, unless the stream is a WebSocket")
        return await _as_text(call, feed, EVENTS if kind == JSON else kind)


def _unnamed(info: SubscriptionInfo) -> str:
    """Return the default name of a consumer.

    Streams of a shared subscription are separate consumers. An exclusive subscription has a single
    consumer, so that a stream that reconnects is still the same.
    """
    is_exclusive = info.settings.type == "exclusive"
    return DEFAULT_CONSUMER if is_exclusive else f"stream-{secrets.token_hex(6)}"


def _partitions(call: Call, count: int) -> list[int]:
    """Return the partitions of a stream. Raises a 422 if the topic has too many."""
    if call.partition is not None:
        return [call.partition.partition]
    if count > RECEIVE_PARTITIONS_MAX:
        raise Problem(
            422,
            "partition-required",
            f"{call.topic} has {count} partitions, and one stream takes at most "
            f"{RECEIVE_PARTITIONS_MAX}: name one, …/partitions/0/subscriptions/…",
        )
    return [*range(count)]


async def _as_text(call: Call, feed: Feed, kind: str) -> web.StreamResponse:
    """Send events or lines, until the connection ends."""
    stream = Stream(call, kind)
    if stream.is_head_only:
        await stream.begin()
        return stream.response
    async with feed:
        await stream.begin()
        async with stream.lasting():
            async for found in feed.handouts(LIVES_S):
                if found is not None:
                    text = _written(found.messages, kind)
                    await stream.send(text, found.size, is_counted=True)
                elif kind == EVENTS:
                    await stream.send(b": nothing new\n\n")
    return stream.response


def _written(messages: Sequence[Raw], kind: str) -> bytes:
    if kind == NDJSON:
        return b"".join([bytes(message) + b"\n" for message in messages])
    return b"".join([b"data: " + bytes(message) + b"\n\n" for message in messages])
