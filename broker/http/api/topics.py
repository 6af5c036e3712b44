"""Namespaces and topics: create, show, change, delete, list.

These are records in the metadata store, so any broker answers by itself; only live figures are
asked from the owners of the partitions, all at once. An owner that does not answer is shown as a
problem in its partition's place, not as a failure of the whole.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from octavo.broker.errors import TopicChanged, TopicNotFound, TopicReplaced
from octavo.broker.http.api import answers
from octavo.broker.http.api.topic_body import TopicBody, show_topic_settings, topic_settings
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import ask_all, ask_partition, at_owner, topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import (
    PartitionName,
    PartitionStats,
    SubscriptionStats,
    TopicInfo,
    TopicSettings,
)

TOPICS_SHOWN = 1000
"""In one answer, if the caller does not say."""
TOPICS_SHOWN_MAX = 10_000
FIGURES_WITHIN_S = 2.0
"""An owner that does not answer is shown as a problem after it."""

# ---- namespaces


async def list_namespaces(call: Call) -> web.StreamResponse:
    """`GET /v1/namespaces`."""
    services = call.services
    found = await services.overview.prompt(services.broker.topics.list_namespaces())
    return call.reply({"namespaces": found})


async def put_namespace(call: Call) -> web.StreamResponse:
    """`PUT /v1/namespaces/{namespace}`."""
    name = call.namespace
    body = await call.read_json(dict[str, Any], required=False)
    if body:
        raise Problem(
            422,
            "not-supported-yet",
            f"policies of a namespace ({', '.join(sorted(body))[:100]}) are not supported yet: "
            "send no body or {}, and give the settings to each topic",
        )
    created = await call.services.broker.topics.create_namespace(name)
    return call.reply({"name": name}, status=201 if created else 200)


async def get_namespace(call: Call) -> web.StreamResponse:
    """`GET /v1/namespaces/{namespace}`."""
    name = call.namespace
    topics = await call.services.overview.prompt(call.services.broker.topics.names_in(name))
    return call.reply({"name": name, "topics": len(topics), "policies": {}})


async def delete_namespace(call: Call) -> web.StreamResponse:
    """`DELETE /v1/namespaces/{namespace}`."""
    await call.services.broker.topics.delete_namespace(call.namespace)
    return web.Response(status=204)


# ---- topics


async def list_topics(call: Call) -> web.StreamResponse:
    """`GET /v1/topics/{namespace}`: sorted, a page at a time; go on `after` the last one."""
    name = call.namespace
    after = call.query.get("after", "")
    limit = call.integer("limit", TOPICS_SHOWN, 1, TOPICS_SHOWN_MAX)
    services = call.services
    listed = await services.overview.prompt(services.broker.topics.names_in(name))
    begin = bisect_right(listed, after)
    found = listed[begin : begin + limit]
    if len(listed) <= begin + limit:
        return call.reply(answers.Topics(name, found, None))
    answer = call.reply(answers.Topics(name, found, found[-1]))
    query = urlencode({"limit": limit, "after": found[-1]})
    answer.headers["Link"] = f'<{call.request.path}?{query}>; rel="next"'
    return answer


async def put_topic(call: Call) -> web.StreamResponse:
    """`PUT /v1/topics/{namespace}/{topic}`."""
    name = call.topic
    body = await call.read_json(TopicBody, required=False)
    settings = topic_settings(body, TopicSettings())
    broker = call.services.broker
    if (problem := await _too_few_bookies(call, settings)) is not None:
        try:
            await broker.topics.get(name)
        except TopicNotFound:
            raise problem from None
    info, created = await broker.topics.create(name, settings)
    return call.reply(_show(info), status=201 if created else 200)


async def _too_few_bookies(call: Call, settings: TopicSettings) -> Problem | None:
    """The 422 when the cluster has not that many bookies. Those that are down count."""
    known = await call.services.overview.bookies_of_the_cluster()
    if settings.ensemble_size <= len(known):
        return None
    return Problem(
        422,
        "too-few-bookies",
        f"ensemble_size is {settings.ensemble_size}, and this cluster has {len(known)} bookies "
        f"({', '.join(sorted(known)) or 'none'}), those that are down included: nothing could "
        "ever be published. Add bookies first, or ask for a smaller ensemble",
        extra={"ensemble_size": settings.ensemble_size, "bookies": sorted(known)},
    )


async def patch_topic(call: Call) -> web.StreamResponse:
    """`PATCH /v1/topics/{namespace}/{topic}`."""
    name = call.topic
    body = await call.read_json(TopicBody)
    broker = call.services.broker
    info = await topic_of(call)
    settings = topic_settings(body, info.settings)
    wider = settings.ensemble_size > info.settings.ensemble_size
    if wider and (problem := await _too_few_bookies(call, settings)) is not None:
        raise problem
    info = await broker.topics.update(name, settings)
    return call.reply(_show(info))


async def delete_topic(call: Call) -> web.StreamResponse:
    """`DELETE /v1/topics/{namespace}/{topic}`."""
    try:
        await call.services.broker.topics.delete(call.topic, call.incarnation)
    except TopicChanged as error:
        raise TopicReplaced(str(error)) from error
    return web.Response(status=204)


async def get_topic(call: Call) -> web.StreamResponse:
    """`GET /v1/topics/{namespace}/{topic}`: settings and live figures."""
    name = call.topic
    info = await topic_of(call)
    partitions = await each_partition(
        [_figures(call, name.partition(number)) for number in range(info.settings.partitions)]
    )
    shown = _show(info)
    shown.messages = sum(one.get("messages", 0) for one in partitions)
    shown.stored_bytes = sum(one.get("stored_bytes", 0) for one in partitions)
    shown.backlog = _backlog(partitions)
    shown.partitions = cast(list[answers.PartitionFigures], partitions)  # as their owners said them
    return call.reply(shown)


async def _figures(call: Call, name: PartitionName) -> dict[str, Any]:
    """Of one partition. An owner that sleeps must not hold up who only wants the settings."""
    try:
        async with asyncio.timeout(FIGURES_WITHIN_S):
            found: dict[str, Any] = await ask_partition(call, name, show_partition, "GET", "")
            return found
    except TimeoutError:
        raise Problem(
            503,
            "no-figures-in-time",
            f"the owner of {name} gave no figures within {FIGURES_WITHIN_S:g} s",
            retryable=True,
        ) from None


async def let_go(call: Call) -> web.StreamResponse:
    """`POST /v1/topics/{namespace}/{topic}/let-go`: from the broker that deletes the topic."""
    incarnation = call.text("incarnation")
    served = await call.services.broker.let_go(call.topic, incarnation)
    return call.reply(answers.LetGo(served))


async def get_partition(call: Call) -> web.StreamResponse:
    """`GET /v1/topics/{namespace}/{topic}/partitions/{partition}`."""
    name = call.partition
    assert name is not None

    async def here(partition: Partition) -> web.StreamResponse:
        return call.reply(await show_partition(partition))

    return await at_owner(call, name, here)


async def each_partition(
    asked: list[Coroutine[Any, Any, dict[str, Any]]],
) -> list[dict[str, Any]]:
    """What the owners answered, in order of partitions; a problem stands where one did not."""
    found: list[dict[str, Any]] = []
    for number, answer in enumerate(await ask_all(asked)):
        if isinstance(answer, Exception):
            found.append({"partition": number, "problem": problem_of(answer).body()})
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(answer)
    return found


def _show(info: TopicInfo) -> answers.Topic:
    settings = show_topic_settings(info.settings)
    return answers.Topic(str(info.name), settings, info.created_ms, info.incarnation)


def _backlog(partitions: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for partition in partitions:
        for name, figures in partition.get("subscriptions", {}).items():
            found[name] += figures["backlog"]
    return found


async def show_partition(partition: Partition) -> dict[str, Any]:
    """Live figures of an open partition."""
    return show_stats(partition.stats())


def show_stats(stats: PartitionStats) -> dict[str, Any]:
    """The figures as JSON."""
    shown = answers.PartitionFigures(
        partition=stats.name.partition,
        owner=stats.broker_id,
        epoch=stats.epoch,
        earliest_offset=stats.earliest_offset,
        next_offset=stats.next_offset,
        messages=stats.next_offset - stats.earliest_offset,
        stored_bytes=stats.stored_bytes,
        pending_bytes=stats.pending_bytes,
        last_add_confirmed=stats.last_add_confirmed,
        producers=stats.producers,
        ledgers=[answers.PartLedger(number, base) for number, base in stats.ledgers],
        subscriptions={
            name: subscription_figures(figures) for name, figures in stats.subscriptions.items()
        },
    )
    found: dict[str, Any] = msgspec.to_builtins(shown)
    return found


def subscription_figures(stats: SubscriptionStats) -> answers.SubscriptionFigures:
    """The figures of a subscription in one partition."""
    return answers.SubscriptionFigures(
        committed_offset=stats.committed_offset,
        mark_delete_offset=stats.committed_offset,
        next_offset=stats.next_offset,
        backlog=stats.backlog,
        unacked_ranges=stats.unacked_ranges,
        leased=stats.leased,
        redelivering=stats.redelivering,
        delayed=stats.delayed,
        held_back=stats.held_back,
        consumers=[
            answers.Consumer(one.name, one.leased, one.idle_ms / 1000) for one in stats.consumers
        ],
    )
