"""The ledgers' records: create, read, compare-and-set, delete, list, watch.

A create is repeated after a lost reply; the creator token tells our record from another's. A
listing is complete or an error, because its caller may delete what it lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from octavo.metadata import underreplication
from octavo.metadata.gather_all import gather_all
from octavo.metadata.ledger_codec import decode_ledger_metadata, encode_ledger_metadata
from octavo.metadata.ledger_ids import LedgerIds, ledger_path, step_widths
from octavo.metadata.ledger_record import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.paths import parent_of
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataStore,
    MetadataUnavailable,
    MetadataUnusable,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    Watch,
)

__all__ = ["LEDGERS_ROOT", "Fragment", "LedgerMetadata", "LedgerState", "LedgerStore"]

LEDGERS_ROOT = "/ledgers"
UNALLOCATED = -1
_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_SENDS_MAX = 3
_IDS_TRIED_MAX = 16
_LISTINGS_AT_ONCE = 32


class LedgerStore:
    def __init__(
        self,
        store: MetadataStore,
        *,
        root: str = LEDGERS_ROOT,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._root = root
        self.rng = rng or random.SystemRandom()
        self._ids = LedgerIds(store, root)

    async def initialize(self) -> str:
        """Create the tree if it is missing, and return the cluster's instance id.

        Safe when many processes do it at once. Raises `MetadataUnusable` for a foreign layout.
        """
        instance_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        await self._ensure(f"{self._root}/available/readonly", b"")
        await self._ensure(f"{self._root}/INSTANCEID", str(instance_id).encode())
        await self._ensure(f"{self._root}/LAYOUT", _LAYOUT)
        layout = (await self._store.get(f"{self._root}/LAYOUT")).value
        if layout.strip() != _LAYOUT:
            raise MetadataUnusable(
                f"{self._store.url}: {self._root}/LAYOUT says {layout!r}; "
                f"Octavo writes the hierarchical layout only: {_LAYOUT!r}"
            )
        await underreplication.lay_out(self._store, self._root)
        return await self.instance_id()

    async def _ensure(self, path: str, value: bytes) -> None:
        with contextlib.suppress(RecordExists):
            await self._store.create(path, value)

    async def instance_id(self) -> str:
        """Raises `RecordNotFound` before `initialize`."""
        return (await self._store.get(f"{self._root}/INSTANCEID")).value.decode()

    async def create(
        self,
        metadata: LedgerMetadata,
        is_free: Callable[[int], Awaitable[bool]] | None = None,
    ) -> tuple[LedgerMetadata, int]:
        """Create the record, with a new id when `ledger_id` is −1 and `is_free` accepts it.

        Raises `RecordExists` if the ledger is another's, or already recovered by another process.
        """
        token = metadata.creator_token or self.rng.randrange(1, 2**63)
        metadata = replace(metadata, creator_token=token)
        if metadata.ledger_id != UNALLOCATED:
            return await self._create(metadata, once=False)
        for _ in range(_IDS_TRIED_MAX):
            metadata = replace(metadata, ledger_id=await self._ids.allocate())
            if is_free is not None and not await is_free(metadata.ledger_id):
                continue
            # Its creator may have chosen the id itself.
            with contextlib.suppress(RecordExists):
                return await self._create(metadata, once=True)
        raise MetadataError(f"{_IDS_TRIED_MAX} new ledger ids in a row were taken already")

    async def leave(self, ledger_id: int, stretches: int) -> None:
        await self._ids.leave(ledger_id, stretches)

    async def stretch(self) -> int:
        return await self._ids.stretch()

    async def draw_beyond(self, stretch: int) -> int:
        return await self._ids.draw_beyond(stretch)

    async def _create(self, metadata: LedgerMetadata, *, once: bool) -> tuple[LedgerMetadata, int]:
        """Create a record; with `once`, never again after a lost reply.

        The missing record may have been created, recovered and deleted.
        """
        path = ledger_path(self._root, metadata.ledger_id)
        value = encode_ledger_metadata(metadata)
        for send in range(1, _SENDS_MAX + 1):
            try:
                if send == 1 or not once:
                    await self._store.create(path, value)
                    return metadata, 0
                return await self._made(metadata)
            except (MetadataUnavailable, SessionExpired):
                if send == _SENDS_MAX:
                    raise
            except RecordExists:
                return await self._made(metadata)
        raise AssertionError("the last send returns or raises")

    async def _made(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """Find the record that we made. Raises `RecordExists` if it was recovered meanwhile."""
        with contextlib.suppress(RecordNotFound):
            found, version = await self.read(metadata.ledger_id)
            ours = found.creator_token == metadata.creator_token
            if ours and found.state is LedgerState.OPEN:
                return found, version
        raise RecordExists(
            f"ledger {metadata.ledger_id} belongs to another creator, or was recovered meanwhile"
        )

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Raises `RecordNotFound`, `BadRecord`."""
        value, version = await self._store.get(ledger_path(self._root, ledger_id))
        return decode_ledger_metadata(ledger_id, value), version

    async def write(self, metadata: LedgerMetadata, version: int) -> int:
        """Raises `VersionConflict`, `RecordNotFound`."""
        assert version != ANY_VERSION, "a ledger's record is only ever changed by compare-and-set"
        path = ledger_path(self._root, metadata.ledger_id)
        return await self._store.put(path, encode_ledger_metadata(metadata), version)

    async def delete(self, ledger_id: int, version: int = ANY_VERSION) -> None:
        """Delete the record; bookies free the space later.

        Raises `RecordNotFound`, `VersionConflict`.
        """
        path = ledger_path(self._root, ledger_id)
        await self._store.delete(path, version)
        await self._prune(parent_of(path))

    async def _prune(self, path: str) -> None:
        """Remove the emptied folders. Failing is harmless."""
        with contextlib.suppress(MetadataError):
            while path != self._root:
                await self._store.delete(path)
                path = parent_of(path)

    async def highest_id(self) -> int:
        """Return an id at or above every ledger that exists now or is being created.

        It is drawn for this: the sequence's last id is not enough, because a creator may choose an
        id.
        """
        drawn = await self._ids.allocate()
        return max((drawn, *await self.list()))

    async def list(self) -> list[int]:
        """List ids, ascending; ledgers created or deleted meanwhile may be missing."""
        await self._store.sync()
        gate = asyncio.Semaphore(_LISTINGS_AT_ONCE)

        async def names(path: str) -> list[str]:
            async with gate:
                return await self._store.children(path)

        async def below(path: str, digits: str, widths: tuple[int, ...]) -> list[int]:
            if not widths:
                return [int(digits)]
            last = len(widths) == 1
            reads = []
            for name in await names(path):
                step = name.removeprefix("L") if last else name
                if len(step) == widths[0] and step.isdigit() and name.startswith("L") == last:
                    reads.append(below(f"{path}/{name}", digits + step, widths[1:]))
            return [number for found in await gather_all(reads) for number in found]

        found: list[int] = []
        for first in await names(self._root):
            widths = step_widths(first)
            if widths is not None:
                found += await below(f"{self._root}/{first}", first, widths[1:])
        return sorted(found)

    def watch(self, ledger_id: int, on_change: Callable[[], None]) -> Watch:
        return self._store.watch(ledger_path(self._root, ledger_id), on_change)
