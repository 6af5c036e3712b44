"""Decide what a compaction does with a partition, and which rows stay. Pure.

The newest message of each key stays. A tombstone stays in at least one view, and until its
timestamp is older than `tombstones_ms`, so that readers of the view learn that the key is gone. A
message without a key stays, unless `keyless` is False.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.metadata.topics import CompactionRecord
from octavo.spark.splits import (
    Piece,
    View,
    bytes_per_row,
    compacted_pieces,
    pieces,
    shared_out,
)

LEDGERS_MAX = 1_000
"""A view's ledger takes some 130 bytes of the partition's record."""
RETIRED_MAX = 5_000
"""A replaced view's ledger takes some 50 bytes. A record holds at most 1 MB."""


@dataclass(frozen=True)
class CompactPolicy:
    """Times are in milliseconds. `split_bytes`: about what a task reads, and a ledger holds."""

    tombstones_ms: int = 24 * 3_600_000
    grace_ms: int = 24 * 3_600_000
    keyless: bool = True
    split_bytes: int = 256 * 2**20


class Chunk(NamedTuple):
    """The offsets that a task of either pass reads: from `start` to before `end`."""

    place: int
    start: int
    end: int
    parts: tuple[Piece, ...]


def horizon_of(view: View) -> int:
    return view.compacted.horizon if view.compacted is not None else 0


def is_due(view: View, policy: CompactPolicy, now_ms: int) -> bool:
    if view.end > horizon_of(view):
        return True
    return view.compacted is not None and _has_old_tombstones(view.compacted, policy, now_ms)


def _has_old_tombstones(view: CompactionRecord, policy: CompactPolicy, now_ms: int) -> bool:
    return any(one.tombstones and may_go(one.tombstone_ms, policy, now_ms) for one in view.ledgers)


def may_go(tombstone_ms: int, policy: CompactPolicy, now_ms: int) -> bool:
    return now_ms - tombstone_ms >= policy.tombstones_ms


def lost_before(view: View) -> tuple[int, int] | None:
    """Return the offsets that retention removed before they were compacted, or None.

    None also for a partition that was never compacted, because no view promised its messages.
    """
    if view.compacted is None or view.earliest <= view.compacted.horizon:
        return None
    return view.compacted.horizon, view.earliest - 1


def chunks_of(place: int, view: View, policy: CompactPolicy) -> list[Chunk]:
    """Split the old view and the messages after its horizon into chunks, in order of offsets.

    Small ledgers of the old view are joined, so that a view does not fragment over time.
    """
    old = [] if view.compacted is None else compacted_pieces(view, horizon_of(view))
    first = max(horizon_of(view), view.earliest)
    wanted = [*old, *pieces(view, min(first, view.end), view.end)]
    sizes = bytes_per_row(view)
    total = sum((one.end - one.start) * sizes[one.ledger_id] for one in wanted)
    at_most = max(policy.split_bytes, math.ceil(total / LEDGERS_MAX))
    packed = shared_out(wanted, sizes, split_bytes_max=at_most)
    return [Chunk(place, parts[0].start, parts[-1].end, tuple(parts)) for parts in packed]


class Chunks:
    def __init__(self, every: Sequence[Chunk]) -> None:
        self._starts: dict[int, list[int]] = {}
        self._first: dict[int, int] = {}
        for number, chunk in enumerate(every):
            self._first.setdefault(chunk.place, number)
            self._starts.setdefault(chunk.place, []).append(chunk.start)

    def number_of(self, place: int, offset: int) -> int:
        return self._first[place] + bisect_right(self._starts[place], offset) - 1
