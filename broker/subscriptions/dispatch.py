"""Which consumer gets which message: leases, redelivery, delays, for all subscription types. Pure.

    fresh → leased → acked
             ↓ lease ended, or nacked
           waiting (until its delay is over) → leased again, delivery count + 1

An ack id is valid while its lease lasts, at any broker.

Nothing here is durable: after a crash leases are void and unacked messages are fresh again, with
the delivery counts that `attempts` keeps. At a planned end `leave` returns all that a successor
needs to continue the leases (`resume`).

Redeliveries come before new messages, lowest offset first. In exclusive and failover subscriptions,
which keep the partition's order, a message that waits for its delay holds up all later messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from octavo.broker.errors import SubscriptionBusy
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.leases import (
    ASLEEP,
    BACK,
    OUT,
    SPENT,
    LeftConsumer,
    LeftHold,
    LeftLeases,
    LeftMessages,
)
from octavo.broker.subscriptions.consumer_selection import Consumer, ConsumerSelection
from octavo.broker.subscriptions.dead_letters import SpentMessages
from octavo.broker.subscriptions.delays import Delays
from octavo.broker.subscriptions.key_shared import KeyOrder
from octavo.broker.subscriptions.waits import Leased, Waits
from octavo.broker.types import RetryBackoff

_PUT_OFF_MS = 1_000
CONSUMERS_MAX = 10_000
"""Consumers kept for statistics and turns; idle consumers are dropped first."""


class _Lease:
    __slots__ = ("being_read", "consumer", "deadline_ms", "given", "left", "number", "offsets")

    def __init__(
        self, number: int, consumer: Consumer, deadline_ms: int, offsets: Sequence[int]
    ) -> None:
        self.number = number
        self.consumer = consumer
        self.deadline_ms = deadline_ms
        self.offsets = offsets
        self.left = len(offsets)
        self.being_read = False
        """While the messages are being read from the bookies, the lease does not end by time."""
        self.given = False


class DispatchedBatch(NamedTuple):
    """The ascending offsets that a consumer has under lease `number`.

    `counts`: only offsets that were delivered before. `is_repeat`: the consumer may have the batch
    already, so it gets all of it.
    """

    number: int
    offsets: list[int]
    counts: dict[int, int]
    is_repeat: bool = False
    was_pending: bool = False
    """Whether to give the messages in the order of their due times."""


class Dispatcher:
    def __init__(
        self,
        cursor: Cursor,
        *,
        ack_timeout_ms: int,
        leased_max: int,
        delayed_max: int,
        turns: ConsumerSelection | None = None,
        keys: KeyOrder | None = None,
        of_one_max: int | None = None,
        retry_backoff: RetryBackoff | None = None,
        attempts: Mapping[int, int] | None = None,
        spent: SpentMessages | None = None,
        pending_max: int = 1_000_000,
        exclusive: bool = False,
        in_order: bool = False,
    ) -> None:
        """Decide which consumer gets which message.

        `in_order`: no message overtakes a message that waits for its delay. `turns` limits when a
        consumer may get messages, `keys` which messages. `of_one_max`: the most messages leased to
        one consumer.
        """
        self.cursor = cursor
        self.consumers: dict[str, Consumer] = {}
        self.turns = turns
        self.keys = keys
        self._of_one_max = of_one_max
        self._exclusive = exclusive
        self._in_order = in_order
        self._ack_timeout_ms = ack_timeout_ms
        self._leased_max = leased_max
        self._delayed_max = delayed_max
        self._fresh = cursor.committed_offset
        self._resumed: dict[int, None] = {}
        """Offsets from `_fresh` on that the last owner left leased or delayed."""
        self._resumed_end = 0
        self._lease_of: dict[int, _Lease] = {}
        self._deadlines: list[tuple[int, int, _Lease]] = []
        self._pushed = 0
        self._numbers = 0
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self._attempts = dict(attempts or {})
        self._retry_backoff = retry_backoff
        self._spent = SpentMessages(None, 0) if spent is None else spent
        self.delays = Delays(pending_max)
        self._seen_ms = 0
        self._holder: str | None = None
        self._held_until_ms = 0
        self._reads = 0

    def describe(self) -> dict[str, int]:
        return {
            "leased": len(self._lease_of),
            "reads": self._reads,
            "out": sum(one.leased for one in self.consumers.values()),
        }

    @property
    def limits(self) -> tuple[int, int | None]:
        """Return the most leased messages in all, and per consumer (None: no limit)."""
        return self._leased_max, self._of_one_max

    @property
    def leased(self) -> int:
        return len(self._lease_of)

    @property
    def ready(self) -> int:
        return len(self._ready) if self.keys is None else self.keys.ready

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    def held_back(self, end: int, consumer: str = "") -> str | None:
        """Return why no consumer, or not this consumer, gets messages before `end`."""
        mine = self.consumers.get(consumer)
        if self._is_left(end):
            if mine is not None and self.turns is not None:
                why = self.turns.waits_for(mine, self.consumers.values())
                if why is not None:
                    return why
            most = self._of_one_max
            if mine is not None and most is not None and mine.leased >= most:
                return (
                    f"{mine.leased} messages are out at consumer {consumer!r}, unacked, and one "
                    f"consumer has at most {most} out in a partition: ack them, or give them back"
                )
        if (first := self._first_asleep()) is not None and self._is_left(end):
            return (
                f"the message at offset {first} waits for the delay of its redelivery, and later "
                "messages wait for it: the subscription keeps the partition's order"
            )
        is_bound = self.leased >= self._leased_max or self.delays.is_full
        if not is_bound and self.keys is not None and mine is not None:
            why = self.keys.held_back(consumer, end)
            first = None if why is None else self.keys.first_out
            if first is None or (lease := self._lease_of.get(first)) is None:
                return why
            left_ms = max(0, lease.deadline_ms - self._seen_ms)
            return (
                f"{why}; the first message that is out is offset {first}, at consumer "
                f"{lease.consumer.name!r}, whose lease ends in {left_ms} ms"
            )
        if not is_bound or not self._is_left(end) or (self.keys is None and self._ready):
            return None
        if self.delays.is_full:
            return (
                f"{len(self.delays)} messages are not due yet, and a subscription remembers no "
                "more in one partition: later messages wait until some are due"
            )
        holders = sum(consumer.leased > 0 for consumer in self.consumers.values())
        return (
            f"{self.leased} messages are out at {holders} consumers, unacked, and a subscription "
            f"has at most {self._leased_max} out in one partition: ack them, or give them back"
        )

    def all_waits(self) -> Waits:
        held: dict[str, list[int]] = {}
        ends_ms: dict[str, int] = {}
        for offset, lease in self._lease_of.items():
            name = lease.consumer.name
            held.setdefault(name, []).append(offset)
            ends_ms[name] = min(ends_ms.get(name, lease.deadline_ms), lease.deadline_ms)
        leased = tuple(
            Leased(
                name,
                len(offsets),
                min(offsets),
                max(offsets),
                ends_ms[name],
                self.consumers[name].seen_ms if name in self.consumers else self._seen_ms,
            )
            for name, offsets in held.items()
        )
        return Waits(
            leased,
            len(self._delayed),
            self._delayed[0] if self._delayed else None,
            len(self.delays),
            self.delays.next_ms(),
            len(self._spent),
        )

    def is_open_to(self, consumer: str) -> bool:
        mine = self.consumers[consumer]
        if mine.full or self.leased >= self._leased_max:
            return False
        return self.turns is None or self.turns.waits_for(mine, self.consumers.values()) is None

    def has_worse(self, consumer: str) -> bool:
        mine = self.consumers[consumer]
        return any(one.waiting and one.priority > mine.priority for one in self.consumers.values())

    def _is_left(self, end: int) -> bool:
        if self.keys is not None:
            return self.keys.is_left(end)
        return bool(self._ready) or self._first_fresh() < end

    def _first_fresh(self) -> int:
        start = self.cursor.next_unacked(self._fresh)
        while start in self._resumed:
            start = self._fresh = self.cursor.next_unacked(start + 1)
        if start >= self._resumed_end:
            self._resumed.clear()
        return start

    def enter(self, consumer: str, now_ms: int, priority: int = 0) -> None:
        """Note a consumer's call.

        The holder of an exclusive subscription keeps it for an ack timeout after its last call.
        """
        if self._exclusive:
            is_held = now_ms < self._held_until_ms or self._reads > 0
            if self._holder not in (None, consumer) and is_held:
                raise SubscriptionBusy(
                    f"the subscription is exclusive and consumer {self._holder!r} holds it for "
                    f"another {max(1, self._held_until_ms - now_ms)} ms; wait, or make it shared"
                )
            self._holder = consumer
            self._held_until_ms = now_ms + self._ack_timeout_ms
        known = self._consumer(consumer, now_ms)
        known.seen_ms = now_ms
        known.priority = priority

    def waits(self, consumer: str) -> None:
        self.consumers[consumer].waiting += 1

    def waits_no_more(self, consumer: str, now_ms: int) -> None:
        one = self.consumers[consumer]
        one.waiting -= 1
        one.seen_ms = now_ms
        if not one.full:
            one.able_ms = now_ms
        self.look(now_ms)

    def alone(self, consumer: str) -> None:
        for one in self.consumers.values():
            if one.name != consumer:
                one.able_ms = None

    def deliveries_of(self, offset: int) -> int:
        return self._attempts.get(offset, 0)

    def held_by(self, consumer: str, now_ms: int) -> int:
        self.expire(now_ms)
        return self.consumers[consumer].leased

    def dispatch(
        self, consumer: str, now_ms: int, end: int, messages_max: int
    ) -> DispatchedBatch | None:
        self.expire(now_ms)
        mine = self.consumers[consumer]
        if self._of_one_max is not None:
            messages_max = min(messages_max, self._of_one_max - mine.leased)
        mine.full = messages_max <= 0
        if not mine.full:
            mine.able_ms = now_ms
        self.look(now_ms)
        turns = self.turns
        if turns is not None and turns.waits_for(mine, self.consumers.values()) is not None:
            return None
        if mine.full:
            return None
        attempts = self._attempts
        while True:
            offsets, was_pending = self._take(consumer, messages_max, end, now_ms)
            if not offsets:
                return None
            if not attempts or not self._spent.limits:
                break
            left = []
            for offset in offsets:
                if self._spent.take(offset, attempts.get(offset, 0)):
                    self._stands_in_no_way(offset)
                else:
                    left.append(offset)
            if left:
                offsets = left
                break
        counts = {o: attempts[o] + 1 for o in offsets if o in attempts} if attempts else {}
        self._numbers += 1
        deadline_ms = now_ms + self._ack_timeout_ms
        self._grant(_Lease(self._numbers, mine, deadline_ms, offsets))
        return DispatchedBatch(self._numbers, offsets, counts, was_pending=was_pending)

    def withhold(self, found: DispatchedBatch, due_ms: dict[int, int]) -> DispatchedBatch:
        """Remove messages that are not due from a batch, as if never handed out; later
        messages in `due_ms` wait, too.
        """
        for offset, when_ms in due_ms.items():
            if self.holds(offset, found.number):
                self._release_uncounted(offset)
                self._stands_in_no_way(offset)
            elif self.keys is None and offset == self._fresh and offset not in self._resumed:
                self._fresh = offset + 1
            else:
                continue  # a consumer has the message, or has acked it
            if not self.cursor.is_acked(offset):
                self.delays.add(when_ms, offset)
        return found._replace(offsets=[one for one in found.offsets if one not in due_ms])

    def reading(self, found: DispatchedBatch) -> None:
        """Keep the batch's lease from ending while its messages are read, until `begin` or
        `give_back`.
        """
        self._reads += 1
        for offset in found.offsets:
            if self.holds(offset, found.number):
                self._lease_of[offset].being_read = True

    def begin(self, found: DispatchedBatch, now_ms: int) -> None:
        self._reads -= 1
        held = [o for o in found.offsets if self.holds(o, found.number)]
        self.extend(held, now_ms, given=True)

    def again(self, found: DispatchedBatch, now_ms: int) -> DispatchedBatch | None:
        """Renew an earlier batch's live leases, uncounted, for a consumer whose answer was lost."""
        self.expire(now_ms)
        left = [offset for offset in found.offsets if self.holds(offset, found.number)]
        if not left:
            return None
        self.extend(left, now_ms)
        return DispatchedBatch(found.number, left, found.counts, is_repeat=True)

    def holds(self, offset: int, number: int) -> bool:
        lease = self._lease_of.get(offset)
        return lease is not None and lease.number == number

    def acked(self, offsets: Iterable[int]) -> None:
        lease_of, attempts = self._lease_of, self._attempts
        if len(self._spent):
            offsets = list(offsets)
            self._spent.acked(offsets)
        for offset in offsets:
            lease = lease_of.pop(offset, None)
            if lease is not None:
                lease.left -= 1
                lease.consumer.leased -= 1
                if not lease.left:
                    lease.offsets = ()
            if attempts:
                attempts.pop(offset, None)
            if self.keys is not None:
                self.keys.acked(offset)

    def is_buried(self, offset: int) -> bool:
        return self._spent.was_sent(offset)

    def spent_up_to(self, offset: int) -> list[int]:
        return [one for one in self._spent.offsets() if one <= offset]

    def acked_up_to(self, offset: int, but: Collection[int] = ()) -> None:
        self.acked([leased for leased in self._lease_of if leased <= offset])
        if self._delayed:
            self._delayed = [one for one in self._delayed if one[1] > offset]
            heapq.heapify(self._delayed)
        self.delays.passed(offset + 1)
        self._spent.acked_up_to(offset, but)
        for gone in [one for one in self._attempts if one <= offset and one not in but]:
            del self._attempts[gone]
        self._fresh = max(self._fresh, offset + 1)
        if self.keys is not None:
            self.keys.passed()

    def nack(self, offset: int, now_ms: int, delay_ms: int | None) -> bool:
        """Give a leased message back, to be delivered again after the delay.

        `delay_ms` None: the subscription's delay, if there is room. Returns False, and keeps the
        lease, if too many messages wait for a delay.
        """
        if offset not in self._lease_of:
            return True
        if delay_ms is not None and delay_ms > 0 and self.delayed >= self._delayed_max:
            return False
        self._end_delivery(offset, now_ms, delay_ms)
        return True

    def give_up(self, offset: int) -> None:
        lease = self._lease_of.get(offset)
        if lease is not None:
            self._take_back(DispatchedBatch(lease.number, [offset], {}), 0)

    def revoke(self, consumer: str) -> bool:
        held = [o for o, lease in self._lease_of.items() if lease.consumer.name != consumer]
        # Last first: a message that comes back ends the leases of its key's later messages.
        for offset in sorted(held, reverse=True):
            self._release_uncounted(offset)
            self._comes_back(offset, asleep=False)
        return bool(held)

    def give_back(self, found: DispatchedBatch) -> None:
        """Undo a delivery, uncounted."""
        self._reads -= 1
        self._take_back(found, 0)

    def shorten(self, found: DispatchedBatch, count: int) -> DispatchedBatch:
        self._take_back(found, count)
        return found._replace(offsets=found.offsets[:count])

    def extend(self, offsets: Iterable[int], now_ms: int, *, given: bool = False) -> None:
        parts: dict[_Lease, list[int]] = {}
        for offset in dict.fromkeys(offsets):
            parts.setdefault(self._lease_of[offset], []).append(offset)
        for lease, part in parts.items():
            deadline = now_ms + self._ack_timeout_ms
            lease.left -= len(part)
            lease.consumer.leased -= len(part)
            again = _Lease(lease.number, lease.consumer, deadline, part)
            again.given = given or lease.given
            self._grant(again)
            if self._exclusive:
                self._held_until_ms = max(self._held_until_ms, deadline)

    def heard_of(self, offset: int, now_ms: int) -> None:
        lease = self._lease_of.get(offset)
        if lease is None:
            return
        lease.consumer.seen_ms = now_ms
        if self._exclusive and lease.consumer.name == self._holder:
            self._held_until_ms = max(self._held_until_ms, now_ms + self._ack_timeout_ms)

    def expire(self, now_ms: int) -> None:
        self._seen_ms = now_ms
        ended: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, lease = heapq.heappop(self._deadlines)
            if lease.being_read:
                continue
            for offset in lease.offsets:
                if self._lease_of.get(offset) is lease:
                    ended.append(offset)  # noqa: PERF401 (a line that a planted bug edits)
        for offset in ended if self.keys is None else sorted(ended, reverse=True):
            self._end_delivery(offset, now_ms, None)
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, offset = heapq.heappop(self._delayed)
            if self.keys is None:
                heapq.heappush(self._ready, offset)
            else:
                self.keys.wake(offset)

    def look(self, now_ms: int) -> None:
        if self.turns is None:
            return
        self.turns.look(self.consumers, now_ms)
        if self.keys is not None:
            self.keys.belong_to(self.turns.members)

    def next_event_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].left:
            heapq.heappop(self._deadlines)
        times = [queue[0][0] for queue in (self._deadlines, self._delayed) if queue]
        due_ms = self.delays.next_ms()
        # Messages that are due do not wait for time, but for room or a consumer.
        if due_ms is not None and due_ms - self.delays.ahead_ms > self._seen_ms:
            times.append(due_ms - self.delays.ahead_ms)
        return min(times, default=None)

    def reset(self) -> None:
        self._fresh = self.cursor.committed_offset
        self._resumed.clear()
        for consumer in self.consumers.values():
            consumer.leased = 0
        self._lease_of.clear()
        self._deadlines.clear()
        self._ready.clear()
        self._delayed.clear()
        self._attempts.clear()
        self._spent.clear()
        self.delays.clear()
        if self.keys is not None:
            self.keys.reset()

    def leave(self, left: LeftLeases, now_ms: int) -> None:
        """Add to `left` all that a successor needs; nothing may be handed out after this call."""
        self.expire(now_ms)
        left.numbers = self._numbers
        active = None if self.turns is None else self.turns.active
        if active is not None:
            left.active = active.name
        if self._holder is not None and now_ms < self._held_until_ms:
            left.holder = LeftHold(self._holder, self._held_until_ms - now_ms)
        left.consumers += [
            LeftConsumer(
                one.name,
                one.priority,
                0 if one.waiting else max(0, now_ms - one.seen_ms),
                None if one.able_ms is None else max(0, now_ms - one.able_ms),
            )
            for one in self.consumers.values()
            if one.leased or one is active
        ]
        groups: dict[tuple[int, int, int, str], list[int]] = {}
        for offset, lease in self._lease_of.items():
            if lease.given:
                of = (OUT, lease.deadline_ms - now_ms, lease.number, lease.consumer.name)
                groups.setdefault(of, []).append(offset)
        for at_ms, offset in self._delayed:
            if not self.cursor.is_acked(offset) and offset not in self._lease_of:
                groups.setdefault((ASLEEP, at_ms - now_ms, 0, ""), []).append(offset)
        for offset in self._spent.offsets():
            due_ms = self._spent.due_ms(offset)
            groups.setdefault((SPENT, -1 if due_ms is None else due_ms, 0, ""), []).append(offset)
        told = {offset for offsets in groups.values() for offset in offsets}
        if back := [one for one in self._attempts if one not in told]:
            groups[BACK, 0, 0, ""] = [one for one in back if not self.cursor.is_acked(one)]
        for (kind, time_ms, number, consumer), offsets in groups.items():
            some = sorted(offsets)
            attempts = [self._attempts.get(one, 0) for one in some]
            keyed = self.keys is not None and kind in (OUT, ASLEEP)
            keys = [self.keys.hash_of(one) for one in some] if self.keys and keyed else []
            if some:
                left.messages.append(
                    LeftMessages(kind, time_ms, number, consumer, some, attempts, keys)
                )

    def resume(self, left: LeftLeases, now_ms: int) -> None:
        self._seen_ms = now_ms
        self._numbers = left.numbers
        for name, priority, seen_ms, able_ms in left.consumers:
            one = self._consumer(name, now_ms - seen_ms)
            one.priority = priority
            one.able_ms = None if able_ms is None else now_ms - able_ms
        if self.turns is not None and left.active in self.consumers:
            self.turns.active = self.consumers[left.active]
        if self._exclusive and left.holder is not None:
            self._holder, self._held_until_ms = left.holder.name, now_ms + left.holder.left_ms
        for part in left.messages:
            self._resume(part, now_ms)
        self.look(now_ms)

    def _resume(self, part: LeftMessages, now_ms: int) -> None:
        out = list[int]()
        keys = part.keys or [None] * len(part.offsets)
        for offset, attempts, key in zip(part.offsets, part.attempts, keys, strict=True):
            if self.cursor.is_acked(offset) or offset in self._lease_of:
                continue
            self._attempts.pop(offset, None)
            if attempts:
                self._attempts[offset] = attempts
            if part.kind == SPENT:
                self._spent.take(offset, attempts, None if part.time_ms < 0 else part.time_ms)
            elif part.kind in (OUT, ASLEEP):
                self._resumed[offset] = None
                self._resumed_end = max(self._resumed_end, offset + 1)
                if self.keys is not None:
                    self.keys.resume(offset, key, out=part.kind == OUT)
                if part.kind == OUT:
                    out.append(offset)
                else:
                    heapq.heappush(self._delayed, (now_ms + part.time_ms, offset))
        if out:
            consumer = self._consumer(part.consumer, now_ms)
            lease = _Lease(part.number, consumer, now_ms + part.time_ms, out)
            lease.given = True
            self._grant(lease)

    def left_of(self, number: int) -> list[int]:
        return sorted(one for one, lease in self._lease_of.items() if lease.number == number)

    def _consumer(self, name: str, seen_ms: int) -> Consumer:
        known = self.consumers.get(name)
        if known is None:
            if len(self.consumers) >= CONSUMERS_MAX:
                self._forget_idle()
            known = self.consumers[name] = Consumer(name, seen_ms)
        return known

    def _comes_back(self, offset: int, *, asleep: bool) -> None:
        if self.keys is None:
            if not asleep:
                heapq.heappush(self._ready, offset)
            return
        for later in self.keys.back(offset, asleep=asleep):
            self._release_uncounted(later)

    def _stands_in_no_way(self, offset: int) -> None:
        if self.keys is not None:
            self.keys.acked(offset)

    def _take(
        self, consumer: str, messages_max: int, end: int, now_ms: int
    ) -> tuple[list[int], bool]:
        """Return offsets, and whether they had a due time."""
        if self.keys is not None:
            self._tell_due(self.keys, now_ms)
            room = min(messages_max, self._leased_max - self.leased)
            return self.keys.take(consumer, room), False
        if (first := self._first_asleep()) is not None:
            end = min(end, first)
        offsets = self._take_ready(messages_max, self._ready_end(end)) if self._ready else []
        room = min(messages_max, self._leased_max - self.leased - self.ready) - len(offsets)
        if room > 0 and self.delays and not offsets:
            due = self._take_due(now_ms, room)
            if due:
                return due, True
        if room > 0 and self._fresh < end and not self.delays.is_full:
            self._take_fresh(offsets, room, min(end, self._ready[0]) if self._ready else end)
        return offsets, False

    def _ready_end(self, end: int) -> int:
        """Return the offset before which returned messages are taken before fresh messages.

        A message that the last owner had leased may return before earlier messages, which are fresh
        here. It waits for them: a batch has ascending offsets, and ordered subscriptions must not
        overtake.
        """
        if not self._resumed or self.delays.is_full:
            return end
        return min(end, self._first_fresh())

    def _tell_due(self, keys: KeyOrder, now_ms: int) -> None:
        for offset in keys.take_put_off():
            self.delays.add(now_ms + self.delays.ahead_ms + _PUT_OFF_MS, offset)
        if self.delays and (room := keys.room_for_due) > 0:
            for offset in self._take_due(now_ms, room):
                keys.due(offset)

    def _take_due(self, now_ms: int, room: int) -> list[int]:
        def wanted(offset: int) -> bool:
            return not self.cursor.is_acked(offset) and offset not in self._lease_of

        return sorted(self.delays.take(now_ms + self.delays.ahead_ms, room, wanted))

    def _first_asleep(self) -> int | None:
        if not self._in_order:
            return None
        return min((offset for _, offset in self._delayed), default=None)

    def _take_ready(self, room: int, end: int) -> list[int]:
        taken: list[int] = []
        while self._ready and self._ready[0] < end and len(taken) < room:
            offset = heapq.heappop(self._ready)
            if self.cursor.is_acked(offset):
                self._attempts.pop(offset, None)
            elif offset not in self._lease_of and (not taken or taken[-1] != offset):
                taken.append(offset)
        return taken

    def _take_fresh(self, offsets: list[int], room: int, end: int) -> None:
        while room > 0:
            start = self._first_fresh()
            stop = self.cursor.next_acked(start, min(end, start + room))
            if self._resumed:
                stop = next((one for one in range(start, stop) if one in self._resumed), stop)
            if start >= stop:
                self._fresh = max(self._fresh, min(start, end))
                return
            offsets.extend(range(start, stop))
            room -= stop - start
            self._fresh = stop

    def _grant(self, lease: _Lease) -> None:
        lease.consumer.leased += lease.left
        self._lease_of.update(dict.fromkeys(lease.offsets, lease))
        self._pushed += 1
        heapq.heappush(self._deadlines, (lease.deadline_ms, self._pushed, lease))

    def _unlease(self, offset: int) -> None:
        lease = self._lease_of.pop(offset)
        lease.left -= 1
        lease.consumer.leased -= 1

    def _release(self, offset: int) -> None:
        self._unlease(offset)
        self._attempts[offset] = self._attempts.get(offset, 0) + 1

    def _end_delivery(self, offset: int, now_ms: int, delay_ms: int | None) -> None:
        """Count a delivery that was not acked; the message waits for redelivery, or is spent."""
        self._release(offset)
        if self._spent.take(offset, self._attempts[offset], self._due_ms(offset, now_ms, delay_ms)):
            self._stands_in_no_way(offset)
            return
        if delay_ms is None:
            backoff = self._retry_backoff
            has_room = backoff is not None and self.delayed < self._delayed_max
            delay_ms = backoff.delay_ms(self._attempts[offset]) if backoff and has_room else 0
        if delay_ms > 0:
            heapq.heappush(self._delayed, (now_ms + delay_ms, offset))
        self._comes_back(offset, asleep=delay_ms > 0)

    def _due_ms(self, offset: int, now_ms: int, delay_ms: int | None) -> int | None:
        if delay_ms is None:
            backoff = self._retry_backoff
            delay_ms = 0 if backoff is None else backoff.delay_ms(self._attempts[offset])
        return now_ms + self.delays.ahead_ms + delay_ms if delay_ms > 0 else None

    def _release_uncounted(self, offset: int) -> None:
        self._release(offset)
        if self._attempts[offset] == 1:
            del self._attempts[offset]
        else:
            self._attempts[offset] -= 1

    def _take_back(self, found: DispatchedBatch, start: int) -> None:
        for offset in reversed(found.offsets[start:]):
            if self.holds(offset, found.number):
                self._release_uncounted(offset)
                self._comes_back(offset, asleep=False)

    def _forget_idle(self) -> None:
        idle = min(
            (c for c in self.consumers.values() if c.leased == 0 and not c.waiting),
            key=lambda c: c.seen_ms,
            default=None,
        )
        if idle is None:
            raise SubscriptionBusy(
                f"the subscription already has {CONSUMERS_MAX} consumers with leased messages"
            )
        del self.consumers[idle.name]
