"""The content of a partition's state ledger: cursors and producers as small operations. Pure.

Each entry is a msgpack array of operations, each an array that begins with its kind
(docs/formats/state_ledger.md). A ledger begins with a complete snapshot. Between two "c" operations
acks are only added, so replaying an operation twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgpack

from octavo.broker.policies import Ages, Mark
from octavo.broker.state.cursor import Cursor, Range, pack_ranges, unpack_ranges
from octavo.broker.state.leases import LeftLeases, left_told, messages_told
from octavo.broker.state.producers import NOBODY, AccessState, ProducerState, Remembered
from octavo.broker.state.stream import StreamState, stream_told
from octavo.protocol.codes import OctavoError, Scope

FORMAT_VERSION = 1
SNAPSHOT_ENTRY_BYTES = 256 * 1024
"""Snapshots are split, so that a million holes fit."""

COUNTS_OF_ONE_OP = 10_000

Op = list[Any]


class BadStateLedger(OctavoError):
    name = "bad-state-ledger"
    scope = Scope.LEDGER


@dataclass(slots=True)
class CursorState:
    """`created_ms` tells the subscription from others of its name.

    `deliveries`: of unacked messages delivered more than once; after a replay also of acked
    messages, until `forget_acked`.
    """

    created_ms: int
    cursor: Cursor
    deliveries: dict[int, int] = field(default_factory=dict)
    seeks: int = 0
    """Counted if there are dead letters: a message spent again after a seek is another dead
    letter.
    """
    used_ms: int = 0
    """The last use written down; 0: unknown."""
    left: LeftLeases | None = None
    """The previous owner's leases, until the first use here."""

    def forget_acked(self) -> None:
        acked = [offset for offset in self.deliveries if self.cursor.is_acked(offset)]
        for offset in acked:
            del self.deliveries[offset]


@dataclass(slots=True)
class State:
    """The content of a state ledger, without batches from `producers_upto` on."""

    cursors: dict[str, CursorState] = field(default_factory=dict)
    producers: dict[int, ProducerState] = field(default_factory=dict)
    producers_upto: int = 0
    ages: Ages = field(default_factory=Ages)
    access: AccessState = NOBODY
    stream: StreamState | None = None

    def keep_leases_of(self, epoch: int) -> None:
        """Drop leases of other epochs, which are outdated."""
        for held in self.cursors.values():
            if held.left is not None and held.left.epoch != epoch:
                held.left = None

    @classmethod
    def told_by(cls, entries: Iterable[bytes]) -> State:
        state = cls()
        for entry in entries:
            state.apply(entry)
        return state

    def apply(self, entry: bytes) -> None:
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
                used_ms = self._used_ms(name, created_ms)
                cursor = Cursor(committed_offset)
                self.cursors[name] = CursorState(created_ms, cursor, used_ms=used_ms)
            case ["b", str(name), list(chunks)]:
                self.cursors[name].cursor.load((index, bits) for index, bits in chunks)
            case ["a", str(name), list(packed)]:
                ranges = unpack_ranges(packed)
                # A snapshot written while an ack and the deletion were queued lacks the cursor, but
                # the ack follows it.
                if (held := self.cursors.get(name)) is not None:
                    for start, end in ranges:
                        held.cursor.ack(start, end)
            case ["d", str(name)]:
                self.cursors.pop(name, None)
            case ["p", int(upto), list(producers)]:
                # An operation queued before a snapshot may follow it: ignore older states.
                self.producers_upto = max(self.producers_upto, upto)
                for producer_id, epoch, *batches in producers:
                    told = tuple(Remembered(*batch) for batch in batches)
                    known = self.producers.get(producer_id)
                    if known is None or known.batches[-1].first_offset <= told[-1].first_offset:
                        self.producers.pop(producer_id, None)
                        self.producers[producer_id] = ProducerState(producer_id, epoch, told)
            case [50, int(offset), int(time_ms)]:
                self.ages.note(offset, time_ms)
            case [70, int(epoch), str(producer), int(session_ms)]:
                if epoch > self.access.epoch:  # else it was queued before the snapshot
                    self.access = AccessState(epoch, producer, session_ms)
            case [20, str(name), list(packed)]:
                if (held := self.cursors.get(name)) is not None:
                    for offset, count in _unpack_counts(packed):
                        held.deliveries[offset] = max(count, held.deliveries.get(offset, 0))
            case [21, str(name), int(created_ms), int(committed_offset), int(seeks)]:
                used_ms = self._used_ms(name, created_ms)
                cursor = Cursor(committed_offset)
                self.cursors[name] = CursorState(created_ms, cursor, seeks=seeks, used_ms=used_ms)
            case [22, str(name), int(created_ms), *_]:
                held = self.cursors.get(name)
                if held is not None and held.created_ms == created_ms:
                    held.left = left_told(op)
            case [23, str(name), *_]:
                if (held := self.cursors.get(name)) is not None and held.left is not None:
                    messages_told(held.left, op)
            case [52, *_] if len(op) == 11:
                self.stream = stream_told(self.stream, op)
            case [80, str(name), int(time_ms)]:
                if (held := self.cursors.get(name)) is not None:
                    held.used_ms = time_ms
            case _:
                raise ValueError(f"unknown operation {op!r:.60}")

    def _used_ms(self, name: str, created_ms: int) -> int:
        """Return the last use, which a seek does not change."""
        held = self.cursors.get(name)
        return held.used_ms if held is not None and held.created_ms == created_ms else 0


def encode(ops: Iterable[Op]) -> bytes:
    packed: bytes = msgpack.packb(list(ops))
    return packed


def cursor_op(name: str, created_ms: int, committed_offset: int) -> Op:
    return ["c", name, created_ms, committed_offset]


def ack_op(name: str, ranges: Iterable[Range]) -> Op:
    return ["a", name, pack_ranges(ranges)]


def delete_op(name: str) -> Op:
    return ["d", name]


def deliveries_op(name: str, counts: Mapping[int, int]) -> Op:
    packed: list[int] = []
    before = 0
    for offset, count in counts.items():
        packed += (offset - before, count)
        before = offset
    return [20, name, packed]


def sought_op(name: str, created_ms: int, committed_offset: int, seeks: int) -> Op:
    return [21, name, created_ms, committed_offset, seeks]


def _unpack_counts(packed: list[int]) -> Iterator[tuple[int, int]]:
    if len(packed) % 2 or any(gap < 0 for gap in packed[::2]) or any(n < 2 for n in packed[1::2]):
        raise ValueError("delivery counts are not pairs of a gap and a count of 2 or more")
    offset = 0
    for gap, count in zip(packed[::2], packed[1::2], strict=True):
        offset += gap
        yield offset, count


def producers_op(upto: int, states: Iterable[ProducerState]) -> Op:
    """Encode producers; with earlier operations these cover batches before `upto`."""
    return ["p", upto, [[s.producer_id, s.epoch, *map(list, s.batches)] for s in states]]


def access_op(state: AccessState) -> Op:
    return [70, *state]


def used_op(name: str, time_ms: int) -> Op:
    return [80, name, time_ms]


def ages_op(mark: Mark) -> Op:
    return [50, mark.offset, mark.time_ms]


def snapshot(
    cursors: Iterable[tuple[str, int, Cursor]],
    producers: Iterable[ProducerState],
    producers_upto: int,
    marks: Iterable[Mark] = (),
    deliveries: Iterable[tuple[str, Mapping[int, int]]] = (),
    seeks: Mapping[str, int] | None = None,
    access: AccessState = NOBODY,
    stream: StreamState | None = None,
    used_ms: Mapping[str, int] | None = None,
    leases: Iterable[Op] = (),
) -> Iterator[bytes]:
    """Encode the whole state as entries of about `SNAPSHOT_ENTRY_BYTES`.

    `leases`: only at a planned end. The producers cover batches before `producers_upto`.
    """
    ops: list[Op] = [["v", FORMAT_VERSION]]
    if access.epoch:
        ops.append(access_op(access))
    size = 0
    streams = [] if stream is None else _stream_ops(stream, producers_upto)
    ages = [(ages_op(mark), 20) for mark in marks]
    told = _told_ops(deliveries)
    states = _snapshot_ops(cursors, producers, producers_upto, seeks or {})
    used = [(used_op(name, at_ms), 16 + len(name)) for name, at_ms in (used_ms or {}).items()]
    left = [(op, len(encode([op]))) for op in leases]
    for op, op_bytes in chain(streams, states, told, ages, used, left):
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
    seeks: Mapping[str, int],
) -> Iterator[tuple[Op, int]]:
    for name, created_ms, cursor in cursors:
        offset, sought = cursor.committed_offset, seeks.get(name)
        op = cursor_op(name, created_ms, offset)
        yield sought_op(name, created_ms, offset, sought) if sought else op, 32 + len(name)
        for chunk in cursor.dump():
            yield ["b", name, [list(chunk)]], 16 + len(name) + len(chunk[1])
    for state in producers:
        yield producers_op(producers_upto, [state]), 32 + 24 * len(state.batches)
    yield producers_op(producers_upto, []), 16


def _stream_ops(stream: StreamState, upto: int) -> Iterator[tuple[Op, int]]:
    for op in stream.told(upto):
        yield op, 256 + sum(16 + len(producer[0]) for producer in op[-1])


def _told_ops(
    deliveries: Iterable[tuple[str, Mapping[int, int]]],
) -> Iterator[tuple[Op, int]]:
    for name, told in deliveries:
        counts = sorted(told.items())
        for at in range(0, len(counts), COUNTS_OF_ONE_OP):
            some = dict(counts[at : at + COUNTS_OF_ONE_OP])
            yield deliveries_op(name, some), 16 + len(name) + 6 * len(some)
