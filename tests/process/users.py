"""The users of a real cluster under test: they publish, consume, and note what they were told.

A text says who sent it and its number among that sender's, and carries a checksum: `payload`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from crc32c import crc32c

from octavo import AsyncClient
from octavo.client.errors import ClientError, Conflict
from octavo.client.producer import Receipt
from octavo.client.subscription import Subscription
from octavo.client.types import Delivery

TOPIC = "chaos"

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class Record:
    """What the users were told."""

    sent: dict[str, str] = field(default_factory=dict)
    """Key of each text that was sent."""
    acked: dict[str, Place] = field(default_factory=dict)
    """Where each acked text is; the offset is -1 when the broker no longer knew it."""
    failed: list[str] = field(default_factory=list)
    """Calls that failed, in words."""
    delivered: Counter[Place] = field(default_factory=Counter)
    consumed: set[Place] = field(default_factory=set)
    """Whose ack was durable."""
    texts: dict[Place, str] = field(default_factory=dict)
    """What was delivered at each place."""
    wrong: list[str] = field(default_factory=list)


def payload(name: str, number: int) -> str:
    """A text of random length that tells where it comes from, and whether it is whole."""
    filler = "abcdefghijklmnopqrstuvwxyz"[number % 26] * (number * 7919 % 300)
    front = f"{filler} {name}-{number}"
    return f"{crc32c(front.encode()):08x} {front}"


class Publisher:
    """An idempotent producer that sends numbered texts under a few keys until told to stop."""

    def __init__(
        self,
        client: AsyncClient,
        record: Record,
        name: str,
        *,
        keys: int = 7,
        encoding: Literal["batch", "ndjson"] = "batch",
    ) -> None:
        self._client = client
        self._record = record
        self._name = name
        self._keys = keys
        self._encoding = encoding
        self.stopping = False

    async def run(self, rate: float) -> None:
        """Send about `rate` messages a second; return when all are answered."""
        producer = await self._client.producer(
            TOPIC,
            producer_id=self._name,
            encoding=self._encoding,
            batch_bytes=1_000,
            linger_ms=5,
            pending_bytes_max=100_000,
        )
        notes: list[asyncio.Task[None]] = []
        number = 0
        while not self.stopping:
            for _ in range(5):
                text, key = payload(self._name, number), f"{self._name}-k{number % self._keys}"
                receipt = await producer.send(text, key=key)
                self._record.sent[text] = key
                notes.append(asyncio.create_task(self._note(receipt, text)))
                number += 1
            await asyncio.sleep(5 / rate)
        with contextlib.suppress(ClientError):  # each receipt says it too
            await producer.flush()
        await asyncio.gather(*notes)
        await producer.close()

    async def _note(self, receipt: Receipt, text: str) -> None:
        try:
            position = await receipt
        except ClientError as error:
            self._record.failed.append(f"{text}: {error}")
            return
        self._record.acked[text] = (position.partition, position.offset)


class Consumer:
    """A consumer of the shared subscription: receives, dawdles, acks some, lets some time out."""

    def __init__(self, subscription: Subscription, record: Record, rng: random.Random) -> None:
        self._subscription = subscription
        self._record = record
        self._rng = rng

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            done_before = frozenset(self._record.consumed)
            try:
                received = await self._subscription.receive(40, wait_s=0.5)
            except ClientError as error:
                self._record.failed.append(f"receive: {error}")
                continue
            for one in received:
                self._take(one, done_before)
            await asyncio.sleep(self._rng.uniform(0, 0.05))
            kept = [one for one in received if self._rng.random() > 0.03]
            if kept:
                await self._ack(kept)

    def _take(self, one: Delivery, done_before: frozenset[Place]) -> None:
        place = (one.partition, one.offset)
        self._record.delivered[place] += 1
        text = self._record.texts.setdefault(place, one.text())
        if text != one.text():
            self._record.wrong.append(f"{place} was delivered as {text!r} and as {one.text()!r}")
        if place in done_before:
            self._record.wrong.append(f"{place} was delivered after its ack was durable")

    async def _ack(self, kept: list[Delivery]) -> None:
        stale: set[str] = set()
        try:
            await self._subscription.ack(kept)
        except Conflict as error:
            # The leases of these ended (take-over, time); everything else took effect.
            stale = set(error.problem.get("stale", ()))
            if error.code != "stale-lease" or not stale:
                self._record.failed.append(f"ack: {error}")
                return
        except ClientError as error:
            self._record.failed.append(f"ack: {error}")
            return
        self._record.consumed |= {
            (one.partition, one.offset) for one in kept if one.ack_id not in stale
        }


class Follower:
    """The consumer of an exclusive subscription: takes each partition in order, acks up to."""

    def __init__(self, subscription: Subscription, partitions: int, record: Record) -> None:
        self._subscription = subscription
        self._record = record
        self.done = [0] * partitions
        """Per partition the offset before which all is acked, durably."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for partition in range(len(self.done)):
                try:
                    received = await self._subscription.receive(60, partition=partition)
                    self._take(partition, [one.offset for one in received])
                    if received:
                        await self._subscription.ack_up_to(received[-1])
                        self.done[partition] = received[-1].offset + 1
                except ClientError as error:
                    self._record.failed.append(f"following {partition}: {error}")
            await asyncio.sleep(0.02)

    def _take(self, partition: int, offsets: list[int]) -> None:
        """They must go on right behind what is acked, without a gap: nobody else takes any."""
        first = self.done[partition]
        if offsets and offsets != [*range(first, first + len(offsets))]:
            shown = f"{offsets[:3]} … {offsets[-1]}"
            self._record.wrong.append(f"following {partition}: after {first - 1} came {shown}")
