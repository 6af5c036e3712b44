"""How far each bookie has seen the metadata go: the store's half of the high-water mark.

    /octavo/high-water/<bookie id>   seen, stretch

A bookie raises `seen` by one when it starts and stops, when ledgers begin on it, and now and then;
then it keeps the same numbers on its own disks (bookie/ledgers/high_water.py). A store in which
`seen` is lower than on the disks is an older copy. `stretch` says from which 2^32 ids new ledgers
were drawn (ledger_ids.py), so that later ids can be drawn from beyond it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.metadata.one_record import read_one, write_one
from octavo.metadata.paths import join
from octavo.metadata.store import MetadataStore, RecordNotFound

HIGH_WATER_ROOT = "/octavo/high-water"


@dataclass(frozen=True, slots=True)
class HighWater:
    """What one bookie has seen of the metadata."""

    seen: int
    """How often it raised its mark."""
    stretch: int
    """The highest 2^32 ids that ledgers were drawn from."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class HighWaterStore:
    """Reads and writes these records. Only the bookie that a record is of writes it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.url = store.url

    async def read(self, bookie_id: str) -> tuple[HighWater | None, int]:
        """Return the record, as new as there is, and its version; None, `ABSENT` without one.

        Raises `MetadataUnavailable`, `BadRecord`.
        """
        await self._store.sync()
        return await read_one(self._store, join(HIGH_WATER_ROOT, bookie_id), HighWater)

    async def write(self, bookie_id: str, mark: HighWater, version: int) -> None:
        """Make the record or compare-and-set it.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        await write_one(self._store, join(HIGH_WATER_ROOT, bookie_id), mark, version)

    async def delete(self, bookie_id: str) -> None:
        """Forget a bookie that is gone for good; fine when there is no record."""
        with contextlib.suppress(RecordNotFound):
            await self._store.delete(join(HIGH_WATER_ROOT, bookie_id))
