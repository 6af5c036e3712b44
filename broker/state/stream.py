"""What makes a partition's log a durable stream: its kind, its end, how far writers are. Pure.

    not there → open → closed           `is_gone`: deleted, but kept while there are forks of it

A `StreamState` is what is known of a stream once all before some offset is stored. What an append
changes beside the log, its producer's sequence, the writers' `Stream-Seq`, the end of the stream,
lies in the very batch that it stores, as a header of its first record (`marker_of`): so either both
are there or neither, and a take-over that looks through the batches since the state was written
last knows all of it. What changes without a batch, a stream that is made, closed or deleted, is
written by itself, under a `revision` one higher.

An append is checked and taken in where batches get their offsets (partition/publisher.py): what is
found new is stored behind all that was let in before it. Of each producer the newest sequence is
remembered, counted per append and not per message; at most `producers_max` producers, of which the
one silent for longest is forgotten first. The protocol: docs/durable_streams.md.
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
"""The header of a batch's first record that says what its append changes."""
PRODUCERS_OF_ONE_OP = 1_000
"""In one operation of a snapshot."""

Tuple3 = tuple[str, int, int]
"""A producer, its epoch and a sequence of it."""


class StreamConfig(NamedTuple):
    """What a stream is made with; it never changes."""

    content_type: str = "application/octet-stream"
    ttl_s: int | None = None
    """It goes when nobody has read or written for so long …"""
    expires_at: str | None = None
    """… or at this time, as it was given, RFC 3339."""
    expires_at_ms: int | None = None
    forked_from: str | None = None
    """The topic that it is a fork of, `namespace/topic`."""
    fork_offset: int | None = None
    fork_sub_offset: int = 0
    """Beyond that offset: messages, or bytes of one."""

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in small letters."""
        return media_type(self.content_type)

    @property
    def is_json(self) -> bool:
        """Whether its messages are JSON values, given out as arrays."""
        return self.media_type == "application/json"


def media_type(content_type: str) -> str:
    """Without parameters, in small letters."""
    return content_type.partition(";")[0].strip().lower()


class Append(NamedTuple):
    """What an append says beside its data."""

    producer: str | None = None
    epoch: int = 0
    sequence: int = 0
    stream_seq: str | None = None
    """Higher than the last one, letter by letter."""
    closes: bool = False
    is_first: bool = False
    """What the stream is made with: it is stored also when it is closed already."""

    @property
    def at(self) -> Tuple3 | None:
        """Whose it is and which one; None when nobody counts it."""
        return None if self.producer is None else (self.producer, self.epoch, self.sequence)


class Written(NamedTuple):
    """How far a producer has come, and where its newest append ends."""

    epoch: int
    sequence: int
    end: int


@dataclass(slots=True)
class StreamState:
    """A stream as of what lies before `upto`."""

    config: StreamConfig
    revision: int = 1
    upto: int = 0
    base: int = 0
    """Where it began: what lies before was there, or is of the stream that it is a fork of."""
    whole_at: int = 0
    """With less than this the making of it was broken off: it is not there yet."""
    closed: bool = False
    closed_by: Tuple3 | None = None
    stream_seq: str | None = None
    is_gone: bool = False
    producers: OrderedDict[str, Written] = field(default_factory=OrderedDict)
    producers_max: int = 10_000
    changed: dict[str, None] = field(default_factory=dict)
    """Producers, since the last operation was made."""

    def copy(self) -> StreamState:
        """One that goes its own way."""
        found = StreamState(*(getattr(self, name) for name in self.__slots__))
        found.producers, found.changed = self.producers.copy(), {}
        return found

    def check(self, append: Append, end: int) -> int | None:
        """None when it is new; of a repeat, before which offset it was stored.

        `end`: of the stream, for whoever is refused. Raises `StaleStreamEpoch`, `EpochBegun`,
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
            raise StreamClosed("the stream is closed: nothing is appended to it any more", end)
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
                f"Stream-Seq {append.stream_seq!r:.80} is not behind the last one, {last!r:.80}"
            )
        return None

    def accept(self, append: Append, end: int) -> None:
        """It is stored before `end`."""
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
        """A batch that ends there was found to be stored with this."""
        if end > self.upto:
            self.accept(append, end)
            self.upto = end

    def told(self, upto: int) -> Iterator[list[Any]]:
        """Operations that say all of it, once all before `upto` is stored."""
        self.changed = {}
        producers = [[name, *written] for name, written in self.producers.items()]
        for at in range(0, max(1, len(producers)), PRODUCERS_OF_ONE_OP):
            yield self._op(upto, producers[at : at + PRODUCERS_OF_ONE_OP])

    def change(self, upto: int) -> list[Any]:
        """One operation: what has changed since the last one, once all before `upto` is stored."""
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
    """After an operation was read. One that was queued before a snapshot takes nothing back.

    Raises ValueError, TypeError when it is none.
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
    """The value of the header `MARKER`; None when the append changes nothing but the log."""
    if append.producer is None and append.stream_seq is None and not append.closes:
        return None
    packed: bytes = msgpack.packb(list(append[:5]))
    return packed


def append_of(headers: Sequence[tuple[str, bytes | None]]) -> Append | None:
    """What the first record of a batch says of its append. Raises ValueError when it is damaged."""
    for name, value in headers:
        if name == MARKER:
            try:
                producer, epoch, sequence, seq, closes = msgpack.unpackb(value or b"")
            except (TypeError, ValueError, msgpack.UnpackException) as error:
                raise ValueError(f"header {MARKER} cannot be read: {error}") from error
            return Append(producer, int(epoch), int(sequence), seq, bool(closes))
    return None
