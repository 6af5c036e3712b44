"""Explain which broker serves each partition and why, and what delays publishers and consumers.

`GET /v1/explain/{namespace}/{topic}` collects what the owners of the partitions know, in words. It
decides and changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import UNSET

from octavo.broker.http.api import answers
from octavo.broker.http.api.cluster import standing_of
from octavo.broker.http.api.topics import FIGURES_WITHIN_S, each_partition, subscription_figures
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import ask_partition, at_owner, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, SubscriptionInfo, checked_name
from octavo.security.rules import Kind, Operation, Resource


async def explain_topic(call: Call) -> web.StreamResponse:
    """`GET /v1/explain/{namespace}/{topic}`: all partitions, as their owners say it."""
    info = await topic_of(call)
    asked = await _subscription(call)
    suffix = "/explain" + (f"?subscription={quote(asked.name, safe='')}" if asked else "")

    async def one(name: PartitionName) -> dict[str, Any]:
        async def here(partition: Partition) -> dict[str, Any]:
            return await _explain(call, partition, asked)

        try:
            async with asyncio.timeout(FIGURES_WITHIN_S):
                found: dict[str, Any] = await ask_partition(call, name, here, "GET", suffix)
                return found
        except TimeoutError:
            raise Problem(
                503,
                "no-figures-in-time",
                f"the owner of {name} said nothing within {FIGURES_WITHIN_S:g} s",
                retryable=True,
            ) from None

    names = [info.name.partition(number) for number in range(info.settings.partitions)]
    parts = await each_partition([one(name) for name in names])
    return call.reply(
        {
            "topic": str(info.name),
            "subscription": None if asked is None else asked.name,
            "type": None if asked is None else asked.settings.type,
            "brokers": _brokers(call) if call.may_see(Kind.CLUSTER) else [],
            "partitions": parts,
        }
    )


async def explain_partition(call: Call) -> web.StreamResponse:
    """`GET …/partitions/{partition}/explain`."""
    name = call.partition
    assert name is not None
    asked = await _subscription(call)

    async def here(partition: Partition) -> web.StreamResponse:
        return call.reply(await _explain(call, partition, asked))

    return await at_owner(call, name, here)


async def _subscription(call: Call) -> SubscriptionInfo | None:
    """Return the subscription to explain, if any. Raises `SubscriptionNotFound`, `Forbidden`."""
    if not (text := call.text("subscription")):
        return None
    name = checked_name("subscription", text)
    if call.services.gate.secured:
        call.check(Operation.DESCRIBE, Resource(Kind.SUBSCRIPTION, f"{call.topic}/{name}"))
    return await call.services.broker.topics.subscription(call.topic, name)


def _brokers(call: Call) -> list[dict[str, Any]]:
    return [
        {"id": broker.broker_id, **standing_of(call, broker.broker_id)}
        for broker in call.services.broker.registry.brokers()
    ]


async def _explain(
    call: Call, partition: Partition, asked: SubscriptionInfo | None
) -> dict[str, Any]:
    """Describe a partition, as its owner knows it."""
    stats, place = partition.stats(), call.services.broker.balance.place_of(partition.name)
    publishing = partition.publishing()
    rates = call.services.quotas.rates_of(partition.name.topic_name)
    held_back = [*publishing.held_back, *rates.into]
    if publishing.backlog is not None:
        whose, why = publishing.backlog
        seen = call.may_see(Kind.SUBSCRIPTION, str(partition.name.topic_name), whose)
        held_back.append(why if seen else "the backlog_quota of a subscription is exceeded")
    shown = answers.Explained(
        partition=stats.name.partition,
        owner=stats.broker_id,
        why=place.why,
        preferred=place.preferred,
        placed=place.placed,
        served=round(place.served_s, 1),
        load=round(place.load),
        epoch=stats.epoch,
        earliest_offset=stats.earliest_offset,
        next_offset=stats.next_offset,
        ledgers=[answers.PartLedger(number, base) for number, base in stats.ledgers],
        last_add_confirmed=stats.last_add_confirmed,
        kept_because=stats.kept_because,
        publishing=answers.ExplainedPublishing(
            pending_bytes=publishing.pending_bytes,
            pending_bytes_max=publishing.pending_bytes_max,
            producer=publishing.producer,
            held_back=held_back,
        ),
    )
    if asked is not None:
        subscription = await partition.subscription(asked.name)
        found = subscription.stats()
        figures = subscription_figures(found)
        for consumer in figures.consumers:
            consumer.held_back = subscription.held_back(consumer.name)
        most, of_one = subscription.unacked_limits()
        shown.subscription = answers.ExplainedSubscription(
            figures=figures,
            unacked_max=most,
            unacked_of_consumer_max=UNSET if of_one is None else of_one,
            held_back=[one for one in (found.held_back, *rates.out_of) if one is not None],
            waiting=subscription.waiting(),
        )
    plain: dict[str, Any] = msgspec.to_builtins(shown)
    return plain
