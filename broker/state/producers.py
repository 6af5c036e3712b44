"""Idempotent producers: which batches are new, repeated, early, or of an old epoch. Pure.

As in Kafka, sequences are `int32` without gaps per partition, wrapping to 0; a new epoch starts at
0 and shuts out the older. A repeat of the last five batches is answered with the *old* offsets.
Unlike in Kafka, a repeat may have other batch boundaries, and an unknown producer must begin at 0.

Beyond `producers_max`, the producer silent for longest is forgotten; if it returns, it gets a gap
error. Nothing is stored twice unless it repeats sequence 0.

`Access` is the exclusive producer. Every change raises the epoch, durably, before a client learns
of it; a publish's epoch is checked where batches get offsets, so all batches of an epoch lie before
later epochs' batches. A silent holder may be replaced after its session timeout, which each owner
counts from its start. Times are steady milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from octavo.broker.errors import (
    ExclusiveProducer,
    ProducerBusy,
    SequenceGap,
    StaleProducerAccess,
    StaleProducerEpoch,
)

SEQUENCE_MODULUS = 2**31
BATCHES_REMEMBERED = 5
"""Kafka's bound on batches in flight per producer."""


class Remembered(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int

    @property
    def length(self) -> int:
        return (self.last_sequence - self.first_sequence) % SEQUENCE_MODULUS + 1


class ProducerState(NamedTuple):
    producer_id: int
    epoch: int
    batches: tuple[Remembered, ...]


class Duplicate(NamedTuple):
    """Where a repeated batch was stored; -1: no longer known.

    Once `stored_from` is confirmed, the batch is durable.
    """

    first_offset: int
    last_offset: int
    stored_from: int


def next_sequence(sequence: int, count: int) -> int:
    return (sequence + count) % SEQUENCE_MODULUS


class ProducerTable:
    """The producers of a partition, least recently active first."""

    __slots__ = ("_changed", "_producers", "_producers_max")

    def __init__(self, producers_max: int) -> None:
        assert producers_max >= 1
        self._producers: OrderedDict[int, ProducerState] = OrderedDict()
        self._producers_max = producers_max
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, producer_id: int, epoch: int, first: int, count: int) -> Duplicate | None:
        """Return None for the producer's next batch, else the duplicate's place; change nothing."""
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            raise StaleProducerEpoch(
                f"producer {producer_id} has epoch {known.epoch}; epoch {epoch} is an older "
                "instance and may not publish any more"
            )
        if known is None or epoch > known.epoch:
            if first != 0:
                why = "is not known here" if known is None else f"is new in epoch {epoch}"
                raise SequenceGap(
                    f"producer {producer_id} {why}: its sequence must begin at 0, got {first}", 0
                )
            return None
        expected = next_sequence(known.batches[-1].last_sequence, 1)
        if first == expected:
            return None
        behind = (expected - first) % SEQUENCE_MODULUS
        if behind < count or behind >= SEQUENCE_MODULUS // 2:
            raise SequenceGap(
                f"producer {producer_id} epoch {epoch}: expected sequence {expected}, got {first} "
                f"with {count} messages",
                expected,
            )
        return _place(known.batches, behind, count)

    def accept(
        self, producer_id: int, epoch: int, first: int, count: int, first_offset: int
    ) -> None:
        batch = Remembered(first, next_sequence(first, count - 1), first_offset)
        known = self._producers.get(producer_id)
        kept: tuple[Remembered, ...] = ()
        if known is not None and known.epoch == epoch:
            if known.batches[-1].first_offset >= first_offset:
                return  # the scan meets a batch that the snapshot already holds
            kept = known.batches[1 - BATCHES_REMEMBERED :]
        self._put(ProducerState(producer_id, epoch, (*kept, batch)))

    def restore(self, state: ProducerState) -> None:
        assert state.batches
        self._put(state)

    def snapshot(self) -> Iterator[ProducerState]:
        return iter(self._producers.values())

    def take_changed(self) -> list[ProducerState]:
        """Return the producers changed since the last call, in order of activity."""
        changed, self._changed = self._changed, set()
        if len(changed) * 4 < len(self._producers):
            states = [self._producers[i] for i in changed if i in self._producers]
            return sorted(states, key=lambda state: state.batches[-1].first_offset)
        return [state for state in self._producers.values() if state.producer_id in changed]

    def _put(self, state: ProducerState) -> None:
        self._producers[state.producer_id] = state
        self._producers.move_to_end(state.producer_id)
        self._changed.add(state.producer_id)
        if len(self._producers) > self._producers_max:
            forgotten, _ = self._producers.popitem(last=False)
            self._changed.discard(forgotten)


def _place(batches: tuple[Remembered, ...], behind: int, count: int) -> Duplicate:
    first_offset = last_offset = -1
    position = 0  # how far before the next sequence this batch ends
    for batch in reversed(batches):
        start = position + batch.length
        for_first, for_last = behind, behind - count + 1
        if position < for_last <= start:
            last_offset = batch.first_offset + start - for_last
        if position < for_first <= start:
            first_offset = batch.first_offset + start - for_first
        position = start
    if first_offset < 0 or last_offset < 0:
        return Duplicate(-1, -1, batches[0].first_offset)
    return Duplicate(first_offset, last_offset, last_offset)


BROKERS = -1
"""The epoch of brokers' own topics and copies, which pass exclusive access."""


class AccessState(NamedTuple):
    """The durable part; `producer` is empty when no producer has the access."""

    epoch: int = 0
    producer: str = ""
    session_ms: int = 0


NOBODY = AccessState()


class Access:
    __slots__ = ("_heard_ms", "state")

    def __init__(self, state: AccessState) -> None:
        self.state = state
        self._heard_ms: int | None = None

    def acquire(self, producer: str, now_ms: int, *, session_ms: int, fencing: bool) -> AccessState:
        """Give `producer` the access under a new epoch, even if it has it.

        `fencing` takes it from the holder; else `ProducerBusy`.
        """
        epoch, holder, _ = self.state
        if holder not in ("", producer) and not fencing:
            left_ms = self.left_ms(now_ms)
            if left_ms > 0:
                raise ProducerBusy(
                    f"producer {holder!r} alone may publish here, and called within its "
                    f"session timeout: wait ({left_ms} ms, if it is gone), or fence it",
                    left_ms,
                )
        self.state = AccessState(epoch + 1, producer, session_ms)
        self._heard_ms = now_ms
        return self.state

    def release(self, epoch: int) -> AccessState | None:
        """Let any producer publish; None if a copy of this call did.

        Raises `StaleProducerAccess` for another epoch than the holder's.
        """
        if not self.state.producer and epoch == self.state.epoch - 1:
            return None
        if not self.state.producer or epoch != self.state.epoch:
            raise self._stale(epoch)
        self.state = AccessState(epoch + 1)
        return self.state

    def check(self, epoch: int | None, now_ms: int) -> None:
        """Check a batch's epoch, `BROKERS`, or None.

        Raises `ExclusiveProducer`, `StaleProducerAccess`.
        """
        if epoch == BROKERS:
            return
        if epoch is None:
            if self.state.producer:
                raise ExclusiveProducer(
                    f"producer {self.state.producer!r} alone may publish here: acquire the access, "
                    "and publish with its epoch"
                )
        elif epoch != self.state.epoch or not self.state.producer:
            raise self._stale(epoch)
        else:
            self._heard_ms = now_ms

    def left_ms(self, now_ms: int) -> int:
        if self._heard_ms is None:  # the previous owner granted the access: the time starts now
            self._heard_ms = now_ms
        return self._heard_ms + self.state.session_ms - now_ms

    def _stale(self, epoch: int) -> StaleProducerAccess:
        holder = self.state.producer
        now = f"producer {holder!r} has it, with a later epoch" if holder else "nobody has it"
        return StaleProducerAccess(
            f"access epoch {epoch} has ended: {now}; acquire the access again if you need it"
        )
