"""How far each bookie has seen the metadata advance: the store's half of the high-water mark.

    /octavo/high-water/<bookie id>   seen, stretch

A bookie raises `seen` by one when it starts and stops, when ledgers begin on it, and at intervals;
then it writes the same numbers to its own disks (bookie/ledgers/high_water.py). A store in which
`seen` is lower than on the disks is an older copy. `stretch` is n if new ledgers got ids from
n · 2^32 on (ledger_ids.py), so that later ids can be drawn beyond these 2^32 ids.
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
    """How far the metadata had progressed when a bookie last saw it."""

    seen: int
    """How often the bookie raised its mark."""
    stretch: int
    """n if the highest ids of ledgers were drawn from the 2^32 ids from n · 2^32 on."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class HighWaterStore:
    """Reads and writes these records. Each record is written only by its bookie."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.url = store.url

    async def read(self, bookie_id: str) -> tuple[HighWater | None, int]:
        """Return the newest record and its version; None and `ABSENT` when there is none.

        Raises `MetadataUnavailable`, `BadRecord`.
        """
        await self._store.sync()
        return await read_one(self._store, join(HIGH_WATER_ROOT, bookie_id), HighWater)

    async def write(self, bookie_id: str, mark: HighWater, version: int) -> None:
        """Create the record or compare-and-set it.

        Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read again, decide again.
        """
        await write_one(self._store, join(HIGH_WATER_ROOT, bookie_id), mark, version)

    async def delete(self, bookie_id: str) -> None:
        """Forget a bookie that is gone for good, if it has a record."""
        with contextlib.suppress(RecordNotFound):
            await self._store.delete(join(HIGH_WATER_ROOT, bookie_id))
