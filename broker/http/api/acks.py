"""Acknowledge, give back, extend: what may be said of delivered messages.

An ack id says itself which partition it is of, and which lease: a call on a topic is taken apart
and each owner gets its share. It is answered when all of it is durable.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.http.api.answers import Acked
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import OFFSET_MAX, Call
from octavo.broker.http.forwarding import ask_all, ask_partition, at_owner, topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.operations.kinds import Position
from octavo.broker.operations.local import resolve
from octavo.broker.partition.partition import Partition
from octavo.broker.types import AckRange, MessageId, Nack, TopicName
from octavo.protocol.numbers import whole
from octavo.security.principal import Identity

ACK_IDS_MAX = 100_000
NACK_DELAY_MS_MAX = 24 * 3_600_000


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    """One message to give back."""

    ack_id: str
    delay: Annotated[
        int | float | str | None,
        Meta(description=TIME + "; without it the subscription's retry_backoff, or none"),
    ] = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """What an ack call carries."""

    ack_ids: list[str] = []
    up_to: Annotated[
        int | str | None,
        Meta(description="an offset or message id: it and all before it (exclusive only)"),
    ] = None
    nack: list[NackBody | str] = []
    extend: list[str] = []
    release: Annotated[
        list[str],
        Meta(description="nobody has looked at these: deliver them again, and do not count it"),
    ] = []


async def acknowledge(call: Call) -> web.StreamResponse:
    """`POST …/subscriptions/{subscription}/ack`."""
    name = call.subscription
    topic = call.topic
    body = await call.read_json(AckBody)
    up_to = None if body.up_to is None else _up_to(body.up_to)
    partition = call.partition
    partitions = (await topic_of(call)).settings.partitions
    if partition is None and partitions == 1:
        partition = topic.partition(0)
    if up_to is not None and partition is None:
        raise Problem(
            422,
            "partition-required",
            f"{topic} has {partitions} partitions, and up_to counts within one: use "
            f"/v1/topics/{topic}/partitions/0/subscriptions/{name}/ack",
        )
    shares = by_partition(body, partitions)
    if partition is not None:
        number = partition.partition
        foreign = [other for other in shares if other != number]
        if foreign:
            raise Problem(
                422, "foreign-ack-id", f"an ack id is of partition {foreign[0]}, not of {number}"
            )
        share = shares.get(number, Share())

        async def here(open_here: Partition) -> web.StreamResponse:
            return call.reply(await share.apply(open_here, name, up_to))

        return await at_owner(call, partition, here)
    return call.reply(Acked(await apply_all(call, topic, name, shares)))


async def apply_all(call: Call, topic: TopicName, name: str, shares: dict[int, Share]) -> int:
    """Each share at its owner; how many messages became acked.

    Raises the worst problem of any: what the others did is done, and it says how much.
    """
    answers = await ask_all(
        [apply_share(call, topic, number, name, share) for number, share in shares.items()]
    )
    acked: int = sum(answer["acked"] for answer in answers if isinstance(answer, dict))
    problems = [problem_of(answer) for answer in answers if isinstance(answer, BaseException)]
    if not problems:
        return acked
    worst = max(problems, key=lambda problem: problem.status)
    worst.extra["acked"] = acked + sum(one.extra.get("acked", 0) for one in problems)
    stale = [ack_id for problem in problems for ack_id in problem.extra.get("stale", ())]
    if stale:
        worst.extra["stale"] = stale
    raise worst


async def give_back(call: Call, topic: TopicName, number: int, name: str, share: Share) -> None:
    """What was received for the caller and not handed over. The broker does that for itself: the
    caller may have lost the right to it meanwhile."""
    await apply_share(call, topic, number, name, share, call.services.own_identity)


async def apply_share(
    call: Call,
    topic: TopicName,
    number: int,
    name: str,
    share: Share,
    identity: Identity | None = None,
) -> dict[str, Any]:
    """One partition's share of an ack call, at its owner."""
    found: dict[str, Any] = await ask_partition(
        call,
        topic.partition(number),
        lambda partition: share.apply(partition, name, None),
        "POST",
        f"/subscriptions/{name}/ack",
        body=share.body(),
        identity=identity,
    )
    return found


class Share:
    """The part of an ack call that concerns one partition."""

    __slots__ = ("ack_ids", "extend", "nacks", "release")

    def __init__(self) -> None:
        self.ack_ids: list[str] = []
        self.nacks: list[Nack] = []
        self.extend: list[str] = []
        self.release: list[str] = []

    async def apply(
        self, partition: Partition, name: str, up_to: Position | None
    ) -> dict[str, Any]:
        """Do it at the open partition."""
        subscription = await partition.subscription(name)
        acked = await subscription.acknowledge(
            self.ack_ids,
            up_to=None if up_to is None else await resolve(partition, up_to),
            nacks=self.nacks,
            extend=self.extend,
            release=self.release,
        )
        return {"acked": acked}

    def body(self) -> dict[str, Any]:
        """The same as JSON, for another broker."""
        return {
            "ack_ids": self.ack_ids,
            "nack": [
                one.ack_id
                if one.delay_ms is None
                else {"ack_id": one.ack_id, "delay": one.delay_ms / 1000}
                for one in self.nacks
            ],
            "extend": self.extend,
            **({"release": self.release} if self.release else {}),
        }


def by_partition(body: AckBody, partitions: int) -> dict[int, Share]:
    """What each partition has to do. Raises a 400 or a 422 for what makes no sense."""
    shares: dict[int, Share] = defaultdict(Share)
    room = ACK_IDS_MAX

    def share(ack_id: str) -> Share:
        nonlocal room
        of = AckRange.parse(ack_id)
        number, room = of.partition, room - (of.end - of.start)
        if room < 0:
            raise Problem(
                422, "too-many-ack-ids", f"one call takes at most {ACK_IDS_MAX} messages' ack ids"
            )
        if not 0 <= number < partitions:
            raise Problem(
                400,
                "invalid-ack-id",
                f"ack id {ack_id[:60]!r} is of partition {number}; the topic has {partitions}",
            )
        return shares[number]

    for ack_id in body.ack_ids:
        share(ack_id).ack_ids.append(ack_id)
    for nack in body.nack:
        one = NackBody(nack) if isinstance(nack, str) else nack
        delay_ms = None if one.delay is None else time_ms("delay", one.delay)
        if delay_ms is not None and delay_ms > NACK_DELAY_MS_MAX:
            raise Problem(422, "invalid-settings", "a nack's delay is at most 24 hours")
        share(one.ack_id).nacks.append(Nack(one.ack_id, delay_ms))
    for ack_id in body.extend:
        share(ack_id).extend.append(ack_id)
    for ack_id in body.release:
        share(ack_id).release.append(ack_id)
    return shares


def _up_to(value: int | str) -> Position:
    if isinstance(value, int):
        if 0 <= value <= OFFSET_MAX:
            return value
    elif value.count(":") == 2:
        return MessageId.parse(value)
    elif (offset := whole(value)) is not None:
        return offset
    raise Problem(
        422, "invalid-up-to", f"up_to is {value!r:.60}; it must be an offset or a message id"
    )
