"""Walk the small files: ledger state, journal mark, cookie, limbo. Never writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

from crc32c import crc32c

from octavo.bookie.disk.damage import Damage, DamageKind
from octavo.bookie.disk.files import File
from octavo.bookie.journal.mark import Mark, decode_mark
from octavo.bookie.ledgers.limbo import LimboDamaged, decode_limbo
from octavo.bookie.ledgers.state import (
    BLOCK,
    BLOCK_BYTES,
    BLOCK_MAGIC,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    RECORD,
    VERSION,
    LedgerState,
    decode_record,
    encode_file_header,
)
from octavo.inspect.line import BODY_BYTES_MAX, YEAR_2000_MS, Line, Wish, time_of
from octavo.metadata.cookie import Cookie, decode_cookie
from octavo.metadata.store import BadRecord
from octavo.protocol.codes import OctavoError

_SMALL_BYTES_MAX = 64 * 1024
_MARK_BYTES_MAX = 1024 * 1024
_SCAN_BYTES = 4 * 1024 * 1024


def read_cookie(file: File) -> Cookie | str:
    try:
        return decode_cookie(file.pread(_SMALL_BYTES_MAX, 0))
    except BadRecord as error:
        return str(error)


def walk_cookie(file: File) -> Iterator[Line]:
    found = read_cookie(file)
    line = Line("cookie", 0, file.size())
    if isinstance(found, str):
        line.note = found
        line.damage = [Damage(DamageKind.FILE_HEADER, file.path, 0, line.length)]
    else:
        line.fields = {
            "bookie_id": found.bookie_id,
            "instance_id": found.instance_id,
            "incarnation": found.incarnation,
            "journal_dir": found.journal_dir,
            "ledger_dirs": list(found.ledger_dirs),
        }
    yield line


def walk_state(file: File, wish: Wish, *, file_id: int, end: int | None) -> Iterator[Line]:
    """Show ledger states; `end`: the mark relies on the file up to here."""
    path, size = file.path, file.size()
    front = file.pread(FILE_HEADER_BYTES, 0)
    if not file_id and len(front) == FILE_HEADER_BYTES:  # a copy with another file name
        file_id = FILE_HEADER.unpack(front)[2]
    header = Line("header", 0, len(front), {"file_id": file_id, "file_bytes": size})
    header.note = f"ledger state {file_id}, version {VERSION}"
    if front != encode_file_header(file_id) and end == 0:
        header.note = "no good header; the mark names another file"
    elif front != encode_file_header(file_id):
        header.note = f"no good header of ledger state {file_id}, version {VERSION}"
        header.damage = [Damage(DamageKind.FILE_HEADER, path, 0, len(front))]
    else:
        header.fields["version"] = VERSION
    yield header
    offset = FILE_HEADER_BYTES
    while offset < size:
        body = _state_body(file, offset, size)
        if body is not None:
            yield from _state_lines(body, wish, offset, end)
            offset += BLOCK_BYTES + len(body)
            continue
        following = _next_state_block(file, offset, size)
        if _state_body(file, offset, size) is not None:
            continue  # a running bookie has written it meanwhile
        until = size if following is None else following
        if (end is not None and offset >= end) or (end is None and following is None):
            yield Line("torn", offset, until - offset, note="behind what the mark counts on")
        else:
            line = Line("damage", offset, until - offset)
            line.note = "no good block: fences, keys and deletions of ledgers are lost here"
            line.damage = [Damage(DamageKind.STATE, path, offset, until - offset)]
            yield line
        offset = until
    if end is not None and size < end:
        line = Line("damage", size, 0, note=f"the mark counts on {end} bytes, the file is shorter")
        line.damage = [Damage(DamageKind.STATE, path, size, end - size)]
        yield line


def _state_body(file: File, offset: int, size: int) -> bytes | None:
    front = file.pread(BLOCK_BYTES, offset)
    if len(front) < BLOCK_BYTES:
        return None
    magic, count, its_offset, crc, header_crc = BLOCK.unpack(front)
    length = count * RECORD.size
    if magic != BLOCK_MAGIC or its_offset != offset or header_crc != crc32c(front[:-4]):
        return None
    if offset + BLOCK_BYTES + length > size or length > BODY_BYTES_MAX:
        return None
    body = file.pread(length, offset + BLOCK_BYTES)
    return body if len(body) == length and crc32c(body) == crc else None


def _next_state_block(file: File, bad: int, size: int) -> int | None:
    position = bad + 1
    while position < size:
        data = file.pread(_SCAN_BYTES + BLOCK_BYTES - 1, position)
        found = data.find(BLOCK_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            if _state_body(file, position + found, size) is not None:
                return position + found
            found = data.find(BLOCK_MAGIC, found + 1)
        if len(data) <= _SCAN_BYTES:
            return None
        position += _SCAN_BYTES
    return None


def _state_lines(body: bytes, wish: Wish, offset: int, end: int | None) -> Iterator[Line]:
    line = Line("block", offset, BLOCK_BYTES + len(body))
    line.fields = {"records": len(body) // RECORD.size}
    line.note = f"{len(body) // RECORD.size} ledgers"
    if end is not None:
        line.fields["counts"] = offset < end
        if offset >= end:
            line.note += "; behind what the mark counts on"
    inside: list[Line] = []
    for start in range(0, len(body), RECORD.size):
        ledger_id, state = decode_record(body, start)
        if wish.ledger in (None, ledger_id):
            inside.append(_state_line(ledger_id, state, offset + BLOCK_BYTES + start))
    if inside or wish.ledger is None:
        yield line
        yield from inside


def _state_line(ledger_id: int, state: LedgerState, offset: int) -> Line:
    fields: dict[str, object] = {
        "ledger": ledger_id,
        "fenced": state.fenced,
        "deleted": state.deleted,
        "explicit_lac": state.explicit_lac,
        "lac": state.lac,
        "last_entry": state.last_entry,
        "key": state.key.hex(),
    }
    note = f"last entry {state.last_entry}, LAC {state.lac}"
    if state.explicit_lac >= 0:
        note += f", explicit LAC {state.explicit_lac}"
    if state.deleted:
        fields["deleted_ms"] = state.deleted_ms
        note = "deleted"
        if state.deleted_ms >= YEAR_2000_MS:  # older files had the last entry in this field
            note += f" {time_of(state.deleted_ms)}"
    note = f"fenced, {note}" if state.fenced else note
    return Line("ledger", offset, RECORD.size, fields, note, depth=1)


def walk_mark(file: File) -> Iterator[Line]:
    line = Line("mark", 0, file.size())
    try:
        found = decode_mark(file.pread(_MARK_BYTES_MAX, 0))
        why = "no good copy of a version that this program reads"
    except OctavoError as error:
        found, why = None, str(error)
    if found is None:
        line.note = why
        line.damage = [Damage(DamageKind.FILE_HEADER, file.path, 0, line.length)]
    else:
        line.fields = mark_fields(found)
    yield line


def walk_limbo(file: File) -> Iterator[Line]:
    line = Line("limbo", 0, file.size())
    try:
        found = decode_limbo(file.pread(BODY_BYTES_MAX, 0))
    except LimboDamaged as error:
        line.note = str(error)
        line.damage = [Damage(DamageKind.FILE_HEADER, file.path, 0, line.length)]
    else:
        line.fields = asdict(found)
    yield line


def mark_fields(mark: Mark) -> dict[str, Any]:
    found: dict[str, Any] = asdict(mark) if is_dataclass(mark) else mark._asdict()
    folders = found.pop("folders", ())
    if "journals" in found:
        found["journals"] = [
            {"folder": folders[at] if folders else "", "file_id": one[0], "offset": one[1]}
            for at, one in enumerate(found["journals"])
        ]
    return found
