"""The offsets of a ledger's batches follow one another without a gap. Pure.

A batch's base offset is relative to its ledger, starts at 0 and goes on where the batch before it
ended. Who reads a partition compares: an entry that was forged, or that is missing, is told by its
name and never passed over. A checksum does not tell: whoever may write can compute it.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.ledger.errors import LedgerDamaged
from octavo.protocol.batch import BatchHeader, InvalidBatch, read_header
from octavo.protocol.entry import Entry


class Continuity:
    """Follows the entries of one ledger as they are read, one after the other."""

    def __init__(
        self,
        ledger_id: int,
        *,
        base_offset: int = 0,
        expected: int | None = None,
        count: int | None = None,
        last_entry: int | None = None,
    ) -> None:
        """`base_offset`: the ledger's in its partition, for what is told. `expected`: the relative
        offset of the first entry that comes, if known. `count`: of a closed ledger's messages, and
        `last_entry` the entry with the last of them.
        """
        self._ledger_id = ledger_id
        self._base = base_offset
        self._expected = expected
        self._count = count
        self._last_entry = last_entry

    def follow(self, entry: Entry) -> BatchHeader:
        """The next entry's header, as it is stored. Raises `LedgerDamaged`."""
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
        """The next entries. The first one of all begins at or before that relative offset."""
        for entry in entries:
            begun = self._expected is not None
            header = self.follow(entry)
            if not begun and header.base_offset > from_or_before:
                raise self._wrong(entry.entry_id, "starts", from_or_before, header.base_offset)

    def checked(self, entry: Entry) -> BatchHeader:
        """The header of any entry. Raises `LedgerDamaged` when there is none."""
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
