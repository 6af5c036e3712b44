"""A bookie's connection: frames in any chunks, joined adds and answers, and what is given back."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.adds import AddBatch, Adds, split_adds
from octavo.bookie.back_pressure import AddPressure, Budget, Flow, FrameRoom, Turns
from octavo.bookie.config import BookieConfig
from octavo.bookie.ledgers.control import LacWatches
from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.wire.connection import Answers, Connection, add_answers
from octavo.bookie.wire.in_flight import InFlight
from octavo.bookie.wire.read_scheduler import ReadScheduler
from octavo.bookie.wire.v3_adds import Gathering
from octavo.bookie.write.cache import WriteCache
from octavo.ledger.bookies.connection import BookieConnection
from octavo.protocol import v3
from octavo.protocol.answers import Added, AddRefused, ReadAnswer, parse_answers
from octavo.protocol.codes import Code, FrameTooLong, ProtocolError
from octavo.protocol.entry import DigestType, digest_for, pack_entry
from octavo.protocol.frames import (
    ADD_PREFIX_BYTES,
    ANSWER,
    ANSWER_BYTES,
    LENGTH,
    Flag,
    Op,
    ReadRequest,
    add_answer,
    add_prefix,
    header,
    read_answer,
    read_request,
)
from octavo.protocol.v3_schema import ResponseMessage
from tests.support.kit.quiescence import in_use
from tests.support.raw_bookie import KEY, add_of, entry_of
from tests.support.v3_frames import add_frame, read_frame

METRICS = BookieMetrics()
CONFIG = BookieConfig(journal_directories=("/j",), ledger_directories=("/l",), scratch_bytes=4096)


class RecordingTransport:
    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def writelines(self, frames: Sequence[bytes]) -> None:
        self.written += b"".join(frames)

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class InstantStorage:
    def __init__(self) -> None:
        self.entries: list[tuple[int, int, bytes]] = []
        self.pressure = AddPressure(WriteCache(1), 1, 1)

    def add(
        self,
        runs: Sequence[AddBatch],
        done: Callable[[Sequence[tuple[AddBatch, Code]]], None],
        lane: int,
        *,
        deferred: bool,
    ) -> None:
        for run in runs:
            ends = [*run.offsets[1:], len(run.frames)]
            for index, (start, end) in enumerate(zip(run.offsets, ends, strict=True)):
                entry = run.frames[start + 28 : end]
                self.entries.append((run.ledger_id, run.first_entry + index, entry))
        done([(run, Code.OK) for run in runs])


class NoEntries:
    def now(self, request: ReadRequest | v3.Read, since: float) -> bytes:
        ids = (Code.NO_ENTRY, request.ledger_id, request.entry_id)
        if isinstance(request, v3.Read):
            return v3.read_answer(request.head, *ids)
        return read_answer(*ids)

    def refusal(self, request: ReadRequest, cause: str) -> bytes:
        raise AssertionError(f"too many {cause} are under way")


async def serve(stream: bytes, cuts: list[int]) -> tuple[InstantStorage, bytes]:
    """Return what is stored and answered when `stream` comes in chunks of these sizes."""
    storage = InstantStorage()
    answers = Budget(CONFIG.answer_bytes_max)
    server: Any = SimpleNamespace(
        config=CONFIG,
        metrics=METRICS,
        storage=storage,
        requests=NoEntries(),
        v3_calls=None,
        refusals=None,
        guard=None,
        scratch=bytearray(CONFIG.scratch_bytes),
        read_only=False,
        takes_recovery_adds=True,
        answers=answers,
        reads=ReadScheduler(answers, waiting_max=9999, tasks_max=9999, wait_ms_max=9999),
        frames=FrameRoom(CONFIG.receive_bytes_max),
        turns=Turns(),
        next_lane=lambda: 1,
        admit=lambda connection, transport: True,
        forget=lambda connection: None,
    )
    connection = Connection(server)
    transport: Any = RecordingTransport()
    connection.connection_made(transport)
    position = turn = 0
    while position < len(stream):
        room = connection.get_buffer(-1)
        count = min(cuts[turn % len(cuts)], len(room), len(stream) - position)
        room[:count] = stream[position : position + count]
        connection.buffer_updated(count)
        position += count
        turn += 1
    assert not transport.is_closed
    while connection.busy:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return storage, transport.written


REQUESTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0, 30, 30, 30, 1900, 9000])),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=12,
)


@given(REQUESTS, st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_cutting_the_stream_changes_nothing(
    requests: list[tuple[str, int]], cuts: list[int]
) -> None:
    stream = b""
    stored: list[tuple[int, int, bytes]] = []
    reads = 0
    for kind, size in requests:
        if kind == "read":
            stream += read_request(9, 1)
            reads += 1
        else:
            payload = b"x" * size
            stream += add_of(1, len(stored), payload)
            stored.append((1, len(stored), entry_of(1, len(stored), payload)))
    storage, written = asyncio.run(serve(stream, cuts))
    answers = parse_answers(memoryview(written), 10_000)[0]
    assert storage.entries == stored
    acked: list[int] = []
    for answer in answers:
        if isinstance(answer, Added):
            acked += range(answer.first, answer.last + 1)
        else:
            assert answer == ReadAnswer(Code.NO_ENTRY, 9, 1, b"")
            reads -= 1
    assert acked == list(range(len(stored)))
    assert reads == 0


@given(REQUESTS, st.lists(st.integers(1, 5000), min_size=1, max_size=5), st.booleans())
def test_nor_does_it_in_v3_and_where_v2_begins(
    requests: list[tuple[str, int]], cuts: list[int], ends_in_v2: bool
) -> None:
    stream = b""
    stored: list[tuple[int, int, bytes]] = []
    wanted: dict[int, tuple[int, int, int]] = {}
    for txn, (kind, size) in enumerate(requests):
        if kind == "read":
            stream += read_frame(9, 1, txn=txn)
            wanted[txn] = (v3.STATUS[Code.NO_ENTRY], 9, 1)
            continue
        for _ in range(20 if size == 30 else 1):
            entry_id = len(stored)
            entry = entry_of(1, entry_id, b"x" * size)
            stored.append((1, entry_id, entry))
            number = 1000 + entry_id
            stream += add_frame(1, entry_id, txn=number, body=entry)
            wanted[number] = (0, 1, entry_id)
    if ends_in_v2:
        stored.append((5, 0, entry_of(5, 0)))
        stream += add_of(5, 0)
    storage, written = asyncio.run(serve(stream, cuts))
    assert storage.entries == stored
    found: dict[int, tuple[int, int, int]] = {}
    in_v2 = b""
    while written:
        end = 4 + int.from_bytes(written[:4])
        if written[4] != 0x0A:
            in_v2, written = in_v2 + written[:end], written[end:]
            continue
        message = ResponseMessage.FromString(written[4:end])
        is_add = message.HasField("addResponse")
        body = message.addResponse if is_add else message.readResponse
        assert message.header.txnId not in found
        found[message.header.txnId] = (message.status, body.ledgerId, body.entryId)
        written = written[end:]
    assert found == wanted
    answers = parse_answers(memoryview(in_v2), 10_000)[0]
    assert answers == ([Added(5, 0, 0)] if ends_in_v2 else [])


# `split_adds` against a reference that looks at one frame at a time.
FRAME_BYTES_MAX = 100_000
CRC32C = digest_for(DigestType.CRC32C, b"")
KEYS = (b"a" * 20, b"b" * 20)


class Add(NamedTuple):
    ledger_id: int
    entry_id: int
    key: bytes
    flags: int
    payload: bytes
    damaged: bool

    def frame(self) -> bytes:
        entry = bytearray(
            pack_entry(CRC32C, self.ledger_id, self.entry_id, self.entry_id - 1, 7, self.payload)
        )
        if self.damaged:
            entry[-1] ^= 0x10
        return add_prefix(self.key, len(entry), self.flags) + bytes(entry)

    @property
    def is_stored(self) -> bool:
        damage_shows = self.damaged and self.flags & Flag.CRC32C
        return not damage_shows and self.ledger_id >= 0 and self.entry_id >= 0


def entries_of(adds: Adds) -> list[tuple[int, int, int, bytes, bool, bytes]]:
    found = []
    for flags, run in adds.batches:
        ends = [*run.offsets[1:], len(run.frames)]
        for index, (start, end) in enumerate(zip(run.offsets, ends, strict=True)):
            entry_id = run.first_entry + index
            frame = run.frames[start:end]
            found.append((flags, run.ledger_id, entry_id, run.key, run.recovery, frame))
    return found


def expected_of(adds: list[Add]) -> list[tuple[int, int, int, bytes, bool, bytes]]:
    return [
        (
            add.flags,
            add.ledger_id,
            add.entry_id,
            add.key,
            bool(add.flags & Flag.RECOVERY_ADD),
            add.frame(),
        )
        for add in adds
        if add.is_stored
    ]


FLAGS = st.sampled_from(
    [0, int(Flag.CRC32C), int(Flag.CRC32C | Flag.RANGE_ACK), int(Flag.RECOVERY_ADD)]
)


@st.composite
def add_lists(draw: st.DrawFn) -> list[Add]:
    adds: list[Add] = []
    for _ in range(draw(st.integers(0, 4))):
        ledger_id = draw(st.sampled_from([1, 2, -5]))
        entry_id = draw(st.sampled_from([0, 5, 255, 65535, -1]))
        key = draw(st.sampled_from(KEYS))
        flags = draw(FLAGS)
        sizes = draw(st.lists(st.sampled_from([0, 10, 10, 300]), min_size=1, max_size=8))
        for index, size in enumerate(sizes):
            damaged = draw(st.integers(0, 9)) == 0
            adds.append(
                Add(ledger_id, entry_id + index, key, flags, bytes(range(size % 256)), damaged)
            )
    return adds


@given(add_lists(), st.integers(0, 80))
def test_finds_what_one_at_a_time_finds(adds: list[Add], cut: int) -> None:
    stream = b"".join(add.frame() for add in adds)
    found = split_adds(memoryview(stream), 0, FRAME_BYTES_MAX)
    assert entries_of(found) == expected_of(adds)
    assert found.end == len(stream)
    assert [(r.ledger_id, r.entry_id) for r in found.refused] == [
        (add.ledger_id, add.entry_id) for add in adds if not add.is_stored
    ]
    if adds:
        last = len(adds[-1].frame())
        short = stream[: len(stream) - 1 - cut % last]
        found = split_adds(memoryview(short), 0, FRAME_BYTES_MAX)
        assert found.end == len(stream) - last
        assert entries_of(found) == expected_of(adds[:-1])


def test_a_uniform_chunk_is_one_run_with_a_range_of_offsets() -> None:
    adds = [Add(9, i, KEYS[0], int(Flag.CRC32C), b"x" * 100, False) for i in range(65_500, 65_600)]
    found = split_adds(memoryview(b"".join(add.frame() for add in adds)), 0, FRAME_BYTES_MAX)
    [(_, run)] = found.batches
    assert (run.first_entry, run.count) == (65_500, 100)
    assert isinstance(run.offsets, range)


def test_neighbours_of_a_damaged_entry_are_kept() -> None:
    adds = [Add(9, i, KEYS[0], int(Flag.CRC32C), b"x" * 100, i in (3, 4, 9)) for i in range(10)]
    found = split_adds(memoryview(b"".join(add.frame() for add in adds)), 0, FRAME_BYTES_MAX)
    assert [(run.first_entry, run.count) for _, run in found.batches] == [(0, 3), (5, 4)]
    assert [r.entry_id for r in found.refused] == [3, 4, 9]


def test_an_entry_too_short_for_its_digest_is_damaged() -> None:
    entry = struct.pack(">qqqq", 1, 0, -1, 0)
    frame = add_prefix(KEYS[0], len(entry), Flag.CRC32C) + entry
    found = split_adds(memoryview(frame), 0, FRAME_BYTES_MAX)
    assert [r.entry_id for r in found.refused] == [0]
    # Under another digest type the same bytes are an entry: DUMMY has no digest.
    bare = add_prefix(KEYS[0], len(entry), 0) + entry
    assert split_adds(memoryview(bare), 0, FRAME_BYTES_MAX).batches[0][1].count == 1


def test_stops_at_what_is_not_an_add() -> None:
    add = Add(1, 0, KEYS[0], 0, b"abc" * 30, False).frame()
    stream = add + read_request(1, 0) + add
    found = split_adds(memoryview(stream), 0, FRAME_BYTES_MAX)
    assert found.end == len(add)
    assert split_adds(memoryview(stream), len(add) + 24, FRAME_BYTES_MAX).end == len(stream)


def test_bounds() -> None:
    add = Add(1, 0, KEYS[0], 0, b"x" * 500, False).frame()
    with pytest.raises(FrameTooLong, match="the limit is 200"):
        split_adds(memoryview(add), 0, 200)
    short = struct.pack(">I", 30) + add[4:]
    with pytest.raises(ProtocolError, match="30 bytes"):
        split_adds(memoryview(short), 0, FRAME_BYTES_MAX)


@given(st.binary(max_size=300), st.integers(0, 3), st.data())
def test_only_protocol_errors_leave_it(noise: bytes, adds: int, data: st.DataObject) -> None:
    frames = bytearray(
        b"".join(
            Add(1, i, KEYS[0], int(Flag.CRC32C), b"x" * 40, False).frame() for i in range(adds)
        )
    )
    for _ in range(data.draw(st.integers(0, 3)) if frames else 0):
        frames[data.draw(st.integers(0, len(frames) - 1))] ^= data.draw(st.integers(1, 255))
    stream = memoryview(bytes(frames) + noise)
    try:
        found = split_adds(stream, 0, FRAME_BYTES_MAX)
    except ProtocolError:
        return
    assert 0 <= found.end <= len(stream)
    assert sum(len(run.frames) for _, run in found.batches) <= found.end


# Answers to adds: the same bytes as singly, joined into ranges where allowed.
@pytest.mark.parametrize("count", [1, 2, 3, 1000])
@pytest.mark.parametrize("first", [0, 250, 65_535, 2**40 - 3])
def test_the_same_bytes_as_one_at_a_time(first: int, count: int) -> None:
    expected = b"".join(add_answer(Code.FENCED, 7, first + i) for i in range(count))
    assert add_answers(Code.FENCED, 7, first, count) == expected


def test_unbroken_ranges_are_joined() -> None:
    answers = Answers()
    for ledger_id, first, last in [(1, 0, 9), (1, 10, 19), (1, 21, 21), (2, 22, 30), (1, 22, 22)]:
        answers.acked_range(ledger_id, first, last)
    found, _ = parse_answers(memoryview(b"".join(answers.take())), 1000)
    assert found == [Added(1, 0, 19), Added(1, 21, 21), Added(2, 22, 30), Added(1, 22, 22)]
    assert answers.take() == []


# Every place that joins adds or their answers: after a match, each field of the key is varied
OTHER_KEY = b"k" * 20
JOINED_BYTES_MAX = 1 << 20
ADD_FLAGS = (
    0,
    int(Flag.RECOVERY_ADD),
    int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY),
    int(Flag.HIGH_PRIORITY),
    int(Flag.DEFERRED_SYNC),
    int(Flag.RANGE_ACK),
    int(Flag.CRC32C),
)


class Sent(NamedTuple):
    """An add: its bytes, and the fields that decide whether it may be stored with its neighbour."""

    flags: int
    ledger_id: int
    entry_id: int
    key: bytes
    payload: bytes


def adds(*, seed: int, flags: tuple[int, ...]) -> list[Sent]:
    """Draw three joinable adds, then one that differs in one field, then more at random."""
    rng = random.Random(seed)
    kind = rng.choice(flags)
    found = [Sent(kind, 7, entry, KEY, b"payload") for entry in (4, 5, 6)]
    hit = Sent(kind, 7, 7, KEY, b"payload")
    found.append(
        rng.choice(
            (
                hit._replace(flags=rng.choice([one for one in flags if one != kind])),
                hit._replace(ledger_id=8),
                hit._replace(entry_id=rng.choice((6, 8, 5, 0))),
                hit._replace(key=OTHER_KEY),
                hit._replace(payload=b"longer than before"),
            )
        )
    )
    for _ in range(rng.randrange(12)):
        before = found[-1]
        changed = before._replace(entry_id=before.entry_id + 1)
        if rng.random() < 0.4:
            field = rng.choice(("flags", "ledger_id", "key", "payload"))
            values: dict[str, Any] = {
                "flags": rng.choice(flags), "ledger_id": rng.choice((7, 8)),
                "key": rng.choice((KEY, OTHER_KEY)), "payload": rng.choice((b"p", b"qq")),
            }  # fmt: skip
            changed = changed._replace(**{field: values[field]})
        found.append(changed)
    return found


def stored(flags: int, batch: AddBatch) -> list[Sent]:
    """Return a batch's adds with the batch's flags and key, as the bookie treats them."""
    assert batch.recovery == bool(flags & Flag.RECOVERY_ADD)
    ends = [*batch.offsets[1:], len(batch.frames)]
    found = []
    for index, (start, end) in enumerate(zip(batch.offsets, ends, strict=True)):
        frame = batch.frames[start:end]
        own = add_of(
            batch.ledger_id, batch.first_entry + index, payload_of(frame), flags=flags,
            key=batch.key,
        )  # fmt: skip
        assert frame == own, "the journal gets what was sent"
        entry_id = batch.first_entry + index
        found.append(Sent(flags, batch.ledger_id, entry_id, batch.key, payload_of(frame)))
    return found


def payload_of(frame: bytes) -> bytes:
    front = len(add_of(1, 1, b""))
    assert front > ADD_PREFIX_BYTES
    return frame[front:]


def test_the_choices_differ_where_the_bookie_looks() -> None:
    assert len(set(ADD_FLAGS)) == len(ADD_FLAGS)
    assert {seed_field(seed) for seed in range(200)} == {0, 1, 2, 3, 4}


def seed_field(seed: int) -> int:
    found = adds(seed=seed, flags=ADD_FLAGS)
    wanted = found[2]._replace(entry_id=7)
    (index,) = [n for n, (a, b) in enumerate(zip(found[3], wanted, strict=True)) if a != b]
    return index


@pytest.mark.parametrize("seed", range(200))
def test_v2_adds(seed: int) -> None:
    sent = adds(seed=seed, flags=ADD_FLAGS)
    data = b"".join(
        add_of(one.ledger_id, one.entry_id, one.payload, flags=one.flags, key=one.key)
        for one in sent
    )
    found = split_adds(memoryview(data), 0, JOINED_BYTES_MAX)
    assert (found.end, found.refused) == (len(data), [])
    assert [one for flags, batch in found.batches for one in stored(flags, batch)] == sent


V3_KINDS = tuple(itertools.product((False, True), (0, 100), (None, 1)))
"""Recovery add, priority, deferred sync."""


def flags_of(recovery: bool, priority: int, wishes: int | None) -> int:
    """Return the v2 flags that the bookie derives from such a v3 add."""
    add = v3.parse_request(
        memoryview(add_frame(7, 4, recovery=recovery, priority=priority, write_flags=wishes))
    )
    assert isinstance(add, v3.Add)
    return add.flags


V3_FLAGS = {flags_of(*kind): kind for kind in V3_KINDS}


def in_v3(one: Sent, txn: int) -> bytes:
    recovery, priority, wishes = V3_FLAGS[one.flags]
    body = add_of(one.ledger_id, one.entry_id, one.payload)[ADD_PREFIX_BYTES:]
    return add_frame(
        one.ledger_id, one.entry_id, txn=txn, body=body, recovery=recovery, priority=priority,
        write_flags=wishes, key=one.key,
    )  # fmt: skip


@pytest.mark.parametrize("by_runs", [True, False])
@pytest.mark.parametrize("seed", range(200))
def test_v3_adds(seed: int, by_runs: bool) -> None:
    assert len(V3_FLAGS) > 1
    sent = adds(seed=seed, flags=tuple(V3_FLAGS))
    data = memoryview(b"".join(in_v3(one, txn) for txn, one in enumerate(sent, 1)))
    gathering, at = Gathering(), 0
    while at < len(data):
        following = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
        end = gathering.take(data, at, following) if by_runs else at
        if end == at:
            add = v3.parse_request(data[at:following])
            assert isinstance(add, v3.Add)
            gathering.add(add)
            end = following
        at = end
    assert gathering.refused == []
    found = gathering.batches()
    assert [one for each in found for one in stored(each.flags, each.batch)] == sent


@pytest.mark.parametrize("seed", range(100))
def test_ranges_of_acks(seed: int) -> None:
    """The acks that a bookie joins into one `ADDED`; a client joins v2 answers."""
    rng = random.Random(seed)
    acked, entry_id = [], 0
    answers = Answers()
    for _ in range(rng.randint(1, 20)):
        ledger_id = rng.choice((1, 1, 1, 2))
        entry_id += rng.choice((1, 1, 1, 0, 2, -3))
        entry_id = max(0, entry_id)
        last = entry_id + rng.choice((0, 0, 3))
        answers.acked_range(ledger_id, entry_id, last)
        acked += [(ledger_id, one) for one in range(entry_id, last + 1)]
        entry_id = last
    parsed, _ = parse_answers(memoryview(b"".join(answers.take())), JOINED_BYTES_MAX)
    assert [
        (one.ledger_id, entry)
        for one in parsed
        if isinstance(one, Added)
        for entry in range(one.first, one.last + 1)
    ] == acked


@pytest.mark.parametrize("seed", range(100))
def test_answers_to_v2_adds(seed: int) -> None:
    rng = random.Random(seed)
    sent, frames, entry_id = [], [], 0
    for _ in range(rng.randint(1, 20)):
        entry_id = max(0, entry_id + rng.choice((1, 1, 1, 1, 0, 2, -3)))
        code, ledger_id = rng.choice((Code.OK, Code.OK, Code.FENCED)), rng.choice((1, 1, 1, 2))
        sent.append((code, ledger_id, entry_id))
        about = header(Op.ADD, 0, 2)
        frames.append(ANSWER.pack(ANSWER_BYTES - LENGTH.size, about, code, ledger_id, entry_id))
    parsed, _ = parse_answers(memoryview(b"".join(frames)), JOINED_BYTES_MAX)
    found: list[tuple[int, int, int]] = []
    for one in parsed:
        if isinstance(one, Added):
            found += [(Code.OK, one.ledger_id, entry) for entry in range(one.first, one.last + 1)]
        else:
            assert isinstance(one, AddRefused)
            found.append((one.code, one.ledger_id, one.entry_id))
    assert found == sent


@pytest.mark.parametrize("seed", range(100))
def test_refusals_in_rows(seed: int) -> None:
    rng = random.Random(seed)
    refused, entry_id = [], 0
    for _ in range(rng.randint(1, 20)):
        entry_id = max(0, entry_id + rng.choice((1, 1, 1, 0, 2, -3)))
        code = rng.choice((Code.TOO_MANY_REQUESTS, Code.TOO_MANY_REQUESTS, Code.FENCED))
        refused.append(AddRefused(code, rng.choice((1, 1, 1, 2)), entry_id))
    told: list[AddRefused] = []

    def sink(ledger_id: int) -> Any:
        def add_refused(_: str, code: int, first: int, last: int) -> None:
            told.extend(AddRefused(code, ledger_id, entry) for entry in range(first, last + 1))

        return SimpleNamespace(add_refused=add_refused)

    connection: Any = SimpleNamespace(bookie_id="b1", _sinks={1: sink(1), 2: sink(2)})
    BookieConnection._refuse(connection, refused)
    assert told == refused


# A bookie's connection gives back everything that it has taken, however it ends.
class Transport:
    def __init__(self) -> None:
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def _counted() -> Any:
    labelled = SimpleNamespace(labels=lambda *_: SimpleNamespace(inc=lambda: None))
    return SimpleNamespace(pauses=labelled, stalled=labelled)


class Peer:
    def __init__(self, answers: Budget, frames: FrameRoom) -> None:
        config = SimpleNamespace(
            connection_answer_bytes_max=50, answer_stall_ms_max=10_000, pressed_stall_ms_max=10_000
        )
        receiver = SimpleNamespace(held_bytes=0, missing_bytes=0, is_large=False)
        self.receiver = receiver
        self.transport = Transport()
        self.flow = Flow(
            cast(Any, config), _counted(), cast(Any, receiver), cast(Any, None), answers, frames,
            Turns(), lambda _: None,
        )  # fmt: skip
        self.flow.attach(cast(Any, self.transport), "peer")

    def answered(self, size: int) -> None:
        self.flow.made(size)
        self.transport.unsent += size
        self.flow.written(size)


async def test_answers_that_nobody_takes_are_given_back_with_the_connection() -> None:
    answers, frames = Budget(1_000), FrameRoom(1_000)
    peer = Peer(answers, frames)
    peer.answered(100)
    peer.flow.made(30)  # and an answer that the socket does not have yet
    assert in_use(answers) == {"bytes": 130}
    peer.flow.release()
    assert in_use(answers) == {}


@pytest.mark.parametrize("granted", [False, True])
async def test_half_a_frame_is_given_back_with_the_connection(granted: bool) -> None:
    answers, frames = Budget(1_000), FrameRoom(1_000)
    peer, other = Peer(answers, frames), Peer(answers, frames)
    if not granted:
        other.receiver.held_bytes, other.receiver.missing_bytes = 100, 850
        other.receiver.is_large = True
        other.flow.kept(1)
    peer.receiver.held_bytes, peer.receiver.missing_bytes = 40, 500
    peer.receiver.is_large = True
    peer.flow.kept(1)
    assert in_use(frames)["grants"] == 1
    assert in_use(frames).get("waiting", 0) == (not granted)
    peer.flow.release()
    other.flow.release()
    assert in_use(frames) == {}


@pytest.mark.parametrize("size", [900, 901])
async def test_a_frame_that_fits_to_the_byte_does_not_wait(size: int) -> None:
    frames = FrameRoom(1_000)
    first, second = Peer(Budget(10), frames).flow, Peer(Budget(10), frames).flow
    assert frames.ask(first, 100)
    assert frames.ask(second, size) == (size == 900)


class Requests:
    takes_polls = True

    def __init__(self) -> None:
        self.polls = 0
        self.stay = asyncio.Event()

    def now(self, *_: object) -> None:
        return None

    def refusal(self, *_: object) -> bytes:
        return b"refused"

    async def read(self, *_: object) -> bytes:
        await self.stay.wait()
        return b"read"


def _in_flight(scheduler: ReadScheduler) -> tuple[InFlight, list[bytes]]:
    answered: list[bytes] = []
    one = InFlight(
        cast(Any, Requests()), cast(Any, None), scheduler, answered.append, lambda _: None
    )
    return one, answered


def _scheduler(tasks_max: int, wait_ms_max: int = 60_000) -> ReadScheduler:
    return ReadScheduler(Budget(100), waiting_max=100, tasks_max=tasks_max, wait_ms_max=wait_ms_max)


async def test_reads_that_are_refused_for_their_wait_are_counted_no_more() -> None:
    """The bound of waiting reads filled up with reads that had long been answered."""
    scheduler = _scheduler(tasks_max=1)
    one, answered = _in_flight(scheduler)
    for entry_id in range(5):
        one.read(ReadRequest(0, 1, entry_id, b""))
    for _ in range(10):
        await asyncio.sleep(0)
    assert scheduler.describe()["waiting"] == 4
    one.refuse_waiting()
    assert answered == [b"refused"] * 4
    assert scheduler.describe()["waiting"] == 0
    one.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert in_use(scheduler) == {}
    assert in_use(one) == {}


async def test_a_connection_that_ends_amid_its_reads_leaves_its_places_to_another() -> None:
    """A connection that waited for a task gets the place."""
    scheduler = _scheduler(tasks_max=2)
    gone, _ = _in_flight(scheduler)
    stays, _ = _in_flight(scheduler)
    for one in (gone, stays):
        for entry_id in range(4):
            one.read(ReadRequest(0, 1, entry_id, b""))
    for _ in range(10):
        await asyncio.sleep(0)
    gone.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert in_use(gone) == {}
    assert stays.describe()["tasks"] == 2, "both places are its now"
    assert not scheduler.waits_in_vain()
    stays.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert in_use(scheduler) == {}


@pytest.mark.parametrize(("lac", "is_told"), [(4, False), (5, False), (6, True)])
async def test_a_poll_hears_of_the_very_next_entry(lac: int, is_told: bool) -> None:
    watches = LacWatches()
    poll = watches.park(1, 5)
    watches.moved(1, lac)
    assert poll.done() == is_told
    poll.cancel()
    await asyncio.sleep(0)
    assert in_use(watches) == {}
