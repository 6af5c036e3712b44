"""The state that makes a partition's log a durable stream: kind, end, progress of writers. Pure.

    not there → open → closed           `is_gone`: deleted, but kept while forks of it exist

A `StreamState` is the state after all batches before some offset. Besides the log, an append
changes its producer's sequence, the writers' `Stream-Seq` and the end of the stream. These changes
are stored in the append's batch, as a header of the first record (`marker_of`). So the data and the
changes are stored together or not at all, and a take-over finds the changes when it scans the
batches since the last written state. Changes without a batch (a stream is made, closed or deleted)
are written separately, and raise `revision` by one.

An append is checked and accepted where batches get their offsets (partition/publisher.py), so
appends are stored in the order in which they were accepted. The newest sequence of each producer is
remembered, counted per append, not per message. At most `producers_max` producers are remembered;
the producer that was silent for longest is forgotten first. The protocol: docs/durable_streams.md.
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
"""The header of a batch's first record that holds the append's state changes."""
PRODUCERS_OF_ONE_OP = 1_000
"""The most producers in one operation of a snapshot."""

Tuple3 = tuple[str, int, int]
"""A producer, its epoch and its sequence."""


class StreamConfig(NamedTuple):
    """The properties that a stream is created with; they never change."""

    content_type: str = "application/octet-stream"
    ttl_s: int | None = None
    """The stream expires when it was not read or written for this long …"""
    expires_at: str | None = None
    """… or at this time, as the client gave it, RFC 3339."""
    expires_at_ms: int | None = None
    forked_from: str | None = None
    """The topic from which the stream was forked, `namespace/topic`."""
    fork_offset: int | None = None
    fork_sub_offset: int = 0
    """How far beyond the fork's offset the stream begins: in messages, or bytes of a message."""

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in lower case."""
        return media_type(self.content_type)

    @property
    def is_json(self) -> bool:
        """Whether its messages are JSON values, returned as arrays."""
        return self.media_type == "application/json"


def media_type(content_type: str) -> str:
    """Drop the parameters of a content type, and use lower case."""
    return content_type.partition(";")[0].strip().lower()


class Append(NamedTuple):
    """An append without its data."""

    producer: str | None = None
    epoch: int = 0
    sequence: int = 0
    stream_seq: str | None = None
    """Must be higher than the last `Stream-Seq`, compared as text."""
    closes: bool = False
    is_first: bool = False
    """Whether this is the stream's initial data, which is stored even if the stream is closed."""

    @property
    def at(self) -> Tuple3 | None:
        """The producer, epoch and sequence; None without a producer."""
        return None if self.producer is None else (self.producer, self.epoch, self.sequence)


class Written(NamedTuple):
    """A producer's newest append, and the offset where it ends."""

    epoch: int
    sequence: int
    end: int


@dataclass(slots=True)
class StreamState:
    """A stream's state after all batches before `upto`."""

    config: StreamConfig
    revision: int = 1
    upto: int = 0
    base: int = 0
    """The stream's first offset. Earlier batches were there before the stream, or belong to the
    forked stream."""
    whole_at: int = 0
    """If the log ends below this offset, the stream's creation was interrupted: it does not exist
    yet."""
    closed: bool = False
    closed_by: Tuple3 | None = None
    stream_seq: str | None = None
    is_gone: bool = False
    producers: OrderedDict[str, Written] = field(default_factory=OrderedDict)
    producers_max: int = 10_000
    changed: dict[str, None] = field(default_factory=dict)
    """Producers that changed since the last operation was made."""

    def copy(self) -> StreamState:
        found = StreamState(*(getattr(self, name) for name in self.__slots__))
        found.producers, found.changed = self.producers.copy(), {}
        return found

    def check(self, append: Append, end: int) -> int | None:
        """Return None if the append is new; for a repeat, the offset before which the append was
        stored.

        `end`: the stream's end, for error answers. Raises `StaleStreamEpoch`, `EpochBegun`,
        `StreamClosed`, `StreamSequenceGap`, `StreamSequence`. Changes nothing.
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
        """Note an append that is stored before `end`."""
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
        """Note the append of a stored batch that ends at `end`."""
        if end > self.upto:
            self.accept(append, end)
            self.upto = end

    def told(self, upto: int) -> Iterator[list[Any]]:
        """Encode the whole state as operations, valid once all batches before `upto` are stored."""
        self.changed = {}
        producers = [[name, *written] for name, written in self.producers.items()]
        for at in range(0, max(1, len(producers)), PRODUCERS_OF_ONE_OP):
            yield self._op(upto, producers[at : at + PRODUCERS_OF_ONE_OP])

    def change(self, upto: int) -> list[Any]:
        """Encode the changes since the last operation, valid once all batches before `upto` are
        stored."""
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
    """Apply an operation. If it was queued before a snapshot that the state contains, keep newer
    values.

    Raises ValueError or TypeError if it cannot be read.
    """
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
    """Return the value of the header `MARKER`; None when the append changes only the log."""
    if append.producer is None and append.stream_seq is None and not append.closes:
        return None
    packed: bytes = msgpack.packb(list(append[:5]))
    return packed


def append_of(headers: Sequence[tuple[str, bytes | None]]) -> Append | None:
    """Read an append from the headers of a batch's first record. Raises ValueError if damaged."""
    for name, value in headers:
        if name == MARKER:
            try:
                producer, epoch, sequence, seq, closes = msgpack.unpackb(value or b"")
            except (TypeError, ValueError, msgpack.UnpackException) as error:
                raise ValueError(f"header {MARKER} cannot be read: {error}") from error
            return Append(producer, int(epoch), int(sequence), seq, bool(closes))
    return None
