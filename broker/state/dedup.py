"""Idempotent producers: which batches are new, repeated, early, or of an old epoch. Pure.

As in Kafka a producer numbers its messages without gaps per partition, `int32`, wrapping from
2³¹−1 to 0; a new epoch starts at 0 and shuts out the older epoch. The last five batches of each
producer are remembered with their offsets, so that a repeat is answered with the *old* offsets.
Unlike in Kafka, a repeat may have other batch boundaries; a repeat of an older batch is known to be
stored, only not where; and an unknown producer must begin at 0 (in Kafka: anywhere).

At most `producers_max` are remembered. The producer that was silent for longest is forgotten first;
if it returns it counts as new, and the gap error tells it so. This stores nothing twice unless the
forgotten producer repeats sequence 0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from octavo.broker.errors import SequenceGap, StaleProducerEpoch

SEQUENCE_MODULUS = 2**31
BATCHES_REMEMBERED = 5
"""Kafka's bound on batches in flight per producer."""


class Remembered(NamedTuple):
    """A stored batch: sequences first … last (wrapping) at offsets from `first_offset` on."""

    first_sequence: int
    last_sequence: int
    first_offset: int

    @property
    def length(self) -> int:
        """How many messages it has."""
        return (self.last_sequence - self.first_sequence) % SEQUENCE_MODULUS + 1


class ProducerState(NamedTuple):
    """All that is kept of a producer, also in a snapshot."""

    producer_id: int
    epoch: int
    batches: tuple[Remembered, ...]


class Duplicate(NamedTuple):
    """The place of a batch that was accepted before; offsets are -1 if no longer remembered.

    `stored_from` is an offset whose confirmation proves that the batch is durable.
    """

    first_offset: int
    last_offset: int
    stored_from: int


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` messages after `sequence`."""
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
        """Return None if the batch is its producer's next; else the place of the duplicate.

        Raises `StaleProducerEpoch`, `SequenceGap`. Changes nothing.
        """
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
        """Remember a new batch, which `check` has passed or a scan of a ledger has found."""
        batch = Remembered(first, next_sequence(first, count - 1), first_offset)
        known = self._producers.get(producer_id)
        kept: tuple[Remembered, ...] = ()
        if known is not None and known.epoch == epoch:
            if known.batches[-1].first_offset >= first_offset:
                return  # the scan meets a batch that the snapshot already holds
            kept = known.batches[1 - BATCHES_REMEMBERED :]
        self._put(ProducerState(producer_id, epoch, (*kept, batch)))

    def restore(self, state: ProducerState) -> None:
        """Add a producer from a snapshot, as the most recently active so far."""
        assert state.batches
        self._put(state)

    def snapshot(self) -> Iterator[ProducerState]:
        """All producers, least recently active first."""
        return iter(self._producers.values())

    def take_changed(self) -> list[ProducerState]:
        """Return the producers that changed since the last call, in order of activity."""
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
    """Where the messages were stored that begin `behind` messages before the next sequence."""
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
