"""Encode which entries a bookie holds, as BookKeeper's replica check reads it. Pure.

    map    := version:i32 groups:i32 zero:56 bytes group*           version 0
    group  := first_start:i64 last_start:i64 size:i32 period:i32

A group is runs of `size` entries that begin every `period` entries: a striped ledger is one group.
A single run has period 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_VERSION = 0
_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_INT_MAX = 2**31 - 1


def availability(runs: Iterable[tuple[int, int]]) -> bytes:
    """Encode the entries here; `runs`: (first, last), ascending and not adjacent."""
    groups: list[list[int]] = []
    for first, size in _sequences(runs):
        group = groups[-1] if groups else None
        if group is not None and group[2] == size:
            step = first - group[1]
            if step <= _INT_MAX and group[3] in (0, step):
                group[1], group[3] = first, step
                continue
        groups.append([first, first, size, 0])
    return b"".join((_HEADER.pack(_VERSION, len(groups)), *(_GROUP.pack(*one) for one in groups)))


def _sequences(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in runs:
        while first <= last:
            size = min(last - first + 1, _INT_MAX)
            yield first, size
            first += size
