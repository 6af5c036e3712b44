"""A ledger that was recovered before its creator knew of it was given to the creator to write.

The reply to the create was lost; until the creator asked again, somebody had found the ledger open
and recovered it. The creator's token in the record said that it was the creator's own, its state
was not looked at: the writer began on a closed ledger, and its first change of the ensemble would
have changed the record of a closed ledger. Found by the simulation, seed 4201 of profile `beyond`.
Deleted as well by then, it was made a second time under the same id (seed 30280).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.store import MetadataStore, MetadataUnavailable, RecordExists
from tests.support.raw_bookie import open_metadata

WANTED = LedgerMetadata(-1, 2, 2, 1, (Fragment(0, ("b1", "b2")),))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_metadata(tmp_path) as found:
        yield found


class _ReplyLost:
    """A store whose first create of a ledger's record is never answered, and then `meanwhile`."""

    def __init__(self, store: MetadataStore, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, path: str, value: bytes, **how: Any) -> str:
        made = await self._store.create(path, value, **how)
        if "/L" in path and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
            raise MetadataUnavailable("no answer")
        return made


async def _recover(others: LedgerStore, state: LedgerState) -> None:
    found, version = await others.read(0)
    await others.write(replace(found, state=state), version)


@pytest.mark.parametrize("what", ["in recovery", "closed", "deleted"])
async def test_the_creator_gets_another_ledger(store: MetadataStore, what: str) -> None:
    others = LedgerStore(store, rng=random.Random(2))

    async def meanwhile() -> None:
        if what == "deleted":
            await others.delete(0)
        else:
            closed = what == "closed"
            await _recover(others, LedgerState.CLOSED if closed else LedgerState.IN_RECOVERY)

    mine = LedgerStore(_ReplyLost(store, meanwhile), rng=random.Random(1))  # type: ignore[arg-type]
    found, version = await mine.create(WANTED)
    assert (found.ledger_id, found.state, version) == (1, LedgerState.OPEN, 0)


async def test_an_id_of_ones_choice_is_taken_then(store: MetadataStore) -> None:
    others = LedgerStore(store, rng=random.Random(2))
    mine = LedgerStore(
        _ReplyLost(store, lambda: _recover(others, LedgerState.CLOSED)),  # type: ignore[arg-type]
        rng=random.Random(1),
    )
    with pytest.raises(RecordExists):
        await mine.create(replace(WANTED, ledger_id=0))


async def test_its_own_open_ledger_is_given_to_it(store: MetadataStore) -> None:
    async def nothing() -> None: ...

    mine = LedgerStore(_ReplyLost(store, nothing), rng=random.Random(1))  # type: ignore[arg-type]
    found, _ = await mine.create(WANTED)
    assert (found.ledger_id, found.state) == (0, LedgerState.OPEN)
