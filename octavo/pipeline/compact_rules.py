"""What a compaction does with which partition, and which rows stay: decided from values. Pure.

Of a key, its newest message stays. A tombstone (a message without a value) stays too, so that who
reads the view learns that the key is gone: in at least one view, and until its timestamp is older
than `tombstones_ms`. A message without a key has no newer one and stays, unless told otherwise.
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
"""Of a view, about: each takes some 130 bytes of the partition's record."""
RETIRED_MAX = 5_000
"""Of earlier views, some 50 bytes each; the record holds a megabyte at most."""


@dataclass(frozen=True)
class CompactPolicy:
    """Times in milliseconds. `split_bytes` is about what one task reads, and one ledger holds."""

    tombstones_ms: int = 24 * 3_600_000
    grace_ms: int = 24 * 3_600_000
    keyless: bool = True
    split_bytes: int = 256 * 2**20


class Chunk(NamedTuple):
    """What one task of either pass reads: offsets `start` to `end` (not in it) of a partition."""

    place: int
    """Which of the run's partitions."""
    start: int
    end: int
    parts: tuple[Piece, ...]


def horizon_of(view: View) -> int:
    """Up to where the partition is compacted already."""
    return view.compacted.horizon if view.compacted is not None else 0


def is_due(view: View, policy: CompactPolicy, now_ms: int) -> bool:
    """Whether a new view would be another one."""
    if view.end > horizon_of(view):
        return True
    return view.compacted is not None and _has_old_tombstones(view.compacted, policy, now_ms)


def _has_old_tombstones(view: CompactionRecord, policy: CompactPolicy, now_ms: int) -> bool:
    return any(one.tombstones and may_go(one.tombstone_ms, policy, now_ms) for one in view.ledgers)


def may_go(tombstone_ms: int, policy: CompactPolicy, now_ms: int) -> bool:
    """Whether a tombstone that was in a view before is old enough."""
    return now_ms - tombstone_ms >= policy.tombstones_ms


def lost_before(view: View) -> tuple[int, int] | None:
    """Offsets that retention removed before they were compacted: first and last, if there are.

    Of a partition that was never compacted nobody has promised them.
    """
    if view.compacted is None or view.earliest <= view.compacted.horizon:
        return None
    return view.compacted.horizon, view.earliest - 1


def chunks_of(place: int, view: View, policy: CompactPolicy) -> list[Chunk]:
    """The old view, then all messages behind its horizon, cut and packed in the order of offsets.

    Small ledgers of the old view go together, so that a view does not fall to pieces with time.
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
    """Finds the chunk that an offset lies in."""

    def __init__(self, every: Sequence[Chunk]) -> None:
        """In the order of places and offsets."""
        self._starts: dict[int, list[int]] = {}
        self._first: dict[int, int] = {}
        for number, chunk in enumerate(every):
            self._first.setdefault(chunk.place, number)
            self._starts.setdefault(chunk.place, []).append(chunk.start)

    def number_of(self, place: int, offset: int) -> int:
        """Its index."""
        return self._first[place] + bisect_right(self._starts[place], offset) - 1
