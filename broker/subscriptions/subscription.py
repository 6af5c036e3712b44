"""Drive a subscription in one partition: receive, acknowledge, seek.

Promises: an ack that returned is durable, in any order of acks and with any number of holes. A
message whose lease ended is delivered again. Leases are in memory; at a planned end they are
written for the successor. Delivery counts above 1 are durable before a consumer gets them.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple, Protocol, TypeVar

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    CUMULATIVE_ACK_NOT_ALLOWED,
    GROUP_NOT_ALLOWED,
    INVALID_ACK_ID,
    AckOutcomeUnknown,
    NotOwner,
    OffsetBeyondEnd,
    OffsetTrimmed,
    PartitionUnavailable,
    StaleLease,
    TooManyDelayed,
)
from octavo.broker.log.open_batches import ReadableBatch
from octavo.broker.state.cursor import Cursor, Range, ranges_of
from octavo.broker.state.format import CursorState, Op, ack_op, cursor_op, deliveries_op, sought_op
from octavo.broker.state.leases import LeftAnswer, LeftLeases
from octavo.broker.subscriptions.consumer_selection import Consumer, ConsumerSelection
from octavo.broker.subscriptions.dead_letter_delivery import (
    DeadLetterDelivery,
    DeadLetterSender,
    LargeSource,
)
from octavo.broker.subscriptions.dead_letters import SpentMessages
from octavo.broker.subscriptions.dispatch import DispatchedBatch, Dispatcher
from octavo.broker.subscriptions.filters import Filter
from octavo.broker.subscriptions.key_lookahead import KeyLookAhead
from octavo.broker.subscriptions.key_shared import KeyOrder
from octavo.broker.subscriptions.last_used import LastUsed
from octavo.broker.subscriptions.member_fence import MemberFence
from octavo.broker.subscriptions.waits import told_of
from octavo.broker.types import (
    NO_DEAD_LETTERS,
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
from octavo.protocol.ack_ids import parts_of, shown, span_of
from octavo.protocol.append_time import Times
from octavo.protocol.batch import ATTRIBUTE_DELAYED
from octavo.protocol.due import due_of
from octavo.protocol.leased import Leased, Run, joined, runs_of
from octavo.protocol.numbers import whole
from octavo.protocol.records import record_bytes

_MESSAGES_MAX = 10_000
_READ_BYTES = 1024 * 1024
_GIVEN_BYTES_MAX = 4 * 1024 * 1024
"""Keys, values and headers in an answer (JSON: up to six times as many); a single message may have
more.
"""
_READING_S_MAX = 0.5
_STORED_FOR_ONE_MAX = 4
"""Stored batches are sent whole if they hold at most this many messages per given message …"""
_RUNS_MAX = 64
"""… and at most this many ranges: these go into a bounded header."""
_LOOKING_S_MAX = 0.5
_RANGES_SHOWN_FOR = 64
"""The most consumers for which statistics show slots; for more they only count them."""
_ANSWERS_REMEMBERED = 256
"""Consumers whose last answer is remembered, in case it was lost."""
Given = TypeVar("Given")


class SubscribedLog(Protocol):
    name: PartitionName

    @property
    def lease_epoch(self) -> int:
        """Counts take-overs; differs between incarnations of the topic."""

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]: ...

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]: ...

    async def large_body(self, offset: int) -> LargeSource | None: ...

    @property
    def earliest_offset(self) -> int: ...

    @property
    def kept_from(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    async def persist(self, op: Op) -> None: ...

    def wall_ms(self) -> int: ...

    @property
    def hidden(self) -> Sequence[Range]: ...


class _Asked(NamedTuple):
    consumer: str
    messages_max: int
    request: str
    out_max: int | None
    generation: int | None = None
    priority: int = 0


class _Answer(NamedTuple):
    request: str
    found: DispatchedBatch | None
    was_repeated: bool = False


_NO_ANSWER = _Answer("", None)


class LeasedBatches(NamedTuple):
    leased: Leased
    batches: list[StoredBatch]
    given: int


class Subscription:
    def __init__(
        self,
        log: SubscribedLog,
        info: SubscriptionInfo,
        cursor: Cursor,
        config: BrokerConfig,
        held: CursorState | None = None,
        office: DeadLetterSender | None = None,
        uses: LastUsed | None = None,
    ) -> None:
        self.info = info
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._cursor = cursor
        settings = info.settings
        self._held = CursorState(info.created_ms, cursor) if held is None else held
        self._told = self._held.deliveries
        self._last_used = uses
        deliveries_max = settings.retry_deliveries or settings.max_deliveries
        spent = SpentMessages(deliveries_max, config.dead_letters_waiting_max)
        self._one_at_a_time = settings.type in ("exclusive", "failover")
        keys = KeyOrder(cursor, config.look_ahead_messages_max)
        self._keys = keys if settings.type == "key_shared" else None
        number = log.name.partition
        self._selection = ConsumerSelection(settings.type, settings.consumer_timeout_ms, number)
        self._dispatcher = Dispatcher(
            cursor,
            exclusive=settings.type == "exclusive",
            in_order=self._one_at_a_time,
            ack_timeout_ms=settings.ack_timeout_ms,
            leased_max=min(
                settings.max_unacked or config.leased_messages_max, config.leased_messages_max
            ),
            delayed_max=config.delayed_messages_max,
            retry_backoff=settings.retry_backoff,
            attempts=self._told,
            spent=spent,
            pending_max=config.pending_messages_max,
            turns=self._selection,
            keys=self._keys,
            of_one_max=settings.max_unacked_per_consumer,
        )
        self._keys_ahead = KeyLookAhead(cursor, Filter(settings), self._keys)
        self._pieces_passed = 0
        self._dead_letters: DeadLetterDelivery | None = None
        if office is not None and spent.limits:
            self._dead_letters = DeadLetterDelivery(
                log.name, self._letter_word, info, config, spent, office, self._read_spent,
                self._ack_spent, log.large_body,
            )  # fmt: skip
        self._fence = MemberFence()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._answered: OrderedDict[str, _Answer] = OrderedDict()
        self._newest: tuple[str, int] | None = None
        self._newest_got_none = False
        self._receiving = 0
        self._in_order = asyncio.Lock()
        """Held while a batch is read, so that messages which it gives back come first in the next
        one.
        """
        self._look: asyncio.TimerHandle | None = None
        self._look_ms = 0
        self._closed: NotOwner | None = None
        self._era = log.lease_epoch & 0xFFFF_FFFF
        """The epoch at which this chain of leases began: a part of their ack ids."""
        left, self._held.left = self._held.left, None
        if left is not None:
            self._resume(left)

    def _resume(self, left: LeftLeases) -> None:
        now_ms = self._now_ms()
        self._era = left.era
        self._dispatcher.resume(left, now_ms)
        if left.group is not None:
            self._fence.resume(left.group, now_ms)
        if left.newest is not None:
            front, number, self._newest_got_none = left.newest
            self._newest = front, number
        for consumer, request, number, was_pending in left.answers:
            offsets = self._dispatcher.left_of(number)
            times = self._dispatcher.deliveries_of
            counts = {one: times(one) + 1 for one in offsets if times(one)}
            found = DispatchedBatch(number, offsets, counts, was_pending=was_pending)
            self._answered[consumer] = _Answer(request, found)

    def leave(self, epoch: int) -> LeftLeases:
        """Close the subscription and return its leases, for the successor of the owner at this
        epoch.
        """
        assert self._closed is not None
        now_ms = self._now_ms()
        left = LeftLeases(epoch, self._era, 0, group=self._fence.leave(now_ms))
        self._dispatcher.leave(left, now_ms)
        given = {one.number for one in left.messages if one.number}
        left.answers += [
            LeftAnswer(consumer, answer.request, answer.found.number, answer.found.was_pending)
            for consumer, answer in self._answered.items()
            if answer.found is not None and answer.found.number in given
        ]
        if self._newest is not None:
            left.newest = (*self._newest, self._newest_got_none)
        return left

    def describe(self) -> dict[str, int]:
        return {"waiters": len(self._waiters), "receiving": self._receiving}

    async def receive(
        self,
        consumer: str,
        *,
        messages_max: int,
        wait_s: float = 0.0,
        request: str = "",
        out_max: int | None = None,
        generation: int | None = None,
        priority: int = 0,
    ) -> list[Delivery]:
        asked = _Asked(consumer, messages_max, request, out_max, generation, priority)
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
        generation: int | None = None,
        priority: int = 0,
    ) -> LeasedBatches | list[Delivery]:
        asked = _Asked(consumer, messages_max, request, out_max, generation, priority)
        found: LeasedBatches | list[Delivery] | None
        found = await self.receive_as(self._deliver_batches, asked, wait_s)
        return [] if found is None else found

    async def receive_as(
        self,
        deliver: Callable[[DispatchedBatch], Awaitable[Given | None]],
        asked: _Asked,
        wait_s: float,
    ) -> Given | None:
        """Lease up to `messages_max` messages for the ack timeout, redeliveries first.

        Waits up to `wait_s` for the first message; returns None when none came, or when the
        consumers hold too many (`held_back`). `out_max` bounds the consumer's unacked messages of
        this partition.

        If the consumer repeats its last `request`, it gets the same messages, as far as unacked:
        after later messages, a cumulative ack would ack messages that it has not seen. For the same
        reason a late copy of an earlier call to an exclusive subscription gets None.

        A group's member passes its `generation`: a higher one voids the leases of others.
        """
        self.use()
        began_s = self._loop.time()
        until_s = began_s + wait_s
        walk_until_s = max(until_s, began_s + _READING_S_MAX)
        consumer, request = asked.consumer, asked.request
        call = _number_of(request) if self._has_for_itself(consumer) else None
        if call is not None and not self._is_late(call):
            if call == self._newest and self._is_spent(consumer, request):
                return None
            self._newest, self._newest_got_none = call, False
        waiting = 1
        is_known = False
        self._receiving += waiting
        try:
            while not self._is_late(call):
                async with self._in_order:
                    late = self._is_late(call)
                    found = None if late else self._dispatch(asked)
                    if found is not None:
                        self._receiving -= waiting
                        waiting = 0
                        given = await deliver(found)
                        if given is not None:
                            return given
                        # None of these was due; later messages may be.
                        waiting = 1
                        self._receiving += waiting
                        if self._loop.time() < walk_until_s:
                            continue
                    if not late and not is_known:
                        self._dispatcher.waits(consumer)
                        is_known = True
                    has_looked = not late and await self._look_ahead(consumer)
                if has_looked and self._loop.time() < max(until_s, began_s + _LOOKING_S_MAX):
                    continue
                if self._loop.time() >= until_s:
                    break
                await self._wait(until_s)
        finally:
            self._receiving -= waiting
            if self._last_used is not None:
                self._last_used.left(self.info.name)
            if is_known:
                self._dispatcher.waits_no_more(consumer, self._now_ms())
                self._plan_a_look()
                if self._dispatcher.has_worse(consumer):
                    self.wake()
        self._newest_got_none = self._newest_got_none or call == self._newest
        return None

    async def acknowledge(
        self,
        ack_ids: Sequence[str] = (),
        *,
        up_to: int | None = None,
        nacks: Sequence[Nack] = (),
        extend: Sequence[str] = (),
        release: Sequence[str] = (),
    ) -> int:
        """Acknowledge, give back, or extend leases; return how many messages became acked, durably.

        `up_to` acks every offset up to and including it, except messages on their way to a
        dead-letter or retry topic. `nacks` are delivered again after their delays. `release`d
        messages are, too, uncounted: the consumer has not seen them.

        Acking an acked message is no error. Raises `INVALID_ACK_ID` (nothing took effect),
        `StaleLease` and `TooManyDelayed` (everything else took effect, durably),
        `CUMULATIVE_ACK_NOT_ALLOWED`, `OffsetBeyondEnd`, `AckOutcomeUnknown`, `NotOwner`.
        """
        if self._closed is not None:
            raise self._closed
        self.use()
        if up_to is not None:
            self._check_up_to(up_to)
        now_ms = self._now_ms()
        self._dispatcher.expire(now_ms)
        stale: list[str] = []
        acked = self._claimed(ack_ids, stale, or_acked=True)
        given_back = [
            (offset, nack.delay_ms)
            for nack in nacks
            for offset in self._claimed([nack.ack_id], stale)
        ]
        if self._keys is not None:
            # Last first: a message given back ends the leases of its key's later messages.
            given_back.sort(reverse=True)
        extended = self._claimed(extend, stale)
        for offset in self._claimed(release, stale):
            self._dispatcher.give_up(offset)
        for offset in (*acked[:1], *extended[:1], *(offset for offset, _ in given_back[:1])):
            self._dispatcher.heard_of(offset, now_ms)
        self._dispatcher.extend(extended, now_ms)
        refused = sum(
            not self._dispatcher.nack(offset, now_ms, delay_ms) for offset, delay_ms in given_back
        )
        spent = () if up_to is None else self._dispatcher.spent_up_to(up_to)
        ranges, new = self._ack(acked, up_to, spent)
        self.wake()
        if ranges:
            await self._persist(ack_op(self.info.name, ranges))
        if stale:
            raise StaleLease.of(stale)
        if refused:
            raise TooManyDelayed(
                f"{refused} messages were not given back and stay leased: "
                f"{self._dispatcher.delayed} wait for their delay already, the most in one "
                "partition; give them back without a delay, or let their leases end. Everything "
                "else of the call took effect"
            )
        return new

    async def take_back(self, ack_ids: Sequence[str]) -> None:
        """Release an answer that its caller does not read.

        If the call was repeated and got the messages, the repeating caller keeps them.
        """
        kept = {
            str(answer.found.number)
            for answer in self._answered.values()
            if answer.was_repeated and answer.found is not None
        }
        await self.acknowledge(
            release=[one for one in ack_ids if one.rpartition("-")[2] not in kept]
        )

    def held_back(self, consumer: str = "") -> str | None:
        """Return why `receive` returns nothing although there are messages."""
        return self._dispatcher.held_back(self._log.next_offset, consumer)

    def waiting(self) -> list[str]:
        now_ms = self._now_ms()
        self._dispatcher.expire(now_ms)
        ahead_ms = self._log.wall_ms() - now_ms
        told = told_of(self._dispatcher.all_waits(), self._keys_ahead.refused, now_ms, ahead_ms)
        problem = None if self._dead_letters is None else self._dead_letters.stats().problem
        if problem is not None:
            told.append(f"copies of dead letters or retries: {problem}")
        return told

    def unacked_limits(self) -> tuple[int, int | None]:
        return self._dispatcher.limits

    @property
    def committed_offset(self) -> int:
        return self._cursor.committed_offset

    async def peek(self, messages_max: int) -> list[Delivery]:
        if self._closed is not None:
            raise self._closed
        self._skip_trimmed()
        offsets = self._cursor.first_unacked(messages_max, self._log.next_offset)
        if not offsets:
            return []
        found = DispatchedBatch(0, offsets, {})
        delivered = await _delivered(self._log, found, "", self._loop, _Look(heeds=False))
        times = self._dispatcher.deliveries_of
        return [one._replace(ack_id="", delivery_count=times(one.offset)) for one in delivered]

    async def skip(self, count: int) -> int:
        """Ack the first `count` unacked messages, leased or not; return how many there were."""
        self._skip_trimmed()
        end = self._log.next_offset
        return await self.ack_before(self._cursor.after_unacked(count, end))

    async def ack_before(self, offset: int) -> int:
        """Ack all messages before `offset`, leased or not; return how many there were."""
        if self._closed is not None:
            raise self._closed
        self.use()
        self._skip_trimmed()
        offset = min(offset, self._log.next_offset)
        if offset <= self._cursor.committed_offset:
            return 0
        ranges, new = self._ack([], offset - 1)
        self.wake()
        await self._persist(ack_op(self.info.name, ranges))
        return new

    async def seek(self, offset: int, *, exactly: bool = False) -> int:
        """Set the cursor to `offset`, clamped to existing messages, and return it; end all leases.

        Earlier messages count as acked, later messages as unacked. `exactly`: raise `OffsetTrimmed`
        or `OffsetBeyondEnd` instead of clamping.
        """
        if self._closed is not None:
            raise self._closed
        self.use()
        if exactly:
            self._check_there(offset)
        offset = min(max(offset, self._log.kept_from), self._log.next_offset)
        self._cursor.reset(offset)
        self._told.clear()
        self._dispatcher.reset()
        self._keys_ahead.reset()
        self._pieces_passed = 0
        self.wake()
        op = cursor_op(self.info.name, self.info.created_ms, offset)
        if self._dead_letters is not None:
            self._held.seeks += 1
            op = sought_op(self.info.name, self.info.created_ms, offset, self._held.seeks)
        await self._persist(op)
        return offset

    def stats(self) -> SubscriptionStats:
        cursor, dispatcher, now_ms = self._cursor, self._dispatcher, self._now_ms()
        end = self._log.next_offset
        dispatcher.expire(now_ms)
        self._pass_pieces()
        slots = {} if self._keys is None else self._keys.slots.ranges()
        letters = NO_DEAD_LETTERS if self._dead_letters is None else self._dead_letters.stats()
        retries = bool(self.info.settings.retry_topic)
        return SubscriptionStats(
            name=self.info.name,
            type=self.info.settings.type,
            committed_offset=cursor.committed_offset,
            next_offset=end,
            backlog=cursor.backlog(end),
            unacked_ranges=cursor.hole_count(),
            leased=dispatcher.leased,
            redelivering=dispatcher.ready,
            delayed=dispatcher.delayed + len(dispatcher.delays),
            held_back=dispatcher.held_back(end),
            consumers=tuple(
                self._consumer_stats(consumer, slots, now_ms)
                for consumer in dispatcher.consumers.values()
            ),
            dead_letters=NO_DEAD_LETTERS if retries else letters,
            retries=letters if retries else NO_DEAD_LETTERS,
        )

    def use(self) -> None:
        if self._last_used is not None:
            self._last_used.use(self.info.name, self._held if self.info.settings.durable else None)

    @property
    def is_in_use(self) -> bool:
        self._dispatcher.expire(self._now_ms())
        return bool(self._receiving or self._dispatcher.leased)

    def passed_over(self, end: int) -> None:
        self._dispatcher.acked_up_to(end - 1)
        self.wake()

    def look(self) -> None:
        if self._dead_letters is not None:
            self._dispatcher.expire(self._now_ms())
            self._dead_letters.look()

    def _consumer_stats(
        self, one: Consumer, slots: dict[str, list[tuple[int, int]]], now_ms: int
    ) -> ConsumerStats:
        is_failover = self.info.settings.type == "failover"
        ranges = slots.get(one.name, []) if self._keys is not None else None
        return ConsumerStats(
            one.name,
            one.leased,
            now_ms - one.seen_ms,
            one.priority,
            self._selection.active is one if is_failover else None,
            None if ranges is None else sum(last - first + 1 for first, last in ranges),
            None
            if ranges is None or len(slots) > _RANGES_SHOWN_FOR
            else ",".join(f"{first}-{last}" for first, last in ranges),
        )

    def wake(self) -> None:
        self._pass_pieces()
        if self._dead_letters is not None:
            self._dead_letters.look()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self, error: NotOwner) -> None:
        self._closed = error
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self.wake()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _letter_word(self) -> tuple[int, int]:
        """Return incarnation and number of seeks, which tell copies apart."""
        return self._log.lease_epoch >> 32, self._held.seeks

    async def _read_spent(self, offsets: Sequence[int]) -> list[Delivery]:
        counts = {offset: self._dispatcher.deliveries_of(offset) for offset in offsets}
        found = DispatchedBatch(0, list(offsets), counts)
        return await _delivered(self._log, found, "", self._loop, _Look(heeds=False))

    async def _ack_spent(self, offsets: Sequence[int]) -> None:
        ranges, _ = self._ack(list(offsets), None)
        await self._persist(ack_op(self.info.name, ranges))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _dispatch(self, asked: _Asked) -> DispatchedBatch | None:
        consumer, request = asked.consumer, asked.request
        if self._closed is not None:
            raise self._closed
        now_ms = self._now_ms()
        self._dispatcher.delays.ahead_ms = self._log.wall_ms() - now_ms
        self._enter_group(asked, now_ms)
        self._dispatcher.enter(consumer, now_ms, asked.priority)
        self._skip_trimmed()
        last = self._answered.get(consumer, _NO_ANSWER)
        if request and request == last.request and last.found is not None:
            again = self._dispatcher.again(last.found, now_ms)
            if again is not None:
                self._answered[consumer] = last._replace(was_repeated=True)
                return again
        end = self._log.next_offset
        most = min(asked.messages_max, _MESSAGES_MAX)
        if asked.out_max is not None:
            most = min(most, asked.out_max - self._dispatcher.held_by(consumer, now_ms))
        found = self._dispatcher.dispatch(
            consumer, now_ms, self._keys_ahead.end(end), self._share(most, end)
        )
        if self._dead_letters is not None:
            self._dead_letters.look()
        self._plan_a_look()
        if found is not None:
            self._note_answer(consumer, request, found)
        return found

    def _enter_group(self, asked: _Asked, now_ms: int) -> None:
        settings = self.info.settings
        if asked.generation is not None and self._one_at_a_time:
            raise GROUP_NOT_ALLOWED(
                f"subscription {self.info.name!r} is {settings.type}: the members of a consumer "
                "group share a subscription, so make it shared"
            )
        changed = self._fence.enter(
            asked.consumer, asked.generation, now_ms, settings.ack_timeout_ms
        )
        if changed:
            # The other members are gone or were told to release the partition.
            if self._dispatcher.revoke(asked.consumer):
                self._answered.clear()
            self._dispatcher.alone(asked.consumer)
            self.wake()  # a waiting call of the member before must end

    def _plan_a_look(self) -> None:
        """Plan a look at the consumers: when a consumer stops counting, others get its share."""
        at_ms = self._selection.changes_ms
        if at_ms is None or (self._look is not None and self._look_ms <= at_ms):
            return
        if self._look is not None:
            self._look.cancel()
        self._look_ms = at_ms
        self._look = self._loop.call_at(at_ms / 1000 + 0.001, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._dispatcher.look(self._now_ms())
        self._plan_a_look()
        self.wake()

    async def _look_ahead(self, consumer: str) -> bool:
        has_due = self._keys is not None and self._keys.has_due
        if self._dispatcher.delays.is_behind and not has_due:
            await asyncio.sleep(0)
            return True
        is_full = self._dispatcher.delays.is_full and not has_due
        if is_full or not self._dispatcher.is_open_to(consumer):
            return False
        look = self._keys_ahead.wanted(consumer, self._log.next_offset)
        if look is None:
            return False
        seen = await self._keys_ahead.see(self._log, look)
        if seen.stop <= look.start or not self._keys_ahead.learn(look, seen):
            return False
        for start, end in seen.refused:
            self._cursor.ack(start, end)
        if seen.refused:
            await self._persist(ack_op(self.info.name, seen.refused))
        if look.due:
            self.wake()  # the keys of due messages may belong to other consumers
        return True

    async def _persist(self, op: Op) -> None:
        if self.info.settings.durable:
            await self._log.persist(op)

    def _has_for_itself(self, consumer: str) -> bool:
        active = self._selection.active
        is_active = active is not None and active.name == consumer
        return self.info.settings.type == "exclusive" or (self._one_at_a_time and is_active)

    def _is_late(self, call: tuple[str, int] | None) -> bool:
        """Whether the call is a late copy: its consumer has called again since."""
        newest = self._newest
        return call is not None and newest is not None and call[0] == newest[0] and call < newest

    def _is_spent(self, consumer: str, request: str) -> bool:
        last = self._answered.get(consumer, _NO_ANSWER)
        if request == last.request and last.found is not None:
            return all(map(self._cursor.is_acked, last.found.offsets))
        return self._newest_got_none

    def _note_answer(self, consumer: str, request: str, found: DispatchedBatch) -> None:
        self._answered.pop(consumer, None)
        if request:
            self._answered[consumer] = _Answer(request, found)
            if len(self._answered) > _ANSWERS_REMEMBERED:
                self._answered.popitem(last=False)

    def _share(self, messages_max: int, end: int) -> int:
        if self._receiving == 1 or self._one_at_a_time or messages_max <= 0:
            return messages_max
        available = self._cursor.backlog(end) - self._dispatcher.leased
        return max(1, min(messages_max, -(-available // self._receiving)))

    def _skip_trimmed(self) -> None:
        earliest = self._log.earliest_offset
        if self._cursor.committed_offset < earliest:
            self._cursor.ack(0, earliest)
            self._dispatcher.acked_up_to(earliest - 1)
            self._forget_counts()
        self._pass_pieces()

    def _pass_pieces(self) -> None:
        """Ack pieces of large messages, which no consumer gets.

        This is not written: the partition's record tells it to each owner.
        """
        hidden, end = self._log.hidden, self._log.next_offset
        first = bisect_right(hidden, self._pieces_passed, key=_stop_of)
        for start, stop in hidden[first:]:
            if stop > end:
                break  # for a moment the record names pieces that readers cannot see yet
            self._cursor.ack(start, stop)
            self._pieces_passed = stop

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

    @property
    def _lease_epoch(self) -> int:
        """Return the epoch in ack ids.

        It is the epoch of the first owner in a chain of planned hand-overs, made unique per
        subscription, so that no other or later subscription accepts these ack ids.
        """
        word = f"{self.info.name} {self.info.created_ms}"
        return (zlib.crc32(word.encode(), self._log.lease_epoch >> 32) << 32) + self._era

    def _lease_of(self, found: DispatchedBatch) -> str:
        return f"{self._lease_epoch}-{found.number}"

    async def _deliver(self, found: DispatchedBatch) -> list[Delivery] | None:
        async def one_by_one(found: DispatchedBatch, look: _Look) -> tuple[list[Delivery], int]:
            lease = self._lease_of(found)
            deliveries = await _delivered(self._log, found, lease, self._loop, look)
            return _in_due_order(found, deliveries), len(deliveries)

        return await self._hand_out(found, one_by_one)

    async def _deliver_batches(
        self, found: DispatchedBatch
    ) -> LeasedBatches | list[Delivery] | None:
        async def whole(
            found: DispatchedBatch, look: _Look
        ) -> tuple[LeasedBatches | list[Delivery], int]:
            pending = found.was_pending
            lease = self._lease_of(found)
            batches = None if pending else await _batches(self._log, found, self._loop, look)
            if batches is None:
                deliveries = await _delivered(self._log, found, lease, self._loop, look)
                return _in_due_order(found, deliveries), len(deliveries)
            count = bisect_left(found.offsets, batches[-1].next_offset)
            leased = Leased(
                self._log.name.partition,
                lease,
                runs_of(found.offsets[:count], found.counts),
                [(one.ledger_id, one.entry_id) for one in batches],
                Times().tell(one.header for one in batches),
            )
            return LeasedBatches(leased, batches, count), count

        return await self._hand_out(found, whole)

    async def _hand_out(
        self,
        found: DispatchedBatch,
        read: Callable[[DispatchedBatch, _Look], Awaitable[tuple[Given, int]]],
    ) -> Given | None:
        """Release messages that `read` left out; None: none is due."""
        self._dispatcher.reading(found)
        # Exclusive and failover subscriptions deliver in order and ignore due times.
        heeds = self.info.settings.type in ("shared", "key_shared")
        look = _Look(heeds=heeds and not found.is_repeat and not found.was_pending)
        try:
            while True:
                try:
                    given, count = await read(found, look)
                    break
                except _MayBeEarly as early:
                    found = await self._without_early(found, look, early.batch)
                    if not found.offsets:
                        self._dispatcher.begin(found, self._now_ms())
                        return None
            if count < len(found.offsets):
                found = self._shorten(found, count)
            if found.counts and not found.is_repeat:
                await self._keep_counts(found)
            if self._closed is not None:
                raise self._closed  # the successor may hand it to another consumer
            self._dispatcher.begin(found, self._now_ms())
            return given
        except BaseException:
            # This includes cancellation, when the consumer disconnected.
            if found.is_repeat:
                self._dispatcher.begin(found, self._now_ms())  # it may have the messages anyway
            else:
                self._dispatcher.give_back(found)
                self.wake()
            raise

    async def _keep_counts(self, found: DispatchedBatch) -> None:
        """Make delivery counts durable before a consumer gets them."""
        holds = self._dispatcher.holds  # false after a seek meanwhile
        counts = {
            o: found.counts[o]
            for o in found.offsets
            if o in found.counts and holds(o, found.number)
        }
        if not counts:
            return
        self._told.update(counts)
        try:
            await self._persist(deliveries_op(self.info.name, counts))
        except AckOutcomeUnknown as error:
            raise PartitionUnavailable(
                f"{self._log.name}: messages that were delivered before are not delivered again "
                f"while their delivery counts cannot be written: {error}"
            ) from error

    def _forget_counts(self) -> None:
        for offset in [offset for offset in self._told if self._cursor.is_acked(offset)]:
            del self._told[offset]

    def _shorten(self, found: DispatchedBatch, count: int) -> DispatchedBatch:
        shorter = self._dispatcher.shorten(found, count)
        self._answer_is(shorter)
        self.wake()
        return shorter

    def _answer_is(self, found: DispatchedBatch) -> None:
        for consumer, answer in tuple(self._answered.items()):
            if answer.found is not None and answer.found.number == found.number:
                self._answered[consumer] = answer._replace(found=found)

    async def _without_early(
        self, found: DispatchedBatch, look: _Look, batch: StoredBatch
    ) -> DispatchedBatch:
        """Remove messages of this batch that are not due, also beyond `found`, so that the batch is
        opened once, however few of its messages were asked for.
        """
        look.seen.add(batch[1:3])
        early: dict[int, int] = {}
        base, last, wall_ms = batch.base_offset, found.offsets[-1], self._log.wall_ms()
        start = bisect_left(found.offsets, base)
        async with self._log.readable(batch) as records:
            for offset in range(found.offsets[start], self._keys_ahead.end(batch.next_offset)):
                if not records.holds(offset - base):
                    await records.turn_to(offset - base)
                due_ms = due_of(records[offset - base].headers)
                if due_ms is not None and due_ms > wall_ms:
                    early[offset] = due_ms
                elif offset > last:
                    break
        found = self._dispatcher.withhold(found, early)
        self._answer_is(found)
        return found

    def _check_there(self, offset: int) -> None:
        name, earliest, end = self._log.name, self._log.kept_from, self._log.next_offset
        if offset < earliest:
            raise OffsetTrimmed(
                f"{name}: cannot seek to {offset}, the earliest offset left is {earliest}; "
                "seek to that, or to earliest",
                earliest,
            )
        if offset > end:
            raise OffsetBeyondEnd(
                f"{name}: cannot seek to {offset}, the next offset is {end}; seek to that, or to "
                "latest",
                end,
            )

    def _check_up_to(self, up_to: int) -> None:
        if not self._one_at_a_time:
            raise CUMULATIVE_ACK_NOT_ALLOWED(
                f"subscription {self.info.name!r} is {self.info.settings.type}: up_to would ack "
                "messages of other consumers; ack each message by its ack id"
            )
        end = self._log.next_offset
        if up_to >= end:
            raise OffsetBeyondEnd(
                f"{self._log.name}: cannot ack up to {up_to}, the next offset is {end}", end
            )

    def _claimed(
        self, ack_ids: Iterable[str], stale: list[str], *, or_acked: bool = False
    ) -> list[int]:
        lease_epoch = self._lease_epoch
        here = (str(self._log.name.partition), str(lease_epoch))
        ours = lease_epoch >> 32
        holds, is_acked = self._dispatcher.holds, self._cursor.is_acked
        is_buried = self._dispatcher.is_buried
        offsets = []
        for text in ack_ids:
            # Parsed in place, for speed: a call may carry a thousand.
            try:
                partition, offsets_text, epoch, lease_text = parts_of(text)
                start, end = span_of(offsets_text)
                lease, of = int(lease_text), int(epoch) >> 32
            except ValueError:
                raise AckId.invalid(text) from None
            if partition != here[0]:
                raise INVALID_ACK_ID(
                    f"ack id {text} belongs to partition {partition}, not {here[0]}"
                )
            is_ours, may_be_acked = (partition, epoch) == here, or_acked and of == ours
            gone = []
            for offset in range(start, end):
                # A repeated ack whose answer was lost is not stale: its message is acked. An ack id
                # is stale if it is of another subscription or topic, or if a broker acked the
                # message after copying it elsewhere.
                is_done = may_be_acked and is_acked(offset) and not is_buried(offset)
                if (is_ours and holds(offset, lease)) or is_done:
                    offsets.append(offset)
                else:
                    gone.append(offset)
            if gone:
                told = f"{epoch}-{lease_text}"
                stale += [shown(int(partition), *part, told) for part in ranges_of(gone)]
        return offsets

    def _ack(
        self, acked: list[int], up_to: int | None, but: Sequence[int] = ()
    ) -> tuple[list[Range], int]:
        """Ack in memory, except `but`; return the ranges to make durable, and how many messages are
        new.
        """
        ranges = ranges_of(sorted(set(acked)))
        new = 0
        if up_to is not None:
            start = min(self._cursor.committed_offset, up_to)
            whole = []
            for offset in but:
                whole.append((start, offset))
                start = offset + 1
            whole = [one for one in (*whole, (start, up_to + 1)) if one[0] < one[1]]
            ranges = whole + [(max(s, up_to + 1), e) for s, e in ranges if e > up_to + 1]
            for one in whole:
                new += self._cursor.ack(*one)
            self._dispatcher.acked_up_to(up_to, but)
            self._forget_counts()
        for start, end in ranges:
            new += self._cursor.ack(start, end)
        self._dispatcher.acked(acked)
        if self._told:
            for offset in acked:
                self._told.pop(offset, None)
        return ranges, new


def _number_of(request: str) -> tuple[str, int] | None:
    """Split a request id such as `…-12` into its two parts."""
    front, _, last = request.rpartition("-")
    number = whole(last)
    return None if number is None or not front else (front, number)


def _stop_of(hidden: Range) -> int:
    return hidden[1]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _MayBeEarly(Exception):
    def __init__(self, batch: StoredBatch) -> None:
        super().__init__()
        self.batch = batch


class _Look:
    def __init__(self, *, heeds: bool) -> None:
        self._heeds = heeds
        self.seen: set[tuple[int, ...]] = set()

    def at(self, batch: StoredBatch) -> None:
        delayed = self._heeds and batch.header.attributes & ATTRIBUTE_DELAYED
        if delayed and batch[1:3] not in self.seen:
            raise _MayBeEarly(batch)


def _in_due_order(found: DispatchedBatch, deliveries: list[Delivery]) -> list[Delivery]:
    if found.was_pending:
        deliveries.sort(key=lambda one: (due_of(one.record.headers) or 0, one.offset))
    return deliveries


async def _delivered(
    log: SubscribedLog,
    found: DispatchedBatch,
    lease: str,
    loop: asyncio.AbstractEventLoop,
    look: _Look,
) -> list[Delivery]:
    """Read the dispatched messages in order: at least one, and as many as room and time allow.

    Unpacks batches only as far as needed: a short compressed batch may hold thousands of long
    messages.
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
                continue  # redeliveries may lie far apart: skip batches without any
            look.at(batch)
            room = await _open_and_take(log, found, lease, batch, deliveries, room)
            if len(deliveries) == len(offsets) or room < 0:
                break
    return deliveries


async def _batches(
    log: SubscribedLog, found: DispatchedBatch, loop: asyncio.AbstractEventLoop, look: _Look
) -> list[StoredBatch] | None:
    runs = runs_of(found.offsets, found.counts)
    if len(runs) > _RUNS_MAX:
        return None
    batches: list[StoredBatch] = []
    room = _GIVEN_BYTES_MAX
    until_s = _read_until_s(found, loop)
    async with aclosing(_stored(log, runs)) as reads:
        async for read in reads:
            for batch in read:
                look.at(batch)
                room -= len(batch.data)
                if batches and room < 0:
                    break
                batches.append(batch)
            if room < 0 or loop.time() > until_s:
                break  # what was read would be read again
    stored = sum(batch.header.record_count for batch in batches)
    given = bisect_left(found.offsets, batches[-1].next_offset)
    entries = joined((one.ledger_id, one.entry_id) for one in batches)
    if stored > _STORED_FOR_ONE_MAX * given or len(entries) > _RUNS_MAX:
        return None
    return batches


def _read_until_s(found: DispatchedBatch, loop: asyncio.AbstractEventLoop) -> float:
    """Return when to stop reading; never for a repeat.

    A repeat fitted into an answer before, and its consumer may be processing it: a part that is
    given back would go to another consumer as well.
    """
    return math.inf if found.is_repeat else loop.time() + _READING_S_MAX


async def _stored(
    log: SubscribedLog, runs: Sequence[Run]
) -> AsyncGenerator[list[StoredBatch], None]:
    offset = 0
    for start, end, _ in runs:
        offset = max(offset, start)
        while offset < end:
            found = []
            for batch in await log.read(offset, bytes_max=_READ_BYTES, count_max=end - offset):
                found.append(batch)
                offset = batch.next_offset
                if offset >= end:
                    break
            yield found


async def _open_and_take(
    log: SubscribedLog,
    found: DispatchedBatch,
    lease: str,
    batch: StoredBatch,
    deliveries: list[Delivery],
    room: int,
) -> int:
    front, back = f"{log.name.partition}-", f"-{lease}"
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
