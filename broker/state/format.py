"""What a partition's state ledger says: cursors and producers, as small operations. Pure.

Each entry is a msgpack array of operations, each an array that begins with its kind
(docs/formats/state_ledger.md):

    ["v", 1]                                             format version, first of every ledger
    ["c", name, created_ms, committed_offset]                 a cursor is made, or set by a seek
    ["b", name, [[chunk number, bits], …]]               acked beyond it, as a bitmap (snapshot)
    ["a", name, [gap, length, gap, length, …]]           acked ranges
    ["d", name]                                          a cursor is deleted
    ["p", offset, [[id, epoch, [first, last, offset]…]…]]  producers as of every batch before offset

A ledger begins with a snapshot of all; replaying its entries in order gives the state. Operations
only add acks between two "c", so one that is replayed twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack

from octavo.broker.state.cursor import Cursor, Range, pack_ranges, unpack_ranges
from octavo.broker.state.dedup import ProducerState, Remembered
from octavo.protocol.codes import OctavoError, Scope

FORMAT_VERSION = 1
SNAPSHOT_ENTRY_BYTES = 256 * 1024
"""A snapshot is cut into entries of about this size, so that a million holes fit."""

Op = list[Any]


class BadStateLedger(OctavoError):
    """A state ledger holds what this version cannot read: the partition is not opened."""

    name = "bad-state-ledger"
    scope = Scope.LEDGER


@dataclass(slots=True)
class CursorState:
    """A cursor and the subscription it belongs to: `created_ms` tells namesakes apart."""

    created_ms: int
    cursor: Cursor


@dataclass(slots=True)
class State:
    """All that a state ledger says. `producers_upto`: batches from this offset on are not in it."""

    cursors: dict[str, CursorState] = field(default_factory=dict)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    producers_upto: int = 0

    def apply(self, entry: bytes) -> None:
        """Replay one entry. Raises `BadStateLedger`."""
        try:
            for op in msgpack.unpackb(entry, strict_map_key=False):
                self._apply(op)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise BadStateLedger(f"an entry of the state ledger cannot be read: {error}") from error

    def _apply(self, op: Op) -> None:
        match op:
            case ["v", int(version)]:
                if version > FORMAT_VERSION:
                    raise BadStateLedger(
                        f"state ledger has format {version}; this Octavo reads {FORMAT_VERSION}"
                    )
            case ["c", str(name), int(created_ms), int(committed_offset)]:
                self.cursors[name] = CursorState(created_ms, Cursor(committed_offset))
            case ["b", str(name), list(chunks)]:
                self.cursors[name].cursor.load((index, bits) for index, bits in chunks)
            case ["a", str(name), list(packed)]:
                ranges = unpack_ranges(packed)
                # A snapshot may be ahead of the operations after it: one that was written while
                # an ack and then the deletion were queued does not know the cursor any more.
                if (held := self.cursors.get(name)) is not None:
                    for start, end in ranges:
                        held.cursor.ack(start, end)
            case ["d", str(name)]:
                self.cursors.pop(name, None)
            case ["p", int(upto), list(producers)]:
                # Nor may what was queued before a snapshot take a producer back behind it: whatever
                # comes later says only who has changed since the snapshot.
                self.producers_upto = max(self.producers_upto, upto)
                for producer_id, epoch, *batches in producers:
                    told = tuple(Remembered(*batch) for batch in batches)
                    known = self.producers.get(producer_id)
                    if known is None or known.batches[-1].first_offset <= told[-1].first_offset:
                        self.producers.pop(producer_id, None)
                        self.producers[producer_id] = ProducerState(producer_id, epoch, told)
            case _:
                raise ValueError(f"unknown operation {op!r:.60}")


def encode(ops: Iterable[Op]) -> bytes:
    """The payload of one entry."""
    packed: bytes = msgpack.packb(list(ops))
    return packed


def cursor_op(name: str, created_ms: int, committed_offset: int) -> Op:
    """A cursor is made, or set anew: forget what was acked beyond."""
    return ["c", name, created_ms, committed_offset]


def ack_op(name: str, ranges: Iterable[Range]) -> Op:
    """Ascending ranges became acked."""
    return ["a", name, pack_ranges(ranges)]


def delete_op(name: str) -> Op:
    """A subscription is no more."""
    return ["d", name]


def producers_op(upto: int, states: Iterable[ProducerState]) -> Op:
    """Producers that changed; with the earlier ones they cover every batch before `upto`."""
    return ["p", upto, [[s.producer_id, s.epoch, *map(list, s.batches)] for s in states]]


def snapshot(
    cursors: Iterable[tuple[str, int, Cursor]],
    producers: Iterable[ProducerState],
    producers_upto: int,
) -> Iterator[bytes]:
    """Entries that say all of it, none much longer than `SNAPSHOT_ENTRY_BYTES`."""
    ops: list[Op] = [["v", FORMAT_VERSION]]
    size = 0
    for op, op_bytes in _snapshot_ops(cursors, producers, producers_upto):
        ops.append(op)
        size += op_bytes
        if size >= SNAPSHOT_ENTRY_BYTES:
            yield encode(ops)
            ops, size = [], 0
    if ops:
        yield encode(ops)


def _snapshot_ops(
    cursors: Iterable[tuple[str, int, Cursor]],
    producers: Iterable[ProducerState],
    producers_upto: int,
) -> Iterator[tuple[Op, int]]:
    """Small operations with their approximate sizes in bytes."""
    for name, created_ms, cursor in cursors:
        yield cursor_op(name, created_ms, cursor.committed_offset), 32 + len(name)
        for chunk in cursor.dump():
            yield ["b", name, [list(chunk)]], 16 + len(name) + len(chunk[1])
    for state in producers:
        yield producers_op(producers_upto, [state]), 32 + 24 * len(state.batches)
    yield producers_op(producers_upto, []), 16
