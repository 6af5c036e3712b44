"""Walk a journal file: every block, also blocks after damage. Never writes.

A bad place is damage if a later good block's `synced` is beyond it: it had been acknowledged. Other
bad places are a torn tail. Damage before the mark does not matter any more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.disk.files import File
from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    VERSION,
    Block,
    BlockKind,
    JournalDamaged,
    body_is_good,
    decode_file_header,
)
from octavo.bookie.journal.reader import block_at, blocks_behind
from octavo.inspect.entries import (
    Broken,
    StoredEntry,
    StoredMeta,
    digest_of,
    entry_line,
    meta_line,
    records_in,
)
from octavo.inspect.line import BODY_BYTES_MAX, Line, Wish, entries_of, spans

_LEDGERS_SHOWN = 4


def walk_journal(
    file: File, wish: Wish, *, file_id: int, newer: bool, marked: int = 0
) -> Iterator[Line]:
    """Return the lines of journal file `file_id`; 0: its name does not tell the id.

    `newer`: a later file exists, so this file is complete. `marked`: everything before this byte is
    safe in other files.
    """
    path, size = file.path, file.size()
    front = file.pread(FILE_HEADER_BYTES, 0)
    header = Line("header", 0, len(front), {"file_id": file_id, "file_bytes": size})
    try:
        _, its_id = decode_file_header(front)
        header.fields["version"] = VERSION
        header.note = f"journal file {its_id}, version {VERSION}"
        if file_id and its_id != file_id:
            header.note = f"says that it is journal file {its_id}"
            header.damage.append(Damage(DamageKind.FILE_HEADER, path, 0, len(front)))
        file_id = header.fields["file_id"] = its_id
    except JournalDamaged as error:
        header.note = str(error)
        if front.strip(b"\0") or newer:
            header.damage.append(Damage(DamageKind.FILE_HEADER, path, 0, len(front)))
        else:
            header.note = "blank: made, and never written to"
    yield header
    yield from _blocks(file, wish, file_id, newer, marked)


def _blocks(file: File, wish: Wish, file_id: int, newer: bool, marked: int) -> Iterator[Line]:
    size = file.size()
    offset = FILE_HEADER_BYTES
    later: _LaterBlocks | None = None
    while offset < size:
        block, body = block_at(file, file_id, offset, BODY_BYTES_MAX)
        if block is None or not body_is_good(block, body):
            if later is None:
                later = _LaterBlocks(file, file_id, offset, size)
                continue  # read again: a running bookie may have written here meanwhile
            bad = _BadPlace(file, offset, size, block, later, newer)
            yield _harmless(bad.line(wish), marked)
            if bad.vouched_by is None or bad.next is None:
                return
            offset = bad.next
            continue
        end = offset + BLOCK_HEADER_BYTES + block.body_bytes
        if block.kind is BlockKind.END:
            yield Line("end", offset, end - offset, {"synced": block.synced}, "the file ends here")
            if end < size:
                yield Line("free", end, size - end, note="reserved, or of a former file")
            return
        yield from _block_lines(block, body, wish, file.path)
        offset = end
    if newer:
        yield _no_end(file.path, size, 0)


def _harmless(line: Line, marked: int) -> Line:
    if not line.damage or line.offset + line.length > marked:
        return line
    line.kind, line.damage = "stale", []
    line.note = "damaged, but before the mark: its records are safe, nothing reads this any more"
    return line


def _block_lines(block: Block, body: bytes, wish: Wish, path: str) -> Iterator[Line]:
    base = block.offset + BLOCK_HEADER_BYTES
    records = list(records_in(body, base))
    line = Line("block", block.offset, BLOCK_HEADER_BYTES + block.body_bytes)
    entries = [one for one in records if isinstance(one, StoredEntry)]
    metas = [one for one in records if isinstance(one, StoredMeta)]
    line.fields = {"synced": block.synced, "entries": len(entries), "metas": len(metas)}
    line.fields["runs"] = _runs(entries)
    line.note = _block_note(entries, metas)
    for one in records:
        if isinstance(one, Broken):
            line.note = f"{one.what}, although the block's checksum holds"
            line.damage.append(Damage(DamageKind.JOURNAL, path, one.offset, one.length))
    if wish.verify:
        _verify(entries, wish, path, line)
    inside: list[Line] = []
    for record in records:
        if isinstance(record, StoredMeta):
            if wish.ledger in (None, record.ledger_id):
                inside.append(meta_line(record))
        elif isinstance(record, StoredEntry) and wish.wants(
            record.ledger_id, record.entry_id, record.entry_id
        ):
            inside.append(entry_line(record, wish))
    if inside or not wish.is_narrow or line.damage:
        yield line
        yield from inside if wish.entries else (one for one in inside if one.kind != "entry")


def _verify(entries: list[StoredEntry], wish: Wish, path: str, line: Line) -> None:
    bad = [one for one in entries if digest_of(one, wish)[1] is False]
    line.fields["digests_unknown"] = sum(digest_of(one, wish)[1] is None for one in entries)
    for ledger_id, of_ledger in groupby(bad, key=lambda one: one.ledger_id):
        found = list(of_ledger)
        ids = [one.entry_id for one in found]
        line.note = f"the digest of ledger {ledger_id} entry {spans(ids)} does not hold"
        length = found[-1].offset + found[-1].frame_bytes - found[0].offset
        line.damage.append(
            Damage(
                *(DamageKind.ENTRY_DIGEST, path, found[0].offset, length),
                *(ledger_id, min(ids), max(ids)),
            )
        )


def _runs(entries: list[StoredEntry]) -> list[list[int]]:
    runs: list[list[int]] = []
    for one in entries:
        if runs and runs[-1][0] == one.ledger_id and runs[-1][2] + 1 == one.entry_id:
            runs[-1][2] = one.entry_id
        else:
            runs.append([one.ledger_id, one.entry_id, one.entry_id])
    return runs


def _block_note(entries: list[StoredEntry], metas: list[StoredMeta]) -> str:
    ids: dict[int, list[int]] = {}
    for one in entries:
        ids.setdefault(one.ledger_id, []).append(one.entry_id)
    parts = [f"ledger {one}: {spans(found)}" for one, found in list(ids.items())[:_LEDGERS_SHOWN]]
    if len(ids) > _LEDGERS_SHOWN:
        parts.append(f"{len(ids) - _LEDGERS_SHOWN} more ledgers")
    for name, count in sorted(Counter(one.name for one in metas).items()):
        parts.append(f"{count} × {name}")
    return " · ".join(parts) or "empty"


class _LaterBlocks:
    """Every place from `start` on with a valid block header of this file, found in a single pass.

    A forged file may have a bad place every few bytes: a pass for each would take for ever.
    """

    def __init__(self, file: File, file_id: int, start: int, size: int) -> None:
        self._offsets = array("Q")
        synced = array("Q")
        for block in blocks_behind(file, file_id, start, size):
            self._offsets.append(block.offset)
            synced.append(block.synced)
        self._synced_max = array("Q", synced)
        self._whose = array("Q", self._offsets)
        for at in range(len(synced) - 2, -1, -1):
            if self._synced_max[at + 1] > synced[at]:
                self._synced_max[at] = self._synced_max[at + 1]
                self._whose[at] = self._whose[at + 1]

    def after(self, bad: int) -> tuple[int | None, int | None]:
        """Return the next good block, and a later block written when `bad` was durable."""
        at = bisect_right(self._offsets, bad)
        if at == len(self._offsets):
            return None, None
        return self._offsets[at], self._whose[at] if self._synced_max[at] > bad else None


class _BadPlace:
    def __init__(
        self,
        file: File,
        offset: int,
        size: int,
        block: Block | None,
        later: _LaterBlocks,
        newer: bool,
    ) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._block = block
        self._newer = newer
        self.next, self.vouched_by = later.after(offset)

    def line(self, wish: Wish) -> Line:
        """Return damage if the bytes may have been acknowledged; else a torn block, or the
        journal's end.
        """
        path, offset = self._file.path, self._offset
        if self.vouched_by is None and not self._newer:
            return self._end()
        end = self._size if self.vouched_by is None or self.next is None else self.next
        if self.vouched_by is None and self._block is None:
            return _no_end(path, offset, self._size - offset)
        line = Line("damage", offset, end - offset, {"vouched_by": self.vouched_by})
        line.damage = self._lost(wish, end - offset)
        what = "a block whose checksum does not hold" if self._block else "no good block"
        why = (
            f"the block at byte {self.vouched_by} says that this was durable"
            if self.vouched_by is not None
            else "newer journal files follow"
        )
        named = [
            f"ledger {one.ledger_id} {entries_of(one.first, one.last)}"
            for one in line.damage
            if one.ledger_id is not None
        ]
        line.note = f"{what}: acknowledged records are lost, {why}"
        if named:
            line.note += f". Among them may be {', '.join(named[:_LEDGERS_SHOWN])}"
        return line

    def _lost(self, wish: Wish, length: int) -> list[Damage]:
        path, offset = self._file.path, self._offset
        found: list[StoredEntry] = []
        if self._block is not None:
            body_bytes = min(self._block.body_bytes, BODY_BYTES_MAX)
            body = self._file.pread(body_bytes, offset + BLOCK_HEADER_BYTES)
            records = records_in(body, offset + BLOCK_HEADER_BYTES)
            found = [one for one in records if isinstance(one, StoredEntry)]
        good = [digest_of(one, wish)[1] is True for one in found]
        known = {one.ledger_id for one, holds in zip(found, good, strict=True) if holds}
        ids: dict[int, list[int]] = {}
        before = (-1, -1)
        for one, holds in zip(found, good, strict=True):
            here = (one.ledger_id, one.entry_id)
            if not holds:
                if known and one.ledger_id not in known and before[0] >= 0:
                    here = (before[0], before[1] + 1)  # the ids themselves were damaged
                ids.setdefault(here[0], []).append(here[1])
            before = here
        return [
            Damage(DamageKind.JOURNAL, path, offset, length, ledger_id, min(lost), max(lost))
            for ledger_id, lost in ids.items()
        ] or [Damage(DamageKind.JOURNAL, path, offset, length)]

    def _end(self) -> Line:
        offset, left = self._offset, self._size - self._offset
        fields = {"next_good": self.next}
        if self._block is not None:
            note = "a block that was not written to its end: it was never acknowledged (torn tail)"
            return Line("torn", offset, left, fields, note)
        if self.next is not None:
            note = (
                "no good block, and none behind it was written when this was durable: never "
                f"acknowledged (torn tail). Its remains begin at byte {self.next}"
            )
            return Line("torn", offset, left, fields, note)
        note = "what was written ends here; reserved, or of a former file"
        return Line("free", offset, left, note=note)


def _no_end(path: str, offset: int, length: int) -> Line:
    note = "no END block, although newer journal files follow: blocks may be missing here"
    damage = Damage(DamageKind.JOURNAL, path, offset, length)
    return Line("damage", offset, length, note=note, damage=[damage])
