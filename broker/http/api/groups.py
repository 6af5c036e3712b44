"""Consumer groups over HTTP: a member calls regularly, and learns which partitions it has.

The member then receives from each of its partitions, or streams them, with the `generation` that
gave it the partition.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.groups.group import GroupNow, Membership
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import PARTITION_HIGHEST, Call
from octavo.broker.http.forwarding import operate_group
from octavo.broker.http.problems import Problem
from octavo.broker.operations.kinds import DescribeGroup, Done, Heartbeat, LeaveGroup
from octavo.broker.types import GroupName, PartitionName, TopicName, checked_name
from octavo.protocol.numbers import whole
from octavo.protocol.topic_patterns import InvalidPattern, TopicPattern

TOPICS_MAX = 100
HOLDS_MAX = 10_000
"""More than any group has."""
MEMBER_BYTES_MAX = 2 * 1024 * 1024
SESSION_MS_MIN, SESSION_MS_MAX = 1_000, 3_600_000
PartitionText = Annotated[
    str, Meta(description="namespace/topic/number", extra_json_schema={"examples": ["public/t/0"]})
]


class MemberBody(msgspec.Struct, forbid_unknown_fields=True):
    """The topics that a member wants, and the partitions that it holds."""

    schema_name: ClassVar = "GroupMember"

    topics: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=TOPICS_MAX,
            description="in the group's namespace: names, or patterns with * and ?",
        ),
    ]
    holds: Annotated[
        list[PartitionText],
        Meta(max_length=HOLDS_MAX, description="its partitions, until it has released them"),
    ] = []
    generation: Annotated[
        int, Meta(ge=0, le=2**53, description="the highest that it knows; 0: none")
    ] = 0
    session_timeout: Annotated[
        int | float | str, Meta(description=TIME, extra_json_schema={"default": 30})
    ] = 30


class MemberShown(msgspec.Struct):
    """The partitions of a member; it must release all others."""

    schema_name: ClassVar = "GroupMemberShown"

    group: str
    member: str
    generation: Annotated[int, Meta(description="pass it when receiving")]
    partitions: list[PartitionText]
    members: Annotated[int, Meta(description="how many the group has, as far as is known")]


class MemberOf(msgspec.Struct):
    """A member as others see it."""

    name: str
    partitions: list[PartitionText]
    expires_in_ms: int


class GroupShown(msgspec.Struct):
    """The members of a group, as its coordinator knows them."""

    schema_name: ClassVar = "Group"

    group: str
    generation: int
    members: list[MemberOf]


async def beat(call: Call) -> web.StreamResponse:
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
    holds = await _held(call, body.holds)
    operation = Heartbeat(name, member, patterns, holds, body.generation, session_ms, wait_ms)
    call.services.rules.check_topics(call.identity, operation, call.peer)
    found = await operate_group(call, operation, Membership)
    return call.reply(
        MemberShown(
            str(name), member, found.generation, [str(one) for one in found.partitions],
            found.members,
        )
    )  # fmt: skip


async def leave(call: Call) -> web.StreamResponse:
    await operate_group(call, LeaveGroup(_group(call), _member(call)), Done)
    return web.Response(status=204)


async def show(call: Call) -> web.StreamResponse:
    name = _group(call)
    found = await operate_group(call, DescribeGroup(name), GroupNow)
    members = [
        MemberOf(one.name, [str(held) for held in one.holds], one.expires_in_ms)
        for one in found.members
    ]
    return call.reply(GroupShown(str(name), found.generation, members))


def _group(call: Call) -> GroupName:
    return GroupName(call.namespace, checked_name("group", call.variables["group"]))


def _member(call: Call) -> str:
    return checked_name("member", call.variables["member"])


def _pattern(name: GroupName, text: str) -> TopicPattern:
    try:
        found = TopicPattern.parse(text if "/" in text else f"{name.namespace}/{text}")
    except InvalidPattern as error:
        raise Problem(422, "invalid-body", str(error)) from None
    if found.namespace != name.namespace:
        raise Problem(
            422,
            "invalid-body",
            f"topics {text[:60]!r}: a group's topics are in one namespace, here {name.namespace!r}",
        )
    return found


async def _held(call: Call, texts: list[str]) -> list[PartitionName]:
    turns = call.services.broker.open_batches.turns
    found = []
    for text in texts:
        await turns.take(1)
        found.append(_partition(text))
    return found


def _partition(text: str) -> PartitionName:
    topic, _, number = text.rpartition("/")
    found = whole(number, PARTITION_HIGHEST)
    if found is None or topic.count("/") != 1:
        raise Problem(422, "invalid-body", f"holds {text[:60]!r}: write namespace/topic/partition")
    return TopicName.parse(topic).partition(found)
