"""A consumer of a subscription: receive, acknowledge, seek.

Any broker takes an ack id until its lease ends. A planned hand-over of the partition keeps leases,
a crash of its owner ends them.
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
from octavo.client.errors import InvalidCall
from octavo.client.incarnation import Incarnation
from octavo.client.of_this_process import OfThisProcess
from octavo.client.transport import BATCH_TYPE, JSON_TYPE, Transport
from octavo.client.types import (
    Delivery,
    TopicName,
    amount,
    decode_deliveries,
    partition_number,
    partitions_in,
)
from octavo.protocol.ack_ids import in_ranges

LEASE_S = 30.0
IN_TURN_MAX = 16
"""With more partitions, a loop asks the topic instead of each partition."""
COUNTED_S = 30.0
"""How long a count of partitions is used: their number may grow."""
HAND_MAX = 5_000
Handover = Delivery | str
"""A delivery, or its ack id."""


class Subscription(OfThisProcess):
    """Receives a subscription's messages; made by `AsyncClient.subscribe` or `subscription`.

    When its topic is deleted and created again, every call raises `TopicReplaced`.
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
        """Why the last `receive` gave no message although there are some: too many are unacked, or
        they are for other consumers.
        """
        self._transport = transport
        self._of = of
        self._loops = loops
        # A repeated receive has the same number, so that it gets the same messages.
        self._requests = (f"{nonce:016x}-{number}" for number in itertools.count())
        self._path = self._base(None)
        self._turn = nonce
        """The last asked partition. Consumers begin at different partitions."""
        self._counted = (0, -COUNTED_S)

    def __repr__(self) -> str:
        return f"Subscription({self.topic}, {self.name}, consumer {self.consumer})"

    async def receive(
        self,
        messages_max: int = 100,
        *,
        wait_s: float = 0.0,
        partition: int | None = None,
        generation: int | None = None,
    ) -> list[Delivery]:
        """Receive up to `messages_max` messages, leased to this consumer for the ack timeout.

        Returns an empty list when no message came within `wait_s` (seconds, at most 60); see
        `held_back`. With a `partition` the call goes straight to its owner, and keeps that
        partition's order. `generation`: in which the consumer group gave the partition. Raises
        `NotFound`, `Conflict` (another consumer holds the exclusive subscription).
        """
        wait_s = min(amount(wait_s, "wait_s"), WAIT_S_MAX)
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
        """Receive messages from one partition after the other, for a fast loop.

        Answers about a single partition cost least. When all are empty, or there are many, one call
        asks all of them and waits.
        """
        partitions = await self._partitions()
        if partitions <= IN_TURN_MAX:
            for _ in range(partitions):
                self._turn = (self._turn + 1) % partitions
                found = await self.receive(messages_max, partition=self._turn)
                if found:
                    return found
        return await self.receive(messages_max, wait_s=wait_s)

    async def ack(self, *handed: Handover | Iterable[Handover]) -> None:
        """Ack deliveries, ack ids, or lists of them; return when the acks are durable.

        Raises `Conflict` (`stale-lease`) when leases had ended: `error.problem["stale"]` names
        these messages, which are delivered again; all others are acked.
        """
        await self._ack({"ack_ids": _ack_ids(handed)}, _partition_of(handed))

    async def ack_up_to(self, delivery: Delivery) -> None:
        """Ack this delivery and all before it in its partition; return when the ack is durable.

        For exclusive and failover subscriptions; raises `Conflict` for others.
        """
        if not isinstance(delivery, Delivery):
            raise InvalidCall(
                f"delivery must be a Delivery that was received, not {delivery!r:.60}"
            )
        await self._ack({"up_to": delivery.offset}, delivery.partition)

    async def nack(
        self, *handed: Handover | Iterable[Handover], delay_s: float | None = None
    ) -> None:
        """Give messages back, to be delivered again to any consumer after `delay_s` seconds.

        Default: the wait of `retry_backoff`, or none. Raises `Conflict` when a lease had ended,
        `ApiError` (429) when too many are delayed.
        """
        delay = {} if delay_s is None else {"delay": delay_s}
        await self._ack({"nack": [{"ack_id": one, **delay} for one in _ack_ids(handed)]})

    async def extend(self, *handed: Handover | Iterable[Handover]) -> None:
        """Restart the leases of these messages. Raises `Conflict` for leases that had ended."""
        await self._ack({"extend": _ack_ids(handed)})

    async def seek(self, to: str | int, *, partition: int | None = None) -> dict[int, int]:
        """Go to `earliest`, `latest`, an offset, a message id or an RFC 3339 time.

        Earlier messages count as acked, later messages as unacked; all leases end. Returns the
        offset of each partition. An offset or id needs a `partition`, if there are several. Raises
        `Trimmed`, `ApiError` (416: beyond the end, 422: no partition named).
        """
        found = await self._move("seek", {"to": to}, partition)
        return {one["partition"]: one["offset"] for one in found["partitions"]}

    async def skip(self, messages: int, *, partition: int | None = None) -> int:
        """Ack the first unacked messages of each partition, or of the given `partition`; return how
        many.

        `messages`: how many in each partition, including leased messages.
        """
        found = await self._move("skip", {"messages": messages}, partition)
        return int(found["acked"])

    async def expire(self, older_than: float | str, *, partition: int | None = None) -> int:
        """Ack all messages before the first that is younger than `older_than`; return how many.

        `older_than`: an age in seconds, or text such as `7d`.
        """
        found = await self._move("expire", {"older_than": older_than}, partition)
        return int(found["acked"])

    async def peek(self, messages_max: int = 10, *, partition: int | None = None) -> list[Delivery]:
        """Show the first unacked messages, without leasing them or counting a delivery.

        They have no `ack_id`; `delivery_count` is 1 for a message that was never delivered.
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
        """Count the unacked messages of each partition."""
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
        """Return settings and live figures.

        Among them `backlog`, `leased`, `held_back`, and for each partition `committed_offset`,
        `unacked_ranges` and `consumers`.
        """
        answer = await self._transport.call("GET", self._path, of=self._of)
        found: Mapping[str, Any] = answer.json()
        return found

    async def delete(self) -> None:
        """Delete the subscription and its acks, for all consumers."""
        await self._transport.call("DELETE", self._path, of=self._of)

    async def deliveries(
        self, *, auto_ack: bool = True, batch: int = HAND_MAX, idle_s: float | None = None
    ) -> AsyncGenerator[Delivery, None]:
        """Yield messages one by one; with `auto_ack`, ack each when the loop asks for the next.

        The client extends leases while the body works, however long that takes, unless the body
        blocks the event loop for longer than a lease. When the loop is left, unfinished messages,
        also the current one, are given back. `idle_s`: end after these seconds without a message;
        None: never. `batch`: the most messages received at a time. Raises `AcksUnsent` when the
        last acks could not be sent.
        """
        async with self.opened(auto_ack=auto_ack, batch=batch) as loop:
            async for hand in hands(loop, idle_s):
                for delivery in hand:
                    yield delivery
                    await loop.between()

    @asynccontextmanager
    async def opened(self, *, auto_ack: bool, batch: int) -> AsyncIterator[DeliveryLoop]:
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
        """Send one call with `ack_ids`, `nack` and `extend`, an id for each message."""
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
        """Return the ack timeout in seconds."""
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
        within = "" if partition is None else f"/partitions/{partition_number(partition)}"
        return f"/v1/topics/{self.topic}{within}/subscriptions/{self.name}"

    def _key(self, partition: int | None) -> PartitionKey | None:
        return None if partition is None else (str(self.topic), partition_number(partition))


def _ack_ids(handed: Iterable[Handover | Iterable[Handover]]) -> list[str]:
    found: list[str] = []
    for one in handed:
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, Delivery):
            found.append(one.ack_id)
        elif isinstance(one, Iterable) and not isinstance(one, bytes | Mapping):
            found += _ack_ids(one)
        else:
            raise InvalidCall(f"give a delivery, an ack id or a list of these, not {one!r:.60}")
    return found


def _partition_of(handed: Iterable[Handover | Iterable[Handover]]) -> int | None:
    """Return the deliveries' partition if all have the same: then its owner is asked directly."""
    found: set[int | None] = set()
    for one in handed:
        if isinstance(one, str):
            found.add(None)
        elif isinstance(one, Delivery):
            found.add(one.partition)
        else:
            found.add(_partition_of(one))
    return found.pop() if len(found) == 1 else None
