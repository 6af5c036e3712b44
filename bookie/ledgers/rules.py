"""Decide what a bookie may do with a ledger: which adds it takes, when a fence counts. Pure.

`control.py` journals the results; the model check (tests/model) runs the same rules. Adds admitted
before a fence must be before it in the journal, and a fence is answered only after its record is
durable.
"""

from __future__ import annotations

import enum

from octavo.bookie.adds import AddBatch
from octavo.bookie.journal.format import Meta, MetaOp
from octavo.bookie.ledgers.state import LedgerState
from octavo.protocol.codes import Code
from octavo.protocol.entry import (
    HEADER_BYTES,
    LAC_ALONE,
    Digest,
    DigestType,
    digest_for,
    pack_lac,
)

_LAC_AT, _LENGTH_AT = 16, 24
_HMAC_BYTES = 20
_LAC_ALONE_BYTES = range(LAC_ALONE.size, LAC_ALONE.size + _HMAC_BYTES + 1)


def admission(
    state: LedgerState | None, batch: AddBatch, *, read_only: bool, unsure: bool = False
) -> Code:
    """Decide whether a batch may be added; `state` is None for an unknown ledger.

    `unsure`: this bookie may have lost the ledger's fence (limbo.py), so only a recovery may add.
    """
    if batch.ledger_id < 0 or batch.first_entry < 0:
        return Code.BAD_REQUEST
    if state is not None:
        if state.key != batch.key:
            return Code.UNAUTHORIZED
        if state.deleted:
            return Code.NO_LEDGER if batch.recovery else Code.FENCED
        if state.fenced and not batch.recovery:
            return Code.FENCED
    if unsure and not batch.recovery:
        return Code.UNKNOWN_STATE
    if read_only and not batch.recovery:
        return Code.READ_ONLY
    return Code.OK


class Fate(enum.Enum):
    LIVE = "live"
    DELETED = "deleted"
    """The deletion is durable."""
    UNSURE = "unsure"
    """Deleted in memory, and perhaps not on the disk."""
    UNKNOWN = "unknown"
    """The ledger has no state here, which may be lost: keep its entries."""


class Likeness(enum.Enum):
    """How a new entry compares with the entry that is here under its id."""

    SAME = "the same entry, perhaps with another LAC: keep what is here, and acknowledge"
    OTHER = "another entry: keep what is here, and refuse"
    MENDS = "a good copy, while the stored entry does not match its digest: take it"


def likeness(here: bytes, brought: bytes) -> Likeness:
    """Whether ids, lengths and payloads are equal.

    A recovery or a copier may pack an entry again, with another LAC and digest. The digest type
    that matches tells where the payload begins; if none does, assume HMAC, the longest.
    """
    if here == brought:
        return Likeness.SAME
    size, size_brought = _digest_bytes(here), _digest_bytes(brought)
    if size is None and size_brought is not None:
        return Likeness.MENDS
    payload_at = HEADER_BYTES + (_HMAC_BYTES if size is None else size)
    is_same = (
        size == size_brought
        and here[:_LAC_AT] == brought[:_LAC_AT]
        and here[_LAC_AT:_LENGTH_AT] != brought[_LAC_AT:_LENGTH_AT]
        and here[_LENGTH_AT:HEADER_BYTES] == brought[_LENGTH_AT:HEADER_BYTES]
        and here[payload_at:] == brought[payload_at:]
    )
    return Likeness.SAME if is_same else Likeness.OTHER


def _digest_bytes(entry: bytes) -> int | None:
    digest = _digest_of(entry)
    return None if digest is None else digest.size


def _digest_of(entry: bytes) -> Digest | None:
    header = entry[:HEADER_BYTES]
    for kind in (DigestType.CRC32C, DigestType.CRC32):
        digest = digest_for(kind, b"")
        payload_at = HEADER_BYTES + digest.size
        if digest.compute(header, entry[payload_at:]) == entry[HEADER_BYTES:payload_at]:
            return digest
    return None


def is_lac_alone(ledger_id: int, lac: int, body: bytes) -> bool:
    """Whether `body` can be this LAC as its writer signed it."""
    return len(body) in _LAC_ALONE_BYTES and LAC_ALONE.unpack_from(body) == (ledger_id, lac)


def lac_alone(ledger_id: int, lac: int, entry: bytes) -> bytes | None:
    """Return a LAC with a digest of `entry`'s type; None if that needs a password."""
    digest = _digest_of(entry)
    if digest is None:
        return None
    return pack_lac(digest, ledger_id, lac)


class FenceStep(enum.Enum):
    DURABLE = "nothing: the fence is on the disk"
    UNDER_WAY = "a record of the fence that is being journaled"
    JOURNAL = "a record of the fence that must be journaled now"


def fence(state: LedgerState, *, sure: bool, under_way: bool) -> FenceStep:
    """Fence in memory at once; `sure`: no earlier record of this fence has failed."""
    if under_way:
        return FenceStep.UNDER_WAY
    if state.fenced and sure:
        return FenceStep.DURABLE
    state.fenced = True  # also if the journal fails: refusing more adds is always safe
    return FenceStep.JOURNAL


def repeat(state: LedgerState, record: Meta) -> None:
    match record.op:
        case MetaOp.FENCE:
            state.fenced = True
        case MetaOp.EXPLICIT_LAC:
            state.explicit_lac = max(state.explicit_lac, record.value)
        case MetaOp.DELETE:
            state.delete(record.value)
