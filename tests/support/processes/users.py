"""The users of a real cluster under test: they publish, consume, and note the answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from crc32c import crc32c

from octavo import AsyncClient
from octavo.client.errors import ClientError, Conflict
from octavo.client.producer import Receipt
from octavo.client.subscription import Subscription
from octavo.client.types import Delivery
from tests.support.kit.history import Call, History, Operation

TOPIC = "chaos"
SUBSCRIPTION = "readers"

Place = tuple[int, int]


class Record:
    def __init__(self) -> None:
        self.history = History()
        self.sent = 0
        self.acked = 0
        self.failed: list[str] = []
        self.delivered: Counter[Place] = Counter()
        self.consumed: set[Place] = set()
        self.keys: dict[str, str] = {}


def payload(name: str, number: int) -> str:
    """Return a text of random length with its sender, its number and a checksum."""
    filler = "abcdefghijklmnopqrstuvwxyz"[number % 26] * (number * 7919 % 300)
    front = f"{filler} {name}-{number}"
    return f"{crc32c(front.encode()):08x} {front}"


class Publisher:
    """An idempotent producer that sends numbered texts under a few keys until it is stopped."""

    def __init__(
        self,
        client: AsyncClient,
        record: Record,
        name: str,
        *,
        keys: int = 7,
        encoding: Literal["batch", "ndjson"] = "batch",
        topic: str = TOPIC,
    ) -> None:
        self._client = client
        self._record = record
        self._name = name
        self._keys = keys
        self._encoding = encoding
        self._topic = topic
        self.stopping = False

    async def run(self, rate: float) -> None:
        producer = await self._client.producer(
            self._topic,
            producer_id=self._name,
            encoding=self._encoding,
            batch_bytes=1_000,
            linger_ms=5,
            pending_bytes_max=100_000,
        )
        record, notes = self._record, set[asyncio.Task[None]]()
        number = 0
        while not self.stopping:
            for _ in range(5):
                text, key = payload(self._name, number), f"{self._name}-k{number % self._keys}"
                record.sent += 1
                record.keys[text] = key
                one = record.history.invoke(self._name, Call.SEND, value=text, key=key)
                receipt = await producer.send(text, key=key)
                note = asyncio.create_task(self._note(receipt, one))
                notes.add(note)
                note.add_done_callback(notes.discard)
                number += 1
            await asyncio.sleep(5 / rate)
        with contextlib.suppress(ClientError):  # each receipt has the error too
            await producer.flush()
        await asyncio.gather(*notes)
        await producer.close()

    async def _note(self, receipt: Receipt, one: Operation) -> None:
        record = self._record
        try:
            position = await receipt
        except ClientError as error:
            record.history.info(one, str(error))
            record.failed.append(f"{one.value}: {error}")
            return
        offset = None if position.offset < 0 else position.offset  # the broker had forgotten it
        record.history.ok(one, offset, log=str(position.partition))
        record.acked += 1


class Consumer:
    """A consumer of the shared subscription: receives, dawdles, acks some messages, lets some
    leases end."""

    def __init__(
        self,
        subscription: Subscription,
        record: Record,
        rng: random.Random,
        partitions: int,
        name: str = "consumer",
    ) -> None:
        self._subscription = subscription
        self._record = record
        self._rng = rng
        self._partitions = range(partitions)
        self._name = name

    async def run(self) -> None:
        while True:
            received = await self._receive()
            await asyncio.sleep(self._rng.uniform(0, 0.05))
            kept = [one for one in received if self._rng.random() > 0.03]
            if kept:
                await self._ack(kept)

    async def _receive(self) -> Sequence[Delivery]:
        calls = self._invoked(Call.RECEIVE, dict.fromkeys(self._partitions))
        history = self._record.history
        try:
            received = await self._subscription.receive(40, wait_s=0.5)
        except ClientError as error:
            for one in calls.values():
                history.info(one, str(error))
            self._record.failed.append(f"receive: {error}")
            return ()
        for partition, one in calls.items():
            of_it = [found for found in received if found.partition == partition]
            history.ok(one, [(found.offset, found.text()) for found in of_it])
        self._record.delivered.update((one.partition, one.offset) for one in received)
        return received

    async def _ack(self, kept: list[Delivery]) -> None:
        offsets = {one.partition: list[int]() for one in kept}
        for one in kept:
            offsets[one.partition].append(one.offset)
        calls = self._invoked(Call.ACK, offsets)
        stale: set[str] = set()
        failure: ClientError | None = None
        try:
            await self._subscription.ack(kept)
        except Conflict as error:
            # Leases of these ended (take-over, timeout); every other ack took effect.
            stale = set(error.problem.get("stale", ()))
            failure = None if error.code == "stale-lease" and stale else error
        except ClientError as error:
            failure = error
        history = self._record.history
        if failure is not None:
            for call in calls.values():
                history.info(call, str(failure))
            self._record.failed.append(f"ack: {failure}")
            return
        for partition, call in calls.items():
            refused = [one for one in kept if one.ack_id in stale and one.partition == partition]
            history.ok(call, [one.offset for one in refused] or None)
        self._record.consumed |= {
            (one.partition, one.offset) for one in kept if one.ack_id not in stale
        }

    def _invoked(self, call: Call, values: Mapping[int, list[int] | None]) -> dict[int, Operation]:
        invoke = self._record.history.invoke
        return {
            partition: invoke(self._name, call, str(partition), value, group=SUBSCRIPTION)
            for partition, value in values.items()
        }


class Follower:
    """The consumer of an exclusive subscription: takes each partition in order, acks up to an
    offset."""

    NAME = "follower"

    def __init__(self, subscription: Subscription, partitions: int, record: Record) -> None:
        self._subscription = subscription
        self._record = record
        self.done = [0] * partitions
        """Partition → the offset before which every ack is durable."""

    async def run(self) -> None:
        while True:
            for partition in range(len(self.done)):
                try:
                    await self._follow(partition)
                except ClientError as error:
                    self._record.failed.append(f"following {partition}: {error}")
            await asyncio.sleep(0.02)

    async def _follow(self, partition: int) -> None:
        history, log = self._record.history, str(partition)
        with history.during(self.NAME, Call.POLL, log, group=self.NAME) as one:
            received = await self._subscription.receive(60, partition=partition)
            one.result = [(found.offset, found.text()) for found in received]
        if received:
            last = received[-1].offset
            with history.during(self.NAME, Call.ACK_UP_TO, log, last, group=self.NAME):
                await self._subscription.ack_up_to(received[-1])
            self.done[partition] = last + 1


def note_read(record: Record, name: str, found: Iterable[tuple[Place, str]]) -> None:
    logs: dict[int, list[tuple[int, str]]] = {}
    for (partition, offset), text in found:
        logs.setdefault(partition, []).append((offset, text))
    for partition, messages in logs.items():
        record.history.add_done(name, Call.POLL, str(partition), 0, messages)
    record.history.add_done(name, Call.DRAIN)
