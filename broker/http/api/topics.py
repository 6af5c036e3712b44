"""Namespaces and topics: create, show, change, fork, delete, list.

Any broker answers from the metadata; live figures come from the owners, or a problem in their
place.

Only owners know where offsets lie, so each is asked for its point first, and again if a partition
moved.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, ClassVar, cast
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta

from octavo.broker.cluster.forks import OwnersPoint
from octavo.broker.errors import (
    ForkDisturbed,
    InvalidSettings,
    NamespaceNotFound,
    SettingsConflict,
    TopicChanged,
    TopicNotFound,
    TopicReplaced,
)
from octavo.broker.http.api import answers
from octavo.broker.http.api.read import position_of
from octavo.broker.http.api.topic_body import (
    NamespaceBody,
    TopicBody,
    namespace_record,
    show_effective,
    show_namespace,
    show_topic_settings,
    telling_differences,
    topic_settings,
)
from octavo.broker.http.call import OFFSET_MAX, Call, time_hint
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    operate,
    redirected,
    topic_of,
)
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.log.ledger_list import Cut, ForkPoint
from octavo.broker.operations.kinds import (
    DescribePartition,
    FindForkPoint,
    ForkPlace,
    Position,
    at_of,
)
from octavo.broker.types import (
    PartitionName,
    PartitionStats,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicSettings,
)
from octavo.ledger.quorum import risk_of
from octavo.metadata.topic_settings import Policies
from octavo.metadata.topics import AutoCreate, NamespaceRecord
from octavo.protocol.numbers import whole
from octavo.security.rules import Kind, Operation, Resource

TOPICS_SHOWN = 1000
TOPICS_SHOWN_MAX = 10_000
LOOKED_AT_ONCE = 1000
FIGURES_WITHIN_S = 2.0


async def list_namespaces(call: Call) -> web.StreamResponse:
    services = call.services
    found = await services.overview.prompt(services.broker.topics.list_namespaces())
    return call.reply({"namespaces": [one for one in found if _sees_namespace(call, one)]})


def _sees_namespace(call: Call, name: str) -> bool:
    return call.may_see(Kind.NAMESPACE, name) or call.may_see_some(Kind.TOPIC, name)


async def put_namespace(call: Call) -> web.StreamResponse:
    name = call.namespace
    body = await call.read_json(NamespaceBody, required=False)
    said = namespace_record(body, NamespaceRecord())  # checks the body itself before any change
    changes = [field for field in body.__struct_fields__ if getattr(body, field) is not UNSET]
    if changes:
        call.check(Operation.ALTER, Resource(Kind.NAMESPACE, name))
    known = call.services.broker.topics
    if refusal := beyond_any_message(call, said.policies):
        try:
            before = (await known.namespace(name)).policies
        except NamespaceNotFound:
            raise refusal from None
        if before.message_bytes_max != said.policies.message_bytes_max:
            raise refusal
    encrypted = None if body.encrypted is UNSET else body.encrypted
    created = await known.create_namespace(name, encrypted)
    if any(field != "encrypted" for field in changes):
        await known.set_policies(name, lambda record: namespace_record(body, record))
    shown, auto = {"name": name}, said.auto_create
    if auto is not None and (risk := risk_of(auto.write_quorum, auto.ack_quorum)):
        shown["warning"] = f"auto_create: {risk}"
    return call.reply(shown, status=201 if created else 200)


async def get_namespace(call: Call) -> web.StreamResponse:
    name = call.namespace
    known = call.services.broker.topics
    topics = await call.services.overview.prompt(known.names_in(name))
    record = await call.services.overview.prompt(known.namespace(name))
    return call.reply(answers.Namespace(name, len(topics), show_namespace(record)))


async def delete_namespace(call: Call) -> web.StreamResponse:
    await call.services.broker.topics.delete_namespace(call.namespace)
    return web.Response(status=204)


async def list_topics(call: Call) -> web.StreamResponse:
    name = call.namespace
    after = call.query.get("after", "")
    limit = call.integer("limit", TOPICS_SHOWN, 1, TOPICS_SHOWN_MAX)
    with_letters = call.choice("letters", "false", "true", "false") == "true"
    services = call.services
    listed = await services.overview.prompt(services.broker.topics.names_in(name))
    found: list[str] = []
    more = False
    for number in range(bisect_right(listed, after), len(listed)):
        if number % LOOKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # a caller may see few of many names
        if call.may_see(Kind.TOPIC, name, listed[number]):
            if more := len(found) == limit:
                break
            found.append(listed[number])
    shown = answers.Topics(name, found, found[-1] if more else None)
    if with_letters:
        shown.letters = []
        for number, one in enumerate(found):
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if await _has_letters(call, TopicName(name, one)):
                shown.letters.append(one)
    answer = call.reply(shown)
    if not more:
        return answer
    query = urlencode(
        {"limit": limit, "after": found[-1]} | ({"letters": "true"} if with_letters else {})
    )
    answer.headers["Link"] = f'<{call.request.path}?{query}>; rel="next"'
    return answer


async def _has_letters(call: Call, name: TopicName) -> bool:
    topics = call.services.broker.topics
    info = topics.fresh(name)
    if info is None:
        try:
            info = await topics.get(name)
        except TopicNotFound:
            return False
    return info.has_letters


async def put_topic(call: Call) -> web.StreamResponse:
    name = call.topic
    body = await call.read_json(TopicBody, required=False)
    settings = topic_settings(body, TopicSettings())
    _check_may_see_schema(call, settings, None)
    broker = call.services.broker
    force = call.choice("force", "false", "true", "false") == "true"
    problem = await too_few_bookies(call, settings)
    refusal = beyond_any_message(call, settings.policies) or (None if force else problem)
    if refusal is not None:
        try:
            await broker.topics.get(name)
        except TopicNotFound:
            raise refusal from None
    await call.services.quotas.check_topics(name)
    with telling_differences():
        info, created = await broker.topics.create(name, settings)
    warnings = [problem.detail] if problem is not None else []
    return call.reply(_shown(info, warnings), status=201 if created else 200)


def _shown(info: TopicInfo, warnings: Sequence[str] = ()) -> answers.Topic:
    shown, settings = show_topic(info), info.settings
    risk = risk_of(settings.write_quorum, settings.ack_quorum)
    if found := [*warnings, *([risk] if risk else [])]:
        shown.warning = "; ".join(found)
    return shown


def _check_may_see_schema(call: Call, settings: TopicSettings, before: str | None) -> None:
    """Check the right to read the topic's schema, which error messages reveal."""
    subject = settings.schema_subject
    if subject is not None and subject != before:
        call.check(Operation.DESCRIBE, Resource(Kind.TOPIC, f"{call.namespace}/{subject}"))


async def too_few_bookies(call: Call, settings: TopicSettings) -> Problem | None:
    known = await call.services.overview.bookies_of_the_cluster()
    if settings.ensemble_size <= len(known):
        return None
    return Problem(
        422,
        "too-few-bookies",
        f"ensemble_size is {settings.ensemble_size}, and this cluster has {len(known)} bookies "
        f"({', '.join(sorted(known)) or 'none'}), including bookies that are down: publishing "
        "would fail. Add bookies first, ask for a smaller ensemble, or create the topic anyway "
        "with force=true",
        extra={"ensemble_size": settings.ensemble_size, "bookies": sorted(known)},
    )


def beyond_any_message(call: Call, policies: Policies) -> InvalidSettings | None:
    """Return the error for a `message_bytes_max` above any message that this broker takes.

    Other brokers may differ, so existing settings are not checked again.
    """
    config, asked = call.services.config, policies.message_bytes_max
    if asked is None or asked <= max(config.line_bytes_max, config.large_message_bytes_max):
        return None
    return InvalidSettings(
        f"message_bytes_max is {asked}, and this broker takes messages of at most "
        f"{config.line_bytes_max} bytes (http.line_bytes_max), large ones of at most "
        f"{config.large_message_bytes_max} (http.large_message_bytes_max)"
    )


async def patch_topic(call: Call) -> web.StreamResponse:
    name = call.topic
    body = await call.read_json(TopicBody)
    broker = call.services.broker
    info = await topic_of(call)
    settings = topic_settings(body, info.settings)
    _check_may_see_schema(call, settings, info.settings.schema_subject)
    wider = settings.ensemble_size > info.settings.ensemble_size
    if wider and (problem := await too_few_bookies(call, settings)) is not None:
        raise problem
    if settings.policies.message_bytes_max != info.settings.policies.message_bytes_max and (
        refusal := beyond_any_message(call, settings.policies)
    ):
        raise refusal
    info = await broker.topics.update(name, settings)
    return call.reply(_shown(info))


async def delete_topic(call: Call) -> web.StreamResponse:
    try:
        await call.services.broker.topics.delete(call.topic, call.incarnation)
    except TopicChanged as error:
        raise TopicReplaced(str(error)) from error
    return web.Response(status=204)


async def get_topic(call: Call) -> web.StreamResponse:
    name = call.topic
    info = await topic_of(call)
    partitions = await each_partition(
        [_figures(call, name.partition(number)) for number in range(info.settings.partitions)]
    )
    shown = show_topic(info)
    shown.messages = sum(one.get("messages", 0) for one in partitions)
    shown.stored_bytes = sum(one.get("stored_bytes", 0) for one in partitions)
    shown.backlog = _backlog(partitions)
    shown.partitions = cast(list[answers.PartitionFigures], partitions)  # as their owners sent them
    policies = await call.services.broker.topics.policies_of(name.namespace)
    shown.effective = show_effective(info.settings, policies)
    return call.reply(shown)


async def _figures(call: Call, name: PartitionName) -> dict[str, Any]:
    try:
        async with asyncio.timeout(FIGURES_WITHIN_S):
            stats = await operate(call, DescribePartition(name), PartitionStats, is_part=True)
            return _seen(call, show_stats(stats))
    except TimeoutError:
        raise Problem(
            503,
            "no-figures-in-time",
            f"the owner of {name} gave no figures within {FIGURES_WITHIN_S:g} s",
            retryable=True,
        ) from None


async def get_partition(call: Call) -> web.StreamResponse:
    name = call.partition
    assert name is not None

    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    stats = await operate(call, DescribePartition(name), PartitionStats)
    return call.reply(_seen(call, show_stats(stats)))


def _seen(call: Call, figures: dict[str, Any]) -> dict[str, Any]:
    topic = call.topic
    shown = figures.get("subscriptions", {})
    for name in tuple(shown):
        if not call.may_see(Kind.SUBSCRIPTION, topic.namespace, topic.topic, name):
            del shown[name]
    return figures


async def each_partition(
    asked: list[Coroutine[Any, Any, dict[str, Any]]],
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, answer in enumerate(await ask_all(asked)):
        if isinstance(answer, Exception):
            found.append({"partition": number, "problem": problem_of(answer).body()})
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(answer)
    return found


def show_topic(info: TopicInfo) -> answers.Topic:
    settings = show_topic_settings(info.settings)
    shown = answers.Topic(str(info.name), settings, info.created_ms, info.incarnation)
    if (fork := info.fork) is not None:
        source = TopicName(info.name.namespace, fork.topic)
        offsets = {str(number): offset for number, offset in fork.offsets.items()}
        shown.forked_from = answers.ForkedFrom(str(source), fork.incarnation, offsets)
    if info.has_letters:
        shown.letters = True
    return shown


def _backlog(partitions: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for partition in partitions:
        for name, figures in partition.get("subscriptions", {}).items():
            found[name] += figures["backlog"]
    return found


def show_stats(stats: PartitionStats) -> dict[str, Any]:
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
        kept_because=stats.kept_because,
    )
    if stats.compacted is not None:
        shown.compacted = answers.CompactedFigures(*stats.compacted)
    if stats.uncompacted is not None:
        shown.uncompacted = answers.UncompactedFigures(*stats.uncompacted)
    if stats.stream:
        shown.stream = True
    found: dict[str, Any] = msgspec.to_builtins(shown)
    return found


def subscription_figures(stats: SubscriptionStats) -> answers.SubscriptionFigures:
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
            answers.Consumer(
                one.name,
                one.leased,
                one.idle_ms / 1000,
                one.priority,
                UNSET if one.active is None else one.active,
                UNSET if one.slots is None else one.slots,
                UNSET if one.slot_ranges is None else one.slot_ranges,
            )
            for one in stats.consumers
        ],
        dead_letters=answers.DeadLetters(*stats.dead_letters),
        retries=answers.DeadLetters(*stats.retries),
    )


_TRIES_MAX = 3
FORK_BYTES_MAX = 1024 * 1024


class ForkBody(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a fork, and where it is made."""

    schema_name: ClassVar = "Fork"

    name: Annotated[str, Meta(description="the new topic's, in the same namespace")]
    at: Annotated[
        str | int | dict[str, str | int],
        Meta(
            description="latest, earliest, an RFC 3339 time, or an offset for each partition, "
            'before which it is forked: {"0": 41, "1": "latest"}; omitted partitions: `latest`. '
            "For a topic with one partition also an offset"
        ),
    ] = "latest"


async def fork(call: Call) -> web.StreamResponse:
    body = await call.read_json(ForkBody, bytes_max=FORK_BYTES_MAX)
    name = TopicName.of(call.namespace, body.name)
    _check_may_create(call, name)
    info = await topic_of(call)
    places = _places(body.at, info)
    await call.services.quotas.check_topics(name)
    tries = 0
    while True:
        points = await points_of(call, info, places)
        try:
            made = await call.services.broker.forks.make(info, name, points)
        except ForkDisturbed:
            tries += 1
            if tries == _TRIES_MAX:
                raise
        else:
            return call.reply(show_topic(made), status=201)


def _check_may_create(call: Call, name: TopicName) -> None:
    check_not_internal(name)
    gate = call.services.gate
    topic = Resource(Kind.TOPIC, str(name))
    namespace = Resource(Kind.NAMESPACE, name.namespace)
    if not gate.secured or gate.may(call.identity, Operation.CREATE, namespace):
        return
    call.check(Operation.CREATE, topic)


def _places(at: str | int | dict[str, str | int], info: TopicInfo) -> dict[int, str]:
    count = info.settings.partitions
    if isinstance(at, dict):
        found = dict.fromkeys(range(count), "latest")
        for key, place in at.items():
            number = whole(key, count - 1)
            if number is None:
                raise _wrong(f"{key!r:.60} is no partition of {info.name}, which has {count}")
            found[number] = _checked(place)
        return found
    if isinstance(_position(_checked(at)), int) and count > 1:
        raise _wrong(
            f"{info.name} has {count} partitions, and an offset counts within one: "
            'say which, as in {"0": 41, "1": 7}'
        )
    return dict.fromkeys(range(count), _checked(at))


def _checked(place: str | int) -> str:
    text = str(place)
    position = _position(text)
    if position is None or (isinstance(position, tuple) and len(position) != 1):
        raise _wrong(
            f"{text!r:.60} is no place to fork at; latest, earliest, an offset from 0 to "
            f"{OFFSET_MAX} and an RFC 3339 time are{time_hint(text)}"
        )
    return text


def _position(text: str) -> Position | None:
    return None if text.count(":") == 2 and "T" not in text else position_of(text)


def _wrong(what: str) -> Problem:
    return Problem(422, "invalid-position", f"at: {what}")


async def points_of(call: Call, info: TopicInfo, places: dict[int, str]) -> dict[int, OwnersPoint]:
    found = all_or_raise(
        await ask_all(
            [
                operate(
                    call,
                    FindForkPoint(info.name.partition(number), at_of(_known(place))),
                    ForkPlace,
                    is_part=True,
                )
                for number, place in places.items()
            ]
        )
    )
    return {number: _point(one) for number, one in zip(places, found, strict=True)}


def _known(place: str) -> Position:
    position = _position(place)
    assert position is not None, "it was checked"
    return position


def _point(place: ForkPlace) -> OwnersPoint:
    cut = None if place.cut is None else Cut(*place.cut)
    return OwnersPoint(place.epoch, ForkPoint(place.offset, cut))


async def topic_to_publish(call: Call) -> TopicInfo:
    try:
        return await topic_of(call)
    except TopicNotFound as error:
        if call.names_incarnation:
            raise  # the caller means an incarnation that is gone
        await make(call, error)
        return await topic_of(call)


async def put_topic_or_auto(call: Call) -> web.StreamResponse:
    if call.choice("auto", "false", "true", "false") == "false":
        return await put_topic(call)
    if await call.read_body():
        raise Problem(422, "invalid-settings", "auto=true takes no body: the namespace says it all")
    return call.reply(show_topic(await topic_to_publish(call)))


async def make(call: Call, missing: TopicNotFound) -> None:
    name, broker = call.topic, call.services.broker
    try:
        auto = (await broker.topics.namespace(name.namespace)).auto_create
    except NamespaceNotFound:
        raise missing from None
    if auto is None:
        raise TopicNotFound(
            f"{missing}. By itself it would be made by the policy auto_create of namespace "
            f"{name.namespace}, which is off (octavo namespace set {name.namespace} --auto-create)"
        ) from None
    topic = Resource(Kind.TOPIC, str(name))
    namespace = Resource(Kind.NAMESPACE, name.namespace)
    if not call.services.gate.may(call.identity, Operation.CREATE, namespace):
        call.check(Operation.CREATE, topic)
    settings = _settings(auto)
    if (problem := await too_few_bookies(call, settings)) is not None:
        raise problem
    await call.services.quotas.check_topics(name)
    try:
        await broker.topics.create(name, settings)
    except SettingsConflict:
        return  # another call made it meanwhile, with other settings


def _settings(auto: AutoCreate) -> TopicSettings:
    return TopicSettings(
        partitions=auto.partitions,
        ensemble_size=auto.ensemble_size,
        write_quorum=auto.write_quorum,
        ack_quorum=auto.ack_quorum,
    )
