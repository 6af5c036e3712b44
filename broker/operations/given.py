"""Batches in the answers of operations. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.broker.log.compaction_rules import CompactedBatch
from octavo.broker.types import StoredBatch
from octavo.protocol.batch import BatchHeader


class GivenBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch as stored; `gaps`: from a compacted view, so offsets may be missing.

    `header` has the append time, which `data` does not (protocol/append_time.py).
    """

    base_offset: int
    ledger_id: int
    entry_id: int
    header: BatchHeader
    data: bytes
    gaps: bool = False


def given_of(batches: Iterable[StoredBatch]) -> list[GivenBatch]:
    return [
        GivenBatch(
            batch.base_offset, batch.ledger_id, batch.entry_id, batch.header, batch.data,
            isinstance(batch, CompactedBatch),
        )
        for batch in batches
    ]  # fmt: skip


def stored_of(batches: Iterable[GivenBatch]) -> list[StoredBatch]:
    found = []
    for one in batches:
        kind = CompactedBatch if one.gaps else StoredBatch
        found.append(kind(one.base_offset, one.ledger_id, one.entry_id, one.header, one.data))
    return found
