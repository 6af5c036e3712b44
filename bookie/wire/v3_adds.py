"""Turn v3 adds into the batches that v2 adds make: consecutive entries of a ledger. Pure.

Each entry gets the header of a v2 frame, which the journal stores. The requests' headers, which
answers repeat, are kept with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.bookie.adds import FALSE_LAC, AddBatch
from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.entry import HEADER, HEADER_BYTES, MASTER_KEY_BYTES, Buffer
from octavo.protocol.frames import ADD_PREFIX_BYTES, Flag, add_prefix
from octavo.protocol.v3_runs import Heads, take_run


class V3Batch(NamedTuple):
    """A batch with the flags of its adds, and their requests' headers."""

    flags: int
    batch: AddBatch
    heads: list[Heads | bytes]

    def answers(self, code: Code) -> bytes:
        entry_id, ledger_id = self.batch.first_entry, self.batch.ledger_id
        answers: list[bytes] = []
        for heads in self.heads:
            if isinstance(heads, bytes):
                answers.append(v3.add_answer(heads, code, ledger_id, entry_id))
                entry_id += 1
            else:
                answers.append(heads.answers(code, ledger_id, entry_id))
                entry_id += heads.adds
        return b"".join(answers)


class Refusal(NamedTuple):
    """An add that must not be stored, whatever its ledger's state is."""

    add: v3.Add
    code: Code
    reason: str


class Gathering:
    def __init__(self) -> None:
        self.refused: list[Refusal] = []
        self._batches: list[V3Batch] = []
        self._open: _OpenBatch | None = None

    def take(self, data: memoryview, start: int, following: int) -> int:
        """Take usual adds from the whole frame `data[start:following]` on; return their end.

        Returns `start` when that frame is no usual add.
        """
        run = take_run(data, start, following)
        if run is None:
            return start
        self._take(run.flags, run.ledger_id, run.first_entry, run.key, run.entries, run.heads)
        return run.end

    def add(self, add: v3.Add) -> None:
        refusal = _refusal(add)
        if refusal is not None:
            self.refused.append(refusal)
        else:
            self._take(add.flags, add.ledger_id, add.entry_id, add.key, [add.entry], add.head)

    def batches(self) -> list[V3Batch]:
        if self._open is not None:
            self._batches.append(self._open.closed())
            self._open = None
        return self._batches

    def _take(
        self,
        flags: int,
        ledger_id: int,
        first: int,
        key: bytes,
        entries: Sequence[Buffer],
        heads: Heads | bytes,
    ) -> None:
        batch = self._open
        if (
            batch is None
            or batch.next_entry != first
            or batch.ledger_id != ledger_id
            or batch.flags != flags
            or batch.key != key
        ):
            if batch is not None:
                self._batches.append(batch.closed())
            batch = self._open = _OpenBatch(flags, ledger_id, first, key)
        batch.extend(entries, heads)


def _refusal(add: v3.Add) -> Refusal | None:
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


class _OpenBatch:
    __slots__ = (
        "_end",
        "_heads",
        "_offsets",
        "_parts",
        "first",
        "flags",
        "key",
        "ledger_id",
        "next_entry",
    )

    def __init__(self, flags: int, ledger_id: int, first: int, key: bytes) -> None:
        self.flags = flags
        self.ledger_id = ledger_id
        self.first = first
        self.next_entry = first
        self.key = key
        self._heads: list[Heads | bytes] = []
        self._parts: list[Buffer] = []
        self._offsets: range | list[int] = range(0)
        self._end = 0

    def extend(self, entries: Sequence[Buffer], heads: Heads | bytes) -> None:
        prefix = add_prefix(self.key, len(entries[0]), self.flags)
        if len(entries) == 1:
            self._parts += (prefix, entries[0])
        else:
            self._parts += (prefix, prefix.join(entries))
        size = ADD_PREFIX_BYTES + len(entries[0])
        more = range(self._end, self._end + size * len(entries), size)
        if not self._offsets:
            self._offsets = more
        elif isinstance(self._offsets, range) and self._offsets.step == size:
            self._offsets = range(0, more.stop, size)
        else:
            if isinstance(self._offsets, range):
                self._offsets = list(self._offsets)
            self._offsets.extend(more)
        self._end = more.stop
        self._heads.append(heads)
        self.next_entry += len(entries)

    def closed(self) -> V3Batch:
        """Copy the bytes here, once."""
        batch = AddBatch(
            self.ledger_id,
            self.first,
            self.next_entry - self.first,
            self.key,
            bool(self.flags & Flag.RECOVERY_ADD),
            b"".join(self._parts),
            self._offsets,
        )
        return V3Batch(self.flags, batch, self._heads)
