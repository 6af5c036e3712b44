"""Send a publish request to partitions: build batches, keep order, report what was stored.

Where a batch ends depends on the messages alone, never on timing, so that a repeated request has
equal batches and is recognised. Partitions work in parallel; within a partition batches take effect
in order, and none is sent after a failed batch. A batch whose partition moved is sent again only if
no later batch was stored.

Memory: `inflight_bytes_max` under way and as much in unfinished batches, whatever the request and
topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from octavo.broker.errors import MessageTooLong, NotOwner, OwnerUnreachable, PartitionMoving
from octavo.broker.http.api.answers import Place
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import with_owner
from octavo.broker.http.problems import Problem, problem_from, problem_of
from octavo.broker.http.quotas import wait_of
from octavo.broker.operations.kinds import Fate, Refused
from octavo.broker.operations.local import publish_all
from octavo.broker.operations.remote import error_of
from octavo.broker.partition.partition import Partition
from octavo.broker.types import MessageId, Owner, PartitionName, Published, TopicName
from octavo.protocol.records import (
    RECORD_OVERHEAD_BYTES,
    Record,
    build_batch,
    partition_for,
    record_bytes,
)

ACCESS_HEADER = "Producer-Access-Epoch"
SENT_TOGETHER_BYTES = 512 * 1024
SEQUENCE_MASK = 0x7FFF_FFFF
_MOVED = (NotOwner, PartitionMoving, OwnerUnreachable)


class Producer(NamedTuple):
    producer_id: int
    epoch: int
    sequence: int


class Piece:
    __slots__ = (
        "batch", "count", "error", "expected", "first", "index", "last", "partition", "published",
    )  # fmt: skip

    def __init__(self, partition: int, first: int) -> None:
        self.partition = partition
        self.first = first
        self.last = first
        self.count = 0
        self.index = 0
        """The number of its first message in a batch shared with other requests."""
        self.batch = b""
        self.expected: int | None = None
        self.published: Published | None = None
        self.error: Problem | None = None

    def place(self, index: int) -> Place:
        assert self.published is not None
        first, _, ledger_id, entry_id, _, _ = self.published
        if first < 0:
            return Place(self.partition)  # a duplicate whose place is forgotten
        at = str(MessageId(ledger_id, entry_id, self.index + index))
        return Place(self.partition, first + index, at)


class _PartitionQueue:
    __slots__ = ("bytes", "open", "partition", "pieces", "records", "task")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.records: list[Record] = []
        self.bytes = 0
        self.open: Piece | None = None
        self.pieces: deque[Piece] = deque()
        self.task: asyncio.Task[None] | None = None


class Publishing:
    def __init__(
        self,
        call: Call,
        topic: TopicName,
        partitions: int,
        *,
        only: int | None = None,
        producer: Producer | None = None,
        expected_offset: int | None = None,
        access: int | None = None,
        keep_places: bool = False,
    ) -> None:
        self._access = access
        self._call = call
        self._topic = topic
        self._partitions = partitions
        self._only = only
        self._producer = producer
        self._expected = expected_offset
        self._config = call.services.config
        self._bytes_max = call.services.rules.single_bytes_max(topic)
        self._queues: dict[int, _PartitionQueue] = {}
        # A given partition does not advance the turn: else single messages would use every second
        # partition only.
        self._turn = next(call.services.turn) % partitions if only is None else 0
        self._open_bytes = 0
        self._in_flight = 0
        self._stored_some = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.pieces: list[Piece] = []
        self.places: list[tuple[Piece, int]] | None = [] if keep_places else None
        self.count = 0
        self.failed = False

    def describe(self) -> dict[str, int]:
        return {"open_bytes": self._open_bytes, "in_flight": self._in_flight}

    @property
    def held_bytes(self) -> int:
        return self._open_bytes + self._in_flight

    def size_of(self, record: Record) -> int:
        return size_of(record, self._bytes_max)

    def add(self, record: Record) -> None:
        key = record.key
        size = self.size_of(record)
        if self._only is not None:
            number = self._only
        elif key is not None:
            number = partition_for(key, self._partitions)
        else:
            number = self._turn
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = _PartitionQueue(number)
        piece = queue.open
        if piece is None:
            piece = queue.open = Piece(number, self.count)
        queue.records.append(record)
        queue.bytes += size
        self._open_bytes += size
        piece.last = self.count
        if self.places is not None:
            if self.count >= self._config.results_max:
                raise _too_many_results(self._config.results_max)
            self.places.append((piece, len(queue.records) - 1))
        self.count += 1
        if (
            queue.bytes >= self._config.batch_target_bytes
            or len(queue.records) >= self._config.batch_messages_max
        ):
            self._close_batch(queue)
        elif self._open_bytes >= self._config.inflight_bytes_max:
            self._close_batches()  # a topic with very many partitions

    def add_batch(self, batch: bytes, count: int) -> None:
        assert self._only is not None
        queue = self._queues.setdefault(self._only, _PartitionQueue(self._only))
        piece = Piece(self._only, self.count)
        piece.last = self.count + count - 1
        if self.places is not None:
            if self.count + count > self._config.results_max:
                raise _too_many_results(self._config.results_max)
            self.places.extend((piece, index) for index in range(count))
        self.count += count
        self._submit(queue, piece, batch, count)

    def flush(self) -> None:
        """Send unfinished batches while the input pauses. A producer's batches wait: they must not
        depend on timing.
        """
        if self._producer is None and not self.failed:
            self._close_batches()

    async def room(self) -> None:
        await self._has_room.wait()

    async def finish(self) -> None:
        if not self.failed:
            self._close_batches()
        await self._wait_for_queues()
        for piece in self.pieces:
            if piece.published is None and piece.error is None:
                piece.error = NOT_SENT

    async def abandon(self) -> None:
        self.failed = True
        await self._wait_for_queues()

    async def _wait_for_queues(self) -> None:
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        if tasks:
            await asyncio.gather(*tasks)

    def _close_batches(self) -> None:
        for queue in self._queues.values():
            if queue.records:
                self._close_batch(queue)

    def _close_batch(self, queue: _PartitionQueue) -> None:
        piece = queue.open
        assert piece is not None
        records = queue.records
        self._open_bytes -= queue.bytes
        queue.records, queue.bytes, queue.open = [], 0, None
        producer = self._producer
        if producer is None:
            batch = build_batch(records)
        else:
            batch = build_batch(
                records,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
            )
            following = producer.sequence + len(records) & SEQUENCE_MASK
            self._producer = producer._replace(sequence=following)
        if queue.partition == self._turn:
            self._turn = (self._turn + 1) % self._partitions
        self._submit(queue, piece, batch, len(records))

    def _submit(self, queue: _PartitionQueue, piece: Piece, batch: bytes, count: int) -> None:
        piece.batch = batch
        piece.count = count
        if self._expected is not None:
            piece.expected = self._expected
            self._expected += count
        self.pieces.append(piece)
        queue.pieces.append(piece)
        self._in_flight += len(batch)
        if self._in_flight >= self._config.inflight_bytes_max:
            self._has_room.clear()
        if queue.task is None or queue.task.done():
            queue.task = asyncio.ensure_future(self._drain(queue))

    async def _drain(self, queue: _PartitionQueue) -> None:
        name = self._topic.partition(queue.partition)

        async def here(partition: Partition) -> None:
            await self._publish_here(queue, partition)

        async def there(owner: Owner) -> None:
            await self._publish_there(queue, name, owner)

        while queue.pieces and not self.failed:
            first = queue.pieces[0]
            try:
                await with_owner(self._call, name, here, there)
            except Exception as error:
                if not queue.pieces:
                    raise
                if self._stored_some and (wait_s := wait_of(error)):
                    await asyncio.sleep(wait_s)  # a request that has begun is slowed, not refused
                    continue
                if queue.pieces[0] is first or not isinstance(error, _MOVED):
                    self._fail(queue.pieces[0], error)
                # it moved after some were stored: wait for its new owner
        for piece in queue.pieces:
            self._settled(piece)
        queue.pieces.clear()

    async def _publish_here(self, queue: _PartitionQueue, partition: Partition) -> None:
        while queue.pieces and not self.failed:
            flight = [
                queue.pieces[at]
                for at in range(min(len(queue.pieces), self._config.inflight_batches_max))
            ]
            results = await publish_all(
                partition,
                self._topic,
                [piece.batch for piece in flight],
                [piece.count for piece in flight],
                [piece.expected for piece in flight],
                self._access,
                self._call.identity,
                self._call.services.rules,
                checked=True,
            )
            self._take_results(queue, flight, results)

    def _take_results(
        self,
        queue: _PartitionQueue,
        flight: list[Piece],
        results: Sequence[Published | BaseException],
    ) -> None:
        for at, (piece, result) in enumerate(zip(flight, results, strict=True)):
            if isinstance(result, Published):
                self._stored(queue, piece, result)
                continue
            later = results[at:]
            if isinstance(result, NotOwner) and all(isinstance(one, NotOwner) for one in later):
                raise result
            for other, fate in zip(flight[at:], later, strict=True):
                if isinstance(fate, Published):
                    self._stored(queue, other, fate)
                else:
                    self._fail(other, fate)
            return

    async def _publish_there(
        self, queue: _PartitionQueue, name: PartitionName, owner: Owner
    ) -> None:
        while queue.pieces and not self.failed:
            flight: list[Piece] = []
            size = 0
            for piece in queue.pieces:
                if flight and size + len(piece.batch) > SENT_TOGETHER_BYTES:
                    break
                flight.append(piece)
                size += len(piece.batch)
            answer = await self._call.services.remote.publish(
                owner,
                self._call.identity,
                name,
                [piece.batch for piece in flight],
                expected_offset=flight[0].expected,
                access=self._access,
            )
            self._take_results(queue, flight, [_result(fate) for fate in answer.fates])

    def _stored(self, queue: _PartitionQueue, piece: Piece, published: Published) -> None:
        piece.published = published
        self._stored_some = True
        self._call.messages += piece.count
        self._settled(piece)
        if queue.pieces and queue.pieces[0] is piece:
            queue.pieces.popleft()
        elif piece in queue.pieces:
            queue.pieces.remove(piece)

    def _fail(self, piece: Piece, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            raise error
        piece.error = self._call.told(error)
        self.failed = True
        self._has_room.set()

    def _settled(self, piece: Piece) -> None:
        self._in_flight -= len(piece.batch)
        piece.batch = b""
        if self._in_flight < self._config.inflight_bytes_max:
            self._has_room.set()


def size_of(record: Record, bytes_max: int) -> int:
    size = record_bytes(record[0], record[1], record[2])
    if size > bytes_max:
        raise problem_of(MessageTooLong(size, bytes_max))
    return size + RECORD_OVERHEAD_BYTES


def _result(fate: Fate) -> Published | BaseException:
    if fate.refusal is None:
        assert fate.published is not None
        return fate.published
    error = error_of(fate.refusal)
    return problem_from(error.refusal) if isinstance(error, Refused) else error


def _too_many_results(results_max: int) -> Problem:
    return Problem(
        422,
        "too-many-results",
        f"results=all keeps a result for each message, so such a request has at most {results_max} "
        "messages; omit results, or split the request",
    )


NOT_SENT = Problem(
    503, "not-sent", "not sent: something before it in this request failed", retryable=True
)
"""The answer for messages after others that failed."""
