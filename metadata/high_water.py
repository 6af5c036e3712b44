"""The store's half of the high-water mark: how far each bookie has seen the metadata advance.

    /octavo/high-water/<bookie id>   seen, stretch

A bookie raises `seen` here and on its disks (bookie/ledgers/high_water.py): a store with less than
the disks is an older copy. `stretch` says which ids may be used up.
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
    seen: int
    stretch: int
    """n: the highest ids were drawn from the 2^32 from n · 2^32 on."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class HighWaterStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.url = store.url

    async def read(self, bookie_id: str) -> tuple[HighWater | None, int]:
        await self._store.sync()
        return await read_one(self._store, join(HIGH_WATER_ROOT, bookie_id), HighWater)

    async def write(self, bookie_id: str, mark: HighWater, version: int) -> None:
        """Raises `RecordExists`, `VersionConflict`, `RecordNotFound`: read and decide again."""
        await write_one(self._store, join(HIGH_WATER_ROOT, bookie_id), mark, version)

    async def delete(self, bookie_id: str) -> None:
        """Forget a bookie that is gone for good."""
        with contextlib.suppress(RecordNotFound):
            await self._store.delete(join(HIGH_WATER_ROOT, bookie_id))
