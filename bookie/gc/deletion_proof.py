"""Proves that a ledger's record is gone from the metadata store. Two proofs, of different kinds.

A ledger has a record before any bookie hears of it, and an id has one life. So: the ids held here
are taken first; then the store is asked for a complete listing, behind its `sync`; what the listing
lacks is looked up one by one, behind another `sync`, and must be answered "not found". A ledger
that came in the meantime is not among the ids. The cluster's instance id must be that of this
bookie's cookie before and after, or the answers are another cluster's. A listing alone proves
nothing (BookKeeper #870). Any error of the store is raised: no answer is no proof.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import BadRecord, MetadataStore, RecordNotFound
from octavo.metadata.together import all_of
from octavo.protocol.codes import OctavoError

_LOOKUPS_AT_ONCE = 16
_LOOKUPS_MAX = 20_000
"""Of one round: the rest is left to the next one. Who asks says whose turn it is (rules.py)."""


class OtherCluster(OctavoError):
    """The metadata store is not the one that this bookie's cookie belongs to."""

    name = "other-cluster"


class Proven(NamedTuple):
    """What a round of proofs found of the ledgers asked for. One may be in neither list."""

    gone: list[int]
    present: list[int]


class DeletionProof:
    """Asks one cluster's metadata."""

    def __init__(self, store: MetadataStore, ledgers: LedgerStore, instance_id: str) -> None:
        self._store = store
        self._ledgers = ledgers
        self._instance_id = instance_id

    async def prove(self, held: Sequence[int]) -> Proven:
        """Look for the records of these ledgers, the first ones first.

        Raises a `MetadataError`, or `OtherCluster`.
        """
        await self._check_cluster()
        listed = frozenset(await self._ledgers.list())
        missing = [found for found in held if found not in listed]
        present = [found for found in held if found in listed]
        if not missing:
            return Proven([], present)
        await self._store.sync()
        gate = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

        async def is_gone(ledger_id: int) -> bool | None:
            async with gate:
                try:
                    await self._ledgers.read(ledger_id)
                except RecordNotFound:
                    return True
                except BadRecord:
                    return None
                return False

        asked = missing[:_LOOKUPS_MAX]
        answers = await all_of([is_gone(found) for found in asked])
        await self._check_cluster()
        gone = [found for found, answer in zip(asked, answers, strict=True) if answer is True]
        present += [found for found, answer in zip(asked, answers, strict=True) if answer is False]
        return Proven(gone, present)

    async def _check_cluster(self) -> None:
        found = ""
        with contextlib.suppress(RecordNotFound):
            found = await self._ledgers.instance_id()
        if not self._instance_id or found != self._instance_id:
            raise OtherCluster(
                f"{self._store.url} belongs to cluster {found or 'unknown'}, this bookie's cookie "
                f"to {self._instance_id or 'none'}: nothing is deleted"
            )
