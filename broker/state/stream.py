"""The state that makes a partition's log a durable stream: kind, end, progress of writers. Pure.

    not there → open → closed           `is_gone`: deleted, but kept while forks of it exist

A `StreamState` is as of all batches before some offset. An append's changes (producer,
`Stream-Seq`, end) are in a header of its batch's first record (`marker_of`): so they are stored
with the data or not at all. Changes without a batch are written separately, and raise `revision` by
one. Appends are checked where batches get offsets. The newest sequence of each producer is
remembered, per append, for at most `producers_max`. The protocol: docs/durable_streams.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from octavo.broker.errors import (
    EpochBegun,
    StaleStreamEpoch,
    StreamClosed,
    StreamSequence,
    StreamSequenceGap,
)

MARKER = "octavo-stream"
"""The header of a batch's first record with the append's changes."""
PRODUCERS_OF_ONE_OP = 1_000

Tuple3 = tuple[str, int, int]


class StreamConfig(NamedTuple):
    content_type: str = "application/octet-stream"
    ttl_s: int | None = None
    """The stream expires when unused for this long …"""
    expires_at: str | None = None
    """… or at this time, RFC 3339, as given."""
    expires_at_ms: int | None = None
    forked_from: str | None = None
    fork_offset: int | None = None
    fork_sub_offset: int = 0
    """How far beyond the fork's offset: in messages, or bytes of a message."""

    @property
    def media_type(self) -> str:
        return media_type(self.content_type)

    @property
    def is_json(self) -> bool:
        return self.media_type == "application/json"


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


class Append(NamedTuple):
    producer: str | None = None
    epoch: int = 0
    sequence: int = 0
    stream_seq: str | None = None
    """Must be higher than the last, as text."""
    closes: bool = False
    is_first: bool = False
    """The stream's initial data, stored even if it is closed."""

    @property
    def at(self) -> Tuple3 | None:
        """Return producer, epoch and sequence; None without a producer."""
        return None if self.producer is None else (self.producer, self.epoch, self.sequence)


class Written(NamedTuple):
    epoch: int
    sequence: int
    end: int


@dataclass(slots=True)
class StreamState:
    config: StreamConfig
    revision: int = 1
    upto: int = 0
    base: int = 0
    """The stream's first offset: earlier batches were there before, or belong to the source."""
    whole_at: int = 0
    """If the log ends below, the creation was interrupted: the stream does not exist yet."""
    closed: bool = False
    closed_by: Tuple3 | None = None
    stream_seq: str | None = None
    is_gone: bool = False
    producers: OrderedDict[str, Written] = field(default_factory=OrderedDict)
    producers_max: int = 10_000
    changed: dict[str, None] = field(default_factory=dict)

    def copy(self) -> StreamState:
        found = StreamState(*(getattr(self, name) for name in self.__slots__))
        found.producers, found.changed = self.producers.copy(), {}
        return found

    def check(self, append: Append, end: int) -> int | None:
        """Return None for a new append; for a repeat, the offset before which it was stored.

        Changes nothing.
        """
        known = None if append.producer is None else self.producers.get(append.producer)
        if known is not None:
            if append.epoch < known.epoch:
                raise StaleStreamEpoch(
                    f"producer {append.producer!r} has epoch {known.epoch}; epoch {append.epoch} "
                    "is an older instance and may not append any more",
                    known.epoch,
                )
            if append.epoch == known.epoch and append.sequence <= known.sequence:
                return known.end
        if self.closed and not append.is_first:
            raise StreamClosed("the stream is closed: nothing can be appended to it any more", end)
        if known is not None and append.epoch > known.epoch and append.sequence != 0:
            raise EpochBegun(
                f"producer {append.producer!r} is new in epoch {append.epoch}: its sequence must "
                f"begin at 0, got {append.sequence}"
            )
        if append.producer is not None:
            same = known is not None and known.epoch == append.epoch
            expected = known.sequence + 1 if known is not None and same else 0
            if append.sequence != expected:
                raise StreamSequenceGap(
                    f"producer {append.producer!r} epoch {append.epoch}: expected sequence "
                    f"{expected}, got {append.sequence}",
                    expected,
                    append.sequence,
                )
        last = self.stream_seq
        if append.stream_seq is not None and last is not None and append.stream_seq <= last:
            raise StreamSequence(
                f"Stream-Seq {append.stream_seq!r:.80} must be greater than the last, {last!r:.80}"
            )
        return None

    def accept(self, append: Append, end: int) -> None:
        if append.producer is not None:
            self._put(append.producer, Written(append.epoch, append.sequence, end))
        if append.stream_seq is not None:
            self.stream_seq = append.stream_seq
        if append.closes and not self.closed:
            self.closed, self.closed_by = True, append.at

    def _put(self, producer: str, written: Written) -> None:
        self.producers[producer] = written
        self.producers.move_to_end(producer)
        self.changed[producer] = None
        if len(self.producers) > self.producers_max:
            self.producers.popitem(last=False)

    def replay(self, append: Append, end: int) -> None:
        if end > self.upto:
            self.accept(append, end)
            self.upto = end

    def told(self, upto: int) -> Iterator[list[Any]]:
        """Encode the state as operations, valid once batches before `upto` are stored."""
        self.changed = {}
        producers = [[name, *written] for name, written in self.producers.items()]
        for at in range(0, max(1, len(producers)), PRODUCERS_OF_ONE_OP):
            yield self._op(upto, producers[at : at + PRODUCERS_OF_ONE_OP])

    def change(self, upto: int) -> list[Any]:
        """Encode the changes since the last operation, valid likewise."""
        changed, self.changed = self.changed, {}
        return self._op(
            upto, [[name, *self.producers[name]] for name in changed if name in self.producers]
        )

    def _op(self, upto: int, producers: Sequence[list[Any]]) -> list[Any]:
        closing = list(self.closed_by) if self.closed_by else None
        return [
            52, self.revision, upto, list(self.config), self.base, self.whole_at, self.closed,
            closing, self.stream_seq, self.is_gone, list(producers),
        ]  # fmt: skip


def stream_told(before: StreamState | None, op: list[Any]) -> StreamState:
    """Apply an operation; keep values newer than it."""
    _, revision, upto, config, base, whole_at, closed, closing, seq, is_gone, producers = op
    found = before
    if found is None or (revision >= found.revision and upto >= found.upto):
        kept = OrderedDict() if found is None else found.producers
        by = None if closing is None else (str(closing[0]), int(closing[1]), int(closing[2]))
        found = StreamState(
            StreamConfig(*config), int(revision), int(upto), int(base), int(whole_at),
            bool(closed), by, seq, bool(is_gone), kept,
        )  # fmt: skip
    for name, *written in producers:
        one = Written(*map(int, written))
        known = found.producers.get(name)
        if known is None or known[:2] <= one[:2]:
            found._put(str(name), one)
    return found


def marker_of(append: Append) -> bytes | None:
    if append.producer is None and append.stream_seq is None and not append.closes:
        return None
    packed: bytes = msgpack.packb(list(append[:5]))
    return packed


def append_of(headers: Sequence[tuple[str, bytes | None]]) -> Append | None:
    for name, value in headers:
        if name == MARKER:
            try:
                producer, epoch, sequence, seq, closes = msgpack.unpackb(value or b"")
            except (TypeError, ValueError, msgpack.UnpackException) as error:
                raise ValueError(f"header {MARKER} cannot be read: {error}") from error
            return Append(producer, int(epoch), int(sequence), seq, bool(closes))
    return None
