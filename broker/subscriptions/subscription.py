"""The driver of one subscription in one partition: receive, acknowledge, seek.

Promises: an ack that returned is durable, in whatever order acks come and however many holes they
leave; a message whose lease ended is delivered again, so delivery is at least once. Leases are
memory only: after a take-over they are void and unacked messages are delivered again.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple, Protocol, TypeVar

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    CumulativeAckNotAllowed,
    InvalidAckId,
    NotOwner,
    OffsetBeyondEnd,
    StaleLease,
    TooManyDelayed,
)
from octavo.broker.log.open_batches import ReadableBatch
from octavo.broker.state.cursor import Cursor, Range, ranges_of
from octavo.broker.state.format import Op, ack_op, cursor_op
from octavo.broker.subscriptions.dispatch import DispatchedBatch, Dispatcher
from octavo.broker.types import (
    AckId,
    ConsumerStats,
    Delivery,
    MessageId,
    Nack,
    PartitionName,
    StoredBatch,
    SubscriptionInfo,
    SubscriptionStats,
)
from octavo.protocol.ack_ids import shown, span_of
from octavo.protocol.leased import Leased, Run, joined, runs_of
from octavo.protocol.records import record_bytes

_MESSAGES_MAX = 10_000
"""One receive gives no more, whatever it asks for."""
_READ_BYTES = 1024 * 1024
_GIVEN_BYTES_MAX = 4 * 1024 * 1024
"""Keys, values and headers in one answer, unless one message alone has more: as JSON they may take
six times as much."""
_READING_S_MAX = 0.5
"""A receive that has a message reads no longer: who asked waits, and does not wait for ever."""
_STORED_FOR_ONE_MAX = 4
"""Batches go as they are stored while they hold no more than so many messages for each given."""
_RUNS_MAX = 64
"""… and are told in so many runs of offsets, and of entries: headers have a length."""
_STALE_SHOWN = 10
_ANSWERS_REMEMBERED = 256
"""Of so many consumers the last dispatched batch is known, should its answer get lost."""
Given = TypeVar("Given")


class SubscribedLog(Protocol):
    """What a subscription needs of its partition."""

    name: PartitionName

    @property
    def lease_epoch(self) -> int:
        """Counts the take-overs, elsewhere in each incarnation of the topic."""

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        """Batches from the one that contains `offset`."""

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        """The batch, opened, for as long as the block lasts."""

    @property
    def earliest_offset(self) -> int:
        """The first offset left."""

    @property
    def kept_from(self) -> int:
        """The first offset left once a trim under way has taken effect."""

    @property
    def next_offset(self) -> int:
        """The confirmed end."""

    async def persist(self, op: Op) -> None:
        """Return when the operation is durable."""


class _Asked(NamedTuple):
    """What one receive is asked for, by whom."""

    consumer: str
    messages_max: int
    request: str
    out_max: int | None


class LeasedBatches(NamedTuple):
    """Batches as they are stored, and which of their messages go to a consumer: `given` of them."""

    leased: Leased
    batches: list[StoredBatch]
    given: int


class Subscription:
    """One subscription in one owned partition."""

    def __init__(
        self, log: SubscribedLog, info: SubscriptionInfo, cursor: Cursor, config: BrokerConfig
    ) -> None:
        self.info = info
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._cursor = cursor
        self._dispatcher = Dispatcher(
            cursor,
            exclusive=info.settings.type == "exclusive",
            ack_timeout_ms=info.settings.ack_timeout_ms,
            leased_max=config.leased_messages_max,
            delayed_max=config.delayed_messages_max,
        )
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._answered: OrderedDict[str, tuple[str, DispatchedBatch]] = OrderedDict()
        """By consumer the last numbered request, and what it was given."""
        self._newest: tuple[str, int] | None = None
        """Of an exclusive subscription: the highest numbered call of its consumer."""
        self._newest_got_none = False
        self._receiving = 0
        """Calls that have not got a message yet."""
        self._in_order = asyncio.Lock()
        """One dispatched batch is read after another: the next begins with what this gives back."""
        self._closed: NotOwner | None = None

    async def receive(
        self,
        consumer: str,
        *,
        messages_max: int,
        wait_s: float = 0.0,
        request: str = "",
        out_max: int | None = None,
    ) -> list[Delivery]:
        """Messages one by one; see `receive_as`."""
        asked = _Asked(consumer, messages_max, request, out_max)
        found = await self.receive_as(self._deliver, asked, wait_s)
        return [] if found is None else found

    async def receive_batches(
        self,
        consumer: str,
        *,
        messages_max: int,
        wait_s: float = 0.0,
        request: str = "",
        out_max: int | None = None,
    ) -> LeasedBatches | list[Delivery]:
        """The batches that have them, as they are stored; see `receive_as`.

        One by one all the same where that says more in less: few messages of large batches, or
        many that do not follow each other.
        """
        asked = _Asked(consumer, messages_max, request, out_max)
        found = await self.receive_as(self._deliver_batches, asked, wait_s)
        return [] if found is None else found

    async def receive_as(
        self,
        deliver: Callable[[DispatchedBatch], Awaitable[Given]],
        asked: _Asked,
        wait_s: float,
    ) -> Given | None:
        """Up to `messages_max` messages, leased to `consumer` for the subscription's ack timeout.

        With `out_max` no more than so many are out at this consumer, unacked, of this partition.
        Waits up to `wait_s` for the first one; None when none came, or when the consumers hold too
        many unacked ones already (`held_back` tells). Redeliveries come first. A call that repeats
        the `request` of the consumer's last one gets the same messages again, as far as they are
        unacked: its answer was lost, and what came after them would leave a gap that a cumulative
        ack acks unseen.
        For the same reason a late copy of an earlier call to an exclusive subscription gets None.
        Raises `SubscriptionBusy` when the subscription is exclusive and another consumer holds it,
        `NotOwner`.
        """
        until_s = self._loop.time() + wait_s
        consumer, request = asked.consumer, asked.request
        call = _number_of(request) if self.info.settings.type == "exclusive" else None
        if call is not None and not self._is_late(call):
            if call == self._newest and self._is_spent(consumer, request):
                return None
            self._newest, self._newest_got_none = call, False
        waiting = 1
        self._receiving += waiting
        try:
            while not self._is_late(call):
                async with self._in_order:
                    late = self._is_late(call)
                    found = None if late else self._dispatch(asked)
                    if found is not None:
                        self._receiving -= waiting
                        waiting = 0
                        return await deliver(found)
                if self._loop.time() >= until_s:
                    break
                await self._wait(until_s)
        finally:
            self._receiving -= waiting
        self._newest_got_none = self._newest_got_none or call == self._newest
        return None

    async def acknowledge(
        self,
        ack_ids: Sequence[str] = (),
        *,
        up_to: int | None = None,
        nacks: Sequence[Nack] = (),
        extend: Sequence[str] = (),
    ) -> int:
        """Acknowledge, give back, or keep longer; return how many messages became acked.

        `up_to`: every offset up to and including this one (exclusive subscriptions only).
        `nacks`: deliver again, each after its delay. `extend`: begin the ack timeout anew.
        Acking what is acked already is no error. Returns when the acks are durable. Raises
        `InvalidAckId` (nothing took effect), `StaleLease` and `TooManyDelayed` (the others took
        effect, and are durable), `CumulativeAckNotAllowed`, `OffsetBeyondEnd`,
        `AckOutcomeUnknown`, `NotOwner`.
        """
        if self._closed is not None:
            raise self._closed
        if up_to is not None:
            self._check_up_to(up_to)
        now_ms = self._now_ms()
        self._dispatcher.expire(now_ms)
        stale: list[str] = []
        acked = self._claimed(ack_ids, stale, or_acked=True)
        given_back = [(self._claimed([nack.ack_id], stale), nack.delay_ms) for nack in nacks]
        extended = self._claimed(extend, stale)
        for offset in (*acked[:1], *extended[:1], *(o for os, _ in given_back[:1] for o in os)):
            self._dispatcher.heard_of(offset, now_ms)
        self._dispatcher.extend(extended, now_ms)
        refused = sum(
            not self._dispatcher.nack(offset, now_ms, delay_ms)
            for offsets, delay_ms in given_back
            for offset in offsets
        )
        ranges, new = self._ack(acked, up_to)
        self.wake()
        if ranges:
            await self._log.persist(ack_op(self.info.name, ranges))
        if stale:
            some = ", ".join(stale[:_STALE_SHOWN]) + (", …" if len(stale) > _STALE_SHOWN else "")
            raise StaleLease(
                f"{len(stale)} ack ids have no lease any more ({some}): those messages were or "
                "will be delivered again; everything else of the call took effect",
                stale,
            )
        if refused:
            raise TooManyDelayed(
                f"{refused} messages were not given back and stay leased: "
                f"{self._dispatcher.delayed} wait for their delay already, the most in one "
                "partition; give them back without a delay, or let their leases end. Everything "
                "else of the call took effect"
            )
        return new

    def held_back(self) -> str | None:
        """Why `receive` hands nothing out though there are messages; None when that is not so."""
        return self._dispatcher.held_back(self._log.next_offset)

    async def seek(self, offset: int) -> int:
        """Set the cursor to `offset` (clamped to what is there) and return it; ends all leases.

        Everything before it counts as acked, nothing from it on. See `Partition.resolve`.
        """
        if self._closed is not None:
            raise self._closed
        offset = min(max(offset, self._log.kept_from), self._log.next_offset)
        self._cursor.reset(offset)
        self._dispatcher.reset()
        self.wake()
        await self._log.persist(cursor_op(self.info.name, self.info.created_ms, offset))
        return offset

    def stats(self) -> SubscriptionStats:
        """Live figures."""
        cursor, dispatcher, now_ms = self._cursor, self._dispatcher, self._now_ms()
        end = self._log.next_offset
        return SubscriptionStats(
            name=self.info.name,
            type=self.info.settings.type,
            committed_offset=cursor.committed_offset,
            next_offset=end,
            backlog=cursor.backlog(end),
            unacked_ranges=cursor.hole_count(),
            leased=dispatcher.leased,
            redelivering=dispatcher.ready,
            delayed=dispatcher.delayed,
            held_back=dispatcher.held_back(end),
            consumers=tuple(
                ConsumerStats(consumer.name, consumer.leased, now_ms - consumer.seen_ms)
                for consumer in dispatcher.consumers.values()
            ),
        )

    def wake(self) -> None:
        """There may be something to hand out: whoever waits looks again."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self, error: NotOwner) -> None:
        """The partition or the subscription is gone from here: calls under way end with `error`."""
        self._closed = error
        self.wake()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _dispatch(self, asked: _Asked) -> DispatchedBatch | None:
        consumer, request = asked.consumer, asked.request
        if self._closed is not None:
            raise self._closed
        now_ms = self._now_ms()
        self._dispatcher.enter(consumer, now_ms)
        self._skip_trimmed()
        last_request, last_found = self._answered.get(consumer, ("", None))
        if request and request == last_request and last_found is not None:
            again = self._dispatcher.again(last_found, now_ms)
            if again is not None:
                return again
        end = self._log.next_offset
        most = min(asked.messages_max, _MESSAGES_MAX)
        if asked.out_max is not None:
            most = min(most, asked.out_max - self._dispatcher.held_by(consumer, now_ms))
            if most <= 0:
                return None
        found = self._dispatcher.dispatch(consumer, now_ms, end, self._share(most, end))
        if found is not None:
            self._note_answer(consumer, request, found)
        return found

    def _is_late(self, call: tuple[str, int] | None) -> bool:
        """Whether its consumer has gone on: it got the answer to this call from another copy."""
        newest = self._newest
        return call is not None and newest is not None and call[0] == newest[0] and call < newest

    def _is_spent(self, consumer: str, request: str) -> bool:
        """Whether the newest call was answered, and what it was given is acked: a copy is late."""
        last_request, found = self._answered.get(consumer, ("", None))
        if request == last_request and found is not None:
            return all(map(self._cursor.is_acked, found.offsets))
        return self._newest_got_none

    def _note_answer(self, consumer: str, request: str, found: DispatchedBatch) -> None:
        self._answered.pop(consumer, None)
        if request:
            self._answered[consumer] = (request, found)
            if len(self._answered) > _ANSWERS_REMEMBERED:
                self._answered.popitem(last=False)

    def _share(self, messages_max: int, end: int) -> int:
        """When several consumers wait for the same messages, each gets a part of them."""
        if self._receiving == 1 or self.info.settings.type == "exclusive":
            return messages_max
        available = self._cursor.backlog(end) - self._dispatcher.leased
        return max(1, min(messages_max, -(-available // self._receiving)))

    def _skip_trimmed(self) -> None:
        earliest = self._log.earliest_offset
        if self._cursor.committed_offset < earliest:
            self._cursor.ack(0, earliest)
            self._dispatcher.acked_up_to(earliest - 1)

    async def _wait(self, until_s: float) -> None:
        event_ms = self._dispatcher.next_event_ms()
        if event_ms is not None:
            until_s = min(until_s, event_ms / 1000 + 0.001)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        timer = self._loop.call_at(until_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    async def _deliver(self, found: DispatchedBatch) -> list[Delivery]:
        async def one_by_one() -> tuple[list[Delivery], int]:
            deliveries = await _delivered(self._log, found, self._loop)
            return deliveries, len(deliveries)

        return await self._hand_out(found, one_by_one)

    async def _deliver_batches(self, found: DispatchedBatch) -> LeasedBatches | list[Delivery]:
        async def whole() -> tuple[LeasedBatches | list[Delivery], int]:
            batches = await _batches(self._log, found, self._loop)
            if batches is None:
                deliveries = await _delivered(self._log, found, self._loop)
                return deliveries, len(deliveries)
            count = bisect_left(found.offsets, batches[-1].next_offset)
            leased = Leased(
                self._log.name.partition,
                f"{self._log.lease_epoch}-{found.number}",
                runs_of(found.offsets[:count], found.counts),
                [(one.ledger_id, one.entry_id) for one in batches],
            )
            return LeasedBatches(leased, batches, count), count

        return await self._hand_out(found, whole)

    async def _hand_out(
        self, found: DispatchedBatch, read: Callable[[], Awaitable[tuple[Given, int]]]
    ) -> Given:
        """What `read` gives, and of how many messages: the others are there for whoever asks."""
        self._dispatcher.reading(found)
        try:
            given, count = await read()
            if count < len(found.offsets):
                found = self._shorten(found, count)
            self._dispatcher.begin(found, self._now_ms())
            return given
        except BaseException:
            # Also when the consumer went away meanwhile.
            if found.is_repeat:
                self._dispatcher.begin(found, self._now_ms())  # it may have them all the same
            else:
                self._dispatcher.give_back(found)
                self.wake()
            raise

    def _shorten(self, found: DispatchedBatch, count: int) -> DispatchedBatch:
        """What did not fit is there for whoever asks next, and no part of this answer."""
        shorter = self._dispatcher.shorten(found, count)
        for consumer, (request, answered) in self._answered.items():
            if answered.number == found.number:
                self._answered[consumer] = (request, shorter)
        self.wake()
        return shorter

    def _check_up_to(self, up_to: int) -> None:
        if self.info.settings.type != "exclusive":
            raise CumulativeAckNotAllowed(
                f"subscription {self.info.name!r} is {self.info.settings.type}: up_to would ack "
                "what other consumers hold; ack each message by its ack id"
            )
        end = self._log.next_offset
        if up_to >= end:
            raise OffsetBeyondEnd(
                f"{self._log.name}: cannot ack up to {up_to}, the next offset is {end}", end
            )

    def _claimed(
        self, ack_ids: Iterable[str], stale: list[str], *, or_acked: bool = False
    ) -> list[int]:
        """The offsets of ack ids whose lease is alive; those without one go to `stale`."""
        here = (str(self._log.name.partition), str(self._log.lease_epoch))
        topic = self._log.lease_epoch >> 32
        holds, is_acked = self._dispatcher.holds, self._cursor.is_acked
        offsets = []
        for text in ack_ids:
            # Taken apart in place: a thousand of these come with every call.
            try:
                partition, offsets_text, epoch, lease_text = text.split("-")
                start, end = span_of(offsets_text)
                lease, of = int(lease_text), int(epoch) >> 32
            except ValueError:
                raise AckId.invalid(text) from None
            if partition != here[0]:
                raise InvalidAckId(f"ack id {text} belongs to partition {partition}, not {here[0]}")
            is_ours, may_be_acked = (partition, epoch) == here, or_acked and of == topic
            gone = []
            for offset in range(start, end):
                # An ack that is repeated because its answer was lost is not stale, it is done; one
                # of an earlier topic of the name is of another message, whatever its offset.
                if (is_ours and holds(offset, lease)) or (may_be_acked and is_acked(offset)):
                    offsets.append(offset)
                else:
                    gone.append(offset)
            if gone:
                told = f"{epoch}-{lease_text}"
                stale += [shown(int(partition), *part, told) for part in ranges_of(gone)]
        return offsets

    def _ack(self, acked: list[int], up_to: int | None) -> tuple[list[Range], int]:
        """Ack in memory; the ranges to make durable (also those acked before), and the new ones."""
        ranges = ranges_of(sorted(set(acked)))
        new = 0
        if up_to is not None:
            floor = min(self._cursor.committed_offset, up_to)
            new += self._cursor.ack(0, up_to + 1)
            self._dispatcher.acked_up_to(up_to)
            ranges = [
                (floor, up_to + 1),
                *((max(s, up_to + 1), e) for s, e in ranges if e > up_to + 1),
            ]
        for start, end in ranges:
            new += self._cursor.ack(start, end)
        self._dispatcher.acked(acked)
        return ranges, new


def _number_of(request: str) -> tuple[str, int] | None:
    """The two parts of a request's text when it ends in a number, `…-12`."""
    front, _, number = request.rpartition("-")
    return (front, int(number)) if front and number.isascii() and number.isdigit() else None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _delivered(
    log: SubscribedLog, found: DispatchedBatch, loop: asyncio.AbstractEventLoop
) -> list[Delivery]:
    """The dispatched messages in order: at least one, and as many as there is room and time for.

    Only what is wanted of a batch is taken apart, and no more than some megabytes go into one
    answer: a few bytes in a packed batch may unpack to as many messages of any length as a receive
    may ask for.
    """
    offsets = found.offsets
    deliveries: list[Delivery] = []
    room = _GIVEN_BYTES_MAX
    until_s = _read_until_s(found, loop)
    while (at := len(deliveries)) < len(offsets) and room >= 0:
        if deliveries and loop.time() > until_s:
            break
        wanted = offsets[-1] - offsets[at] + 1
        batches = await log.read(offsets[at], bytes_max=_READ_BYTES, count_max=wanted)
        for batch in batches:
            if offsets[len(deliveries)] >= batch.next_offset:
                continue  # redeliveries lie far apart: only what is wanted is opened
            room = await _open_and_take(log, found, batch, deliveries, room)
            if len(deliveries) == len(offsets) or room < 0:
                break
    return deliveries


async def _batches(
    log: SubscribedLog, found: DispatchedBatch, loop: asyncio.AbstractEventLoop
) -> list[StoredBatch] | None:
    """The batches that hold the dispatched messages, as far as there is room and time.

    None when one by one they are less to say or to send.
    """
    runs = runs_of(found.offsets, found.counts)
    if len(runs) > _RUNS_MAX:
        return None
    batches: list[StoredBatch] = []
    room = _GIVEN_BYTES_MAX
    until_s = _read_until_s(found, loop)
    async with aclosing(_stored(log, runs)) as stored_batches:
        async for batch in stored_batches:
            room -= len(batch.data)
            if batches and (room < 0 or loop.time() > until_s):
                break
            batches.append(batch)
    stored = sum(batch.header.record_count for batch in batches)
    given = bisect_left(found.offsets, batches[-1].next_offset)
    entries = joined((one.ledger_id, one.entry_id) for one in batches)
    if stored > _STORED_FOR_ONE_MAX * given or len(entries) > _RUNS_MAX:
        return None
    return batches


def _read_until_s(found: DispatchedBatch, loop: asyncio.AbstractEventLoop) -> float:
    """What was given before fitted into an answer once, and its consumer may be at work on it: to
    take a part of it back because disks are slow now would give that to another one as well.
    """
    return math.inf if found.is_repeat else loop.time() + _READING_S_MAX


async def _stored(log: SubscribedLog, runs: Sequence[Run]) -> AsyncGenerator[StoredBatch, None]:
    """Each batch that holds some of these offsets, once."""
    offset = 0
    for start, end, _ in runs:
        offset = max(offset, start)
        while offset < end:
            for batch in await log.read(offset, bytes_max=_READ_BYTES, count_max=end - offset):
                yield batch
                offset = batch.next_offset
                if offset >= end:
                    break


async def _open_and_take(
    log: SubscribedLog,
    found: DispatchedBatch,
    batch: StoredBatch,
    deliveries: list[Delivery],
    room: int,
) -> int:
    """Add the messages that are of this batch; the room that is left."""
    front, back = f"{log.name.partition}-", f"-{log.lease_epoch}-{found.number}"
    base, ledger_id, entry_id = batch.base_offset, batch.ledger_id, batch.entry_id
    offsets, counts, end = found.offsets, found.counts, batch.next_offset
    async with log.readable(batch) as records:
        for at in range(len(deliveries), len(offsets)):
            offset = offsets[at]
            if offset >= end:
                break
            index = offset - base
            if not records.holds(index):
                await records.turn_to(index)
            record = records[index]
            room -= record_bytes(record.key, record.value, record.headers)
            if deliveries and room < 0:
                break
            deliveries.append(
                Delivery(
                    f"{front}{offset}{back}",
                    offset,
                    MessageId(ledger_id, entry_id, index),
                    record,
                    counts.get(offset, 1),
                )
            )
    return room
