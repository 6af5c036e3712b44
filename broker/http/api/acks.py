"""Acknowledge messages, give them back, or extend their leases.

An ack id names its partition and its lease. So a call on a topic is split, and each owner gets its
share. The answer comes when all of it is durable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.http.api.answers import Acked
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import OFFSET_MAX, Call
from octavo.broker.http.forwarding import ask_all, operate, redirected, topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.log.open_batches import Turns
from octavo.broker.operations.json_parts import has_more_parts
from octavo.broker.operations.kinds import Position, Settle, Settled
from octavo.broker.types import AckRange, MessageId, Nack, PartitionName, TopicName
from octavo.protocol.numbers import whole

ACK_IDS_MAX = 100_000
ACK_BYTES_MAX = 8 * 1024 * 1024
"""The longest body: 100,000 nacks, each with its delay."""
ACK_PARTS_MAX = 3 * ACK_IDS_MAX + 100
"""Limit of commas, brackets and braces in a body: a nack with its delay has three."""
_RECORDS_OF_A_PROBLEM = 3
"""Cost of making a partition's problem, in messages of work."""
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

    schema_name: ClassVar = "Ack"

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
    if has_more_parts(await call.read_body(ACK_BYTES_MAX), ACK_PARTS_MAX):
        raise _too_many()
    body = await call.read_json(AckBody, bytes_max=ACK_BYTES_MAX)
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
    turns = call.services.broker.open_batches.turns
    shares = await by_partition(body, partitions, turns)
    if partition is not None:
        number = partition.partition
        foreign = [other for other in shares if other != number]
        if foreign:
            raise Problem(
                422, "foreign-ack-id", f"an ack id is of partition {foreign[0]}, not of {number}"
            )
        if (elsewhere := await redirected(call, partition)) is not None:
            return elsewhere
        share = shares.get(number, Share())
        settled = await operate(call, share.operation(partition, name, up_to), Settled)
        return call.reply(Acked(_acked(settled)))
    return call.reply(Acked(await apply_all(call, topic, name, shares)))


def _acked(settled: Settled) -> int:
    """Return how many messages were acked. Raises the error for the refused part."""
    if (problem := settled.problem) is not None:
        raise problem
    return settled.acked


async def apply_all(call: Call, topic: TopicName, name: str, shares: dict[int, Share]) -> int:
    """Apply each share at its owner; return how many messages became acked.

    If some owners fail, raises the worst problem, which says how much was acked. The work of the
    other owners is done.
    """
    answers = await ask_all(
        [_apply(call, topic.partition(number), name, share) for number, share in shares.items()]
    )
    acked = sum(answer for answer in answers if isinstance(answer, int))
    problems: list[Problem] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            await call.services.broker.open_batches.turns.take(_RECORDS_OF_A_PROBLEM)
            problems.append(problem_of(answer))
    if not problems:
        return acked
    worst = max(problems, key=lambda problem: problem.status)
    worst.extra["acked"] = acked + sum(one.extra.get("acked", 0) for one in problems)
    stale = [ack_id for problem in problems for ack_id in problem.extra.get("stale", ())]
    if stale:
        worst.extra["stale"] = stale
    raise worst


async def _apply(call: Call, partition: PartitionName, name: str, share: Share) -> int:
    """Apply a partition's share of an ack call, at its owner."""
    return _acked(await operate(call, share.operation(partition, name), Settled, is_part=True))


async def give_back(
    call: Call,
    partition: PartitionName,
    name: str,
    *,
    nacks: Sequence[Nack] = (),
    release: Sequence[str] = (),
    unread: Sequence[str] = (),
) -> None:
    """Give back messages that were received for the caller and not delivered; see `Settle`.

    The broker does this on its own behalf, because the caller may have lost the right to it.
    """
    operation = Settle(partition, name, [], [*nacks], [], [*release], [*unread])
    await operate(call, operation, Settled, is_part=True, identity=call.services.own_identity)


class Share:
    """A partition's share of an ack call."""

    __slots__ = ("ack_ids", "extend", "nacks", "release")

    def __init__(self) -> None:
        self.ack_ids: list[str] = []
        self.nacks: list[Nack] = []
        self.extend: list[str] = []
        self.release: list[str] = []

    def operation(
        self, partition: PartitionName, name: str, up_to: Position | None = None
    ) -> Settle:
        """Return the share as an operation for the partition's owner."""
        assert up_to is None or isinstance(up_to, int | MessageId)
        place = list(up_to) if isinstance(up_to, MessageId) else up_to
        return Settle(
            partition, name, self.ack_ids, self.nacks, self.extend, self.release, [], place
        )


async def by_partition(body: AckBody, partitions: int, turns: Turns) -> dict[int, Share]:
    """Split a body by partition. Raises a 400 or a 422 for an invalid body."""
    for ids in (body.ack_ids, body.nack, body.extend, body.release):
        if len(ids) > ACK_IDS_MAX:
            raise _too_many()
    shares: dict[int, Share] = defaultdict(Share)
    room = ACK_IDS_MAX

    def share(ack_id: str) -> Share:
        nonlocal room
        of = AckRange.parse(ack_id)
        number, room = of.partition, room - (of.end - of.start)
        if room < 0:
            raise _too_many()
        if not 0 <= number < partitions:
            raise Problem(
                400,
                "invalid-ack-id",
                f"ack id {ack_id[:60]!r} is of partition {number}; the topic has {partitions}",
            )
        return shares[number]

    for ack_id in body.ack_ids:
        await turns.take(1)
        share(ack_id).ack_ids.append(ack_id)
    for nack in body.nack:
        await turns.take(1)
        one = NackBody(nack) if isinstance(nack, str) else nack
        delay_ms = None if one.delay is None else time_ms("delay", one.delay)
        if delay_ms is not None and delay_ms > NACK_DELAY_MS_MAX:
            raise Problem(422, "invalid-settings", "a nack's delay is at most 24 hours")
        share(one.ack_id).nacks.append(Nack(one.ack_id, delay_ms))
    for ack_id in body.extend:
        await turns.take(1)
        share(ack_id).extend.append(ack_id)
    for ack_id in body.release:
        await turns.take(1)
        share(ack_id).release.append(ack_id)
    return shares


def _too_many() -> Problem:
    return Problem(
        422, "too-many-ack-ids", f"one call takes at most {ACK_IDS_MAX} messages' ack ids"
    )


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
