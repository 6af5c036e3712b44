"""v3 adds as the batches that v2 adds make: consecutive entries of one ledger. Pure.

The journal stores v2 add frames, so each entry gets the front of one. What v3 says besides, the
header that an answer repeats, is kept beside the batch until it is answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.bookie.adds import FALSE_LAC, AddBatch
from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.entry import HEADER, HEADER_BYTES, MASTER_KEY_BYTES
from octavo.protocol.frames import ADD_PREFIX_BYTES, Flag, add_prefix


class V3Batch(NamedTuple):
    """A batch, the flags of its adds, and the header of each."""

    flags: int
    batch: AddBatch
    heads: Sequence[bytes]

    def answers(self, code: Code) -> bytes:
        """One answer for each add."""
        batch = self.batch
        return b"".join(
            v3.add_answer(head, code, batch.ledger_id, entry_id)
            for entry_id, head in enumerate(self.heads, batch.first_entry)
        )


class Refusal(NamedTuple):
    """An add that must not be stored, whatever the state of its ledger."""

    add: v3.Add
    code: Code
    reason: str


def refusal(add: v3.Add) -> Refusal | None:
    """Why `add` must not be stored; None when it may."""
    if len(add.key) != MASTER_KEY_BYTES:
        what = f"a master key has {MASTER_KEY_BYTES} bytes, not {len(add.key)}"
        return Refusal(add, Code.UNAUTHORIZED, what)
    if len(add.entry) < HEADER_BYTES:
        return Refusal(add, Code.BAD_REQUEST, f"an entry of {len(add.entry)} bytes")
    ledger_id, entry_id, lac, _ = HEADER.unpack_from(add.entry)
    if (ledger_id, entry_id) != (add.ledger_id, add.entry_id):
        what = f"its entry says that it is entry {entry_id} of ledger {ledger_id}"
        return Refusal(add, Code.BAD_REQUEST, what)
    if ledger_id < 0 or entry_id < 0:
        return Refusal(add, Code.BAD_REQUEST, "ledger and entry ids are not negative")
    if lac >= entry_id and not add.flags & Flag.RECOVERY_ADD:
        return Refusal(add, Code.BAD_REQUEST, FALSE_LAC)
    return None


def joined(adds: Sequence[v3.Add]) -> list[V3Batch]:
    """`adds`, none of them refused, as few batches in the same order."""
    batches: list[V3Batch] = []
    start = 0
    for index in range(1, len(adds) + 1):
        if index == len(adds) or not _continues(adds[index - 1], adds[index]):
            batches.append(_batch(adds[start:index]))
            start = index
    return batches


def _continues(add: v3.Add, following: v3.Add) -> bool:
    return (
        following.entry_id == add.entry_id + 1
        and following.ledger_id == add.ledger_id
        and following.flags == add.flags
        and following.key == add.key
    )


def _batch(adds: Sequence[v3.Add]) -> V3Batch:
    first = adds[0]
    parts: list[bytes | memoryview | bytearray] = []
    offsets: list[int] = []
    end = 0
    for add in adds:
        offsets.append(end)
        parts += (add_prefix(first.key, len(add.entry), first.flags), add.entry)
        end += ADD_PREFIX_BYTES + len(add.entry)
    step = end // len(adds)
    alike = all(len(add.entry) == len(first.entry) for add in adds)
    batch = AddBatch(
        first.ledger_id,
        first.entry_id,
        len(adds),
        first.key,
        bool(first.flags & Flag.RECOVERY_ADD),
        b"".join(parts),
        range(0, end, step) if alike else offsets,
    )
    return V3Batch(first.flags, batch, [add.head for add in adds])
