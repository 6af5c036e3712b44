"""Frames of the wire: v2, v3, extension, the receiver, and chunks of answers."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol import extension, frames, v3
from octavo.protocol.answers import (
    Added,
    AddRefused,
    AnyAnswer,
    BatchReadAnswer,
    ReadAnswer,
    parse_answers,
)
from octavo.protocol.auth import AUTH_DISABLED, AuthMessage, decode_auth, encode_auth
from octavo.protocol.codes import Code, FrameTooLong, ProtocolError
from octavo.protocol.entry import HEADER, HEADER_BYTES, master_key
from octavo.protocol.extension import (
    Answer,
    Op,
    Request,
    bytes_of,
    decode_answer,
    decode_request,
    encode_added,
    encode_answer,
    encode_request,
    int_of,
)
from octavo.protocol.frames import (
    ADD_IDS,
    ADD_PREFIX_BYTES,
    LENGTH,
    PREFIX,
    SCRATCH_BYTES_MIN,
    BatchReadRequest,
    Flag,
    FrameReceiver,
    ReadRequest,
    add_answer,
    add_prefix,
    auth_frame,
    batch_read_answer,
    batch_read_request,
    header,
    parse_auth,
    parse_batch_read,
    parse_read,
    read_answer,
    read_request,
)
from octavo.protocol.v3_runs import Heads, take_run, varints
from octavo.protocol.v3_schema import ResponseMessage
from tests.support.kit.examples import examples
from tests.support.raw_bookie import KEY as V3_KEY
from tests.support.raw_bookie import entry_of
from tests.support.v3_frames import add_frame, framed, reordered

KEY = master_key(b"")
i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)


def test_the_bytes_of_each_frame() -> None:
    assert add_prefix(KEY, 36, Flag.RECOVERY_ADD).hex() == "0000003c02010002" + KEY.hex()
    assert read_request(1, -1).hex() == "00000014020200000000000000000001" + "ff" * 8
    assert read_request(1, 2, Flag.FENCE, KEY).hex() == (
        "000000280202000100000000000000010000000000000002" + KEY.hex()
    )
    assert add_answer(104, 1, 2).hex() == (
        "00000018020100000000006800000000000000010000000000000002"
    )
    assert read_answer(0, 1, 2, b"\xaa\xbb").hex() == (
        "0000001a020200000000000000000000000000010000000000000002aabb"
    )
    assert read_answer(1, 1, 2).hex() == (
        "00000018020200000000000100000000000000010000000000000002"
    )
    assert batch_read_request(1, 2, 3, 4, 5).hex() == (
        "0000002802070000000000000000000100000000000000020000000000000003000000040000000000000005"
    )
    assert batch_read_answer(0, 1, 2, 3, [b"\xaa", b""]).hex() == (
        "00000029020700000000000000000000000000010000000000000002000000000000000300000001aa00000000"
    )
    assert auth_frame("p", b"\xff").hex() == "0000000a020300000a01701201ff"


@given(i64, i64, st.booleans())
def test_reads_come_back(ledger: int, entry: int, fence: bool) -> None:
    flags, key = (int(Flag.FENCE), KEY) if fence else (0, b"")
    frame = memoryview(read_request(ledger, entry, flags, key))
    assert parse_read(frame) == ReadRequest(flags, ledger, entry, key)
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_read(frame[:end])


@given(i64, i64, i64, i32, i64, st.booleans())
def test_batch_reads_come_back(
    ledger: int, start: int, request: int, count: int, size: int, fence: bool
) -> None:
    flags, key = (int(Flag.FENCE), KEY) if fence else (0, b"")
    frame = memoryview(batch_read_request(ledger, start, request, count, size, flags, key))
    found = parse_batch_read(frame)
    assert found == BatchReadRequest(flags, ledger, start, request, count, size, key)
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_batch_read(frame[:end])


def test_add_ids_are_read_in_place() -> None:
    entry = (7).to_bytes(8, "big") + (8).to_bytes(8, "big") + bytes(20)
    frame = add_prefix(KEY, len(entry), Flag.CRC32C) + entry
    length, header, key, ledger, entry_id = ADD_IDS.unpack_from(frame)
    assert (length, header, key, ledger, entry_id) == (len(frame) - 4, 0x02010100, KEY, 7, 8)
    assert frame[ADD_PREFIX_BYTES:] == entry


@given(st.text(max_size=300), st.binary(max_size=300))
def test_auth_comes_back_and_no_cut_passes(plugin: str, payload: bytes) -> None:
    message = AuthMessage(plugin, payload)
    assert parse_auth(memoryview(auth_frame(plugin, payload))) == message
    packed = encode_auth(message)
    for end in range(len(packed)):
        with pytest.raises(ProtocolError):
            decode_auth(packed[:end])


def test_auth_skips_fields_it_does_not_know() -> None:
    # 3: varint, 4: fixed64, 5: bytes, 6: fixed32
    unknown = bytes.fromhex("18ff0121" + "00" * 8 + "2a02abcd35" + "00" * 4)
    packed = unknown + encode_auth(AuthMessage(AUTH_DISABLED, b"")) + unknown
    assert decode_auth(packed) == AuthMessage(AUTH_DISABLED, b"")


@pytest.mark.parametrize(
    "packed",
    ["", "0a00", "1200", "0a01ff1200", "0b00", "0aff", "0affffffffffffffffffffff01", "0a051200"],
)
def test_auth_refuses(packed: str) -> None:
    with pytest.raises(ProtocolError, match="auth message"):
        decode_auth(bytes.fromhex(packed))


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    for parse in (parse_read, parse_batch_read, parse_auth):
        try:
            parse(memoryview(data))
        except ProtocolError:
            pass


# The bounded receiver: any chunking, any frame size, and memory in step with the input.
SCRATCH = SCRATCH_BYTES_MIN
FRAME_MAX = 300_000


class Reader:
    """Uses a receiver as a connection does: feed, take the whole frames, keep the rest."""

    def __init__(self, scratch: bytearray, frame_bytes_max: int = FRAME_MAX) -> None:
        self.receiver = FrameReceiver(frame_bytes_max, scratch)
        self.frames: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """Feed at most as much of `data` as there is room for; return the amount."""
        room = self.receiver.get_buffer()
        assert len(room) > 0, "an empty buffer means end of stream to asyncio"
        count = min(len(room), len(data))
        room[:count] = data[:count]
        view = self.receiver.received(count)
        start = 0
        while len(view) - start >= 4:
            after = start + 4 + self.receiver.checked_length(LENGTH.unpack_from(view, start)[0])
            if after > len(view):
                break
            self.frames.append(bytes(view[start:after]))
            start = after
        self.receiver.keep(view, start)
        return count


def frame_of(length: int, seed: int = 0) -> bytes:
    return LENGTH.pack(length) + random.Random(seed).randbytes(length)


# Around every edge: the empty body, the scratch buffer and its half, the first large buffer.
edges = [4, 5, 24, 1000]
for middle in (SCRATCH // 2, SCRATCH, 65_536, 131_072):
    edges += [middle + delta for delta in (-9, -5, -4, -3, -1, 0, 1, 4)]
lengths = st.one_of(st.sampled_from(edges), st.integers(4, 200))


@settings(deadline=None)
@given(st.lists(lengths, max_size=12), st.data())
def test_any_chunking_gives_the_same_frames(sizes: list[int], data: st.DataObject) -> None:
    frames = [frame_of(size, number) for number, size in enumerate(sizes)]
    stream = b"".join(frames)
    reader = Reader(bytearray(SCRATCH))
    chunks = st.one_of(st.sampled_from([1, 2, 3, 5, SCRATCH - 1, SCRATCH]), st.integers(1, 70_000))
    position = 0
    while position < len(stream):
        size = data.draw(chunks) if position < 5_000 else 60_000
        chunk = stream[position : position + size]
        while chunk:
            count = reader.feed(chunk)
            position += count
            chunk = chunk[count:]
    assert reader.frames == frames


@pytest.mark.parametrize("length", [4, 100, SCRATCH // 2 - 4, SCRATCH // 2, SCRATCH, SCRATCH + 1])
def test_byte_by_byte(length: int) -> None:
    frames = [frame_of(length, 1), frame_of(7, 2), frame_of(length, 3)]
    reader = Reader(bytearray(SCRATCH))
    for byte in b"".join(frames):
        assert reader.feed(bytes((byte,))) == 1
    assert reader.frames == frames


def test_connections_share_one_scratch_buffer() -> None:
    scratch = bytearray(SCRATCH)
    readers = [Reader(scratch) for _ in range(3)]
    streams = [
        b"".join(frame_of(size, number) for size in (50, SCRATCH, 9, SCRATCH // 2 - 5))
        for number in range(3)
    ]
    chance = random.Random(7)
    positions = [0, 0, 0]
    while any(at < len(stream) for at, stream in zip(positions, streams, strict=True)):
        turn = chance.randrange(3)
        chunk = streams[turn][positions[turn] : positions[turn] + chance.randint(1, 900)]
        if chunk:
            positions[turn] += readers[turn].feed(chunk)
    for reader, stream in zip(readers, streams, strict=True):
        assert b"".join(reader.frames) == stream


def test_bytes_after_a_large_frame_are_not_lost() -> None:
    frames = [frame_of(100_000), frame_of(30)]
    reader = Reader(bytearray(SCRATCH))
    stream = b"".join(frames)
    while stream:
        stream = stream[reader.feed(stream) :]
    assert reader.frames == frames


@pytest.mark.parametrize("length", [FRAME_MAX - 3, 2**31, 2**32 - 1])
def test_a_frame_above_the_bound_is_refused_by_its_first_four_bytes(length: int) -> None:
    reader = Reader(bytearray(SCRATCH))
    reader.feed(frame_of(10) + LENGTH.pack(length)[:3])
    with pytest.raises(
        FrameTooLong, match=f"announces {length} bytes .*limit is {FRAME_MAX} with it"
    ):
        reader.feed(LENGTH.pack(length)[3:])
    assert reader.frames == [frame_of(10)]


def test_a_frame_at_the_bound_passes() -> None:
    reader = Reader(bytearray(SCRATCH))
    stream = frame_of(FRAME_MAX - 4)
    while stream:
        stream = stream[reader.feed(stream) :]
    assert reader.frames == [frame_of(FRAME_MAX - 4)]


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_frame_without_header_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="the header alone has 4"):
        Reader(bytearray(SCRATCH)).feed(LENGTH.pack(length) + bytes(length))


def test_what_is_announced_is_not_yet_allocated() -> None:
    five_megabytes = 5 * 1024 * 1024
    reader = Reader(bytearray(SCRATCH), five_megabytes)
    reader.feed(LENGTH.pack(five_megabytes - 4) + b"begun")
    sent = 9
    while sent < five_megabytes:
        room = len(reader.receiver.get_buffer())
        assert sent + room <= max(65_536, 2 * sent), "room in step with what came"
        sent += reader.feed(bytes(min(room, five_megabytes - sent)))
    assert len(reader.frames) == 1


def test_a_caller_who_leaves_a_whole_frame_is_stopped() -> None:
    receiver = FrameReceiver(FRAME_MAX, bytearray(SCRATCH))
    receiver.get_buffer()[:14] = frame_of(10)
    view = receiver.received(14)
    with pytest.raises(AssertionError, match="left unparsed"):
        receiver.keep(view, 0)


# Extension frames: round trips, refusals, and garbage raises one error type only.
values = st.recursive(
    st.none() | st.booleans() | i64 | st.binary(max_size=20) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
)
bodies = st.dictionaries(st.text(max_size=10), values, max_size=5)
ops = st.sampled_from(Op)


def frame_with(body: bytes, head: int) -> memoryview:
    return memoryview(PREFIX.pack(4 + len(body), head) + body)


@given(ops, st.integers(0, 2**63 - 1), bodies)
def test_requests_come_back(op: Op, request_id: int, body: dict[str, object]) -> None:
    frame = encode_request(op, request_id, body)
    assert LENGTH.unpack_from(frame)[0] == len(frame) - 4
    assert decode_request(memoryview(frame)) == Request(op, request_id, body)
    with pytest.raises(ProtocolError, match="does not begin an extension answer"):
        decode_answer(memoryview(frame))


@given(ops, st.integers(0, 2**63 - 1), st.sampled_from(Code), bodies)
def test_answers_come_back(op: Op, request_id: int, code: Code, body: dict[str, object]) -> None:
    frame = encode_answer(op, request_id, code, body)
    assert LENGTH.unpack_from(frame)[0] == len(frame) - 4
    assert decode_answer(memoryview(frame)) == Answer(op, request_id, code, body)
    with pytest.raises(ProtocolError, match="does not begin an extension request"):
        decode_request(memoryview(frame))


def test_the_version_byte_is_ours_alone() -> None:
    frame = encode_request(Op.NODE_INFO, 1, {})
    assert frame[4] == 0x4F
    assert frame[4] not in (0x02, 0x0A), "BookKeeper v2, and the first byte of a v3 request"


def test_every_cut_and_every_surplus_is_refused() -> None:
    frame = memoryview(encode_request(Op.WAIT_LAC, 300, {"ledger": 70_000, "after": -1}))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:end])
    with pytest.raises(ProtocolError):
        decode_request(memoryview(bytes(frame) + b"\0"))


def test_keys_of_tomorrow_are_kept_and_missing_ones_have_defaults() -> None:
    found = decode_request(memoryview(encode_request(Op.READ_LAC, 1, {"hue": "red"})))
    assert found.body == {"hue": "red"}
    assert int_of(found.body, "ledger", -1) == -1
    assert bytes_of(found.body, "key", b"") == b""


@pytest.mark.parametrize("wrong", [None, "7", 7.0, True, 2**63, -(2**63) - 1, [7]])
def test_int_of_refuses(wrong: object) -> None:
    with pytest.raises(ProtocolError, match="'ledger' wants a 64-bit integer"):
        int_of({"ledger": wrong}, "ledger")


@pytest.mark.parametrize("wrong", [None, "text", 7])
def test_bytes_of_refuses(wrong: object) -> None:
    with pytest.raises(ProtocolError, match="'key' wants bytes"):
        bytes_of({"key": wrong}, "key")


@pytest.mark.parametrize(
    "body", [7, [], [1], [1, 2], ["1", {}], [True, {}], [1, {}, {}], {"a": 1}, None]
)
def test_bodies_of_another_shape_are_refused(body: object) -> None:
    head = header(Op.FORCE, 0, extension.VERSION)
    with pytest.raises(ProtocolError):
        decode_request(frame_with(msgpack.packb(body), head))


def test_unknown_operations_and_codes_are_refused() -> None:
    body = msgpack.packb([1, {}])
    with pytest.raises(ProtocolError, match="unknown operation 99"):
        decode_request(frame_with(body, header(99, 0, extension.VERSION)))
    body = msgpack.packb([1, 999, {}])
    head = header(Op.FORCE, extension.ANSWER, extension.VERSION)
    with pytest.raises(ProtocolError, match="999"):
        decode_answer(frame_with(body, head))


def test_announced_sizes_reserve_nothing() -> None:
    """32 arrays of two thousand million elements each, in 160 bytes."""
    head = header(Op.FORCE, 0, extension.VERSION)
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode_request(frame_with(bytes.fromhex("dd7fffffff") * 32, head))
    with pytest.raises(ProtocolError, match="not msgpack"):
        decode_request(frame_with(b"\x91" * 5_000, head))


@given(st.binary(max_size=100), ops, st.sampled_from([0, extension.ANSWER]))
def test_arbitrary_bodies_raise_nothing_but_protocol_errors(
    body: bytes, op: Op, direction: int
) -> None:
    frame = frame_with(body, header(op, direction, extension.VERSION))
    for decode in (decode_request, decode_answer):
        try:
            decode(frame)
        except ProtocolError:
            pass


def test_added() -> None:
    found = decode_answer(memoryview(encode_added(7, 10, 19)))
    assert found == Answer(Op.ADDED, 0, Code.OK, {"ledger": 7, "first": 10, "last": 19})


# Chunks of answers: runs are joined exactly, in order; garbage raises one error type only.
LIMIT = 5 * 1024 * 1024
few = st.integers(0, 3)
adds = st.tuples(st.sampled_from([0, 0, 0, 0, 104]), st.integers(1, 2), st.integers(-2, 6))


def parse(data: bytes) -> list[AnyAnswer]:
    found, end = parse_answers(memoryview(data), LIMIT)
    assert end == len(data)
    return found


def spelt_out(answers: list[AnyAnswer]) -> list[tuple[int, int, int]]:
    out = []
    for answer in answers:
        if isinstance(answer, Added):
            assert answer.first <= answer.last
            out += [(0, answer.ledger_id, at) for at in range(answer.first, answer.last + 1)]
        else:
            assert isinstance(answer, AddRefused)
            out.append((answer[0], answer[1], answer[2]))
    return out


def test_consecutive_adds_become_one_run() -> None:
    data = b"".join(frames.add_answer(0, 7, entry) for entry in range(1000))
    assert parse(data) == [Added(7, 0, 999)]


def test_a_run_ends_at_a_gap_another_ledger_and_a_refusal() -> None:
    told = [(0, 7, 1), (0, 7, 2), (0, 7, 4), (0, 8, 5), (104, 8, 6), (0, 8, 7), (0, 8, 8)]
    data = b"".join(frames.add_answer(*one) for one in told)
    assert parse(data) == [
        Added(7, 1, 2),
        Added(7, 4, 4),
        Added(8, 5, 5),
        AddRefused(104, 8, 6),
        Added(8, 7, 8),
    ]


@given(st.lists(adds, max_size=40))
def test_runs_say_neither_more_nor_less(told: list[tuple[int, int, int]]) -> None:
    data = b"".join(frames.add_answer(*one) for one in told)
    assert spelt_out(parse(data)) == told


@given(st.lists(adds, max_size=20), st.integers(1, 90))
def test_any_chunking_says_the_same(told: list[tuple[int, int, int]], step: int) -> None:
    stream = b"".join(frames.add_answer(*one) for one in told)
    stream += frames.read_answer(0, 1, 2, b"entry") + extension.encode_added(9, 3, 5)
    found: list[AnyAnswer] = []
    rest = b""
    for position in range(0, len(stream), step):
        rest += stream[position : position + step]
        some, end = parse_answers(memoryview(rest), LIMIT)
        found += some
        rest = rest[end:]
    assert rest == b""
    assert found[-2:] == [ReadAnswer(0, 1, 2, b"entry"), Added(9, 3, 5)]
    assert spelt_out(found[:-2]) == told


def test_one_of_each_kind_in_order() -> None:
    data = b"".join(
        (
            frames.add_answer(0, 1, 0),
            frames.read_answer(2, 1, -1),
            frames.add_answer(0, 1, 1),
            frames.batch_read_answer(0, 1, 5, 77, [b"one", b"", b"two"]),
            frames.auth_frame("AuthDisabledPlugin"),
            extension.encode_answer(extension.Op.FORCE, 8, Code.IO, {}),
            extension.encode_added(1, 2, 4),
        )
    )
    assert parse(data) == [
        Added(1, 0, 0),
        ReadAnswer(2, 1, -1, b""),
        Added(1, 1, 1),
        BatchReadAnswer(0, 1, 5, 77, [b"one", b"", b"two"]),
        AuthMessage("AuthDisabledPlugin", b""),
        extension.Answer(extension.Op.FORCE, 8, Code.IO, {}),
        Added(1, 2, 4),
    ]


def test_copies_outlive_the_buffer() -> None:
    buffer = bytearray(frames.read_answer(0, 1, 2, b"entry"))
    found, _ = parse_answers(memoryview(buffer), LIMIT)
    buffer[:] = bytes(len(buffer))
    assert found == [ReadAnswer(0, 1, 2, b"entry")]


@pytest.mark.parametrize(
    "broken",
    [
        frames.PREFIX.pack(25, frames.ADD_HEADER) + bytes(21),
        frames.PREFIX.pack(23, frames.ADD_HEADER) + bytes(19),
        frames.PREFIX.pack(23, frames.READ_HEADER) + bytes(19),
        frames.PREFIX.pack(31, frames.BATCH_READ_HEADER) + bytes(27),
        frames.PREFIX.pack(34, frames.BATCH_READ_HEADER) + bytes(30),
        frames.PREFIX.pack(36, frames.BATCH_READ_HEADER) + bytes(31) + b"\1",
        frames.PREFIX.pack(4, 0x02050000),
        frames.PREFIX.pack(4, 0x03010000),
        frames.LENGTH.pack(3) + bytes(3),
        extension.encode_added(1, 5, 4),
        extension.encode_added(1, -1, 4),
        extension.encode_answer(extension.Op.ADDED, 0, Code.OK, {"ledger": 1, "first": 0}),
        extension.encode_request(extension.Op.FORCE, 1, {}),
    ],
)
def test_broken_answers_are_refused(broken: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(broken)
    with pytest.raises(ProtocolError):
        parse(frames.add_answer(0, 1, 2) + broken)


def test_a_frame_above_the_bound_is_refused_before_it_is_there() -> None:
    with pytest.raises(FrameTooLong):
        parse_answers(memoryview(frames.LENGTH.pack(997)), 1000)
    with pytest.raises(FrameTooLong):
        parse_answers(memoryview(frames.read_answer(0, 1, 2, bytes(1000))), 1000)


@given(st.binary(max_size=200), st.sampled_from([0x01, 0x02, 0x03, 0x07, 0x4F]))
def test_arbitrary_answers_raise_nothing_but_protocol_errors(data: bytes, op: int) -> None:
    headed = frames.PREFIX.pack(4 + len(data), 0x02000000 | op << 16) + data
    ours = frames.PREFIX.pack(4 + len(data), 0x4F078000) + data
    for stream in (data, headed, ours):
        try:
            found, end = parse_answers(memoryview(stream), LIMIT)
        except ProtocolError:
            continue
        assert 0 <= end <= len(stream)
        assert found or end == 0


# Adds parsed in bulk equal the single parser's reading of each v3 frame.
def taken(data: bytes) -> list[tuple[Any, ...]] | None:
    """Return (head, flags, ledger, entry, key, bytes) of the first run, or None."""
    view = memoryview(data)
    run = take_run(view, 0, LENGTH.size + LENGTH.unpack_from(data)[0])
    if run is None:
        return None
    found = []
    for index, entry in enumerate(run.entries):
        header = ResponseMessage().header
        header.MergeFromString(head_of(run.heads, index, len(run.entries)))
        head = v3.head_of(header.version, header.operation, header.txnId)
        ids = (run.ledger_id, run.first_entry + index)
        found.append((head, run.flags, *ids, run.key, bytes(entry)))
    assert sum(map(len, frames_of(data[: run.end]))) == run.end
    assert len(frames_of(data[: run.end])) == len(found)
    return found


def head_of(heads: Heads | bytes, index: int, adds: int) -> bytes:
    if isinstance(heads, bytes):
        assert adds == 1
        return heads
    assert heads.adds == adds
    at = index * heads.txn_bytes
    return b"\x08\x03\x10\x02\x18" + heads.txns[at : at + heads.txn_bytes]


def frames_of(data: bytes) -> list[bytes]:
    frames, position = [], 0
    while position < len(data):
        end = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
        frames.append(data[position:end])
        position = end
    return frames


def judged(frames: Iterable[bytes]) -> list[tuple[Any, ...]]:
    found = []
    for frame in frames:
        add = v3.parse_request(memoryview(frame))
        assert isinstance(add, v3.Add)
        found.append((add.head, add.flags, *add[2:5], bytes(add.entry)))
    return found


def test_a_long_run_is_taken_whole() -> None:
    frames = [add_frame(7, entry, txn=entry + 300) for entry in range(200, 1200)]
    found = taken(b"".join(frames))
    assert found == judged(frames)


@pytest.mark.parametrize("first", [0, 100, 127, 128, 16_300, 2_097_100, 2**40])
def test_where_numbers_become_longer_a_run_ends(first: int) -> None:
    frames = [add_frame(7, entry, txn=entry) for entry in range(first, first + 100)]
    data = b"".join(frames)
    everything: list[tuple[Any, ...]] = []
    while data:
        found = taken(data)
        assert found
        everything += found
        data = data[sum(map(len, frames[: len(found)])) :]
        frames = frames[len(found) :]
    assert len(everything) == 100
    assert [one[3] for one in everything] == list(range(first, first + 100))


@pytest.mark.parametrize("seed", range(30))
def test_a_run_ends_where_one_differs(seed: int) -> None:
    """Each frame is read as the single parser does, or not at all."""
    rng = random.Random(seed)
    frames = [
        reordered(add_frame(7, entry, txn=entry, priority=seed % 2, recovery=seed % 3 == 0))
        for entry in range(1000, 1080)
    ]
    for _ in range(300):
        changed = list(frames)
        which = rng.randrange(len(changed))
        frame = bytearray(changed[which])
        place = rng.randrange(4, 120)
        frame[place % len(frame)] ^= 1 << rng.randrange(8)
        changed[which] = bytes(frame)
        found = taken(b"".join(changed))
        if found is None:
            assert which == 0
            continue
        assert found == judged(changed[: len(found)])


@settings(max_examples=examples(300))
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**33),
    st.sampled_from([None, 0, 1, 2, 2**31]),
    st.sampled_from([None, 0, 1, 77]),
    st.booleans(),
)
def test_one_add_is_read_as_the_judge_reads_it(
    ledger: int,
    entry: int,
    txn: int,
    priority: int,
    flag: int | None,
    write_flags: int | None,
    first: bool,
) -> None:
    frame = add_frame(
        ledger,
        entry,
        txn=txn,
        body=HEADER.pack(ledger, entry, -1, 0) + b"digest and payload",
        priority=priority % 2**32,
        flag=flag,
        write_flags=write_flags,
    )
    if first:
        frame = reordered(frame)
    found = taken(frame)
    if found is not None:
        assert found == judged([frame])


def test_what_is_unusual_is_left_to_the_judge() -> None:
    usual = add_frame(7, 5)
    assert taken(usual) is not None
    unusual = {
        "another ledger in the entry": add_frame(7, 5, body=entry_of(8, 5)),
        "another entry in it": add_frame(7, 5, body=entry_of(7, 6)),
        "a claim to be confirmed": add_frame(7, 5, body=entry_of(7, 5, lac=5)),
        "a short key": add_frame(7, 5, key=b"k"),
        "a short body": add_frame(7, 5, body=bytes(HEADER_BYTES - 1)),
        "bytes behind": framed(usual[4:] + b"\x00"),
        "a field of another number behind": framed(usual[4:] + b"\xc2\x0c\x00"),
    }
    for what, frame in unusual.items():
        assert taken(frame) is None, what


@pytest.mark.parametrize("code", list(Code))
def test_answers_to_a_run_are_those_to_each(code: Code) -> None:
    frames = [add_frame(7, entry, txn=entry * 3, priority=100) for entry in range(200, 300)]
    run = take_run(memoryview(b"".join(frames)), 0, len(frames[0]))
    assert run is not None
    assert isinstance(run.heads, Heads)
    answers = frames_of(run.heads.answers(code, run.ledger_id, run.first_entry))
    assert len(answers) == run.heads.adds == 100
    for entry, answer in enumerate(answers, 200):
        message = ResponseMessage.FromString(answer[4:])
        assert message.header.txnId == entry * 3
        assert message.status == message.addResponse.status == v3.STATUS[code]
        assert (message.addResponse.ledgerId, message.addResponse.entryId) == (7, entry)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 128), (128, 16256), (16384, 9), (2**21, 40_000), (2**35 + 16380, 70)]
)
def test_varints_of_consecutive_numbers(first: int, count: int) -> None:
    assert varints(first, count) == b"".join(map(v3.varint, range(first, first + count)))


def test_recovery_may_claim_more() -> None:
    frame = reordered(add_frame(7, 5, body=entry_of(7, 5, lac=9), recovery=True))
    found = taken(frame)
    assert found is not None
    assert found[0][1] == Flag.RECOVERY_ADD
    assert found[0][4] == V3_KEY
