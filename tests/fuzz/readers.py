"""Everything that reads bytes from a disk or the network, each with valid bytes and its one
error. `seal` repairs the checksums of mutated bytes, so that the code behind them is reached."""

from __future__ import annotations

import asyncio
import ssl
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from crc32c import crc32c
from multidict import CIMultiDict

from octavo.bookie.adds import split_adds
from octavo.bookie.entrylog.format import Record, decode_footer, decode_map, encode_map, file_name
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.entrylog.record_check import frame_faults
from octavo.bookie.entrylog.walk import LogCheck
from octavo.bookie.index.log_slice import log_end, read_slice
from octavo.bookie.journal.format import JournalDamaged, MetaOp, encode_meta
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.mark import Mark, MarkRefused, Position, decode_mark, encode_mark
from octavo.bookie.journal.reader import JournalReader, records_of
from octavo.bookie.ledgers.limbo import LimboDamaged, LimboRecord, decode_limbo, encode_limbo
from octavo.bookie.ledgers.state import LedgerState, LedgerStateDamaged, StateFile, encode_record
from octavo.bookie.wire.v3_adds import Gathering
from octavo.bookie.write.cache import Memtable, extents
from octavo.broker.http.api.fast_publish import shape_of
from octavo.broker.http.connection_bytes import RequestEdges
from octavo.broker.http.csrf import check_browser, preflight, protect
from octavo.broker.http.problems import Problem
from octavo.broker.http.router import Router
from octavo.broker.http.routes import ROUTES
from octavo.metadata.cookie import Cookie, decode_cookie, encode_cookie
from octavo.metadata.store import BadRecord
from octavo.protocol import extension, v3
from octavo.protocol.answers import parse_answers
from octavo.protocol.auth import AuthMessage, decode_auth, encode_auth
from octavo.protocol.batch import InvalidBatch, split_batches
from octavo.protocol.codes import BookieIOError, Code, DigestMismatch, ProtocolError
from octavo.protocol.compression import Compression, UnsupportedCompression, unpack
from octavo.protocol.entry import (
    DigestType,
    digest_for,
    pack_entry,
    pack_lac,
    unpack_entry,
    unpack_lac,
)
from octavo.protocol.frames import (
    Flag,
    FrameReceiver,
    add_answer,
    auth_frame,
    batch_read_answer,
    batch_read_request,
    checked_length,
    parse_auth,
    parse_batch_read,
    parse_read,
    read_answer,
    read_request,
)
from octavo.protocol.records import Record as Message
from octavo.protocol.records import build_batch, read_records
from octavo.protocol.v3_questions import parse_v3_answers
from octavo.protocol.v3_runs import Heads, take_run
from octavo.tls.start_tls import _asks, _FirstFrame
from octavo.tls.words import why
from tests.sim.disk import SimDisk
from tests.support.certificates import certificates
from tests.support.storage_support import KEY, make_run
from tests.support.v3_frames import (
    FENCE,
    PIGGYBACK,
    add_frame,
    read_frame,
    reordered,
    request_frame,
)

FORMATS = Path(__file__).parents[1] / "fixtures" / "formats"
FRAME_BYTES_MAX = 64 * 1024
UNPACKED_BYTES_MAX = 4096
_U32 = struct.Struct(">I")
_CRC32C = digest_for(DigestType.CRC32C, b"")


class Reader(NamedTuple):
    valid: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seal: Callable[[bytes], bytes] | None = None
    bytes_max: int = 0
    """The memory that it may take besides four times its input: its own bound."""


def _sealed_at_the_end(data: bytes) -> bytes:
    return data[:-4] + _U32.pack(crc32c(data[:-4])) if len(data) > 4 else data


# The journal


def _journal() -> bytes:
    disk = SimDisk()
    disk.make_directory("/j")
    writer = JournalWriter(disk, "/j", file_bytes_max=4000, preallocate_bytes=500, sync=True)
    writer.open(1)
    for group in _groups():
        writer.write([group], len(group))
    writer.seal()
    inode = next(iter(disk.names.values()))
    return inode.image()


def _groups() -> list[bytes]:
    runs = [make_run(1, 0, [b"a" * 30, b"b" * 30, b"c"]), make_run(2, 5, [b""], recovery=True)]
    metas = [encode_meta(MetaOp.FENCE, 1, KEY), encode_meta(MetaOp.EXPLICIT_LAC, 2, KEY, 7)]
    return [runs[0].frames, runs[1].frames + metas[0], b"".join(metas), runs[0].frames * 2]


def _read_journal(data: bytes) -> None:
    disk = SimDisk()
    _put(disk, "/j/0000000000000001.journal", data)
    for mark in (None, Position(1, 24)):
        reader = JournalReader(disk, "/j", mark)
        for block in reader.blocks():
            deque(records_of(block.body), 0)


def _put(disk: SimDisk, path: str, data: bytes) -> None:
    folder = path.rpartition("/")[0]
    disk.make_directory(folder)
    file = disk.open(path, create=True)
    file.pwritev([data], 0)
    file.datasync()
    disk.sync_directory(folder)


# Entry logs


def _logs_on(disk: SimDisk) -> EntryLogs:
    logs = EntryLogs(disk, ["/l"], 100_000)
    logs.open()
    return logs


def _entry_log(sealed: bool) -> bytes:
    disk = SimDisk()
    disk.make_directory("/l")
    logs = _logs_on(disk)
    half = Memtable()
    for run in (make_run(1, 0, [b"x" * 40, b"y"]), make_run(2, 3, [b"z" * 100])):
        half.put(run)
    logs.append(list(extents(half, 100)))
    logs.sync()
    end = logs.position[1]
    if sealed:
        logs.seal()
    inode = next(iter(disk.names.values()))
    return inode.image() if sealed else inode.image()[:end]


def _read_entry_log(data: bytes) -> None:
    disk = SimDisk()
    _put(disk, f"/l/{file_name(1)}", data)
    logs = _logs_on(disk)
    for read in (_scan, _ledgers, _slices):
        try:
            read(logs)
        except BookieIOError:
            continue


def _scan(logs: EntryLogs) -> None:
    for record, location in logs.scan_all(1):
        logs.read(location, record.ledger_id)


def _ledgers(logs: EntryLogs) -> None:
    logs.ledgers_of(1)


def _slices(logs: EntryLogs) -> None:
    end, _ = log_end(logs, 1)
    offset = 24
    while offset < end:
        _, offset = read_slice(logs, 1, offset, end, 64)


def _walk_entry_log(data: bytes) -> None:
    disk = SimDisk()
    _put(disk, f"/l/{file_name(1)}", data)
    for starts in ((), (24, 130, 10**6)):
        walk = LogCheck(disk, f"/l/{file_name(1)}", 1, starts=lambda starts=starts: starts)
        while not walk.done:
            walk.step(100)


def _read_map(data: bytes) -> None:
    footer = decode_footer(data)
    if footer is not None:
        decode_map(data[: -footer[0]] if footer[0] else data, footer[1])
    decode_map(data, crc32c(data))


def _check_frames(data: bytes) -> None:
    for entries in (1, 3):
        frame_faults(Record(1, 0, entries, len(data), crc32c(data)), data)


# Ledger state


def _state_file() -> bytes:
    disk = SimDisk()
    disk.make_directory("/l")
    file = StateFile(disk, "/l")
    deque(file.load(None), 0)
    file.rewrite([encode_record(n, LedgerState(KEY)) for n in range(3)])
    file.append([encode_record(9, LedgerState(KEY))])
    return next(iter(disk.names.values())).image()


_STATE = _state_file()


def _read_state(data: bytes) -> None:
    disk = SimDisk()
    _put(disk, "/l/0000000000000001.state", data)
    deque(StateFile(disk, "/l").load(None), 0)
    deque(StateFile(disk, "/l").load((1, len(_STATE))), 0)


def _sealed_limbo(data: bytes) -> bytes:
    body = data[16:-4]
    return _sealed_at_the_end(data[:12] + _U32.pack(len(body)) + body + b"0000")


def _marks() -> list[bytes]:
    mark = Mark((Position(3, 99), Position(4, 1)), 2, 88, 1, 77, ("/j", "/k"))
    return [encode_mark(mark), *(one.read_bytes() for one in sorted(FORMATS.glob("mark/v*/*")))]


# The network


def _requests() -> list[bytes]:
    run = make_run(1, 0, [b"a" * 10, b"b" * 10, b"c" * 10])
    return [
        run.frames,
        run.frames + read_request(1, 2) + make_run(7, 1, [b""], recovery=True).frames,
        make_run(1, 2**62, [b"q"]).frames,
    ]


def _answers() -> list[bytes]:
    return [
        add_answer(Code.OK, 1, 2) + add_answer(Code.FENCED, 1, 3),
        read_answer(Code.OK, 1, 2, b"entry") + read_answer(Code.NO_ENTRY, 1, 3),
        batch_read_answer(Code.OK, 1, 2, 3, [b"a", b"", b"ccc"]),
        extension.encode_added(1, 2, 9)
        + extension.encode_answer(extension.Op.NODE_INFO, 3, Code.OK, {"a": [1, b"x"]}),
    ]


def _receive(data: bytes) -> None:
    receiver = FrameReceiver(FRAME_BYTES_MAX, bytearray(64 * 1024))
    for start in range(0, len(data), 7):
        part = data[start : start + 7]
        room = receiver.get_buffer()
        room[: len(part)] = part
        found = receiver.received(len(part))
        position = 0
        while len(found) - position >= 4:
            length = receiver.checked_length(_U32.unpack_from(found, position)[0])
            if position + 4 + length > len(found):
                break
            position += 4 + length
        receiver.keep(found, position)


def _batches() -> list[bytes]:
    messages = [Message(b"k", b"v" * 20, [("h", b"x")], 5), Message(None, None, (), 6)]
    return [build_batch(messages, compression=kind) for kind in Compression]


def _read_batches(data: bytes) -> None:
    for _, batch in split_batches(data):
        deque(read_records(bytes(batch)), 0)


def _sealed_batch(data: bytes) -> bytes:
    if len(data) < 61:
        return data
    length = struct.pack(">i", len(data) - 12)
    return data[:8] + length + data[12:17] + _U32.pack(crc32c(data[21:])) + data[21:]


def _unpacker(kind: Compression) -> Reader:
    packed = build_batch([Message(b"k", b"v" * 300)] * 3, compression=kind)[61:]
    return Reader(
        [packed],
        lambda data: unpack(kind, data, UNPACKED_BYTES_MAX),
        (InvalidBatch,),
        bytes_max=2 * UNPACKED_BYTES_MAX,
    )


def _entries() -> list[bytes]:
    return [pack_entry(_CRC32C, 1, 2, 1, 40, b"payload")]


def _read_entry(data: bytes) -> None:
    for kind in DigestType:
        digest = digest_for(kind, b"pw")
        try:
            unpack_entry(digest, 1, 2, data)
        except DigestMismatch:
            continue


def _v3_requests() -> list[bytes]:
    adds = [add_frame(1, entry, txn=300 + entry) for entry in range(20)]
    fencing = read_frame(1, -1, flag=FENCE, masterKey=KEY, priority=100)
    lac: dict[str, Any] = {"ledgerId": 1, "lac": 3, "masterKey": KEY, "body": b"b" * 20}
    return [
        b"".join(adds),
        reordered(add_frame(2, 5, recovery=True, priority=100)) + fencing,
        read_frame(1, -1, flag=PIGGYBACK, previousLAC=4, timeOut=1000),
        request_frame(v3.Op.WRITE_LAC, 2**40, "writeLacRequest", **lac),
        request_frame(v3.Op.AUTH, 1, "authRequest", authPluginName="P", payload=b"p"),
        request_frame(v3.Op.LIST_ENTRIES, 1, "getListOfEntriesOfLedgerRequest", ledgerId=1),
    ]


def _v3_answers() -> list[bytes]:
    head = v3.head_of(v3.VERSION, v3.Op.READ_LAC, 7)
    fields: dict[str, Any] = {"status": 0, "ledgerId": 1, "lacBody": pack_lac(_CRC32C, 1, 7)}
    read = v3.answer(head, Code.OK, "readLacResponse", **fields)
    return [read + v3.answer(head, Code.NO_ENTRY), read]


def _read_v3(data: bytes) -> None:
    """Read as a connection does; adds parsed by runs equal the single parser's reading."""
    position = 0
    while len(data) - position >= 8:
        length = checked_length(_U32.unpack_from(data, position)[0], FRAME_BYTES_MAX)
        following = position + 4 + length
        if following > len(data):
            break
        run = take_run(memoryview(data), position, following)
        request = v3.parse_request(memoryview(data)[position:following])
        if request is None:
            assert run is None
            break
        if run is not None:
            assert isinstance(request, v3.Add)
            assert request[1:5] == (run.flags, run.ledger_id, run.first_entry, run.key)
            assert request.entry == run.entries[0]
            if isinstance(run.heads, Heads):
                run.heads.answers(Code.OK, run.ledger_id, run.first_entry)
        position = following


def _read_v3_adds(data: bytes) -> None:
    gathering = Gathering()
    position = 0
    while len(data) - position >= 8:
        length = checked_length(_U32.unpack_from(data, position)[0], FRAME_BYTES_MAX)
        following = position + 4 + length
        if following > len(data):
            break
        taken = gathering.take(memoryview(data), position, following)
        if taken == position:
            request = v3.parse_request(memoryview(data)[position:following])
            if request is None:
                break
            if isinstance(request, v3.Add):
                gathering.add(request)
            taken = following
        position = taken
    for one in gathering.batches():
        again = split_adds(memoryview(one.batch.frames), 0, FRAME_BYTES_MAX)
        assert not again.refused
        assert again.end == len(one.batch.frames), "each is a good v2 frame"
        one.answers(Code.FENCED)


# Before the caller is known


def _heads() -> list[bytes]:
    lines = b"Content-Type: text/plain\r\nOctavo-Key: k\r\nAuthorization: Bearer a.b.c\r\n"
    return [
        b"POST /v1/topics/a/b/messages HTTP/1.1\r\nHost: x\r\n" + lines
        + b"Content-Length: 5\r\n\r\nhello",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]  # fmt: skip


def _follow(data: bytes) -> None:
    """A whole request begins where the data does, and its body has the stated length."""
    for step in (len(data) or 1, 7):
        edges = RequestEdges()
        for start in range(0, len(data), step):
            part = data[start : start + step]
            head = edges.follow(part)
            assert part.startswith(head)
            if head:
                shape_of(head)
    shape_of(data)


def _ask_as_browser(data: bytes) -> None:
    """Each line is a header; whatever they are, an unnamed site gets no access to an answer."""
    pairs = (line.partition(b": ") for line in data.split(b"\r\n"))
    headers = CIMultiDict(
        (name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
        for name, _, value in pairs
    )
    named = ("https://console.example.com",)
    asked = preflight("OPTIONS", headers, named) or {}
    answer: dict[str, str] = {}
    request = SimpleNamespace(method="GET", headers=headers, secure=True)
    protect(answer, request, named)
    for found in (asked, answer):
        assert found.get("Access-Control-Allow-Origin", *named) == named[0]
    for method in ("GET", "POST"):
        check_browser(method, headers, ("octavo.example.com",), named)


_ROUTER = Router(ROUTES)


def _find_route(data: bytes) -> None:
    _ROUTER.find("GET", data.decode("latin-1"))


class _Quiet:
    def pause_reading(self) -> None: ...


def _first_frame(data: bytes) -> None:
    with asyncio.Runner() as runner:
        runner.run(_first_frame_of(data))


async def _first_frame_of(data: bytes) -> None:
    for step in (len(data) or 1, 3):
        first = _FirstFrame()
        first.connection_made(_Quiet())  # type: ignore[arg-type]
        for start in range(0, len(data), step):
            first.data_received(data[start : start + step])
        if first.came.done():
            frame, rest = first.came.result()
            assert data.startswith(frame + rest)
            request = v3.parse_request(memoryview(frame)) if frame else None
            if isinstance(request, v3.Call):
                _asks(request)


def _tls() -> tuple[ssl.SSLContext, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        held = certificates(Path(folder) / "certs")
        assert held.server
        assert held.client
        out = ssl.MemoryBIO()
        client = held.client.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return held.server, out.read()


_SERVER, _HELLO = _tls()


def _shake_hands(data: bytes) -> None:
    """Put the library's error into words; one hello never completes a connection."""
    came, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = _SERVER.wrap_bio(came, out, server_side=True)
    came.write(data)
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        return
    except ssl.SSLError as error:
        words: object = why(error)
        if words is None or isinstance(words, str):
            return
    raise AssertionError("a handshake of one message")


_LIMBO = LimboRecord(7, 1_700_000_000_000, "wiped", "ab" * 8, (1, 3))
_COOKIE = Cookie("b1:3181", "/j", ("/l", "/m"), "instance", (), "00" * 8)

READERS: dict[str, Reader] = {
    "journal file": Reader([_journal()], _read_journal, (JournalDamaged,)),
    "journal block": Reader(_groups(), lambda data: deque(records_of(data), 0), (JournalDamaged,)),
    "entry log": Reader([_entry_log(True), _entry_log(False)], _read_entry_log, ()),
    "entry log, walked": Reader([_entry_log(True), _entry_log(False)], _walk_entry_log, ()),
    "ledgers map": Reader([encode_map({1: 5, 9: 2**40}, 100)], _read_map, ()),
    "frames of a record": Reader(_requests(), _check_frames, ()),
    "ledger state": Reader([_STATE], _read_state, (LedgerStateDamaged,)),
    "mark": Reader(_marks(), decode_mark, (MarkRefused,), _sealed_at_the_end),
    "limbo": Reader([encode_limbo(_LIMBO)], decode_limbo, (LimboDamaged,), _sealed_limbo),
    "cookie": Reader([encode_cookie(_COOKIE)], decode_cookie, (BadRecord,), bytes_max=256 * 1024),
    "adds": Reader(
        _requests(), lambda data: split_adds(memoryview(data), 0, FRAME_BYTES_MAX), (ProtocolError,)
    ),
    "read request": Reader(
        [read_request(1, 2), read_request(1, -1, Flag.FENCE, KEY)],
        lambda data: parse_read(memoryview(data)),
        (ProtocolError,),
    ),
    "batch read request": Reader(
        [batch_read_request(1, 2, 3, 4, 5)],
        lambda data: parse_batch_read(memoryview(data)),
        (ProtocolError,),
    ),
    "v3 requests": Reader(_v3_requests(), _read_v3, (ProtocolError,)),
    "v3 adds": Reader(_v3_requests(), _read_v3_adds, (ProtocolError,)),
    "v3 answers": Reader(
        _v3_answers(),
        lambda data: parse_v3_answers(memoryview(data), FRAME_BYTES_MAX),
        (ProtocolError,),
    ),
    "LAC alone": Reader(
        [pack_lac(_CRC32C, 1, 7)], lambda data: unpack_lac(_CRC32C, 1, data), (DigestMismatch,)
    ),
    "request edges": Reader(_heads(), _follow, ()),
    "browser's headers": Reader(
        [
            b"Host: octavo.example.com\r\nOrigin: https://console.example.com\r\n"
            b"Sec-Fetch-Site: cross-site\r\nAccess-Control-Request-Method: PUT",
            b"Host: [::1]:8080\r\nOrigin: null\r\nSec-Fetch-Site: none",
        ],
        _ask_as_browser,
        (Problem,),
    ),
    "path": Reader(
        [b"/v1/topics/a/b/messages", b"/v1/topics/a/b", b"/", b"/v1/ledgers/7"],
        _find_route,
        (Problem,),
    ),
    "first frame of a port of TLS": Reader(
        [request_frame(v3.Op.START_TLS, 1, "startTLSRequest"), *_v3_requests()],
        _first_frame,
        (ProtocolError,),
    ),
    "hello of TLS": Reader([_HELLO], _shake_hands, (), bytes_max=256 * 1024),
    "auth frame": Reader(
        [auth_frame("plugin", b"abc")], lambda data: parse_auth(memoryview(data)), (ProtocolError,)
    ),
    "auth": Reader([encode_auth(AuthMessage("plugin", b"abc"))], decode_auth, (ProtocolError,)),
    "extension request": Reader(
        [extension.encode_request(op, 7, {"ledger_id": 3, "key": b"k"}) for op in extension.Op],
        lambda data: extension.decode_request(memoryview(data)),
        (ProtocolError,),
    ),
    "extension answer": Reader(
        [extension.encode_answer(extension.Op.NODE_INFO, 7, Code.OK, {"a": {"b": [1, 2]}})],
        lambda data: extension.decode_answer(memoryview(data)),
        (ProtocolError,),
    ),
    "answers": Reader(
        _answers(), lambda data: parse_answers(memoryview(data), FRAME_BYTES_MAX), (ProtocolError,)
    ),
    "frames of a stream": Reader(
        _requests() + _answers(), _receive, (ProtocolError,), bytes_max=256 * 1024
    ),
    "entry": Reader(_entries(), _read_entry, ()),
    "batches": Reader(
        _batches(),
        _read_batches,
        (InvalidBatch, UnsupportedCompression),
        _sealed_batch,
        bytes_max=2**20,
    ),
    **{
        f"records packed by {kind.name.lower()}": _unpacker(kind)
        for kind in Compression
        if kind is not Compression.NONE
    },
}
