"""Walk an entry log: every extent, the ledgers map, and what follows damage. Never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from crc32c import crc32c

from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.disk.files import File
from octavo.bookie.entrylog.format import (
    FILE_HEADER_BYTES,
    FOOTER,
    MAP_MAGIC,
    RECORD_BYTES,
    RECORD_MAGIC,
    VERSION,
    Record,
    decode_file_header,
    decode_footer,
    decode_map,
    decode_record,
)
from octavo.bookie.entrylog.walk import LogWalk
from octavo.inspect.entries import Broken, StoredEntry, digest_of, entry_line, records_in
from octavo.inspect.line import BODY_BYTES_MAX, Line, Wish, entries_of, spans

_SCAN_BYTES = 4 * 1024 * 1024
_UNVOUCHED = "behind the journal mark: torn, or just being written. The journal has it too"

Lookup = Callable[[int, int], list[tuple[int, int, int]]]
"""Takes a range of bytes of this log; returns the index's (ledger, first, last) there."""


def nothing_known(start: int, end: int) -> list[tuple[int, int, int]]:  # noqa: ARG001
    return []


class EntryLogWalk:
    """Walks a log once. Afterwards `sums` has the bytes of frames of each ledger."""

    def __init__(
        self,
        file: File,
        wish: Wish,
        *,
        log_id: int,
        vouched: int | None,
        lookup: Lookup = nothing_known,
    ) -> None:
        """Show a log; `vouched`: the journal mark relies on it up to here; None: unknown."""
        self._file = file
        self._wish = wish
        self._log_id = log_id
        self._vouched = vouched
        self._lookup = lookup
        self._size = file.size()
        self.sums: dict[int, int] = {}
        self._has_gaps = False
        self._sealed = False

    def lines(self) -> Iterator[Line]:
        file, size = self._file, self._size
        front = file.pread(FILE_HEADER_BYTES, 0)
        found = decode_file_header(front)
        header = Line("header", 0, len(front), {"log_id": self._log_id, "file_bytes": size})
        header.note = f"entry log {found}, version {VERSION}" if isinstance(found, int) else found
        if found == self._log_id:
            header.fields["version"] = VERSION
        elif front.strip(b"\0") or self._vouched:
            if isinstance(found, int):
                header.note = f"says that it is entry log {found}"
            header.damage.append(Damage(DamageKind.FILE_HEADER, file.path, 0, len(front)))
        yield header
        end = size
        footer = decode_footer(file.pread(FOOTER.size, max(0, size - FOOTER.size)))
        if footer is not None and FILE_HEADER_BYTES <= footer[0] <= size - FOOTER.size:
            end = footer[0]
        self._sealed = end < size
        yield from self._runs(end)
        if end < size:
            yield self._map(end, footer[1] if footer else 0)

    def _runs(self, end: int) -> Iterator[Line]:
        walk = LogWalk(
            self._file.pread, self._log_id, end=end, window_bytes=RECORD_BYTES, headers_only=True
        )
        while walk.offset < end:
            (_, offset, _), record, _, fault = walk.next()
            if record is not None and fault is None:
                yield from self._run(record, offset)
                continue
            following = self._next_record(offset, end)
            vouched = end if self._sealed else self._vouched
            self._has_gaps = True
            line = self._gap(offset, end if following is None else following, vouched, record)
            if line is not None:
                yield line
            if following is None:
                return
            walk.offset = following

    def _gap(
        self, offset: int, end: int, vouched: int | None, record: Record | None
    ) -> Line | None:
        path, length = self._file.path, end - offset
        open_ended = end == self._size
        is_map = open_ended and self._file.pread(len(MAP_MAGIC), offset) == MAP_MAGIC
        if is_map and vouched is not None and offset < vouched:
            note = "a ledgers map without a good footer: the log was not sealed to its end"
            line = Line("damage", offset, length, note=note)
            line.damage = [Damage(DamageKind.RECORD_HEADER, path, offset, length)]
            return line
        if open_ended and (vouched is None or offset >= vouched) and self._is_blank(offset, end):
            return Line("free", offset, length, note="reserved, nothing written yet")
        if open_ended and vouched is not None and offset >= vouched:
            return Line("torn", offset, length, note=_UNVOUCHED)
        if open_ended and vouched is None:
            note = "no good extent: torn or damaged, the journal mark would tell"
            return Line("torn", offset, length, note=note)
        line = Line("damage", offset, length)
        known = self._lookup(offset, end)
        line.damage = [
            Damage(DamageKind.RECORD_HEADER, path, offset, length, *one) for one in known
        ] or [Damage(DamageKind.RECORD_HEADER, path, offset, length)]
        what = "an extent that goes beyond the end" if record is not None else "no good extent"
        named = ", ".join(f"ledger {ledger} {entries_of(a, b)}" for ledger, a, b in known[:4])
        line.note = (
            f"{what}; by the index it held {named or 'nothing that is live'}"
            if known
            else (f"{what}; its entries are not known")
        )
        return line

    def _run(self, record: Record, offset: int) -> Iterator[Line]:
        self.sums[record.ledger_id] = self.sums.get(record.ledger_id, 0) + record.frames_bytes
        wish = self._wish
        first, last = record.first_entry, record.last_entry
        line = Line("extent", offset, record.total_bytes)
        line.fields = {"ledger": record.ledger_id, "first": first, "last": last}
        line.fields["entries"] = record.entries
        wanted = wish.wants(record.ledger_id, first, last)
        inside: list[Line] = []
        if wish.verify or (wanted and wish.entries):
            inside = self._check(record, offset, line)
        if wanted or line.damage:
            yield line
            yield from inside

    def _check(self, record: Record, offset: int, line: Line) -> list[Line]:
        wish, path = self._wish, self._file.path
        ledger_id, first = record.ledger_id, record.first_entry
        ids = (ledger_id, first, record.last_entry)
        if record.frames_bytes > BODY_BYTES_MAX:
            line.note = f"claims {record.frames_bytes} bytes, no extent is so long"
            line.damage = [Damage(DamageKind.EXTENT_CHECKSUM, path, offset, line.length, *ids)]
            return []
        frames = self._file.pread(record.frames_bytes, offset + RECORD_BYTES)
        whole = len(frames) == record.frames_bytes and crc32c(frames) == record.frames_crc
        found: list[StoredEntry] = []
        broken: list[str] = []
        for one in records_in(frames, offset + RECORD_BYTES):
            if isinstance(one, StoredEntry) and (one.ledger_id, one.entry_id) == (
                ledger_id,
                first + len(found),
            ):
                found.append(one)
                continue
            broken.append(
                one.what if isinstance(one, Broken) else "a frame of another ledger or entry"
            )
            break
        if not broken and len(found) != record.entries:
            broken.append(f"{len(found)} frames instead of {record.entries}")
        digests = [digest_of(one, wish)[1] for one in found] if wish.verify else []
        line.fields["digests_unknown"] = digests.count(None)
        bad = [one.entry_id for one, good in zip(found, digests, strict=False) if good is False]
        if not whole and self._vouched is not None and offset >= self._vouched and not self._sealed:
            line.kind, line.note = "torn", _UNVOUCHED
        elif not whole:
            line.damage = [Damage(DamageKind.EXTENT_CHECKSUM, path, offset, line.length, *ids)]
            line.note = (
                "the extent's checksum does not hold: all its entries are answered as unknown"
            )
            if wish.verify and (bad or len(found) < record.entries):
                gone = [spans(bad)] if bad else []
                if len(found) < record.entries:
                    gone.append(f"{first + len(found)}–{record.last_entry}")
                line.note += f"; by their digests these are damaged: {', '.join(gone)}"
        elif broken:
            line.damage = [Damage(DamageKind.WRONG_RECORD, path, offset, line.length, *ids)]
            line.note = f"{broken[0]}, although the extent's checksum holds"
        elif bad:
            of_them = (ledger_id, bad[0], bad[-1])
            line.damage = [Damage(DamageKind.ENTRY_DIGEST, path, offset, line.length, *of_them)]
            line.note = f"the digest of entry {spans(bad)} does not hold"
        if not wish.entries:
            return []
        return [
            entry_line(one, wish)
            for one in found
            if wish.wants(one.ledger_id, one.entry_id, one.entry_id)
        ]

    def _map(self, offset: int, crc: int) -> Line:
        length = self._size - offset
        line = Line("map", offset, length)
        good = length <= BODY_BYTES_MAX
        found = decode_map(self._file.pread(length - FOOTER.size, offset), crc) if good else None
        if found is None:
            line.note = "the ledgers map is damaged; the bookie steps through the log instead"
            line.damage = [Damage(DamageKind.RECORD_HEADER, self._file.path, offset, length)]
            return line
        line.fields = {"ledgers": {str(ledger): size for ledger, size in found.items()}}
        line.note = f"sealed; {len(found)} ledgers, {sum(found.values()):,} bytes of frames"
        if found != self.sums and not self._has_gaps:
            line.note += "; its sums differ from those of the extents"
            line.damage = [Damage(DamageKind.WRONG_RECORD, self._file.path, offset, length)]
        return line

    def _next_record(self, bad: int, end: int) -> int | None:
        """Return where the next valid extent header begins; a single pass over the bytes."""
        keep = RECORD_BYTES - 1
        position = bad + 1
        while position < end:
            data = self._file.pread(min(_SCAN_BYTES + keep, end - position), position)
            found = data.find(RECORD_MAGIC)
            while found >= 0:
                record = decode_record(data, found)
                if record is not None and position + found + record.total_bytes <= end:
                    return position + found
                found = data.find(RECORD_MAGIC, found + 1)
            if len(data) <= _SCAN_BYTES:
                return None
            position += _SCAN_BYTES
        return None

    def _is_blank(self, offset: int, end: int) -> bool:
        while offset < end:
            data = self._file.pread(min(_SCAN_BYTES, end - offset), offset)
            if not data or data.strip(b"\0"):
                return not data
            offset += len(data)
        return True
