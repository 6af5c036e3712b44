"""The path of a ledger's record, and the source of its id: BookKeeper's tree.

Ids below 2^31−1 have ten digits, cut 2-4-4 (`/ledgers/00/0000/L0001`), from the sequence
`idgen/ID-`. Others have nineteen, cut 3-4-4-4-4: `idgen-long/HOB-n/ID-` gives the low 31 bits below
the high-order bits n ≥ 1. The highest n is in use, so a higher n moves the whole cluster forward.
"""

from __future__ import annotations

import contextlib
import re

from octavo.metadata.paths import name_of
from octavo.metadata.store import (
    MetadataError,
    MetadataStore,
    MetadataUnavailable,
    RecordExists,
    RecordNotFound,
)

SHORT_IDS_END = 2**31 - 1
IDS_END = 2**63
_HIGH_END = 2**31
_SHORT_CUT = (2, 4, 4)
_LONG_CUT = (3, 4, 4, 4, 4)
_HOB = re.compile(r"HOB-(\d{10})\Z")


def ledger_path(root: str, ledger_id: int) -> str:
    assert 0 <= ledger_id < IDS_END
    cut = _SHORT_CUT if ledger_id < SHORT_IDS_END else _LONG_CUT
    digits = f"{ledger_id:0{sum(cut)}d}"
    steps, start = [], 0
    for width in cut:
        steps.append(digits[start : start + width])
        start += width
    return "/".join((root, *steps[:-1], f"L{steps[-1]}"))


def step_widths(first_step: str) -> tuple[int, ...] | None:
    """Return how ids below the folder are cut; None if it holds no ledgers."""
    if not (first_step.isascii() and first_step.isdigit()):
        return None
    return next((cut for cut in (_SHORT_CUT, _LONG_CUT) if cut[0] == len(first_step)), None)


class LedgerIds:
    """An id may be lost, but is never given twice."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._short = f"{root}/idgen"
        self._long = f"{root}/idgen-long"

    async def allocate(self) -> int:
        """Return a new id. Raises `MetadataUnavailable`; calling again is safe."""
        high = await self._highest()
        if high is None:
            number = await self._draw(f"{self._short}/ID-")
            if 0 <= number < SHORT_IDS_END:
                return number
            high = 1
            await self._open(high)
        while True:
            number = await self._draw(f"{self._long}/HOB-{high:010d}/ID-")
            if 0 <= number < SHORT_IDS_END:
                return high << 32 | number
            high += 1
            if high >= _HIGH_END:
                raise MetadataError("all ledger ids are used up")
            await self._open(high)

    async def leave(self, ledger_id: int, stretches: int) -> None:
        """Skip 2^32 ids `stretches` times, unless ids are drawn beyond the 2^32 of `ledger_id`.

        Calling again is safe.
        """
        high = await self._highest() or 0
        if high == ledger_id >> 32 and high + stretches < _HIGH_END:
            await self._open(high + stretches)

    async def stretch(self) -> int:
        """Return n if new ids are drawn from the 2^32 from n · 2^32 on."""
        return await self._highest() or 0

    async def draw_beyond(self, stretch: int) -> int:
        """Draw ids from (stretch + 1) · 2^32 on, or higher. Calling again is safe."""
        high = max(await self.stretch(), stretch) + 1
        if high >= _HIGH_END:
            raise MetadataError("all ledger ids are used up")
        await self._open(high)
        return high

    async def _highest(self) -> int | None:
        names = await self._store.children(self._long)
        return max((int(m[1]) for name in names if (m := _HOB.match(name))), default=None)

    async def _open(self, high: int) -> None:
        with contextlib.suppress(RecordExists):
            await self._store.create(f"{self._long}/HOB-{high:010d}", b"")

    async def _draw(self, prefix: str) -> int:
        path = await self._store.create(prefix, b"", ephemeral=True, sequence=True)
        # Its number is given; at the latest it ends with the session.
        with contextlib.suppress(MetadataUnavailable, RecordNotFound):
            await self._store.delete(path)
        return int(name_of(path).removeprefix("ID-"))
