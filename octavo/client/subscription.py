"""A subscription seen from its consumer: receive, acknowledge, seek.

Every call stands alone: an ack id is valid at any broker until its lease ends, so nothing is lost
when the broker that handed a message out dies. What was received and not acked in time comes
again (`delivery_count` grows).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from octavo.client.deliveries import WAIT_S_MAX, DeliveryLoop, hands
from octavo.client.doubt import PartitionKey
from octavo.client.incarnation import Incarnation
from octavo.client.of_this_process import OfThisProcess
from octavo.client.transport import BATCH_TYPE, JSON_TYPE, Transport
from octavo.client.types import Delivery, TopicName, decode_deliveries, partitions_in
from octavo.protocol.ack_ids import in_ranges

LEASE_S = 30.0
"""Of a subscription that does not say."""
IN_TURN_MAX = 16
"""Of a topic with more partitions a loop asks the topic."""
COUNTED_S = 30.0
"""So long a count of partitions is good for: they may become more."""
HAND_MAX = 5_000
"""Messages that a loop receives at a time."""
Handed = Delivery | str
"""A delivery, or its ack id."""


class Subscription(OfThisProcess):
    """Made by `AsyncClient.subscribe` and `AsyncClient.subscription`.

    Bound to the topic that it saw first: once that was deleted and made again, every call raises
    `TopicReplaced`.
    """

    def __init__(
        self,
        transport: Transport,
        topic: TopicName,
        name: str,
        consumer: str,
        nonce: int,
        loops: dict[DeliveryLoop, None],
        of: Incarnation,
        priority: int = 0,
    ) -> None:
        self.topic = topic
        self.name = name
        self.consumer = consumer
        self.priority = priority
        self.held_back: str | None = None
        """Why the last `receive` gave nothing though there are messages: too many are unacked, or
        others are to have them."""
        self._transport = transport
        self._of = of
        self._loops = loops
        """All that the client has open: closing it closes them."""
        # A call to receive is repeated under its own number, so that it gets the same messages.
        self._requests = (f"{nonce:016x}-{number}" for number in itertools.count())
        self._path = self._base(None)
        self._turn = nonce
        """The partition that was asked last: not the same for all consumers at first."""
        self._counted = (0, -COUNTED_S)
        """How many partitions there are, and when that was so."""

    async def receive(
        self,
        messages_max: int = 100,
        *,
        wait_s: float = 0.0,
        partition: int | None = None,
        generation: int | None = None,
    ) -> list[Delivery]:
        """Up to `messages_max` messages, leased to this consumer for the ack timeout.

        Empty when none came within `wait_s` (seconds, at most 60); `held_back` says afterwards
        why, where there are messages that nobody has. Raises `NotFound`, `Conflict` (the
        subscription is exclusive, and another consumer holds it).

        Naming a partition goes straight to its owner: for consumers that share the work by
        partition, and for those that need its order: an answer that gets lost leaves no gap then.
        `generation`: of the consumer group that has given its member this partition.
        """
        wait_s = min(wait_s, WAIT_S_MAX)
        answer = await self._transport.call(
            "POST",
            f"{self._base(partition)}/receive",
            query={
                "max": messages_max,
                "wait": wait_s,
                "consumer": self.consumer,
                "request": next(self._requests),
                "generation": generation,
                **({"priority": self.priority} if self.priority else {}),
            },
            headers={"Accept": f"{BATCH_TYPE}, {JSON_TYPE}"},
            partition=self._key(partition),
            wait_s=wait_s,
            of=self._of,
        )
        found, self.held_back = decode_deliveries(answer.headers, answer.body)
        return found

    async def receive_in_turn(self, messages_max: int, *, wait_s: float) -> list[Delivery]:
        """Whatever is there, from one partition after the other: for who is through in no time.

        Only of one partition an answer can be in batches, which cost next to nothing. When none of
        them has anything, or there are many, all of them are asked together, and wait together.
        """
        partitions = await self._partitions()
        if partitions <= IN_TURN_MAX:
            for _ in range(partitions):
                self._turn = (self._turn + 1) % partitions
                found = await self.receive(messages_max, partition=self._turn)
                if found:
                    return found
        return await self.receive(messages_max, wait_s=wait_s)

    async def ack(self, *handed: Handed | Iterable[Handed]) -> None:
        """Done with these: deliveries, ack ids, or lists of them. Durable once it has returned.

        Raises `Conflict` (`stale-lease`) when a lease had ended, which will be delivered again or
        were; `error.problem["stale"]` names them, and the others are acked.
        """
        await self._ack({"ack_ids": _ack_ids(handed)}, _partition_of(handed))

    async def ack_up_to(self, delivery: Delivery) -> None:
        """Done with this and all before it in its partition. Durable once it has returned.

        For exclusive and failover subscriptions; raises `Conflict` for others.
        """
        await self._ack({"up_to": delivery.offset}, delivery.partition)

    async def nack(self, *handed: Handed | Iterable[Handed], delay_s: float | None = None) -> None:
        """Not done: deliver again, to anybody, not before `delay_s` seconds from now.

        None: after as long as the subscription's `retry_backoff` says, at once where it has none.
        Raises `Conflict` when a lease had ended, `ApiError` (429) when too many are delayed.
        """
        delay = {} if delay_s is None else {"delay": delay_s}
        await self._ack({"nack": [{"ack_id": one, **delay} for one in _ack_ids(handed)]})

    async def extend(self, *handed: Handed | Iterable[Handed]) -> None:
        """Still at it: the lease starts anew. Raises `Conflict` for those that had ended."""
        await self._ack({"extend": _ack_ids(handed)})

    async def seek(self, to: str | int, *, partition: int | None = None) -> dict[int, int]:
        """Go to `earliest`, `latest`, an offset, a message id or an RFC 3339 time.

        What is before counts as acked, what is behind as not; all leases end. An offset or an id
        is of one partition: raises `ApiError` (422) where the topic has several and none is named,
        `Trimmed` for an offset that is gone, `ApiError` (416) for one that is still to come.
        Returns the offset now by partition.
        """
        found = await self._move("seek", {"to": to}, partition)
        return {one["partition"]: one["offset"] for one in found["partitions"]}

    async def skip(self, messages: int, *, partition: int | None = None) -> int:
        """Ack the first so many messages that are not acked, whoever has them; how many there were.

        Of each partition, unless one is named.
        """
        found = await self._move("skip", {"messages": messages}, partition)
        return int(found["acked"])

    async def expire(self, older_than: float | str, *, partition: int | None = None) -> int:
        """Ack all messages older than so many seconds, or text such as `7d`; how many there were.

        All before the first message that is not older, as `offset` finds it for a time.
        """
        found = await self._move("expire", {"older_than": older_than}, partition)
        return int(found["acked"])

    async def peek(self, messages_max: int = 10, *, partition: int | None = None) -> list[Delivery]:
        """The first messages that are not acked. Nothing is leased, and nothing counts.

        They have no `ack_id`; `delivery_count` says how often they were delivered so far, 1 also
        where they were not.
        """
        answer = await self._transport.call(
            "GET",
            f"{self._base(partition)}/peek",
            query={"max": messages_max},
            partition=self._key(partition),
            of=self._of,
        )
        return decode_deliveries(answer.headers, answer.body)[0]

    async def lag(self) -> dict[int, int]:
        """By partition, how many messages are not acked."""
        found = await self.stats()
        return {
            one.get("partition", 0): one["backlog"]
            for one in found.get("partitions", ())
            if "backlog" in one
        }

    async def _move(self, word: str, body: Mapping[str, Any], partition: int | None) -> Any:
        answer = await self._transport.call(
            "POST",
            f"{self._base(partition)}/{word}",
            json_body=body,
            partition=self._key(partition),
            of=self._of,
        )
        return answer.json()

    async def stats(self) -> Mapping[str, Any]:
        """Settings and live figures, as the API gives them.

        `backlog` and `leased` in messages, `held_back`, and by partition `committed_offset`,
        `unacked_ranges` and `consumers`.
        """
        answer = await self._transport.call("GET", self._path, of=self._of)
        found: Mapping[str, Any] = answer.json()
        return found

    async def delete(self) -> None:
        """Remove the subscription, and what it knows of acks, for all consumers."""
        await self._transport.call("DELETE", self._path, of=self._of)

    async def deliveries(
        self, *, auto_ack: bool = True, batch: int = HAND_MAX, idle_s: float | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Messages one by one. With `auto_ack` each is acked after the loop came back for more.

        Leases are extended while the body works, however long it takes; one that blocks the event
        loop for longer than a lease loses the message that it has in hand. Acks are sent a second
        later at the latest. Leaving the loop (`break`, an error, closing the client) gives back at
        once what is not done, the message in hand included. Ends when nothing came for `idle_s`;
        never when that is None. So many as a quarter of a lease is enough for, and no more than
        `batch`, are received at a time. Raises `AcksUnsent` when the last acks could not be sent.
        """
        async with self.opened(auto_ack=auto_ack, batch=batch) as loop:
            async for hand in hands(loop, idle_s):
                for delivery in hand:
                    yield delivery
                    await loop.between()

    @asynccontextmanager
    async def opened(self, *, auto_ack: bool, batch: int) -> AsyncIterator[DeliveryLoop]:
        """A loop over the messages for the length of a block; closing the client closes it too."""
        loop = DeliveryLoop(self, await self.lease_s(), auto_ack=auto_ack, batch=batch)
        self._loops[loop] = None
        try:
            yield loop
        finally:
            try:
                await loop.close()
            finally:
                self._loops.pop(loop, None)

    async def acknowledge(
        self, body: Mapping[str, Sequence[str]], retry_s: float | None = None
    ) -> None:
        """One call with `ack_ids`, `nack` and `extend`, of one message each."""
        ranges = {part: in_ranges(ack_ids) for part, ack_ids in body.items()}
        partitions = {one.partition("-")[0] for part in ranges.values() for one in part}
        only = int(partitions.pop()) if len(partitions) == 1 else None
        await self._ack(ranges, only, retry_s)

    async def _partitions(self) -> int:
        count, since_s = self._counted
        now_s = asyncio.get_running_loop().time()
        if now_s - since_s >= COUNTED_S:
            topic = await self._transport.call("GET", f"/v1/topics/{self.topic}", of=self._of)
            count = partitions_in(topic.json())
            self._counted = (count, now_s)
        return count

    async def lease_s(self) -> float:
        """How long a message is leased: the ack timeout, in seconds."""
        path = f"/v1/topics/{self.topic}/subscriptions"
        found = await self._transport.call("GET", path, of=self._of)
        for one in found.json()["subscriptions"]:
            if one["name"] == unquote(self.name):
                return float(one["settings"]["ack_timeout"])
        return LEASE_S

    async def _ack(
        self, body: Mapping[str, Any], partition: int | None = None, retry_s: float | None = None
    ) -> None:
        await self._transport.call(
            "POST",
            f"{self._base(partition)}/ack",
            json_body=body,
            partition=self._key(partition),
            retry_s=retry_s,
            of=self._of,
        )

    def _base(self, partition: int | None) -> str:
        within = "" if partition is None else f"/partitions/{partition}"
        return f"/v1/topics/{self.topic}{within}/subscriptions/{self.name}"

    def _key(self, partition: int | None) -> PartitionKey | None:
        return None if partition is None else (str(self.topic), partition)


def _ack_ids(handed: Iterable[Handed | Iterable[Handed]]) -> list[str]:
    found: list[str] = []
    for one in handed:
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, Delivery):
            found.append(one.ack_id)
        else:
            found += _ack_ids(one)
    return found


def _partition_of(handed: Iterable[Handed | Iterable[Handed]]) -> int | None:
    """The partition of all deliveries, if it is one and known: its owner can be asked directly."""
    found: set[int | None] = set()
    for one in handed:
        if isinstance(one, str):
            found.add(None)
        elif isinstance(one, Delivery):
            found.add(one.partition)
        else:
            found.add(_partition_of(one))
    return found.pop() if len(found) == 1 else None
