"""Receive from a subscription, and acknowledge.

A call on a topic goes to all its partitions: receive asks each for its share and, when none has
anything, waits for the first that does; ack ids say themselves which partition they are of.
Receiving needs no session: a lease ends by ack, by nack or by time, at whichever broker. What could
not be handed over, because the caller left or asked for less, is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from octavo.broker.errors import StaleLease
from octavo.broker.http.api.answers import Acked
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.api.read import ANSWER_TYPES, Position, answer_type, resolve
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import JSON, NDJSON, OFFSET_MAX, RECORD_BATCH, Call, bad_parameter
from octavo.broker.http.forwarding import ask_all, ask_partition, at_owner, topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import LeasedBatches
from octavo.broker.types import AckRange, Delivery, MessageId, Nack, TopicName
from octavo.protocol.ack_ids import shown

CONSUMER_CHARS_MAX = 249
REQUEST_CHARS_MAX = 64
DEFAULT_CONSUMER = "default"
MESSAGE_TYPES = (JSON, NDJSON)
HELD_BACK_HEADER = "Octavo-Held-Back"
ACK_IDS_MAX = 100_000
NACK_DELAY_MS_MAX = 24 * 3_600_000
RECEIVE_PARTITIONS_MAX = 128
"""One receive looks at so many partitions of a topic at most, beginning elsewhere each time."""
GRACE_S = 0.005
"""When one partition has messages, others that have some too get this long to join in."""


# ---- receive


async def receive(call: Call) -> web.StreamResponse:
    """`POST …/subscriptions/{subscription}/receive`."""
    name = call.subscription
    topic = call.topic
    config = call.services.config
    most = call.integer("max", config.read_messages, 1, config.read_messages_max)
    wait_s = call.duration_ms("wait", 0, config.wait_ms_max) / 1000
    answer_type(call, ANSWER_TYPES)  # refuse before anything is leased
    consumer = call.text("consumer", DEFAULT_CONSUMER)
    if not 1 <= len(consumer) <= CONSUMER_CHARS_MAX or not consumer.isprintable():
        raise bad_parameter("consumer", consumer, f"1 to {CONSUMER_CHARS_MAX} printable characters")
    request = call.text("request")
    if len(request) > REQUEST_CHARS_MAX or not request.isprintable():
        raise bad_parameter("request", request, f"at most {REQUEST_CHARS_MAX} printable characters")
    partition = call.partition
    partitions = 1
    if partition is None:
        partitions = (await topic_of(call)).settings.partitions
        if partitions == 1:
            partition = topic.partition(0)
    if partition is not None:
        as_stored = answer_type(call, ANSWER_TYPES) == RECORD_BATCH

        async def here(open_here: Partition) -> web.StreamResponse:
            asked = (open_here, name, consumer, most, wait_s, request)
            if as_stored:
                return await _receive_as_stored(call, *asked)
            return _deliver(call, await _receive_here(call, *asked))

        return await at_owner(call, partition, here)
    answer_type(call, MESSAGE_TYPES)  # batches are of one partition
    gathering = _Gathering(call, topic, partitions, name, consumer)
    return _deliver(call, await gathering.receive(most, wait_s))


class _Received(msgspec.Struct):
    """What one partition gives, and why it gives nothing though it has messages."""

    messages: list[Raw] = []
    held_back: str | None = None


async def _receive_here(
    call: Call,
    partition: Partition,
    name: str,
    consumer: str,
    most: int,
    wait_s: float,
    request: str = "",
) -> _Received:
    subscription = await partition.subscription(name)
    deliveries = await subscription.receive(
        consumer, messages_max=most, wait_s=wait_s, request=request
    )
    if not deliveries:
        return _Received(held_back=subscription.held_back())
    return await _given(call, partition, name, deliveries)


async def _given(
    call: Call, partition: Partition, name: str, deliveries: list[Delivery]
) -> _Received:
    given = _Received()
    if not deliveries:
        return given
    try:
        given.messages = await _rendered(call, partition.name.partition, deliveries)
    finally:
        if not given.messages or call.client_is_gone:
            given = _Received()
            await _give_back(partition, name, [one.ack_id for one in deliveries])
    return given


async def _give_back(partition: Partition, name: str, ack_ids: list[str]) -> None:
    """Nobody will ack these: somebody else gets them now, not after the ack timeout."""
    subscription = await partition.subscription(name)
    with contextlib.suppress(StaleLease):  # those whose lease is over are given back
        await subscription.acknowledge(nacks=[Nack(one) for one in ack_ids])


async def _receive_as_stored(
    call: Call,
    partition: Partition,
    name: str,
    consumer: str,
    most: int,
    wait_s: float,
    request: str,
) -> web.StreamResponse:
    """Record batches where they do; JSON where that is less, or nothing is there."""
    subscription = await partition.subscription(name)
    found = await subscription.receive_batches(
        consumer, messages_max=most, wait_s=wait_s, request=request
    )
    if not found:
        return _nothing(call, subscription.held_back())
    if not isinstance(found, LeasedBatches):
        return _deliver(call, await _given(call, partition, name, found))
    leased = found.leased
    if call.client_is_gone:
        ranges = [shown(leased.partition, *run[:2], leased.lease) for run in leased.runs]
        await _give_back(partition, name, ranges)
        return _nothing(call, None)
    call.services.metrics.messages_delivered.inc(found.given)
    body = b"".join(batch.data for batch in found.batches)
    return web.Response(body=body, content_type=RECORD_BATCH, headers=leased.headers())


async def _rendered(call: Call, number: int, deliveries: list[Delivery]) -> list[Raw]:
    turns = call.services.broker.open_batches.turns
    rendered: list[Raw] = []
    for delivery in deliveries:
        await turns.take(1)
        rendered.append(Raw(_delivery(number, delivery)))
    return rendered


def _delivery(number: int, delivery: Delivery) -> bytes:
    found = message_out(number, delivery.offset, delivery.message_id, delivery.record)
    found.ack_id = delivery.ack_id
    found.delivery_count = delivery.delivery_count
    return encode(found)


def _deliver(call: Call, received: _Received) -> web.StreamResponse:
    messages = received.messages
    if not messages:
        return _nothing(call, received.held_back)
    call.services.metrics.messages_delivered.inc(len(messages))
    if _text_type(call) == NDJSON:
        body = b"\n".join([bytes(message) for message in messages]) + b"\n"
        return web.Response(body=body, content_type=NDJSON)
    return web.Response(body=encode({"messages": messages}) + b"\n", content_type=JSON)


def _text_type(call: Call) -> str:
    """How messages are written one by one, also for who would rather have them as stored."""
    try:
        return answer_type(call, MESSAGE_TYPES)
    except Problem:
        return JSON  # the door saw that record batches are accepted, and nothing else is


def _nothing(call: Call, held_back: str | None) -> web.StreamResponse:
    """Nothing to receive; where messages are held back, the answer says why."""
    if held_back is None:
        return web.Response(status=204)
    headers = {HELD_BACK_HEADER: held_back}
    if _text_type(call) == NDJSON:
        return web.Response(status=204, headers=headers)
    return call.reply({"messages": [], "held_back": held_back}, headers=headers)


class _AckIdOnly(msgspec.Struct):
    ack_id: str


class _Gathering:
    """One receive from several partitions: fair shares, then whoever has something."""

    def __init__(
        self, call: Call, topic: TopicName, partitions: int, name: str, consumer: str
    ) -> None:
        self._call = call
        self._topic = topic
        self._name = name
        self._consumer = consumer
        turn = next(call.services.turn) % partitions
        self._order = [*range(turn, partitions), *range(turn)][:RECEIVE_PARTITIONS_MAX]
        self._partitions = partitions
        self._held_back: str | None = None
        """Why a partition that was asked last gives nothing, of those that say so."""

    async def receive(self, most: int, wait_s: float) -> _Received:
        """At most `most` messages; waits up to `wait_s` for the first."""
        found = await self._receive(most, wait_s)
        return _Received(found, self._held_back)

    async def _receive(self, most: int, wait_s: float) -> list[Raw]:
        count = len(self._order)
        if most < count:
            found = await self._one_after_the_other(self._order, most)
        else:
            shares = {
                number: most // count + (1 if place < most % count else 0)
                for place, number in enumerate(self._order)
            }
            found, full = await self._ask_all(shares)
            # What others left goes to those that have more.
            found += await self._one_after_the_other(full, most - len(found))
        if not found and wait_s:
            return await self._first(most, wait_s)
        return found

    async def _one_after_the_other(self, numbers: Sequence[int], most: int) -> list[Raw]:
        found: list[Raw] = []
        failure: Exception | None = None
        for number in numbers:
            if len(found) >= most:
                break
            try:
                found += await self._ask(number, most - len(found), 0)
            except Exception as error:
                failure = error
        if not found and failure is not None and len(numbers) == len(self._order):
            raise failure
        return found

    async def _ask_all(self, shares: dict[int, int]) -> tuple[list[Raw], list[int]]:
        """What came, and which partitions gave their whole share."""
        answers = await asyncio.gather(
            *(self._ask(number, share, 0) for number, share in shares.items()),
            return_exceptions=True,
        )
        found: list[Raw] = []
        full: list[int] = []
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failures) == len(answers):
            raise failures[0]
        # A partition that moves must not keep back what the others have.
        for (number, share), answer in zip(shares.items(), answers, strict=True):
            if not isinstance(answer, BaseException):
                found += answer
                if len(answer) == share:
                    full.append(number)
        return found, full

    async def _first(self, most: int, wait_s: float) -> list[Raw]:
        """Wait at all partitions at once; the first that has something ends the wait."""
        share = max(1, most // len(self._order))
        tasks = [asyncio.ensure_future(self._ask(n, share, wait_s)) for n in self._order]
        try:
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if _results(done):
                    break
            if waiting:
                await asyncio.wait(waiting, timeout=GRACE_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found = _results(tasks)
        if not found and all(not task.cancelled() and task.exception() for task in tasks):
            tasks[0].result()
        if len(found) > most:
            await self._give_back(found[most:])
        return found[:most]

    async def _give_back(self, surplus: list[Raw]) -> None:
        """More came at once than was asked for: others may have it without waiting."""
        shares = _by_partition(
            AckBody(nack=[msgspec.json.decode(raw, type=_AckIdOnly).ack_id for raw in surplus]),
            self._partitions,
        )
        for number, share in shares.items():
            await _apply(self._call, self._topic, number, self._name, share)

    async def _ask(self, number: int, most: int, wait_s: float) -> list[Raw]:
        async def here(partition: Partition) -> _Received:
            return await _receive_here(
                self._call, partition, self._name, self._consumer, most, wait_s
            )

        found: _Received = await ask_partition(
            self._call,
            self._topic.partition(number),
            here,
            "POST",
            f"/subscriptions/{self._name}/receive?max={most}&wait={wait_s:.3f}"
            f"&consumer={quote(self._consumer, safe='')}",
            wait_s=wait_s,
            kind=_Received,
        )
        self._held_back = found.held_back or self._held_back
        return found.messages


def _results(tasks: Iterable[asyncio.Task[list[Raw]]]) -> list[Raw]:
    return [
        raw
        for task in tasks
        if task.done() and not task.cancelled() and task.exception() is None
        for raw in task.result()
    ]


# ---- acknowledge


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    """One message to give back."""

    ack_id: str
    delay: Annotated[int | float | str, Meta(description=TIME)] = 0


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """What an ack call carries."""

    ack_ids: list[str] = []
    up_to: Annotated[
        int | str | None,
        Meta(description="an offset or message id: it and all before it (exclusive only)"),
    ] = None
    nack: list[NackBody | str] = []
    extend: list[str] = []


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
    shares = _by_partition(body, partitions)
    if partition is not None:
        number = partition.partition
        foreign = [other for other in shares if other != number]
        if foreign:
            raise Problem(
                422, "foreign-ack-id", f"an ack id is of partition {foreign[0]}, not of {number}"
            )
        share = shares.get(number, _Share())

        async def here(open_here: Partition) -> web.StreamResponse:
            return call.reply(await share.apply(open_here, name, up_to))

        return await at_owner(call, partition, here)
    return await _acknowledge_all(call, topic, name, shares)


async def _acknowledge_all(
    call: Call, topic: TopicName, name: str, shares: dict[int, _Share]
) -> web.StreamResponse:
    answers = await ask_all(
        [_apply(call, topic, number, name, share) for number, share in shares.items()]
    )
    acked = sum(answer["acked"] for answer in answers if isinstance(answer, dict))
    problems = [problem_of(answer) for answer in answers if isinstance(answer, BaseException)]
    if not problems:
        return call.reply(Acked(acked))
    worst = max(problems, key=lambda problem: problem.status)
    worst.extra["acked"] = acked + sum(one.extra.get("acked", 0) for one in problems)
    stale = [ack_id for problem in problems for ack_id in problem.extra.get("stale", ())]
    if stale:
        worst.extra["stale"] = stale
    raise worst


async def _apply(
    call: Call, topic: TopicName, number: int, name: str, share: _Share
) -> dict[str, Any]:
    """One partition's share of an ack call, at its owner."""
    found: dict[str, Any] = await ask_partition(
        call,
        topic.partition(number),
        lambda partition: share.apply(partition, name, None),
        "POST",
        f"/subscriptions/{name}/ack",
        body=share.body(),
    )
    return found


class _Share:
    """The part of an ack call that concerns one partition."""

    __slots__ = ("ack_ids", "extend", "nacks")

    def __init__(self) -> None:
        self.ack_ids: list[str] = []
        self.nacks: list[Nack] = []
        self.extend: list[str] = []

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
        )
        return {"acked": acked}

    def body(self) -> dict[str, Any]:
        """The same as JSON, for another broker."""
        return {
            "ack_ids": self.ack_ids,
            "nack": [{"ack_id": one.ack_id, "delay": one.delay_ms / 1000} for one in self.nacks],
            "extend": self.extend,
        }


def _by_partition(body: AckBody, partitions: int) -> dict[int, _Share]:
    shares: dict[int, _Share] = defaultdict(_Share)
    room = ACK_IDS_MAX

    def share(ack_id: str) -> _Share:
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
        delay_ms = time_ms("delay", one.delay)
        if delay_ms > NACK_DELAY_MS_MAX:
            raise Problem(422, "invalid-settings", "a nack's delay is at most 24 hours")
        share(one.ack_id).nacks.append(Nack(one.ack_id, delay_ms))
    for ack_id in body.extend:
        share(ack_id).extend.append(ack_id)
    return shares


def _up_to(value: int | str) -> Position:
    if isinstance(value, int):
        if 0 <= value <= OFFSET_MAX:
            return value
    elif value.count(":") == 2:
        return MessageId.parse(value)
    elif value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= OFFSET_MAX:
        return int(value)
    raise Problem(
        422, "invalid-up-to", f"up_to is {value!r:.60}; it must be an offset or a message id"
    )
