"""Prove that a ledger's record is gone from the metadata store, in two different ways.

Take the ids here; list all records, after a `sync`; look up each id that the listing lacks, after
another: it must be "not found". A record comes before any entry, and ids are never used again. The
cluster's instance id must stay the cookie's. A listing alone proves nothing (BookKeeper #870).
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
"""Bounds the lookups of a round; `Quarantine.in_turn` decides the order."""


class OtherCluster(OctavoError):
    """The store belongs to another cluster than this bookie's cookie."""

    name = "other-cluster"


class Proven(NamedTuple):
    """The proofs of a round; ledgers with an uncertain answer are in neither list."""

    gone: list[int]
    present: list[int]


class DeletionProof:
    def __init__(self, store: MetadataStore, ledgers: LedgerStore, instance_id: str) -> None:
        self._store = store
        self._ledgers = ledgers
        self._instance_id = instance_id

    async def prove(self, held: Sequence[int]) -> Proven:
        """Find ledgers whose records are gone. Raises a `MetadataError`, or `OtherCluster`."""
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
