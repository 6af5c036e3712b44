"""Send a producer's messages to a partition: in batches, in order, each stored once.

A batch gets its sequence when it is sent, and keeps its bytes until it is answered, so that a
repeat is stored once. Up to `window` batches are under way, each on its own connection; brokers
refuse a batch that overtakes another. So after a gap or a failed attempt a single batch is under
way, then two, and so on.

When a batch is refused for good, the later batches fail with `ProducerFailed`, and later messages
begin the next epoch. When the topic was created again, nothing more is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from copy import copy
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from octavo.client.encoding import Body, Identity
from octavo.client.errors import ApiError, OutcomeUnknown, ProducerFailed, TopicReplaced
from octavo.client.incarnation import Incarnation
from octavo.client.transport import NEXT_OFFSET, Answer, Transport
from octavo.client.types import Position, TopicName
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record

if TYPE_CHECKING:
    from octavo.client.producer import ProducerOptions

PARTLY_STORED = 207
PAUSE_S = 0.1
SEQUENCE_MODULUS = 2**31
EPOCH_MAX = 2**15 - 1
MESSAGES_PER_BATCH_MAX = 100_000
MERGED_BYTES_MAX = 256 * 1024


class Batch:
    """Messages that are sent together. `done` gets the answer or the error."""

    __slots__ = ("bytes", "done", "epoch", "items", "merged", "sequence", "told", "turn")

    def __init__(self, done: asyncio.Future[Stored]) -> None:
        self.items: list[Record | bytes] = []
        self.bytes = 0
        self.done = done
        self.merged: list[tuple[Batch, int]] = []
        self.turn: asyncio.Future[None] | None = None
        """Done when the batch may be sent again."""
        self.sequence = 0
        self.epoch = 0
        self.told = False

    def merge(self, other: Batch) -> None:
        self.merged.append((other, len(self.items)))
        self.items += other.items
        self.bytes += other.bytes
        other.items = []

    def store(self, stored: Stored) -> None:
        for part, start in self.merged:
            part.done.set_result(stored.part(start))
        self.done.set_result(stored)
        self.items = []  # receipts live on

    def fail(self, error: OctavoError) -> None:
        for part, _ in self.merged:
            part.done.set_exception(error)
        self.done.set_exception(error)
        self.items = []


class Stored:
    """The place of a batch: an earlier run stored its first `before` messages, this run `count`."""

    __slots__ = ("before", "duplicate", "entry", "first_index", "first_offset", "partition")

    def __init__(
        self, partition: int, count: int, answer: Answer, whole: bool, before: int
    ) -> None:
        self.partition = partition
        self.before = before
        self.duplicate = answer.status == 204
        self.first_offset = -1
        self.entry = ""
        self.first_index = 0
        found = answer.json() or {}
        if self.duplicate:
            following = answer.headers.get(NEXT_OFFSET)
            if following is not None and whole:  # one batch: its offsets are contiguous
                self.first_offset = int(following) - count
            return
        first, last = found["first"], found["last"]
        if last.get("offset", -2) - first.get("offset", -1) + 1 == count:
            self.first_offset = int(first["offset"])
            entry, _, index = str(first["id"]).rpartition(":")
            if entry == str(last["id"]).rpartition(":")[0]:
                self.entry, self.first_index = entry, int(index)

    def part(self, start: int) -> Stored:
        part = copy(self)
        part.before -= start
        return part

    def position(self, index: int) -> Position:
        index -= self.before
        if self.first_offset < 0 or index < 0:
            return Position(self.partition, -1, "", self.duplicate or index < 0)
        message_id = f"{self.entry}:{self.first_index + index}" if self.entry else ""
        return Position(self.partition, self.first_offset + index, message_id, self.duplicate)


ACCESS_EPOCH = "Producer-Access-Epoch"


class PartitionQueue:
    def __init__(
        self,
        transport: Transport,
        topic: TopicName,
        partition: int,
        options: ProducerOptions,
        released: Callable[[int, int], None],
        of: Incarnation,
        access: int | None = None,
    ) -> None:
        self.partition = partition
        self._access = {} if access is None else {ACCESS_EPOCH: str(access)}
        self._transport = transport
        self._topic = topic
        self._of = of
        self._path = f"/v1/topics/{topic}/partitions/{partition}/messages"
        self._options = options
        self._released = released
        self._loop = asyncio.get_running_loop()
        self.open_batch: Batch | None = None
        self._timer: asyncio.Handle | None = None
        self._sealed: deque[Batch] = deque()
        """Full batches that were not sent yet; they have no sequence."""
        self._window: deque[Batch] = deque()
        self._width = options.window
        """How many batches of the window, from the first on, may be under way."""
        self._catching_up = False
        """True from a failed attempt until the window is wide and all sealed batches are sent."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._sequence = 0
        self._epoch = options.epoch
        self._ended: ProducerFailed | TopicReplaced | None = None

    def describe(self) -> dict[str, int]:
        return {
            "open": 0 if self.open_batch is None else len(self.open_batch.items),
            "sealed": len(self._sealed),
            "window": len(self._window),
        }

    def waits_in_vain(self) -> str:
        """Name a batch that waits without a reason, for tests; empty if there is none."""
        if self._has_room and self._sealed:
            return "batches wait to be sent, and the window has room"
        if self._has_room and self.open_batch is not None and self._timer is None:
            return "an open batch waits without a timer, and the window has room"
        if any(one.turn is not None and not one.turn.done()
               for one in islice(self._window, self._width)):  # fmt: skip
            return "a batch rests, and may go again"
        return ""

    def add(self, item: Record | bytes, size: int) -> tuple[Batch, int]:
        batch, bytes_max = self.open_batch, self._options.batch_bytes
        if batch is not None and batch.bytes + size > bytes_max:
            self.seal()
            batch = None
        if batch is None:
            batch = self.open_batch = Batch(self._loop.create_future())
            batch.done.add_done_callback(_seen)
            self._timer = self._later()
        index = len(batch.items)
        batch.items.append(item)
        batch.bytes += size
        # There is no room for another message like this: send the batch without waiting.
        if batch.bytes + size > bytes_max or index + 1 >= MESSAGES_PER_BATCH_MAX:
            self.seal()
        return batch, index

    def seal(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self.open_batch = self.open_batch, None
        if batch is not None and self._ended is not None:
            self._fail(batch, self._ended)
        elif batch is not None:
            self._sealed.append(batch)
        self._fill_window()

    def pending(self) -> list[asyncio.Future[Stored]]:
        return [batch.done for batch in self._batches()]

    @property
    def unanswered(self) -> int:
        return sum(len(batch.items) for batch in self._batches())

    def _batches(self) -> list[Batch]:
        return [*self._window, *self._sealed, *([self.open_batch] if self.open_batch else [])]

    async def close(self) -> None:
        self._end("the producer was closed")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A task that was cancelled before it began has not failed its batch.
        left, self._window = [*self._window, *self._sealed], deque()
        self._sealed.clear()
        for batch in left:
            self._fail(batch, OutcomeUnknown("the producer was closed before the answer came"))
        self.seal()

    def _later(self) -> asyncio.Handle:
        if self._options.linger_ms <= 0:
            return self._loop.call_soon(self._lingered)
        return self._loop.call_later(self._options.linger_ms / 1000, self._lingered)

    def _lingered(self) -> None:
        self._timer = None
        if self._has_room:
            self.seal()

    @property
    def _has_room(self) -> bool:
        return len(self._window) < self._width

    def _fill_window(self) -> None:
        for batch in islice(self._window, self._width):
            if batch.turn is not None and not batch.turn.done():
                batch.turn.set_result(None)
        while self._has_room:
            if not self._sealed:
                if self.open_batch is None or self._timer is not None:
                    return
                self.seal()
                return
            batch = self._next()
            self._window.append(batch)
            task = self._loop.create_task(self._deliver(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next(self) -> Batch:
        """Take the first sealed batch, merged with following batches when catching up."""
        batch = self._sealed.popleft()
        while self._catching_up and self._sealed:
            following = self._sealed[0]
            if (
                batch.bytes + following.bytes > MERGED_BYTES_MAX
                or len(batch.items) + len(following.items) > MESSAGES_PER_BATCH_MAX
            ):
                break
            batch.merge(self._sealed.popleft())
        batch.sequence, batch.epoch = self._sequence, self._epoch
        self._sequence = (self._sequence + len(batch.items)) % SEQUENCE_MODULUS
        return batch

    async def _deliver(self, batch: Batch) -> None:
        try:
            self._settle(batch, await self._send(batch))
        except asyncio.CancelledError:
            if not batch.done.done():
                self._end("the producer was closed")
            self._refuse(batch, OutcomeUnknown("the producer was closed before the answer came"))
            raise
        except OctavoError as error:
            self._refuse(batch, error)
        except Exception as error:
            self._refuse(batch, ProducerFailed(f"{type(error).__name__}: {error}"))

    async def _send(self, batch: Batch) -> Stored:
        deadline = self._loop.time() + self._options.delivery_timeout_ms / 1000
        done = 0
        body = self._body(batch, done)
        while (left_s := deadline - self._loop.time()) > 0:
            was_head = self._window[0] is batch
            try:
                answer = await self._transport.call(
                    "POST",
                    self._path,
                    body=body.data,
                    headers={**body.headers, **self._access},
                    partition=(str(self._topic), self.partition),
                    retry_s=left_s,
                    of=self._of,
                    rest=partial(self._rest, batch, deadline),
                )
            except ApiError as error:
                if error.code != "sequence-gap":
                    raise
                if not was_head:
                    await self._rest(batch, deadline, 0)
                    continue
                done = _stored_already(batch, error)
                body = self._body(batch, done)
                continue
            if answer.status != PARTLY_STORED:
                whole = self._options.encoding.whole
                return Stored(self.partition, len(batch.items) - done, answer, whole, done)
            first = answer.json()["errors"][0]
            if not first.get("retryable"):
                raise ApiError(first["status"], first, f"POST {self._path}")
            # Send the whole batch again: the owner skips the messages that it has stored.
            await self._rest(batch, deadline, PAUSE_S)
        raise OutcomeUnknown(
            f"{self._topic} partition {self.partition}: no answer about sequence "
            f"{batch.sequence} within {self._options.delivery_timeout_ms} ms"
        )

    def _body(self, batch: Batch, done: int) -> Body:
        sequence = (batch.sequence + done) % SEQUENCE_MODULUS
        who = Identity(self._options.producer_id, batch.epoch, sequence)
        return self._options.encoding.body(batch.items[done:], who)

    async def _rest(self, batch: Batch, deadline: float, pause_s: float) -> None:
        """After a failed attempt, wait for the pause, then until the window lets `batch` go."""
        self._width, self._catching_up = 1, True
        await asyncio.sleep(pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while batch in islice(self._window, self._width, None):
                    batch.turn = self._loop.create_future()
                    await batch.turn

    def _settle(self, batch: Batch, stored: Stored) -> None:
        if batch.done.done():
            return
        self._released(batch.bytes, len(batch.items))
        batch.store(stored)
        while self._window and self._window[0].done.done():
            self._window.popleft()
        self._width = min(self._width + 1, self._options.window)
        self._fill_window()
        if self._width == self._options.window and not self._sealed:
            self._catching_up = False

    def _refuse(self, batch: Batch, error: OctavoError) -> None:
        if batch.done.done():
            return
        sent, unsent = [*self._window], [*self._sealed]
        self._window.clear()
        self._sealed.clear()
        self._next_epoch()
        unknown: OctavoError = self._beside(batch, error, "sent, but not known to be stored")
        not_sent: OctavoError = self._beside(batch, error, "not sent")
        if isinstance(error, TopicReplaced):
            self._ended = self._ended or error
            unknown = not_sent = error  # stored messages are gone with their topic
        for other in sent:
            self._fail(other, error if other is batch else unknown)
        for other in unsent:
            self._fail(other, error if other is batch else not_sent)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._fill_window()  # an open batch may have waited for room in the window

    def _beside(self, failed: Batch, error: OctavoError, what: str) -> ProducerFailed:
        return ProducerFailed(
            f"{self._topic} partition {self.partition}: {what}, because sequence "
            f"{failed.sequence} failed: {error}"
        )

    def _fail(self, batch: Batch, error: OctavoError) -> None:
        if not batch.done.done():
            self._released(batch.bytes, 0)
            batch.fail(error)

    def _next_epoch(self) -> None:
        """Restart the sequences: in the old epoch, brokers would drop later messages as repeats."""
        self._sequence = 0
        if self._epoch < EPOCH_MAX:
            self._epoch += 1
        else:
            self._end(
                f"producer {self._options.producer_id} has used its last epoch, {EPOCH_MAX}: "
                "go on under another producer id"
            )

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = ProducerFailed(
                f"{self._topic} partition {self.partition}: not sent: {why}"
            )


def _stored_already(batch: Batch, error: ApiError) -> int:
    """Return how many messages of `batch` the broker has stored already.

    An earlier run with this producer id may have cut its batches differently. Raises `error` if
    none is stored: a real gap.
    """
    expected = error.problem.get("expected_sequence")
    if isinstance(expected, int):
        done = (expected - batch.sequence) % SEQUENCE_MODULUS
        if 0 < done < len(batch.items):
            return done
    raise error


def _seen(future: asyncio.Future[Stored]) -> None:
    if not future.cancelled():
        future.exception()
