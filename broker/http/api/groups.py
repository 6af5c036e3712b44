"""Consumer groups over HTTP: a member calls regularly, and hears which partitions it has.

A single call says what the member wants and what it holds, and waits until that should change. The
member then receives from each of its partitions, or streams them, with the `generation` that gave
it the partition. Any broker answers; the broker that keeps the group decides (http/groups.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.errors import GroupFull, TopicNotFound
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import PARTITION_HIGHEST, Call
from octavo.broker.http.groups import GroupName, KeptGroup, keeper_of, now_ms
from octavo.broker.http.held_bytes import share_of
from octavo.broker.http.problems import Problem
from octavo.broker.types import Owner, PartitionName, TopicName, checked_name
from octavo.protocol.numbers import whole
from octavo.protocol.topic_patterns import InvalidPattern, TopicPattern
from octavo.security.rules import Kind, Operation, Resource

TOPICS_MAX = 100
"""Limit of a member's names and patterns."""
HOLDS_MAX = 10_000
"""Limit of partitions that a member says it holds: more than any group has."""
MEMBER_BYTES_MAX = 2 * 1024 * 1024
"""Limit of the body, which may hold all these names."""
SESSION_MS_MIN, SESSION_MS_MAX = 1_000, 3_600_000
CHARS_A_RECORD = 20
"""Characters of a name whose comparison with patterns costs as much as a message."""
WAITS_PER_SESSION = 2
"""A call waits for at most this part of a session, so that waiting members do not expire."""
PartitionText = Annotated[
    str, Meta(description="namespace/topic/number", extra_json_schema={"examples": ["public/t/0"]})
]


class MemberBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member shows itself."""

    topics: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=TOPICS_MAX,
            description="of the group's namespace: names, or patterns with * and ?",
        ),
    ]
    holds: Annotated[
        list[PartitionText],
        Meta(max_length=HOLDS_MAX, description="what it has now and has not let go yet"),
    ] = []
    generation: Annotated[
        int, Meta(ge=0, le=2**53, description="the highest it has heard of; 0: none")
    ] = 0
    session_timeout: Annotated[
        int | float | str, Meta(description=TIME, extra_json_schema={"default": 30})
    ] = 30


class MemberShown(msgspec.Struct):
    """What a member has from now on. What else it holds it lets go, and says so."""

    group: str
    member: str
    generation: Annotated[int, Meta(description="to be named when receiving")]
    partitions: list[PartitionText]
    members: Annotated[int, Meta(description="of the group, as far as they are known now")]


class MemberOf(msgspec.Struct):
    """A member as others see it."""

    name: str
    partitions: list[PartitionText]
    expires_in_ms: int


class GroupShown(msgspec.Struct):
    """The members of a group, as its keeper knows them."""

    group: str
    generation: int
    members: list[MemberOf]


async def beat(call: Call) -> web.StreamResponse:
    """`POST /v1/groups/{namespace}/{group}/members/{member}`."""
    name, member = _group(call), _member(call)
    wait_ms = call.duration_ms("wait", 0, call.services.config.wait_ms_max)
    body = await call.read_json(MemberBody, bytes_max=MEMBER_BYTES_MAX)
    session_ms = time_ms("session_timeout", body.session_timeout)
    if not SESSION_MS_MIN <= session_ms <= SESSION_MS_MAX:
        raise Problem(
            422,
            "invalid-settings",
            f"session_timeout is {body.session_timeout!r}; it must be from "
            f"{SESSION_MS_MIN // 1000} s to {SESSION_MS_MAX // 1000} s",
        )
    patterns = [_pattern(name, text) for text in body.topics]
    if (elsewhere := _elsewhere(call, name)) is not None:
        return await call.services.peers.forward(call, elsewhere)
    wants = await _wanted(call, name, patterns)
    holds = await _held(call, name[1], body.holds)
    if call.services.groups.find(name) is None:
        call.services.quotas.check_groups(call, name[0], call.services.groups)
    kept = call.services.groups.open(name, share_of(call.identity))
    group = kept.group
    group.beat(
        member, call.identity.name, wants, holds,
        generation=body.generation, session_ms=session_ms, now_ms=now_ms(),
    )  # fmt: skip
    kept.wakes.wake()
    until_ms = now_ms() + min(wait_ms, session_ms // WAITS_PER_SESSION)
    while True:
        given = group.given(member, now_ms())
        if frozenset(given) != holds or member not in group.members or now_ms() >= until_ms:
            break
        await _changed(kept, until_ms)
        if call.services.stopping.is_set():
            break
    return call.reply(
        MemberShown(
            "/".join(name), member, group.generation, [str(one) for one in given],
            len(group.members),
        )
    )  # fmt: skip


async def leave(call: Call) -> web.StreamResponse:
    """`DELETE /v1/groups/{namespace}/{group}/members/{member}`."""
    name, member = _group(call), _member(call)
    if (elsewhere := _elsewhere(call, name)) is not None:
        return await call.services.peers.forward(call, elsewhere)
    kept = call.services.groups.find(name)
    if kept is not None and kept.group.leave(member, call.identity.name):
        kept.wakes.wake()
    return web.Response(status=204)


async def show(call: Call) -> web.StreamResponse:
    """`GET /v1/groups/{namespace}/{group}`."""
    name = _group(call)
    if (elsewhere := _elsewhere(call, name)) is not None:
        return await call.services.peers.forward(call, elsewhere)
    kept = call.services.groups.find(name)
    shown = GroupShown("/".join(name), 0, [])
    if kept is not None:
        now = now_ms()
        if kept.group.expire(now):
            kept.wakes.wake()
        shown.generation = kept.group.generation
        shown.members = [
            MemberOf(one, [str(held) for held in sorted(member.holds)], member.until_ms - now)
            for one, member in sorted(kept.group.members.items())
        ]
    return call.reply(shown)


def _group(call: Call) -> GroupName:
    return call.namespace, checked_name("group", call.variables["group"])


def _member(call: Call) -> str:
    return checked_name("member", call.variables["member"])


def _elsewhere(call: Call, name: GroupName) -> Owner | None:
    """Return the keeper of the group, if it is another broker that should get this call."""
    broker = call.services.broker
    brokers = broker.registry.brokers()
    if call.forwarded or not brokers:
        return None
    keeper = keeper_of(name, brokers)
    if keeper.broker_id == broker.broker_id:
        return None
    call.owner_url = keeper.url
    return Owner(keeper.broker_id, keeper.url, local=False)


def _pattern(name: GroupName, text: str) -> TopicPattern:
    try:
        found = TopicPattern.parse(text if "/" in text else f"{name[0]}/{text}")
    except InvalidPattern as error:
        raise Problem(422, "invalid-body", str(error)) from None
    if found.namespace != name[0]:
        raise Problem(
            422,
            "invalid-body",
            f"topics {text[:60]!r}: a group's topics are of one namespace, and this group is of "
            f"{name[0]!r}",
        )
    return found


async def _held(call: Call, subscription: str, texts: list[str]) -> frozenset[PartitionName]:
    """Return the partitions of these texts that the caller may consume."""
    turns = call.services.broker.open_batches.turns
    may: dict[TopicName, bool] = {}
    found: dict[PartitionName, None] = {}
    for text in texts:
        await turns.take(1)
        one = _partition(text)
        topic = one.topic_name
        if topic not in may:
            may[topic] = _may_consume(call, topic, subscription)
        if may[topic]:
            found[one] = None
    return frozenset(found)


def _partition(text: str) -> PartitionName:
    topic, _, number = text.rpartition("/")
    found = whole(number, PARTITION_HIGHEST)
    if found is None or topic.count("/") != 1:
        raise Problem(422, "invalid-body", f"holds {text[:60]!r}: write namespace/topic/partition")
    return TopicName.parse(topic).partition(found)


async def _wanted(call: Call, name: GroupName, patterns: list[TopicPattern]) -> list[PartitionName]:
    """Return the partitions of all wanted topics that the caller may consume.

    Raises `TopicNotFound` and `Forbidden` for a topic by name; a pattern matches existing topics.
    """
    topics = call.services.broker.topics
    found: dict[TopicName, None] = {}
    for pattern in patterns:
        if not pattern.is_wild:
            one = TopicName(*pattern)
            call.check(Operation.CONSUME, Resource(Kind.TOPIC, str(one)))
            call.check(Operation.CONSUME, Resource(Kind.SUBSCRIPTION, f"{one}/{name[1]}"))
            await topics.get(one)
            found[one] = None
    if any(pattern.is_wild for pattern in patterns):
        wild = [pattern for pattern in patterns if pattern.is_wild]
        turns = call.services.broker.open_batches.turns
        for topic in await topics.names_in(name[0]):
            await turns.take(1 + len(wild) * len(topic) // CHARS_A_RECORD)
            meant = [pattern for pattern in wild if pattern.matches(topic)]
            one = TopicName(name[0], topic)
            if meant and _may_consume(call, one, name[1]):
                with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                    has_letters = (await topics.get(one)).has_letters
                    if any(pattern.matches(topic, has_letters=has_letters) for pattern in meant):
                        found[one] = None
    wanted: list[PartitionName] = []
    most = call.services.config.group_partitions_max
    for one in found:
        try:
            count = (await topics.get(one)).settings.partitions
        except TopicNotFound:
            continue  # deleted meanwhile
        wanted += [one.partition(number) for number in range(count)]
        if len(wanted) > most:
            raise GroupFull(
                f"those topics have more than {most} partitions, the most a group may have "
                "(group_partitions_max): name fewer, or use several groups"
            )
    return wanted


def _may_consume(call: Call, topic: TopicName, subscription: str) -> bool:
    gate = call.services.gate
    if not gate.secured:
        return True
    return gate.may(
        call.identity, Operation.CONSUME, Resource(Kind.TOPIC, str(topic))
    ) and gate.may(
        call.identity, Operation.CONSUME, Resource(Kind.SUBSCRIPTION, f"{topic}/{subscription}")
    )


async def _changed(kept: KeptGroup, until_ms: int) -> None:
    """Wait until the group has changed, by a call or by time."""
    event_ms = kept.group.next_event_ms()
    if event_ms is not None and event_ms > now_ms():
        until_ms = min(until_ms, event_ms)
    with kept.wakes.next() as woken:
        await asyncio.wait({woken}, timeout=max(0.001, (until_ms - now_ms() + 1) / 1000))
    if kept.group.expire(now_ms()):
        kept.wakes.wake()
