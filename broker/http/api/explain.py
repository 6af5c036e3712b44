"""Explain which broker serves each partition and why, and what delays publishers and consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET

from octavo.broker.http.api import answers
from octavo.broker.http.api.cluster import standing_of
from octavo.broker.http.api.topics import FIGURES_WITHIN_S, each_partition, subscription_figures
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import operate, redirected, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.operations.kinds import Explain, Explanation
from octavo.broker.types import PartitionName, SubscriptionInfo, checked_name
from octavo.security.rules import Kind, Operation, Resource


async def explain_topic(call: Call) -> web.StreamResponse:
    info = await topic_of(call)
    asked = await _subscription(call)

    async def one(name: PartitionName) -> dict[str, Any]:
        try:
            async with asyncio.timeout(FIGURES_WITHIN_S):
                return await _explain(call, name, asked, is_part=True)
        except TimeoutError:
            raise Problem(
                503,
                "no-figures-in-time",
                f"the owner of {name} did not answer within {FIGURES_WITHIN_S:g} s",
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
    name = call.partition
    assert name is not None
    asked = await _subscription(call)

    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    return call.reply(await _explain(call, name, asked))


async def _subscription(call: Call) -> SubscriptionInfo | None:
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
    call: Call, name: PartitionName, asked: SubscriptionInfo | None, *, is_part: bool = False
) -> dict[str, Any]:
    operation = Explain(name, "" if asked is None else asked.name)
    found = await operate(call, operation, Explanation, is_part=is_part)
    stats, publishing = found.stats, found.publishing
    held_back = [*publishing.held_back, *found.over_rates]
    if publishing.backlog is not None:
        whose, why = publishing.backlog
        seen = call.may_see(Kind.SUBSCRIPTION, str(name.topic_name), whose)
        held_back.append(why if seen else "the backlog_quota of a subscription is exceeded")
    shown = answers.Explained(
        partition=stats.name.partition,
        owner=stats.broker_id,
        why=found.why,
        preferred=found.preferred,
        placed=found.placed,
        served=round(found.served_s, 1),
        load=round(found.load),
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
    if (explained := found.subscription) is not None:
        figures = subscription_figures(explained.stats)
        reasons = explained.consumers_held_back
        for consumer, reason in zip(figures.consumers, reasons, strict=True):
            consumer.held_back = reason
        of_one = explained.unacked_of_consumer_max
        shown.subscription = answers.ExplainedSubscription(
            figures=figures,
            unacked_max=explained.unacked_max,
            unacked_of_consumer_max=UNSET if of_one is None else of_one,
            held_back=explained.held_back,
            waiting=explained.waiting,
        )
    plain: dict[str, Any] = msgspec.to_builtins(shown)
    return plain
