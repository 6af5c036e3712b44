from __future__ import annotations

import copy
from collections.abc import Sequence

from octavo.bookie.config import BookieConfig
from octavo.bookie.gc.collector import Collector
from octavo.bookie.gc.deletion_proof import DeletionProof, Proven
from octavo.bookie.storage import Storage

ROUNDS = 3
"""The first round begins a new log or empties the old ones; the last forgets deleted ledgers."""
LATER_MS = 1000
"""The collector's clock. The storage's clock stands at 0, so every deletion is old enough to
forget."""


class _AllThere(DeletionProof):
    """Metadata that has every ledger, so that only the test deletes ledgers."""

    def __init__(self) -> None:
        pass

    async def prove(self, held: Sequence[int]) -> Proven:
        return Proven([], list(held))


async def collect(storage: Storage, config: BookieConfig, *, compact: bool) -> None:
    """Remove logs without live entries. With `compact`, rewrite every log, even a fully live
    one."""
    if compact:
        config = copy.copy(config)
        for name in ("gc_minor_ratio", "gc_major_ratio"):
            object.__setattr__(config, name, 1.0)  # a bookie's settings would refuse this value
    collector = Collector(config, storage, _AllThere(), clock=lambda: LATER_MS)
    if compact:
        collector.start_now(minor=True, major=True)
    for _ in range(ROUNDS):
        await collector.round()
