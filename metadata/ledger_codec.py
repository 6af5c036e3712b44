"""A ledger's metadata record as BookKeeper writes it (docs/formats/ledger_metadata.md).

    record := "BookieMetadataFormatVersion\t" version "\n" body
    body   := v3: varint length, protobuf | v2: protobuf text | v1: lines of text

Version 3 is written, all three are read. Other bytes raise only `BadRecord`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from octavo.metadata.ledger_record import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.protobuf_schema import LedgerMetadataFormat
from octavo.metadata.store import BadRecord
from octavo.protocol.entry import INVALID_ENTRY_ID, DigestType

_HEADER = b"BookieMetadataFormatVersion\t"
_V1_IN_RECOVERY = -102
_VARINT_BYTES_MAX = 5


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    closed = metadata.state is LedgerState.CLOSED
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length if closed else 0,
        lastEntryId=metadata.last_entry if closed else INVALID_ENTRY_ID,
        state=int(metadata.state),
        digestType=int(metadata.digest_type),
        # Set even when empty: BookKeeper uses the digest type only with a password.
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
        cToken=metadata.creator_token,
    )
    if metadata.created_ms:
        message.ctime = metadata.created_ms
    for fragment in metadata.fragments:
        message.segment.add(firstEntryId=fragment.first_entry, ensembleMember=fragment.bookies)
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    body: bytes = message.SerializeToString()
    return b"".join((_HEADER, b"3\n", _varint(len(body)), body))


def decode_ledger_metadata(ledger_id: int, data: bytes) -> LedgerMetadata:
    """Decode a record of any version. Raises `BadRecord`."""
    what = f"metadata of ledger {ledger_id}"
    head, newline, body = data.partition(b"\n")
    if not newline or not head.startswith(_HEADER):
        raise BadRecord(f"{what}: does not begin with {_HEADER!r} and a version")
    match head[len(_HEADER) :]:
        case b"3":
            return _from_message(ledger_id, what, _parse_delimited(what, body))
        case b"2":
            return _from_message(ledger_id, what, _parse_text(what, body))
        case b"1":
            return _from_lines(ledger_id, what, body)
        case version:
            raise BadRecord(f"{what}: format version {version!r}; versions 1 to 3 are known")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parse_delimited(what: str, body: bytes) -> LedgerMetadataFormat:
    length = 0
    for index, byte in enumerate(body[:_VARINT_BYTES_MAX]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            start = index + 1
            break
    else:
        raise BadRecord(f"{what}: no length before the protobuf message")
    if len(body) - start != length:
        raise BadRecord(f"{what}: {length} bytes announced, {len(body) - start} found")
    message = LedgerMetadataFormat()
    try:
        message.ParseFromString(body[start:])
    except DecodeError as error:
        raise BadRecord(f"{what}: not a LedgerMetadataFormat: {error}") from error
    return message


def _parse_text(what: str, body: bytes) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat()
    try:
        text_format.Parse(body.decode(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise BadRecord(f"{what}: not a LedgerMetadataFormat in text: {error}") from error
    return message


def _from_message(ledger_id: int, what: str, message: LedgerMetadataFormat) -> LedgerMetadata:
    fragments = tuple(
        Fragment(segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment
    )
    write_quorum = message.quorumSize
    ack_quorum = message.ackQuorumSize if message.HasField("ackQuorumSize") else write_quorum
    _check(what, message.ensembleSize, write_quorum, ack_quorum, fragments)
    closed = message.state == LedgerState.CLOSED
    whole = message.HasField("lastEntryId") and message.lastEntryId >= INVALID_ENTRY_ID
    if closed and not (whole and message.length >= 0):
        raise BadRecord(f"{what}: closed at entry {message.lastEntryId}, length {message.length}")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        fragments=fragments,
        state=LedgerState(message.state),
        last_entry=message.lastEntryId if closed else INVALID_ENTRY_ID,
        length=message.length if closed else 0,
        digest_type=DigestType(message.digestType or DigestType.CRC32),
        password=message.password,
        created_ms=message.ctime,
        custom={entry.key: entry.value for entry in message.customMetadata},
        creator_token=message.cToken,
    )


def _from_lines(ledger_id: int, what: str, body: bytes) -> LedgerMetadata:
    """Decode the oldest text, without ack quorum and digest: BookKeeper uses Qw and CRC32."""
    try:
        lines = body.decode("ascii").splitlines()
        write_quorum, ensemble_size, length = (int(line) for line in lines[:3])
        rows = [line.split("\t") for line in lines[3:] if line]
        state, last_entry = LedgerState.OPEN, INVALID_ENTRY_ID
        if rows and rows[-1][1:] == ["CLOSED"]:
            last_entry = int(rows.pop()[0])
            state = LedgerState.CLOSED
            if last_entry == _V1_IN_RECOVERY:
                state, last_entry = LedgerState.IN_RECOVERY, INVALID_ENTRY_ID
        fragments = tuple(Fragment(int(row[0]), tuple(row[1:])) for row in rows)
    except (ValueError, IndexError) as error:
        raise BadRecord(f"{what}: not a version 1 record: {error}") from error
    _check(what, ensemble_size, write_quorum, write_quorum, fragments)
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        fragments=fragments,
        state=state,
        last_entry=last_entry,
        length=length if state is LedgerState.CLOSED else 0,
        digest_type=DigestType.CRC32,
    )


def _check(
    what: str,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    fragments: Sequence[Fragment],
) -> None:
    """Check what `LedgerMetadata` asserts: these bytes came from outside."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise BadRecord(
            f"{what}: ensemble {ensemble_size}, write quorum {write_quorum}, ack quorum "
            f"{ack_quorum}; needed is E >= Qw >= Qa >= 1"
        )
    firsts = [fragment.first_entry for fragment in fragments]
    if not firsts or firsts[0] != 0 or any(a >= b for a, b in itertools.pairwise(firsts)):
        raise BadRecord(f"{what}: fragments begin at {firsts}; needed is 0, then ascending")
    for fragment in fragments:
        if not len(set(fragment.bookies)) == len(fragment.bookies) == ensemble_size:
            raise BadRecord(
                f"{what}: fragment at {fragment.first_entry} has {list(fragment.bookies)}; "
                f"needed are {ensemble_size} distinct bookies"
            )
