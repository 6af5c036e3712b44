"""Remove a bookie that is gone for good, so that no process waits for it.

No ledger may name it: it would wait for an id that a different bookie may take.
"""

from __future__ import annotations

import asyncio

from octavo.ledger.errors import LedgerError
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import RecordExists, RecordNotFound

_READ_AT_ONCE = 64
_NAMED_MAX = 5


class BookieUnknown(LedgerError):
    name = "bookie-unknown"


class BookieStillNeeded(LedgerError):
    name = "bookie-still-needed"


async def forget_bookie(registry: BookieRegistry, ledgers: LedgerStore, bookie_id: str) -> None:
    """Delete the cookie of a bookie that no ledger names."""
    try:
        cookie, version = await registry.read_cookie(bookie_id)
    except RecordNotFound:
        known = ", ".join(sorted(await registry.known())) or "none"
        raise BookieUnknown(f"there is no bookie {bookie_id!r}; this cluster has {known}") from None
    await _check_gone(registry, bookie_id)
    naming = await ledgers_naming(ledgers, bookie_id)
    if naming:
        shown = ", ".join(map(str, naming[:_NAMED_MAX]))
        more = f" and {len(naming) - _NAMED_MAX:,} more" if len(naming) > _NAMED_MAX else ""
        raise BookieStillNeeded(
            f"{len(naming):,} ledgers still name bookie {bookie_id}: {shown}{more}. The other "
            "bookies take its entries over some minutes after it was lost; entries of an open "
            "ledger follow after it was closed. Try again then"
        )
    await registry.delete_cookie(bookie_id, version)
    try:
        await _check_gone(registry, bookie_id)  # it may have started a moment ago
    except BookieStillNeeded:
        try:
            await registry.write_cookie(cookie)
        except RecordExists:
            pass
        raise


async def ledgers_naming(ledgers: LedgerStore, bookie_id: str) -> list[int]:
    turn = asyncio.Semaphore(_READ_AT_ONCE)

    async def names_it(ledger_id: int) -> bool:
        async with turn:
            try:
                metadata, _ = await ledgers.read(ledger_id)
            except RecordNotFound:
                return False  # deleted since it was listed
            return any(bookie_id in fragment.bookies for fragment in metadata.fragments)

    listed = await ledgers.list()
    found = await asyncio.gather(*map(names_it, listed))
    return [ledger_id for ledger_id, names in zip(listed, found, strict=True) if names]


async def _check_gone(registry: BookieRegistry, bookie_id: str) -> None:
    if bookie_id in await registry.available():
        raise BookieStillNeeded(f"bookie {bookie_id} is up: stop it for good first")
