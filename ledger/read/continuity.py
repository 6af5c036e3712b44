"""Check that the offsets of a ledger's batches follow one another without a gap. Pure.

They start at 0 in each ledger. A forged or missing entry raises `LedgerDamaged`; a checksum is not
enough, because any process that may write can compute it.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.ledger.errors import LedgerDamaged
from octavo.protocol.batch import BatchHeader, InvalidBatch, read_header
from octavo.protocol.entry import Entry


class Continuity:
    def __init__(
        self,
        ledger_id: int,
        *,
        base_offset: int = 0,
        expected: int | None = None,
        count: int | None = None,
        last_entry: int | None = None,
    ) -> None:
        """Check batches; `base_offset` is the ledger's first offset in its partition, for messages.

        `expected`: the relative offset of the first entry, if known. `count`: the messages of a
        closed ledger, the last in `last_entry`.
        """
        self._ledger_id = ledger_id
        self._base = base_offset
        self._expected = expected
        self._count = count
        self._last_entry = last_entry

    def follow(self, entry: Entry) -> BatchHeader:
        """Check that the next entry continues the offsets. Raises `LedgerDamaged`."""
        entry_id, header = entry.entry_id, self.checked(entry)
        start, end = header.base_offset, header.base_offset + header.record_count
        expected = 0 if entry_id == 0 else self._expected
        if expected is not None and start != expected:
            raise self._wrong(entry_id, "starts", expected, start)
        if end <= start:
            raise LedgerDamaged(self._ledger_id, entry_id, "holds no message")
        count = self._count
        if count is not None and (end > count or (entry_id == self._last_entry and end < count)):
            raise self._wrong(entry_id, "ends before", count, end)
        self._expected = end
        return header

    def follow_all(self, entries: Iterable[Entry], *, from_or_before: int) -> None:
        """Check entries; the first must begin at or before `from_or_before`, a relative offset."""
        for entry in entries:
            begun = self._expected is not None
            header = self.follow(entry)
            if not begun and header.base_offset > from_or_before:
                raise self._wrong(entry.entry_id, "starts", from_or_before, header.base_offset)

    def checked(self, entry: Entry) -> BatchHeader:
        """Return the entry's batch header. Raises `LedgerDamaged` if it is no record batch."""
        try:
            return read_header(entry.payload)
        except InvalidBatch as error:
            what = f"is no record batch: {error}"
            raise LedgerDamaged(self._ledger_id, entry.entry_id, what) from None

    def _wrong(self, entry_id: int, how: str, expected: int, found: int) -> LedgerDamaged:
        return LedgerDamaged(
            self._ledger_id,
            entry_id,
            f"{how} offset {self._base + found}; expected is {self._base + expected}",
        )
