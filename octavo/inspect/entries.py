"""Step through the records of a journal block or an extent, for any input bytes. Pure.

Unlike the bookie's readers, it never trusts a length and continues after a fault, which it reports
as a `Broken`. Every step advances by at least four bytes, so it ends for any input.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from octavo.bookie.journal.format import META, META_VALUE, META_VERSION, MetaOp
from octavo.inspect.line import Line, Wish, time_of
from octavo.protocol.batch import ATTRIBUTE_COMPRESSION, NO_PRODUCER, InvalidBatch, check_batch
from octavo.protocol.encrypted import OVERHEAD_BYTES, looks_sealed
from octavo.protocol.entry import HEADER, HEADER_BYTES, DigestType, digest_for
from octavo.protocol.frames import ADD_HEADER, ADD_PREFIX, ADD_PREFIX_BYTES, LENGTH, Flag

_ADD = ADD_HEADER >> 16
_FLAG_NAMES = {Flag.RECOVERY_ADD: "recovery", Flag.HIGH_PRIORITY: "priority"}
_SIZES = {DigestType.CRC32C: 4, DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.DUMMY: 0}
_COMPRESSION = ("plain", "gzip", "snappy", "lz4", "zstd")
_SHOWN_BYTES = 32


class StoredEntry(NamedTuple):
    offset: int
    frame_bytes: int
    flags: int
    key: bytes
    ledger_id: int
    entry_id: int
    lac: int
    length: int
    entry: memoryview


class StoredMeta(NamedTuple):
    offset: int
    record_bytes: int
    name: str
    ledger_id: int
    key: bytes
    value: int | None


class Broken(NamedTuple):
    """Bytes that are not a record. The rest of the body cannot be split into records."""

    offset: int
    length: int
    what: str


def records_in(body: bytes, base: int) -> Iterator[StoredEntry | StoredMeta | Broken]:
    view, position, end = memoryview(body), 0, len(body)
    while position < end:
        left = end - position
        if left < ADD_PREFIX_BYTES:
            yield Broken(base + position, left, f"{left} bytes are no record")
            return
        length, head, key = ADD_PREFIX.unpack_from(view, position)
        size = LENGTH.size + length
        if size > left:
            what = f"a record claims {size} bytes, {left} are left"
            yield Broken(base + position, left, what)
            return
        if head >> 16 == _ADD and size >= ADD_PREFIX_BYTES + HEADER_BYTES:
            entry = view[position + ADD_PREFIX_BYTES : position + size]
            ledger_id, entry_id, lac, total = HEADER.unpack_from(entry)
            place = (base + position, size, head & 0xFFFF, key)
            yield StoredEntry(*place, ledger_id, entry_id, lac, total, entry)
        elif head >> 24 == META_VERSION and size in (META.size, META_VALUE.size):
            yield _meta(view, position, base, size)
        else:
            yield Broken(base + position, left, f"unknown record {head:#010x} of {size} bytes")
            return
        position += size


def _meta(view: memoryview, position: int, base: int, size: int) -> StoredMeta:
    _, head, ledger_id, key = META.unpack_from(view, position)
    number = head >> 16 & 0xFF
    known = number in MetaOp.__members__.values()
    name = MetaOp(number).name.lower() if known else f"meta-{number}"
    value = META_VALUE.unpack_from(view, position)[4] if size == META_VALUE.size else None
    return StoredMeta(base + position, size, name, ledger_id, key, value)


def digest_of(found: StoredEntry, wish: Wish) -> tuple[DigestType | None, bool | None]:
    """Return how the entry is protected, and whether its digest is right; None where unknown.

    The bookie checked entries with the CRC32C flag when they came. For others, only the ledger's
    metadata says which digest they have: here, a checksum that matches is proof enough.
    """
    kind = wish.digest
    if kind is None and found.flags & Flag.CRC32C:
        kind = DigestType.CRC32C
    entry = found.entry
    if kind is not None:
        size = _SIZES[kind]
        if len(entry) < HEADER_BYTES + size:
            return kind, False
        stored = entry[HEADER_BYTES : HEADER_BYTES + size]
        made = digest_for(kind, wish.password)
        good = stored == made.compute(entry[:HEADER_BYTES], entry[HEADER_BYTES + size :])
        return kind, good
    stored = entry[HEADER_BYTES : HEADER_BYTES + 8]
    if len(stored) >= 4:
        crc = crc32c(entry[HEADER_BYTES + 4 :], crc32c(entry[:HEADER_BYTES]))
        if stored[:4] == crc.to_bytes(4, "big"):
            return DigestType.CRC32C, True
    if len(stored) == 8 and not any(stored[:4]):
        crc = zlib.crc32(entry[HEADER_BYTES + 8 :], zlib.crc32(entry[:HEADER_BYTES]))
        if stored[4:] == crc.to_bytes(4, "big"):
            return DigestType.CRC32, True
    return None, None


def entry_line(found: StoredEntry, wish: Wish) -> Line:
    kind, good = digest_of(found, wish)
    fields: dict[str, object] = {
        "ledger": found.ledger_id,
        "first": found.entry_id,
        "last": found.entry_id,
        "lac": found.lac,
        "length": found.length,
        "digest": kind.name if kind is not None else None,
        "digest_holds": good,
    }
    flags = [name for flag, name in _FLAG_NAMES.items() if found.flags & flag]
    if flags:
        fields["flags"] = flags
    sizes = [_SIZES[kind]] if kind is not None else list(_SIZES.values())
    payloads = [found.entry[HEADER_BYTES + size :] for size in sizes]
    batch = next((look for payload in payloads if (look := _batch(payload))), None)
    payload = payloads[0]
    fields["payload_bytes"] = len(payload)
    if batch is not None:
        fields["batch"], text = batch
    elif looks_sealed(payload):
        # Only the ledger's record would tell for certain, and name the key.
        fields["encrypted"] = True
        text = f"{len(payload) - OVERHEAD_BYTES} B, encrypted (the ledger's record names the key)"
    else:
        fields["payload"] = bytes(payload[:_SHOWN_BYTES]).hex()
        text = _text(payload)
    if good is False:
        text = "digest does not hold; " + text
    more = "".join(f", {name}" for name in flags)
    note = f"LAC {found.lac}{more} · {text}"
    return Line("entry", found.offset, found.frame_bytes, fields, note, depth=1)


def meta_line(found: StoredMeta) -> Line:
    fields: dict[str, object] = {"ledger": found.ledger_id}
    note = ""
    if found.value is not None:
        fields["value"] = found.value
        is_time = found.name == MetaOp.DELETE.name.lower()
        note = f"at {time_of(found.value)}" if is_time else f"LAC {found.value}"
    return Line(found.name, found.offset, found.record_bytes, fields, note, depth=1)


def _batch(payload: memoryview) -> tuple[dict[str, object], str] | None:
    try:
        head = check_batch(payload, gaps=True)
    except InvalidBatch:
        return None
    packed = head.attributes & ATTRIBUTE_COMPRESSION
    compression = _COMPRESSION[packed] if packed < len(_COMPRESSION) else f"codec {packed}"
    fields: dict[str, object] = {
        "base_offset": head.base_offset,
        "records": head.record_count,
        "first_timestamp": head.first_timestamp,
        "max_timestamp": head.max_timestamp,
        "compression": compression,
    }
    times = time_of(head.first_timestamp)
    if head.max_timestamp != head.first_timestamp:
        times += f" to {time_of(head.max_timestamp)}"
    last = head.base_offset + head.last_offset_delta
    count = f"{head.record_count} record" + ("s" if head.record_count > 1 else "")
    text = f"batch {head.base_offset}–{last}, {count}, {times}, {compression}"
    if head.producer_id != NO_PRODUCER:
        fields |= {
            "producer_id": head.producer_id,
            "producer_epoch": head.producer_epoch,
            "base_sequence": head.base_sequence,
        }
        text += f", producer {head.producer_id}/{head.producer_epoch} from {head.base_sequence}"
    return fields, text


def _text(payload: memoryview) -> str:
    shown = bytes(payload[:_SHOWN_BYTES]).decode("latin-1")
    text = "".join(one if one.isascii() and one.isprintable() else "." for one in shown)
    return f"{len(payload)} B {text!r}" + ("…" if len(payload) > _SHOWN_BYTES else "")
