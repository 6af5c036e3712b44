"""Receive from a subscription; acknowledge messages, give them back, or extend their leases.

A receive on a topic asks all partitions for shares, and waits for the first messages. Messages that
could not be delivered are given back at once; else leases end by ack, nack or time. An ack id names
partition and lease, so an ack on a topic is split among the owners, and answered when all is
durable.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Annotated, ClassVar, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from octavo.broker.http.api.answers import Acked
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.api.read import ANSWER_TYPES, answer_type
from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import JSON, NDJSON, OFFSET_MAX, RECORD_BATCH, Call, bad_parameter
from octavo.broker.http.forwarding import ask_all, operate, redirected, topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.log.open_batches import Turns
from octavo.broker.operations.kinds import Leases, Position, Receive, Settle, Settled
from octavo.broker.types import (
    PRIORITY_MAX,
    AckRange,
    Delivery,
    MessageId,
    Nack,
    PartitionName,
    TopicName,
)
from octavo.protocol.codes import OctavoError
from octavo.protocol.json_message import has_more_parts
from octavo.protocol.numbers import whole

ACK_IDS_MAX = 100_000
ACK_BYTES_MAX = 8 * 1024 * 1024
"""Room for 100,000 nacks, each with its delay."""
ACK_PARTS_MAX = 3 * ACK_IDS_MAX + 100
"""Commas, brackets and braces in a body: a nack with its delay has three."""
_RECORDS_OF_A_PROBLEM = 3
NACK_DELAY_MS_MAX = 24 * 3_600_000


class NackBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message to give back."""

    ack_id: str
    delay: Annotated[
        int | float | str | None,
        Meta(description=TIME + "; without it the subscription's retry_backoff, or none"),
    ] = None


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an ack call."""

    schema_name: ClassVar = "Ack"

    ack_ids: list[str] = []
    up_to: Annotated[
        int | str | None,
        Meta(description="ack all messages up to this offset or message id (exclusive only)"),
    ] = None
    nack: list[NackBody | str] = []
    extend: list[str] = []
    release: Annotated[
        list[str],
        Meta(description="unseen messages: deliver them again, without counting the delivery"),
    ] = []


async def acknowledge(call: Call) -> web.StreamResponse:
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
                422, "foreign-ack-id", f"an ack id is for partition {foreign[0]}, not {number}"
            )
        if (elsewhere := await redirected(call, partition)) is not None:
            return elsewhere
        share = shares.get(number, Share())
        settled = await operate(call, share.operation(partition, name, up_to), Settled)
        return call.reply(Acked(_acked(settled)))
    return call.reply(Acked(await apply_all(call, topic, name, shares)))


def _acked(settled: Settled) -> int:
    """Raise the error of the refused part, if any."""
    if (problem := settled.problem) is not None:
        raise problem
    return settled.acked


async def apply_all(call: Call, topic: TopicName, name: str, shares: dict[int, Share]) -> int:
    """Apply all shares; return their number, or raise the worst problem, with it."""
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
    """Give messages back on the broker's own behalf: the caller may have lost the right."""
    operation = Settle(partition, name, [], [*nacks], [], [*release], [*unread])
    await operate(call, operation, Settled, is_part=True, identity=call.services.own_identity)


class Share:
    __slots__ = ("ack_ids", "extend", "nacks", "release")

    def __init__(self) -> None:
        self.ack_ids: list[str] = []
        self.nacks: list[Nack] = []
        self.extend: list[str] = []
        self.release: list[str] = []

    def operation(
        self, partition: PartitionName, name: str, up_to: Position | None = None
    ) -> Settle:
        assert up_to is None or isinstance(up_to, int | MessageId)
        place = list(up_to) if isinstance(up_to, MessageId) else up_to
        return Settle(
            partition, name, self.ack_ids, self.nacks, self.extend, self.release, [], place
        )


async def by_partition(body: AckBody, partitions: int, turns: Turns) -> dict[int, Share]:
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
                f"ack id {ack_id[:60]!r} is for partition {number}; the topic has {partitions}",
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


CONSUMER_CHARS_MAX = 249
REQUEST_CHARS_MAX = 64
LAST_GENERATION = 2**53
CREDITS_MAX = 10_000
DEFAULT_CONSUMER = "default"
MESSAGE_TYPES = (JSON, NDJSON)
HELD_BACK_HEADER = "Octavo-Held-Back"
RECEIVE_PARTITIONS_MAX = 128
GRACE_S = 0.005
"""How long other partitions are awaited after the first messages."""
GIVE_BACK_S = 2.0
"""How long a call gives leases back at its end; leases also end by themselves."""
ASK_AGAIN_S = 1.0
"""How long a receive waits for leases that its cancelled waits may have made."""


async def receive(call: Call) -> web.StreamResponse:
    name = call.subscription
    topic = call.topic
    config = call.services.config
    most = call.integer("max", config.read_messages, 1, config.read_messages_max)
    wait_s = call.duration_ms("wait", 0, config.wait_ms_max) / 1000
    answer_type(call, ANSWER_TYPES)  # refuse before anything is leased
    consumer = consumer_in(call, DEFAULT_CONSUMER)
    request = call.text("request")
    if len(request) > REQUEST_CHARS_MAX or not request.isprintable():
        raise bad_parameter("request", request, f"at most {REQUEST_CHARS_MAX} printable characters")
    partition = call.partition
    asked = Receive(
        partition or topic.partition(0),
        name,
        consumer,
        most,
        round(wait_s * 1000),
        request,
        _credits(call),
        generation_in(call),
        priority_in(call),
        answer_type(call, ANSWER_TYPES) == RECORD_BATCH,
    )
    if partition is None:
        partitions = (await topic_of(call)).settings.partitions
        if partitions > 1:
            answer_type(call, MESSAGE_TYPES)  # a batch is from a single partition
            return _deliver(call, await _Gathering(call, partitions, asked).receive())
        partition = asked.name
    if (elsewhere := await redirected(call, partition)) is not None:
        return elsewhere
    async with HeldLeases(call, asked) as held:
        leases = await held.leases()
        if leases.leased is None:
            return _deliver(call, await held.shown(leases))
        call.messages += leases.count
        return web.Response(
            body=b"".join(leases.batches),
            content_type=RECORD_BATCH,
            headers=leases.leased.headers(),
        )


def consumer_in(call: Call, default: str) -> str:
    consumer = call.text("consumer", default)
    if not 1 <= len(consumer) <= CONSUMER_CHARS_MAX or not consumer.isprintable():
        raise bad_parameter("consumer", consumer, f"1 to {CONSUMER_CHARS_MAX} printable characters")
    return consumer


def generation_in(call: Call) -> int | None:
    if "generation" not in call.query:
        return None
    if call.partition is None:
        raise Problem(
            422,
            "partition-required",
            "a member of a consumer group receives from the partitions that it has, each by its "
            "own path: …/partitions/0/subscriptions/…",
        )
    return call.integer("generation", 0, 0, LAST_GENERATION)


def priority_in(call: Call) -> int:
    return call.integer("priority", 0, 0, PRIORITY_MAX)


def _credits(call: Call) -> int | None:
    return call.integer("credits", 0, 1, CREDITS_MAX) or None


class Received(NamedTuple):
    messages: list[Raw]
    held_back: str | None = None


class HeldLeases:
    """Holds a call's leases until its client has the messages.

    If the block raises, or the client is gone, other consumers get the messages at once.
    """

    def __init__(self, call: Call, asked: Receive, *, is_part: bool = False) -> None:
        self._call = call
        self._asked = asked
        self._is_part = is_part
        self._ack_ids: list[str] = []

    async def leases(self) -> Leases:
        call, asked = self._call, self._asked
        leases = await operate(call, asked, Leases, is_part=self._is_part)
        self._ack_ids = leases.ack_ids
        return leases

    async def shown(self, leases: Leases) -> Received:
        number = self._asked.name.partition
        return Received(await rendered(self._call, number, leases), leases.held_back)

    async def __aenter__(self) -> HeldLeases:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ack_ids and (error is not None or self._call.client_is_gone):
            asked = self._asked
            with suppress(OctavoError, TimeoutError):  # the leases end by themselves
                async with asyncio.timeout(GIVE_BACK_S):
                    await give_back(
                        self._call, asked.name, asked.subscription, unread=self._ack_ids
                    )


async def rendered(call: Call, number: int, leases: Leases) -> list[Raw]:
    turns = call.services.broker.open_batches.turns
    found: list[Raw] = []
    for delivery in leases.deliveries:
        await turns.take(1)
        found.append(Raw(_delivery(number, delivery)))
    return found


def _delivery(number: int, delivery: Delivery) -> bytes:
    found = message_out(number, delivery.offset, delivery.message_id, delivery.record)
    found.ack_id = delivery.ack_id
    found.delivery_count = delivery.delivery_count
    return encode(found)


def _deliver(call: Call, received: Received) -> web.StreamResponse:
    messages = received.messages
    if not messages:
        return _nothing(call, received.held_back)
    call.messages += len(messages)
    if _text_type(call) == NDJSON:
        body = b"\n".join([bytes(message) for message in messages]) + b"\n"
        return web.Response(body=body, content_type=NDJSON)
    return web.Response(body=encode({"messages": messages}) + b"\n", content_type=JSON)


def _text_type(call: Call) -> str:
    try:
        return answer_type(call, MESSAGE_TYPES)
    except Problem:
        return JSON  # the caller accepts only record batches


def _nothing(call: Call, held_back: str | None) -> web.StreamResponse:
    if held_back is None:
        return web.Response(status=204)
    headers = {HELD_BACK_HEADER: held_back}
    if _text_type(call) == NDJSON:
        return web.Response(status=204, headers=headers)
    return call.reply({"messages": [], "held_back": held_back}, headers=headers)


class _AckIdOnly(msgspec.Struct):
    ack_id: str


def ack_ids_in(messages: Iterable[Raw]) -> list[str]:
    return [msgspec.json.decode(raw, type=_AckIdOnly).ack_id for raw in messages]


class _Gathering:
    """Receives fair shares first, then from partitions that have more."""

    def __init__(self, call: Call, partitions: int, asked: Receive) -> None:
        self._call = call
        self._asked = asked
        self._wait_s = asked.wait_ms / 1000
        turn = next(call.services.turn)
        self._request = f"{call.services.run_id}.{turn}"
        """Request id at each partition, unique among all brokers' calls."""
        turn %= partitions
        self._order = [*range(turn, partitions), *range(turn)][:RECEIVE_PARTITIONS_MAX]
        self._held_back: str | None = None
        self._given: dict[int, list[str]] = {}

    async def receive(self) -> Received:
        has_caller = False
        try:
            found = await self._receive(self._asked.most, self._wait_s)
            has_caller = not self._call.client_is_gone
        finally:
            if not has_caller:
                await self._give_all_back()
        return Received(found, self._held_back)

    async def _give_all_back(self) -> None:
        sub, topic = self._asked.subscription, self._call.topic
        asks = [
            give_back(self._call, topic.partition(number), sub, unread=ack_ids)
            for number, ack_ids in self._given.items()
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await asyncio.gather(*asks, return_exceptions=True)

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
        answers = await ask_all([self._ask(number, share, 0) for number, share in shares.items()])
        found: list[Raw] = []
        full: list[int] = []
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failures) == len(answers):
            raise failures[0]
        for (number, share), answer in zip(shares.items(), answers, strict=True):
            if not isinstance(answer, BaseException):
                found += answer
                if len(answer) == share:
                    full.append(number)
        return found, full

    async def _first(self, most: int, wait_s: float) -> list[Raw]:
        share = max(1, most // len(self._order))
        tasks = [
            asyncio.ensure_future(self._ask(number, share, wait_s, self._request))
            for number in self._order
        ]
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
        if found:
            found += await self._ask_again([task.cancelled() for task in tasks], share)
        if not found and all(not task.cancelled() and task.exception() for task in tasks):
            tasks[0].result()
        if len(found) > most:
            await self._give_back(found[most:])
        return found[:most]

    async def _ask_again(self, cut_off: list[bool], share: int) -> list[Raw]:
        """Ask again for messages that cancelled waits may have leased.

        The request id is the same, so the partitions return them, or other messages.
        """
        asks = [
            asyncio.ensure_future(self._ask(number, share, 0, self._request))
            for number, is_cut in zip(self._order, cut_off, strict=True)
            if is_cut
        ]
        if not asks:
            return []
        await asyncio.wait(asks, timeout=ASK_AGAIN_S)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        return _results(asks)

    async def _give_back(self, surplus: list[Raw]) -> None:
        shares: dict[int, list[str]] = defaultdict(list)
        for ack_id in ack_ids_in(surplus):
            shares[AckRange.parse(ack_id).partition].append(ack_id)
        sub, topic = self._asked.subscription, self._call.topic
        for number, ack_ids in shares.items():
            await give_back(self._call, topic.partition(number), sub, release=ack_ids)

    async def _ask(self, number: int, most: int, wait_s: float, request: str = "") -> list[Raw]:
        asked = msgspec.structs.replace(
            self._asked,
            name=self._call.topic.partition(number),
            most=most,
            wait_ms=round(wait_s * 1000),
            request=request,
            as_stored=False,
        )
        async with HeldLeases(self._call, asked, is_part=True) as held:
            leases = await held.leases()
            found = await held.shown(leases)
        self._given.setdefault(number, []).extend(leases.ack_ids)
        self._held_back = found.held_back or self._held_back
        return found.messages


def _results(tasks: Iterable[asyncio.Task[list[Raw]]]) -> list[Raw]:
    return [
        raw
        for task in tasks
        if task.done() and not task.cancelled() and task.exception() is None
        for raw in task.result()
    ]
