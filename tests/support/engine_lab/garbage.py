"""Rounds of the production collector on a storage of these tests."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from octavo.bookie.config import BookieConfig
from octavo.bookie.gc.collector import Collector
from octavo.bookie.gc.deletion_proof import DeletionProof, Proven
from octavo.bookie.storage import Storage

ROUNDS = 3
"""The first begins a new log, or empties the old ones; the last forgets who was deleted."""
LATER_MS = 1000
"""The collector's clock. The storage's stands at 0, so all deletions are old enough to forget."""


class _AllThere(DeletionProof):
    """Metadata that knows every ledger: what is deleted here is deleted by the test."""

    def __init__(self) -> None:
        pass

    async def prove(self, held: Sequence[int]) -> Proven:
        return Proven([], list(held))


async def collect(storage: Storage, config: BookieConfig, *, compact: bool) -> None:
    """Remove what holds nothing live; with `compact` rewrite every log, also what is all live."""
    if compact:
        config = copy.copy(config)
        for name in ("gc_minor_ratio", "gc_major_ratio"):
            object.__setattr__(config, name, 1.0)  # which no bookie may be told
    collector = Collector(config, storage, _AllThere(), clock=lambda: LATER_MS)
    if compact:
        collector.start_now(minor=True, major=True)
    for _ in range(ROUNDS):
        await collector.round()
