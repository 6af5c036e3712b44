"""A consumer of several topics, by name or by pattern, alone or as a member of a group.

In a group, a broker assigns the partitions (`/v1/groups/…`), and each partition's owner fences a
member that has lost it.
"""

from __future__ import annotations

import asyncio
import contextlib
import reprlib
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote

from msgspec.structs import force_setattr

from octavo.client.deliveries import DeliveryLoop
from octavo.client.errors import (
    ApiError,
    ClientError,
    Conflict,
    InvalidCall,
    NotFound,
    TopicReplaced,
)
from octavo.client.merging import Merged
from octavo.client.of_this_process import OfThisProcess
from octavo.client.subscription import HAND_MAX, Subscription
from octavo.client.topic_list import list_topics
from octavo.client.transport import Transport
from octavo.client.types import Delivery, SubscriptionType, listed, whole_number
from octavo.protocol.topic_patterns import InvalidPattern, TopicPattern

REFRESH_S = 5.0
"""Seconds between two looks for new topics."""
SESSION_S = 30.0
BEATS = 3
"""Heartbeats in a session timeout."""
GROUP_AGAIN_S = 0.05
"""How long a member waits after the loss of a partition before it asks the group again."""
Handover = Delivery | Iterable[Delivery]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    topics: tuple[TopicPattern, ...]
    subscription: str
    consumer: str
    type: SubscriptionType
    start: Literal["earliest", "latest"]
    ack_timeout_s: float | None
    group: bool
    session_timeout_s: float
    refresh_s: float


class Cluster(Protocol):
    loops: dict[DeliveryLoop, None]
    transport: Transport

    async def subscribe(
        self,
        topic: str,
        name: str,
        *,
        type: SubscriptionType = ...,  # noqa: A002
        start: Literal["earliest", "latest"] = ...,
        ack_timeout_s: float | None = ...,
        consumer: str | None = ...,
    ) -> Subscription: ...

    def subscription(
        self, topic: str, name: str, *, consumer: str | None = ...
    ) -> Subscription: ...


def patterns_of(topics: str | Sequence[str], *, group: bool) -> tuple[TopicPattern, ...]:
    try:
        given = [topics] if isinstance(topics, str) else listed(topics, "topics")
        for one in given:
            if not isinstance(one, str):
                raise InvalidCall(
                    f"a topic's name must be text such as 'orders-*', not {reprlib.repr(one)}"
                )
        found = tuple(TopicPattern.parse(one) for one in given)
    except InvalidPattern as error:
        raise InvalidCall(str(error)) from None
    if not found:
        raise InvalidCall("no topics given; for example ['orders', 'payments'], or 'orders-*'")
    if group and len({one.namespace for one in found}) > 1:
        raise InvalidCall("the topics of a consumer group must be in the same namespace")
    return found


class TopicsConsumer(OfThisProcess):
    """Receives the messages of several topics; made by `AsyncClient.consume`."""

    def __init__(self, client: Cluster, options: ConsumerOptions) -> None:
        self.options = options
        self._client = client
        self._subscriptions: dict[str, Subscription] = {}
        self._generation = 0
        self._lost = asyncio.Event()
        self._merged: Merged | None = None

    def __repr__(self) -> str:
        told = self.options
        topics = ", ".join(str(one) for one in told.topics)
        return f"TopicsConsumer({topics}, {told.subscription}, consumer {told.consumer})"

    @property
    def has(self) -> list[str]:
        """List the topics (`namespace/topic`) that it receives from; in a group, the partitions."""
        keys = [] if self._merged is None else self._merged.keys
        return sorted(str(one) for one in keys)

    async def deliveries(
        self, *, auto_ack: bool = True, batch: int = HAND_MAX, idle_s: float | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Yield messages of all topics, each with its `topic`; see `Subscription.deliveries`.

        Only messages of the same partition are in order. A group member that loses a partition
        loses its unacked messages there: the next member gets them, and an ack here fails
        (`stale-lease`). Only one loop at a time. Raises `NotFound` for a named topic that does not
        exist at the beginning.
        """
        async with self.opened(auto_ack=auto_ack, batch=batch) as merged:
            async for hand in merged.hands(idle_s):
                for delivery in hand:
                    yield delivery
                    await merged.between()

    async def ack(self, *handed: Handover) -> None:
        """Ack these deliveries; see `Subscription.ack`."""
        for of, deliveries in self._by_topic(handed):
            await of.ack(deliveries)

    async def nack(self, *handed: Handover, delay_s: float = 0.0) -> None:
        """Give deliveries back, to be delivered again; see `Subscription.nack`."""
        for of, deliveries in self._by_topic(handed):
            await of.nack(deliveries, delay_s=delay_s)

    async def extend(self, *handed: Handover) -> None:
        """Restart the leases of deliveries; see `Subscription.extend`."""
        for of, deliveries in self._by_topic(handed):
            await of.extend(deliveries)

    @asynccontextmanager
    async def opened(self, *, auto_ack: bool, batch: int) -> AsyncIterator[Merged]:
        if self._merged is not None:
            raise InvalidCall("this consumer already has a loop: make another consumer")
        whole_number(batch, "batch", 1)
        merged = Merged(self._client.loops, self._on_lost, auto_ack=auto_ack, batch=batch)
        self._merged = merged
        following: asyncio.Task[None] | None = None
        try:
            if self.options.group:
                await self._beat(merged, wait_s=0.0)
                following = asyncio.create_task(self._be_member(merged), name="consumer group")
            else:
                await self._look(merged, at_first=True)
                following = asyncio.create_task(self._follow(merged), name="topics of a consumer")
            yield merged
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            self._merged = None
            try:
                await merged.close()
            finally:
                if self.options.group:
                    await self._leave()

    def _by_topic(self, handed: Iterable[Handover]) -> list[tuple[Subscription, list[Delivery]]]:
        found: dict[str, list[Delivery]] = defaultdict(list)
        for one in handed:
            for delivery in (one,) if isinstance(one, Delivery) else listed(one, "handed"):
                if not isinstance(delivery, Delivery):
                    raise InvalidCall(
                        f"handed must be deliveries of this consumer, not {delivery!r:.60}"
                    )
                if delivery.topic not in self._subscriptions:
                    raise InvalidCall(f"this consumer did not get this delivery: {delivery.ack_id}")
                found[delivery.topic].append(delivery)
        return [(self._subscriptions[topic], some) for topic, some in found.items()]

    def _on_lost(self, key: Hashable, error: Exception) -> bool:
        is_moved = isinstance(error, ApiError) and error.code == "stale-generation"
        if is_moved and isinstance(error, ApiError):
            self._generation = max(self._generation, int(error.problem.get("generation", 0)))
        is_gone = isinstance(error, NotFound) or (
            isinstance(error, Conflict) and error.code == "topic-replaced"
        )
        if is_gone:
            self._subscriptions.pop(_topic_of(key), None)
        if is_moved or is_gone:
            self._lost.set()
        return is_moved or is_gone

    async def _subscription(self, topic: str) -> Subscription:
        found = self._subscriptions.get(topic)
        if found is not None:
            return found
        options, client = self.options, self._client
        name, consumer = options.subscription, options.consumer
        try:
            found = await client.subscribe(
                topic, name, type=options.type, start=options.start,
                ack_timeout_s=options.ack_timeout_s, consumer=consumer,
            )  # fmt: skip
        except Conflict as error:
            if error.code != "settings-conflict":
                raise
            found = client.subscription(topic, name, consumer=consumer)
        return self._subscriptions.setdefault(topic, found)

    # ---- alone

    async def _follow(self, merged: Merged) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.refresh_s):
                    await self._lost.wait()
                    self._lost.clear()
                    await asyncio.sleep(GROUP_AGAIN_S)
            try:
                await self._look(merged, at_first=False)
            except Exception as error:
                merged.fail(error)
                return

    async def _look(self, merged: Merged, *, at_first: bool) -> None:
        wanted: dict[str, bool] = {}
        for pattern in tuple(self.options.topics):
            if not pattern.is_wild:
                wanted[str(pattern)] = True
                continue
            listed = await list_topics(self._client.transport, pattern.namespace, with_letters=True)
            for topic in listed.names:
                if pattern.matches(topic, has_letters=topic in listed.letters):
                    wanted.setdefault(f"{pattern.namespace}/{topic}", False)
        for key in merged.keys:
            if key not in wanted:
                self._subscriptions.pop(str(key), None)
                await merged.remove(key, 0.0)
        there = set(merged.keys)
        for topic, is_named in wanted.items():
            if topic in there:
                continue
            try:
                of = await self._subscription(topic)
                merged.add(topic, _OfTopic(of, topic), await of.lease_s())
            except NotFound:
                if at_first and is_named:
                    raise
            except TopicReplaced:  # the next look joins the new topic
                self._subscriptions.pop(topic, None)

    # ---- in a group

    async def _be_member(self, merged: Merged) -> None:
        wait_s = self.options.session_timeout_s / BEATS
        try:
            while True:
                beat = asyncio.ensure_future(self._beat(merged, wait_s=wait_s))
                lost = asyncio.ensure_future(self._lost.wait())
                either: set[asyncio.Future[Any]] = {beat, lost}
                try:
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    lost.cancel()
                    if not beat.done():
                        beat.cancel()
                        await asyncio.gather(beat, return_exceptions=True)
                wait_s = self.options.session_timeout_s / BEATS
                if self._lost.is_set():
                    self._lost.clear()
                    await asyncio.sleep(GROUP_AGAIN_S)
                    wait_s = 0.0
                elif beat.result():
                    wait_s = 0.0  # tell the broker at once: other members wait for the partition
        except Exception as error:
            merged.fail(error)

    async def _beat(self, merged: Merged, *, wait_s: float) -> bool:
        """Return whether a partition of another member was left."""
        options = self.options
        holds = sorted(str(one) for one in merged.keys)
        answer = await self._client.transport.call(
            "POST",
            self._path(),
            query={"wait": wait_s},
            json_body={
                "topics": [str(one) for one in options.topics],
                "holds": holds,
                "generation": self._generation,
                "session_timeout": options.session_timeout_s,
            },
            wait_s=wait_s,
        )
        told: Mapping[str, Any] = answer.json()
        self._generation = max(self._generation, int(told["generation"]))
        given = list(told["partitions"])
        gone = [one for one in holds if one not in frozenset(given)]
        within_s = options.session_timeout_s / BEATS / 2
        if gone:
            await asyncio.gather(*[merged.remove(one, within_s) for one in gone])
        there = set(merged.keys)
        for partition in given:
            if partition not in there:
                topic, _, number = partition.rpartition("/")
                try:
                    of = await self._subscription(topic)
                    lease_s = await of.lease_s()
                except NotFound:
                    continue
                except TopicReplaced:  # recreated: the next beat joins the new topic
                    self._subscriptions.pop(topic, None)
                    continue
                merged.add(partition, _OfPartition(self, of, topic, int(number)), lease_s)
        return bool(gone)

    @property
    def generation(self) -> int:
        return self._generation

    async def _leave(self) -> None:
        with contextlib.suppress(ClientError):  # the others notice within a session timeout
            await self._client.transport.call("DELETE", self._path(), retry_s=1.0)

    def _path(self) -> str:
        namespace = self.options.topics[0].namespace
        group, member = quote(self.options.subscription), quote(self.options.consumer)
        return f"/v1/groups/{quote(namespace)}/{group}/members/{member}"


def _topic_of(key: Hashable) -> str:
    return "/".join(str(key).split("/")[:2])


class _OfTopic:
    def __init__(self, of: Subscription, topic: str) -> None:
        self._of = of
        self._topic = topic

    async def receive(self, messages_max: int, *, wait_s: float) -> Sequence[Delivery]:
        return self._named(await self._of.receive(messages_max, wait_s=wait_s))

    async def receive_in_turn(self, messages_max: int, *, wait_s: float) -> Sequence[Delivery]:
        return self._named(await self._of.receive_in_turn(messages_max, wait_s=wait_s))

    def acknowledge(
        self, body: Mapping[str, Sequence[str]], retry_s: float | None = None
    ) -> Coroutine[Any, Any, None]:
        return self._of.acknowledge(body, retry_s)

    def _named(self, found: list[Delivery]) -> list[Delivery]:
        for one in found:
            # A frozen struct; safe, as no other code has seen it yet.
            force_setattr(one, "topic", self._topic)
        return found


class _OfPartition(_OfTopic):
    def __init__(self, group: TopicsConsumer, of: Subscription, topic: str, number: int) -> None:
        super().__init__(of, topic)
        self._group = group
        self._number = number

    async def receive(self, messages_max: int, *, wait_s: float) -> Sequence[Delivery]:
        found = await self._of.receive(
            messages_max, wait_s=wait_s, partition=self._number, generation=self._group.generation
        )
        return self._named(found)

    receive_in_turn = receive
