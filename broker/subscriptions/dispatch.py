"""Who gets which message: leases, redelivery, delays, exclusive and shared subscriptions. Pure.

    fresh → leased → acked
              ↓ lease ended, or nacked
            waiting (until its delay is over) → leased again, delivery count + 1

A dispatched batch is what one receive gives: messages leased to one consumer under one lease
number. An ack id names offset and lease, so it is good at any broker while the lease lasts and
worthless afterwards.
Nothing here is durable: after a take-over leases are void and what is unacked is fresh again.
Redelivery comes before what is new, lowest offset first. `leased_max` bounds what is out or ready
to go out again; what waits for its delay is no consumer's, and is bounded apart by `delayed_max`.
Times are milliseconds of any steady clock, handed in by the caller.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.broker.errors import SubscriptionBusy
from octavo.broker.state.cursor import Cursor

CONSUMERS_MAX = 10_000
"""Consumers kept for statistics and turn-taking; idle ones go first."""


class Consumer:
    """A consumer's share: how many messages it holds, and when it was last heard of."""

    __slots__ = ("leased", "name", "seen_ms")

    def __init__(self, name: str, seen_ms: int) -> None:
        self.name = name
        self.seen_ms = seen_ms
        self.leased = 0


class _Lease:
    """Messages handed out together. A part that is extended gets a lease object of its own."""

    __slots__ = ("being_read", "consumer", "deadline_ms", "left", "number", "offsets")

    def __init__(
        self, number: int, consumer: Consumer, deadline_ms: int, offsets: Sequence[int]
    ) -> None:
        self.number = number
        self.consumer = consumer
        self.deadline_ms = deadline_ms
        self.offsets = offsets
        self.left = len(offsets)
        """How many are still leased; at 0 the list of offsets is let go."""
        self.being_read = False
        """Its messages are still on their way from the bookies: it does not end by time."""


class DispatchedBatch(NamedTuple):
    """What one receive gets: ascending offsets under lease `number`, with delivery counts.

    `counts` holds only the offsets that were delivered before. `is_repeat`: its consumer may have
    it from an earlier answer, so it is given whole.
    """

    number: int
    offsets: list[int]
    counts: dict[int, int]
    is_repeat: bool = False


class Dispatcher:
    """Who gets which messages of one subscription in one partition, over its `Cursor`."""

    def __init__(
        self,
        cursor: Cursor,
        *,
        exclusive: bool,
        ack_timeout_ms: int,
        leased_max: int,
        delayed_max: int,
    ) -> None:
        self.cursor = cursor
        self.consumers: dict[str, Consumer] = {}
        self._exclusive = exclusive
        self._ack_timeout_ms = ack_timeout_ms
        self._leased_max = leased_max
        self._delayed_max = delayed_max
        self._fresh = cursor.committed_offset
        self._lease_of: dict[int, _Lease] = {}
        self._deadlines: list[tuple[int, int, _Lease]] = []
        self._pushed = 0
        self._numbers = 0
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self._attempts: dict[int, int] = {}
        self._holder: str | None = None
        self._held_until_ms = 0
        self._reads = 0
        """Hand-outs that are being read."""

    @property
    def leased(self) -> int:
        """Messages that are out at consumers."""
        return len(self._lease_of)

    @property
    def ready(self) -> int:
        """Messages that may be delivered again at once."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Messages that wait for their delay."""
        return len(self._delayed)

    def held_back(self, end: int) -> str | None:
        """Why messages before offset `end` are not handed out, though nobody has them; or None."""
        if self._ready or self.leased < self._leased_max:
            return None
        start = self.cursor.next_unacked(self._fresh)
        if start >= end:
            return None
        holders = sum(consumer.leased > 0 for consumer in self.consumers.values())
        return (
            f"{self.leased} messages are out at {holders} consumers, unacked, and a subscription "
            f"has no more than {self._leased_max} out in one partition: ack them, or give them back"
        )

    def enter(self, consumer: str, now_ms: int) -> None:
        """A consumer shows itself. Raises `SubscriptionBusy` if another holds the subscription.

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
        known = self.consumers.get(consumer)
        if known is None:
            if len(self.consumers) >= CONSUMERS_MAX:
                self._forget_idle()
            known = self.consumers[consumer] = Consumer(consumer, now_ms)
        known.seen_ms = now_ms

    def held_by(self, consumer: str, now_ms: int) -> int:
        """How many messages are out at a consumer that has shown itself."""
        self.expire(now_ms)
        return self.consumers[consumer].leased

    def dispatch(
        self, consumer: str, now_ms: int, end: int, messages_max: int
    ) -> DispatchedBatch | None:
        """Lease up to `messages_max` messages before offset `end`; None when there are none."""
        self.expire(now_ms)
        offsets = self._take_ready(messages_max) if self._ready else []
        counts = {offset: self._attempts.get(offset, 0) + 1 for offset in offsets}
        room = min(messages_max, self._leased_max - self.leased - self.ready) - len(offsets)
        if room > 0 and self._fresh < end:
            self._take_fresh(offsets, room, end)
        if not offsets:
            return None
        self._numbers += 1
        deadline_ms = now_ms + self._ack_timeout_ms
        self._grant(_Lease(self._numbers, self.consumers[consumer], deadline_ms, offsets))
        return DispatchedBatch(self._numbers, offsets, counts)

    def reading(self, found: DispatchedBatch) -> None:
        """The messages of a batch are being fetched: nobody can ack them, so no lease ends.

        `begin` or `give_back` says how it went.
        """
        self._reads += 1
        for offset in found.offsets:
            if self.holds(offset, found.number):
                self._lease_of[offset].being_read = True

    def begin(self, found: DispatchedBatch, now_ms: int) -> None:
        """They go to their consumer now: its time to ack begins."""
        self._reads -= 1
        self.extend([o for o in found.offsets if self.holds(o, found.number)], now_ms)

    def again(self, found: DispatchedBatch, now_ms: int) -> DispatchedBatch | None:
        """What is still out of an earlier batch, its lease begun anew; None when nothing is.

        For a consumer whose answer was lost: not a new delivery, so nothing is counted.
        """
        self.expire(now_ms)
        left = [offset for offset in found.offsets if self.holds(offset, found.number)]
        if not left:
            return None
        self.extend(left, now_ms)
        return DispatchedBatch(found.number, left, found.counts, is_repeat=True)

    def holds(self, offset: int, number: int) -> bool:
        """Whether the lease `number` still covers `offset`."""
        lease = self._lease_of.get(offset)
        return lease is not None and lease.number == number

    def acked(self, offsets: Iterable[int]) -> None:
        """These are acked (the caller changes the cursor): their leases and counts end."""
        lease_of, attempts = self._lease_of, self._attempts
        for offset in offsets:
            lease = lease_of.pop(offset, None)
            if lease is not None:
                lease.left -= 1
                lease.consumer.leased -= 1
                if not lease.left:
                    lease.offsets = ()
            if attempts:
                attempts.pop(offset, None)

    def acked_up_to(self, offset: int) -> None:
        """All up to and including `offset` are acked."""
        self.acked([leased for leased in self._lease_of if leased <= offset])
        if self._delayed:
            self._delayed = [one for one in self._delayed if one[1] > offset]
            heapq.heapify(self._delayed)
        self._fresh = max(self._fresh, offset + 1)

    def nack(self, offset: int, now_ms: int, delay_ms: int) -> bool:
        """Give a leased message back, to be delivered again after the delay.

        Nothing happens to one that is not leased: a call may name a message twice. False: too many
        wait for their delay, and it stays leased.
        """
        if offset not in self._lease_of:
            return True
        if delay_ms > 0 and self.delayed >= self._delayed_max:
            return False
        self._release(offset)
        if delay_ms <= 0:
            heapq.heappush(self._ready, offset)
        else:
            heapq.heappush(self._delayed, (now_ms + delay_ms, offset))
        return True

    def give_back(self, found: DispatchedBatch) -> None:
        """It could not be read, or nobody waits for it: it does not count as a delivery."""
        self._reads -= 1
        self._take_back(found, 0)

    def shorten(self, found: DispatchedBatch, count: int) -> DispatchedBatch:
        """Only the first `count` go to their consumer: it is as if the others never had."""
        self._take_back(found, count)
        return found._replace(offsets=found.offsets[:count])

    def extend(self, offsets: Iterable[int], now_ms: int) -> None:
        """Begin the ack timeout of these leased messages anew; their ack ids stay good."""
        parts: dict[_Lease, list[int]] = {}
        for offset in dict.fromkeys(offsets):
            parts.setdefault(self._lease_of[offset], []).append(offset)
        for lease, part in parts.items():
            deadline = now_ms + self._ack_timeout_ms
            lease.left -= len(part)
            lease.consumer.leased -= len(part)
            self._grant(_Lease(lease.number, lease.consumer, deadline, part))
            if self._exclusive:
                self._held_until_ms = max(self._held_until_ms, deadline)

    def heard_of(self, offset: int, now_ms: int) -> None:
        """The consumer that holds `offset` is alive: it is about to ack it or to give it back."""
        lease = self._lease_of.get(offset)
        if lease is None:
            return
        lease.consumer.seen_ms = now_ms
        if self._exclusive and lease.consumer.name == self._holder:
            self._held_until_ms = max(self._held_until_ms, now_ms + self._ack_timeout_ms)

    def expire(self, now_ms: int) -> None:
        """End the leases whose time is over; wake the messages whose delay is over."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, lease = heapq.heappop(self._deadlines)
            if lease.being_read:
                continue
            for offset in lease.offsets:
                if self._lease_of.get(offset) is lease:
                    self._release(offset)
                    heapq.heappush(self._ready, offset)
        while self._delayed and self._delayed[0][0] <= now_ms:
            heapq.heappush(self._ready, heapq.heappop(self._delayed)[1])

    def next_event_ms(self) -> int | None:
        """When `expire` has something to do next; None when nothing is out or delayed."""
        while self._deadlines and not self._deadlines[0][2].left:
            heapq.heappop(self._deadlines)
        times = [queue[0][0] for queue in (self._deadlines, self._delayed) if queue]
        return min(times, default=None)

    def reset(self) -> None:
        """After a seek: every lease is void, all that is unacked is fresh."""
        self._fresh = self.cursor.committed_offset
        for consumer in self.consumers.values():
            consumer.leased = 0
        self._lease_of.clear()
        self._deadlines.clear()
        self._ready.clear()
        self._delayed.clear()
        self._attempts.clear()

    def _take_ready(self, room: int) -> list[int]:
        taken: list[int] = []
        while self._ready and len(taken) < room:
            offset = heapq.heappop(self._ready)
            if self.cursor.is_acked(offset):
                self._attempts.pop(offset, None)
            elif offset not in self._lease_of and (not taken or taken[-1] != offset):
                taken.append(offset)
        return taken

    def _take_fresh(self, offsets: list[int], room: int, end: int) -> None:
        while room > 0:
            start = self.cursor.next_unacked(self._fresh)
            stop = self.cursor.next_acked(start, min(end, start + room))
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

    def _release(self, offset: int) -> None:
        lease = self._lease_of.pop(offset)
        lease.left -= 1
        lease.consumer.leased -= 1
        self._attempts[offset] = self._attempts.get(offset, 0) + 1

    def _take_back(self, found: DispatchedBatch, start: int) -> None:
        for offset in found.offsets[start:]:
            if self.holds(offset, found.number):
                self._release(offset)
                if self._attempts[offset] == 1:
                    del self._attempts[offset]
                else:
                    self._attempts[offset] -= 1
                heapq.heappush(self._ready, offset)

    def _forget_idle(self) -> None:
        idle = min(
            (c for c in self.consumers.values() if c.leased == 0),
            key=lambda c: c.seen_ms,
            default=None,
        )
        if idle is None:
            raise SubscriptionBusy(
                f"the subscription already has {CONSUMERS_MAX} consumers with leased messages"
            )
        del self.consumers[idle.name]
