"""A producer: batches messages by partition, and sends them in order, each stored once.

Keys choose a partition by Kafka's murmur2. Messages without a key go to the same partition until
its batch is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from octavo.client.encoding import BatchEncoding, Encoding
from octavo.client.errors import ClientError, InvalidCall, TopicReplaced
from octavo.client.incarnation import Incarnation
from octavo.client.of_this_process import OfThisProcess
from octavo.client.partition_queue import Batch, PartitionQueue, Stored
from octavo.client.settings import ProducerSettings
from octavo.client.transport import Transport
from octavo.client.types import (
    Headers,
    Position,
    TopicName,
    Value,
    amount,
    header_pairs,
    key_bytes,
    keyed_values,
    partition_number,
    plain_text,
    time_ms,
    whole_number,
)
from octavo.protocol.codes import OctavoError
from octavo.protocol.due import due_header
from octavo.protocol.numbers import producer_number
from octavo.protocol.records import Record, partition_for

PRODUCER_ID_MAX = 2**63 - 1
EPOCH_MAX = 32_767
BATCH_BYTES_MAX = 2 * 1024 * 1024
"""The sum of its messages' sizes; very small messages may take twice as many bytes on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    producer_id: int
    epoch: int = 0
    encoding: Encoding = field(default_factory=BatchEncoding)
    linger_ms: float = 5.0
    """A batch that is not full waits this long for more; 0 sends at the next loop turn."""
    batch_bytes: int = 256 * 1024
    """A batch of this size is sent at once. After an interruption, waiting batches are sent
    together, up to 256 KiB.
    """
    window: int = 4
    """Batches of a partition that may be under way at once."""
    pending_bytes_max: int = 32 * 1024 * 1024
    """Unanswered bytes of all partitions; above it `send` waits."""
    delivery_timeout_ms: int = 120_000
    """How long a batch is sent again before its outcome is given up as unknown."""

    def __post_init__(self) -> None:
        whole_number(self.epoch, "producer option epoch", 0, EPOCH_MAX)
        amount(self.linger_ms, "producer option linger_ms", "milliseconds")
        for name in ("batch_bytes", "window", "pending_bytes_max", "delivery_timeout_ms"):
            whole_number(getattr(self, name), f"producer option {name}", 1)
        if self.batch_bytes > BATCH_BYTES_MAX:
            raise InvalidCall(
                f"producer option batch_bytes may be {BATCH_BYTES_MAX}, not {self.batch_bytes}: "
                "a batch must fit an entry"
            )
        if not 0 <= self.producer_id <= PRODUCER_ID_MAX:
            raise InvalidCall(f"producer id {self.producer_id} must be 0 to 2^63 - 1")


def known_options(options: ProducerSettings) -> ProducerSettings:
    known = ProducerSettings.__annotations__
    for name in options:
        if name not in known:
            raise InvalidCall(f"a producer has no option {name!r:.60}; it has {', '.join(known)}")
    return options


def producer_id_of(text: str | int | None, rng: random.Random) -> int:
    """Return a number as it is, a name's SHA-256 (as brokers do), or a random number for None."""
    if text is None:
        return rng.getrandbits(63)
    return text if isinstance(text, int) else producer_number(plain_text(text, "producer_id"))


class Receipt:
    """Await it for the `Position` of a message, once the message is durable."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[object, None, Position]:
        """Wait until the message is stored. Raises why it was not stored, or `OutcomeUnknown`."""
        try:
            stored = yield from asyncio.shield(self._batch.done).__await__()
        except OctavoError:
            self._batch.told = True
            raise
        return stored.position(self._index)

    @property
    def done(self) -> bool:
        """Whether there is an answer, good or bad."""
        return self._batch.done.done()

    def on_done(self, told: Callable[[Position | BaseException], None]) -> None:
        """Call `told` with the position, or with the reason why it was not stored."""

        def settled(done: asyncio.Future[Stored]) -> None:
            self._batch.told = True
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            told(done.result().position(self._index) if error is None else error)

        self._batch.done.add_done_callback(settled)


RELEASE_S = 5.0


def access_path(topic: TopicName, number: int) -> str:
    return f"/v1/topics/{topic}/partitions/{number}/producer-access"


async def acquire_access(
    transport: Transport,
    topic: TopicName,
    partitions: int,
    name: str,
    *,
    fencing: bool,
    wait_s: float,
) -> dict[int, int]:
    """Acquire exclusive access to all partitions of a topic; return the epoch of each.

    Raises `Conflict` (`producer-busy`) if another producer has access to one; then none is kept.
    """
    held: dict[int, int] = {}
    try:
        for number in range(partitions):
            answer = await transport.call(
                "POST",
                access_path(topic, number),
                query={"wait": min(wait_s, 60.0)},
                json_body={"producer": name, "fencing": fencing},
                partition=(str(topic), number),
                wait_s=min(wait_s, 60.0),
            )
            held[number] = int(answer.json()["epoch"])
    except ClientError:
        for number, epoch in held.items():
            with contextlib.suppress(ClientError):
                await transport.call(
                    "DELETE", access_path(topic, number), query={"epoch": epoch}, retry_s=RELEASE_S
                )
        raise
    return held


class Producer(OfThisProcess):
    """Sends messages to a topic, made by `AsyncClient.producer`; as a block it flushes at its end.

    When its topic is deleted and created again, every message fails with `TopicReplaced`.
    """

    def __init__(
        self,
        transport: Transport,
        topic: TopicName,
        partitions: int,
        options: ProducerOptions,
        *,
        rng: random.Random,
        clock: Callable[[], int],
        incarnation: str = "",
        access: Mapping[int, int] | None = None,
    ) -> None:
        self.topic = topic
        self._transport = transport
        self.access = dict(access or {})
        self.partitions = partitions
        self.options = options
        self._rng = rng
        self._clock = clock
        self._pending_bytes = 0
        self.stored_count = 0
        """Durable messages so far."""
        self._room = asyncio.Event()
        self._room.set()
        of = Incarnation(incarnation)
        self._queues = [
            PartitionQueue(
                transport, topic, number, options, self._release, of, self.access.get(number)
            )
            for number in range(partitions)
        ]
        self._sticky = rng.choice(self._queues)
        """The partition for messages without a key, until its open batch is full."""
        self._sticky_batch: Batch | None = None
        self._pending_bytes_max = options.pending_bytes_max
        self._failed: BaseException | None = None
        self._untold: Batch | None = None
        """A batch that failed since the last flush, and whose error no receipt has raised."""
        self._all_told = False
        self._replaced: TopicReplaced | None = None
        self._closed = False

    def describe(self) -> dict[str, int]:
        return {"bytes": self._pending_bytes}

    def waits_in_vain(self) -> str:
        """Name a batch that waits without a reason, for tests; empty if there is none."""
        is_full = self._pending_bytes >= self._pending_bytes_max
        waits = not self._room.is_set() and not is_full
        return "senders wait for room although there is room" if waits else ""

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"Producer({self.topic}, {self.unanswered} unanswered{closed})"

    @property
    def pending_bytes(self) -> int:
        """Return the bytes of batched or sent messages that are not answered yet."""
        return self._pending_bytes

    @property
    def unanswered(self) -> int:
        """Count the messages that are not answered yet."""
        return sum(queue.unanswered for queue in self._queues)

    async def send(
        self,
        value: Value,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> Receipt:
        """Accept a message; await the receipt for its position, once it is durable.

        `deliver_at_ms`: shared subscriptions deliver it no earlier (ms since 1970, UTC). Raises
        `InvalidCall` (`MessageTooLong` beyond the fixed bounds), `TopicReplaced`.
        """
        while not self._room.is_set():
            await self._room.wait()
        return self.send_nowait(
            value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition,
            deliver_at_ms=deliver_at_ms,
        )  # fmt: skip

    def send_nowait(
        self,
        value: Value,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> Receipt:
        """Like `send`, without waiting for room; the caller checks `has_room`."""
        self.check(partition)
        name = key_bytes(key)
        item, size = self.item(value, name, headers, timestamp_ms, deliver_at_ms)
        return Receipt(*self.take(item, size, name, partition))

    async def send_all(self, pairs: Sequence[tuple[str | bytes | None, Value]]) -> list[Receipt]:
        """Send (key, value) pairs as `send` does; if a pair is too long, send none."""
        return await self.send_pairs(keyed_values(pairs))

    async def send_pairs(self, named: Sequence[tuple[bytes | None, Value]]) -> list[Receipt]:
        items = [self.item(value, key, None, None, None) for key, value in named]
        receipts = []
        for (key, _), (item, size) in zip(named, items, strict=True):
            await self.until_room()
            self.check(None)
            receipts.append(Receipt(*self.take(item, size, key, None)))
        return receipts

    def check(self, partition: int | None) -> None:
        if self._replaced is not None:
            raise self._replaced
        if self._closed:
            raise InvalidCall(f"this producer of {self.topic} is closed: make a new one")
        if partition is not None and partition_number(partition) >= self.partitions:
            raise InvalidCall(
                f"{self.topic} has partitions 0 to {self.partitions - 1}, not {partition}"
            )

    def item(
        self,
        value: Value,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        deliver_at_ms: int | None,
    ) -> tuple[Record | bytes, int]:
        stamp = self._clock() if timestamp_ms is None else time_ms(timestamp_ms)
        pairs: Sequence[tuple[str, bytes | None]] = header_pairs(headers) if headers else ()
        if deliver_at_ms is not None:
            due_ms = time_ms(deliver_at_ms, "deliver_at_ms", first=0)
            pairs = [*pairs, due_header(due_ms)]
        return self.options.encoding.item(key, value, pairs, stamp)

    def take(
        self, item: Record | bytes, size: int, key: bytes | None, partition: int | None
    ) -> tuple[Batch, int]:
        self._pending_bytes += size
        if self._pending_bytes >= self._pending_bytes_max:
            self._room.clear()
        if partition is not None:
            batch, index = self._queues[partition].add(item, size)
        elif key is not None:
            number = partition_for(key, self.partitions)
            batch, index = self._queues[number].add(item, size)
        else:
            if self._sticky.open_batch is not self._sticky_batch:
                self._sticky = self._rng.choice(self._queues)
            batch, index = self._sticky.add(item, size)
            self._sticky_batch = batch
        if index == 0:
            batch.done.add_done_callback(partial(self._note, batch))
        return batch, index

    def note(self, error: BaseException) -> None:
        if self._failed is None:
            self._failed = error

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    async def until_room(self) -> None:
        while not self._room.is_set():
            await self._room.wait()

    async def flush(self) -> None:
        """Send all and wait for every answer. Raises the first error since the last flush."""
        for queue in self._queues:
            queue.seal()
        pending = [future for queue in self._queues for future in queue.pending()]
        await asyncio.gather(*(asyncio.shield(one) for one in pending), return_exceptions=True)
        failed, self._failed = self._failed, None
        untold, self._untold = self._untold, None
        if failed is not None:
            self._all_told = untold is None or untold.told
            raise failed

    async def close_if_forgotten(self, *, flush: bool) -> None:
        """Close. Raises only errors that no receipt has raised."""
        if self._closed:
            return
        try:
            await self.close(flush=flush)
        except OctavoError:
            if not self._all_told:
                raise

    async def close(self, *, flush: bool = True) -> None:
        """Flush, unless `flush` is False, and stop."""
        self._closed = True
        try:
            if flush:
                await self.flush()
        finally:
            await asyncio.gather(*(queue.close() for queue in self._queues))
            await self._release_access()

    async def _release_access(self) -> None:
        access, self.access = self.access, {}
        for number, epoch in access.items():
            # If brokers are out of reach, the access ends with its session.
            with contextlib.suppress(ClientError):
                await self._transport.call(
                    "DELETE",
                    access_path(self.topic, number),
                    query={"epoch": epoch},
                    partition=(str(self.topic), number),
                    retry_s=RELEASE_S,
                )

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    def _release(self, size: int, stored: int) -> None:
        self._pending_bytes -= size
        self.stored_count += stored
        if self._pending_bytes < self._pending_bytes_max:
            self._room.set()

    def _note(self, batch: Batch, done: asyncio.Future[Stored]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            if self._untold is None or self._untold.told:
                self._untold = batch
            if isinstance(error, TopicReplaced):
                self._replaced = error
            self.note(error)


class Opening:
    """The result of `AsyncClient.producer`: await it, or enter it as a block.

    The end of the block flushes and closes the producer.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Producer]]) -> None:
        self._make = make
        self._made: Producer | None = None

    def __await__(self) -> Generator[Any, None, Producer]:
        return self.made().__await__()

    def made(self) -> Coroutine[Any, Any, Producer]:
        return self._make()

    async def __aenter__(self) -> Producer:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)
