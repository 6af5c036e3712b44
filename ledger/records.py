"""Change a ledger's record when replies can be lost: read it again, and its content decides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.ledgers import LedgerMetadata, LedgerStore
from octavo.metadata.store import (
    MetadataUnavailable,
    RecordNotFound,
    SessionExpired,
    VersionConflict,
)
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import Unauthorized

log = structlog.get_logger()

_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class ChangeWritten:
    version: int


@dataclass(frozen=True, slots=True)
class ChangeLost:
    """Another process changed the record first, to `current`."""

    current: LedgerMetadata
    version: int


async def change_record(
    records: LedgerStore, metadata: LedgerMetadata, version: int, timeout_s: float
) -> ChangeWritten | ChangeLost:
    """Compare and set a ledger's record, with retries until `timeout_s` is over.

    Raises `LedgerNotFound`, and `MetadataUnavailable` when the change may have taken place.
    """
    pauses = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX, records.rng)
    unsure = warned = False
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if unsure:
                        current, found = await records.read(metadata.ledger_id)
                        if found != version:
                            same = current == metadata
                            return ChangeWritten(found) if same else ChangeLost(current, found)
                    return ChangeWritten(await records.write(metadata, version))
                except VersionConflict:
                    unsure = True
                except (MetadataUnavailable, SessionExpired):
                    unsure = True
                    if not warned:
                        warned = True
                        log.warning("ledger_change_waits", ledger=metadata.ledger_id)
                    await asyncio.sleep(pauses.next_s())
    except RecordNotFound as error:
        raise LedgerNotFound(f"ledger {metadata.ledger_id} was deleted") from error
    except TimeoutError as error:
        raise MetadataUnavailable(
            f"the record of ledger {metadata.ledger_id} could not be changed in {timeout_s:g} s"
        ) from error


def check_password(metadata: LedgerMetadata, password: bytes | None) -> None:
    """Raise `Unauthorized` for a given, different password."""
    if password is not None and metadata.password != password:
        raise Unauthorized(f"ledger {metadata.ledger_id}: wrong password")


async def read_record(
    records: LedgerStore, ledger_id: int, timeout_s: float
) -> tuple[LedgerMetadata, int]:
    """Read a record and its version. Raises `LedgerNotFound`, `MetadataUnavailable`."""
    pauses = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX, records.rng)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await records.read(ledger_id)
                except (MetadataUnavailable, SessionExpired):
                    await asyncio.sleep(pauses.next_s())
    except RecordNotFound as error:
        raise LedgerNotFound(f"no ledger {ledger_id}: never made, or deleted") from error
    except TimeoutError as error:
        raise MetadataUnavailable(
            f"the record of ledger {ledger_id} could not be read in {timeout_s:g} s"
        ) from error
