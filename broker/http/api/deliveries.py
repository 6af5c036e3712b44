"""Receive from a subscription.

A call on a topic goes to all its partitions: receive asks each for its share and, when none has
anything, waits for the first that does.
Receiving needs no session: a lease ends by ack, by nack or by time, at whichever broker. What could
not be handed over, because the caller left or asked for less, is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import Raw

from octavo.broker.errors import StaleLease
from octavo.broker.http.api.acks import AckBody, by_partition, give_back
from octavo.broker.http.api.payloads import encode, message_out
from octavo.broker.http.api.read import ANSWER_TYPES, answer_type
from octavo.broker.http.call import JSON, NDJSON, RECORD_BATCH, Call, bad_parameter
from octavo.broker.http.forwarding import ask_all, ask_partition, at_owner, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition
from octavo.broker.subscriptions.subscription import LeasedBatches
from octavo.broker.types import PRIORITY_MAX, Delivery, TopicName
from octavo.protocol.ack_ids import shown
from octavo.protocol.leased import Leased

Given = TypeVar("Given")

CONSUMER_CHARS_MAX = 249
REQUEST_CHARS_MAX = 64
LAST_GENERATION = 2**53
CREDITS_MAX = 10_000
DEFAULT_CONSUMER = "default"
MESSAGE_TYPES = (JSON, NDJSON)
HELD_BACK_HEADER = "Octavo-Held-Back"
RECEIVE_PARTITIONS_MAX = 128
"""One receive looks at so many partitions of a topic at most, beginning elsewhere each time."""
GRACE_S = 0.005
"""When one partition has messages, others that have some too get this long to join in."""
ASK_AGAIN_S = 1.0
"""So long a receive that has something waits for what another broker may have leased to it."""


# ---- receive


async def receive(call: Call) -> web.StreamResponse:
    """`POST …/subscriptions/{subscription}/receive`."""
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
    asked = Receive(
        name, consumer, most, wait_s, request, _credits(call), generation_in(call),
        priority_in(call),
    )  # fmt: skip
    partition = call.partition
    partitions = 1
    if partition is None:
        partitions = (await topic_of(call)).settings.partitions
        if partitions == 1:
            partition = topic.partition(0)
    if partition is not None:
        as_stored = answer_type(call, ANSWER_TYPES) == RECORD_BATCH

        async def here(open_here: Partition) -> web.StreamResponse:
            if not as_stored:
                return _deliver(call, await receive_here(call, open_here, asked))
            found = await receive_as_stored(call, open_here, asked)
            if not isinstance(found, LeasedBatches):
                return _deliver(call, found)
            call.services.metrics.messages_delivered.inc(found.given)
            call.messages += found.given
            body = b"".join([batch.data for batch in found.batches])
            return web.Response(
                body=body, content_type=RECORD_BATCH, headers=found.leased.headers()
            )

        return await at_owner(call, partition, here)
    answer_type(call, MESSAGE_TYPES)  # batches are of one partition
    return _deliver(call, await _Gathering(call, topic, partitions, asked).receive())


def consumer_in(call: Call, default: str) -> str:
    """Who asks. Raises a 400."""
    consumer = call.text("consumer", default)
    if not 1 <= len(consumer) <= CONSUMER_CHARS_MAX or not consumer.isprintable():
        raise bad_parameter("consumer", consumer, f"1 to {CONSUMER_CHARS_MAX} printable characters")
    return consumer


def generation_in(call: Call) -> int | None:
    """Of the consumer group that has given its member this partition. Raises a 400, a 422."""
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
    """Of the consumer that asks: 0 is served first. Raises a 400."""
    return call.integer("priority", 0, 0, PRIORITY_MAX)


def _credits(call: Call) -> int | None:
    """How many messages of each partition may be out at the consumer; None: as many as may be."""
    return call.integer("credits", 0, 1, CREDITS_MAX) or None


class Receive(NamedTuple):
    """What one partition, or each of a topic, is asked for."""

    subscription: str
    consumer: str
    most: int
    """Messages."""
    wait_s: float = 0.0
    request: str = ""
    out_max: int | None = None
    """Messages of the partition that may be out at this consumer, unacked."""
    generation: int | None = None
    """Of the consumer group whose member asks."""
    priority: int = 0

    async def of(self, receive: Callable[..., Awaitable[Given]]) -> Given:
        """What `receive` of the open subscription, in either form, gives."""
        return await receive(
            self.consumer,
            messages_max=self.most,
            wait_s=self.wait_s,
            request=self.request,
            out_max=self.out_max,
            generation=self.generation,
            priority=self.priority,
        )

    def path(self) -> str:
        """The same as a call, behind the name of a partition."""
        path = (
            f"/subscriptions/{self.subscription}/receive?max={self.most}&wait={self.wait_s:.3f}"
            f"&consumer={quote(self.consumer, safe='')}"
        )
        if self.request:
            path += f"&request={quote(self.request, safe='')}"
        if self.generation is not None:
            path += f"&generation={self.generation}"
        if self.priority:
            path += f"&priority={self.priority}"
        return path if self.out_max is None else f"{path}&credits={self.out_max}"


class Received(msgspec.Struct):
    """What one partition gives, and why it gives nothing though it has messages."""

    messages: list[Raw] = []
    held_back: str | None = None


async def receive_here(call: Call, partition: Partition, asked: Receive) -> Received:
    """Messages one by one, of a partition that is served here."""
    call.services.quotas.may_read(partition.name.topic_name)
    subscription = await partition.subscription(asked.subscription)
    deliveries = await asked.of(subscription.receive)
    return await _given(call, partition, asked, deliveries)


async def receive_as_stored(
    call: Call, partition: Partition, asked: Receive
) -> LeasedBatches | Received:
    """Record batches where they do; one by one where that is less, or nothing is there."""
    call.services.quotas.may_read(partition.name.topic_name)
    subscription = await partition.subscription(asked.subscription)
    found = await asked.of(subscription.receive_batches)
    if not isinstance(found, LeasedBatches):
        return await _given(call, partition, asked, found)
    if call.client_is_gone:
        await _give_back(partition, asked.subscription, ids_of(found.leased))
        return Received()
    call.services.quotas.given(partition.name.topic_name, found.batches, found.given)
    return found


def ids_of(leased: Leased) -> list[str]:
    """Ack ids, ranges of all that is leased."""
    return [shown(leased.partition, run.start, run.end, leased.lease) for run in leased.runs]


async def _given(
    call: Call, partition: Partition, asked: Receive, deliveries: list[Delivery]
) -> Received:
    name = asked.subscription
    if not deliveries:
        return Received(held_back=(await partition.subscription(name)).held_back(asked.consumer))
    given = Received()
    try:
        given.messages = await _rendered(call, partition.name.partition, deliveries)
    finally:
        if not given.messages or call.client_is_gone:
            given = Received()
            await _give_back(partition, name, [one.ack_id for one in deliveries])
    call.services.quotas.given(partition.name.topic_name, given.messages, len(given.messages))
    return given


async def _give_back(partition: Partition, name: str, ack_ids: list[str]) -> None:
    """Nobody will ack these: somebody else gets them now, not after the ack timeout."""
    subscription = await partition.subscription(name)
    with contextlib.suppress(StaleLease):  # those whose lease is over are given back
        await subscription.take_back(ack_ids)


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


def _deliver(call: Call, received: Received) -> web.StreamResponse:
    messages = received.messages
    if not messages:
        return _nothing(call, received.held_back)
    call.services.metrics.messages_delivered.inc(len(messages))
    call.messages += len(messages)
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


def ack_ids_in(messages: Iterable[Raw]) -> list[str]:
    """Those of messages as they are answered."""
    return [msgspec.json.decode(raw, type=_AckIdOnly).ack_id for raw in messages]


class _Gathering:
    """One receive from several partitions: fair shares, then whoever has something."""

    def __init__(self, call: Call, topic: TopicName, partitions: int, asked: Receive) -> None:
        self._call = call
        self._topic = topic
        self._asked = asked._replace(request="", wait_s=0.0)
        self._wait_s = asked.wait_s
        turn = next(call.services.turn)
        self._request = f"{call.services.proof.run}.{turn}"
        """Of the waits of this call, at each partition: no other call of any broker has it."""
        turn %= partitions
        self._order = [*range(turn, partitions), *range(turn)][:RECEIVE_PARTITIONS_MAX]
        self._partitions = partitions
        self._held_back: str | None = None
        """Why a partition that was asked last gives nothing, of those that say so."""

    async def receive(self) -> Received:
        """What was asked for; waits for the first message."""
        found = await self._receive(self._asked.most, self._wait_s)
        return Received(found, self._held_back)

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
        answers = await ask_all([self._ask(number, share, 0) for number, share in shares.items()])
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
        """What the waits that were broken off have got: other brokers may have answered them.

        Asked for under the same request, so they give what they gave, or what is there now.
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
        """More came at once than was asked for: others may have it without waiting."""
        body = AckBody(release=[*ack_ids_in(surplus)])
        turns = self._call.services.broker.open_batches.turns
        for number, share in (await by_partition(body, self._partitions, turns)).items():
            await give_back(self._call, self._topic, number, self._asked.subscription, share)

    async def _ask(self, number: int, most: int, wait_s: float, request: str = "") -> list[Raw]:
        asked = self._asked._replace(most=most, wait_s=wait_s, request=request)
        found: Received = await ask_partition(
            self._call,
            self._topic.partition(number),
            lambda partition: receive_here(self._call, partition, asked),
            "POST",
            asked.path(),
            wait_s=wait_s,
            kind=Received,
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
