"""Prove that a ledger's record is gone from the metadata store, in two different ways.

A ledger gets its record before any bookie hears of it, and its id is never used again. So the ids
of the ledgers here are taken first. Then the store gives a complete listing, after its `sync`. Each
id that the listing lacks is looked up, after another `sync`, and the answer must be "not found". A
ledger created in the meantime is not among the ids. Before and after, the cluster's instance id
must be the one in this bookie's cookie; otherwise the answers come from another cluster. A listing
alone proves nothing (BookKeeper #870). Any error of the store is raised: without an answer there is
no proof.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from octavo.metadata.gather_all import gather_all
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import BadRecord, MetadataStore, RecordNotFound
from octavo.protocol.codes import OctavoError

_LOOKUPS_AT_ONCE = 16
_LOOKUPS_MAX = 20_000
"""Lookups in a round; the next round does the rest. `Quarantine.in_turn` decides the order."""


class OtherCluster(OctavoError):
    """The metadata store belongs to another cluster than this bookie's cookie."""

    name = "other-cluster"


class Proven(NamedTuple):
    """The result of a round of proofs. A ledger whose answer was uncertain is in neither list."""

    gone: list[int]
    present: list[int]


class DeletionProof:
    """Asks the metadata store of a cluster."""

    def __init__(self, store: MetadataStore, ledgers: LedgerStore, instance_id: str) -> None:
        self._store = store
        self._ledgers = ledgers
        self._instance_id = instance_id

    async def prove(self, held: Sequence[int]) -> Proven:
        """Look for the records of these ledgers, in this order.

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
        answers = await gather_all([is_gone(found) for found in asked])
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
