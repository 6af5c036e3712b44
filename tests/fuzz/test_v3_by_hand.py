"""Hand-parsed v3 frames against generated protobuf: whatever the hand-written code accepts,
protobuf reads alike, and every required field is there. Frames are made field by field, so
that their faults go beyond flipped bits."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.bookie.wire.v3_adds import Gathering, Refusal
from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.protocol.frames import LENGTH, Flag
from octavo.protocol.v3_runs import take_run
from octavo.protocol.v3_schema import RequestMessage, ResponseMessage
from tests.fuzz.test_fuzzed_readers import MUTATIONS, mutated
from tests.support.raw_bookie import KEY, entry_of
from tests.support.v3_frames import add_frame, framed, read_frame

SHORT_EXAMPLES, EXAMPLES = 400, 4_000
VARINT, BYTES = 0, 2
LEDGER, ENTRY, MASTER_KEY, BODY, WRITE_FLAGS, FLAG = 1, 2, 3, 4, 5, 100
HEADER, READ_BODY, ADD_BODY = 1, 100, 101


# Frames made by field


class Field(NamedTuple):
    number: int
    wire: int
    value: int | bytes
    padded: int = 0

    @property
    def encoded(self) -> bytes:
        tag = v3.varint(self.number << 3 | self.wire)
        if isinstance(self.value, int):
            return tag + padded(v3.varint(self.value), self.padded)
        if self.wire == BYTES:
            return tag + padded(v3.varint(len(self.value)), self.padded) + self.value
        return tag + self.value


def padded(number: bytes, more: int) -> bytes:
    if not more:
        return number
    return number[:-1] + bytes([number[-1] | 0x80]) + b"\x80" * (more - 1) + b"\0"


def message(fields: list[Field]) -> bytes:
    return b"".join(field.encoded for field in fields)


def header(op: int, txn: int, *more: Field) -> list[Field]:
    return [Field(1, VARINT, 3), Field(2, VARINT, op), Field(3, VARINT, txn), *more]


def add_fields(ledger: int, entry: int, *more: Field) -> list[Field]:
    body = entry_of(ledger, entry)
    return [
        *more,
        Field(LEDGER, VARINT, ledger),
        Field(ENTRY, VARINT, entry),
        Field(MASTER_KEY, BYTES, KEY),
        Field(BODY, BYTES, body),
    ]


def frame(head: list[Field], body: list[Field], number: int = ADD_BODY) -> bytes:
    return framed(
        message([Field(HEADER, BYTES, message(head)), Field(number, BYTES, message(body))])
    )


# The two readings


class Add(NamedTuple):
    txn: int
    flags: int
    ledger_id: int
    entry_id: int
    key: bytes
    entry: bytes


def frames_of(data: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while len(data) - position >= LENGTH.size:
        following = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
        if following > len(data) or following < position + 8:
            return
        yield position, following
        position = following


def by_protobuf(frame: bytes) -> Any:
    """Return the message, or None when it is invalid or lacks a required field."""
    try:
        found = RequestMessage.FromString(frame[LENGTH.size :])
    except DecodeError:
        return None
    return found if found.IsInitialized() else None


def judged_add(frame: bytes) -> Add | None:
    found = by_protobuf(frame)
    if found is None or (found.header.version, found.header.operation) != (3, v3.Op.ADD):
        return None
    if not found.HasField("addRequest"):
        return None
    add = found.addRequest
    flags = int(Flag.HIGH_PRIORITY) if found.header.priority else 0
    flags |= int(Flag.RECOVERY_ADD) if add.flag == 1 else 0
    flags |= int(Flag.DEFERRED_SYNC) if add.writeFlags & 1 else 0
    ids = (add.ledgerId, add.entryId)
    return Add(found.header.txnId, flags, *ids, add.masterKey, add.body)


def answers_of(data: bytes) -> list[tuple[int, int, int, int]]:
    found = []
    for start, end in frames_of(data):
        answer = ResponseMessage.FromString(data[start + LENGTH.size : end])
        assert answer.IsInitialized()
        assert (answer.header.version, answer.header.operation) == (3, v3.Op.ADD)
        body = answer.addResponse
        assert body.status == answer.status
        found.append((answer.header.txnId, answer.status, body.ledgerId, body.entryId))
    return found


def check_run(data: bytes) -> int:
    """Check that the first run of `data` is what protobuf reads; return its number of adds."""
    start, following = next(frames_of(data))
    run = take_run(memoryview(data), start, following)
    if run is None:
        return 0
    bounds = [bound for bound in frames_of(data) if bound[1] <= run.end]
    assert bounds[-1][1] == run.end
    assert len(bounds) == len(run.entries)
    for number, (begin, end) in enumerate(bounds):
        add = judged_add(data[begin:end])
        assert add is not None, "protobuf does not know it for an add"
        assert add[1:] == (
            run.flags,
            run.ledger_id,
            run.first_entry + number,
            run.key,
            bytes(run.entries[number]),
        )
    return len(bounds)


def gathered(data: bytes, *, by_hand: bool) -> tuple[list[Add], list[Refusal], int]:
    """Return the adds and refusals of a chunk, as a connection takes it, and where v3 ends in
    it."""
    gathering, position = Gathering(), 0
    view = memoryview(data)
    for start, following in frames_of(data):
        if start < position:
            continue
        position = gathering.take(view, start, following) if by_hand else start
        if position > start:
            continue
        request = v3.parse_request(view[start:following])
        if request is None:
            break
        if isinstance(request, v3.Add):
            gathering.add(request)
        position = following
    adds: list[Add] = []
    for one in gathering.batches():
        flags, batch = one.flags, one.batch
        answers = answers_of(one.answers(Code.FENCED))
        ends = [*batch.offsets[1:], len(batch.frames)]
        assert len(answers) == batch.count == len(ends)
        for number, (offset, end) in enumerate(zip(batch.offsets, ends, strict=True)):
            txn, status, ledger, entry = answers[number]
            assert (status, ledger) == (v3.STATUS[Code.FENCED], batch.ledger_id)
            assert entry == batch.first_entry + number
            body = batch.frames[offset + 28 : end]
            adds.append(Add(txn, flags, ledger, entry, batch.key, body))
    plain = [each._replace(add=each.add._replace(entry=bytes(each.add.entry)))
             for each in gathering.refused]  # fmt: skip
    return adds, plain, position


def check(data: bytes) -> None:
    if next(frames_of(data), None) is None:
        return
    check_run(data)
    hand, judge = gathered(data, by_hand=True), gathered(data, by_hand=False)
    assert hand == judge
    for start, end in frames_of(data):
        if start >= judge[2]:
            break
        check_request(data[start:end])


def check_request(frame: bytes) -> None:
    found, request = by_protobuf(frame), v3.parse_request(memoryview(frame))
    assert (found is None) == (request is None)
    if found is None or request is None:
        return
    head = ResponseMessage().header
    head.MergeFromString(request.head)
    ids = (found.header.version, found.header.operation, found.header.txnId)
    assert (head.version, head.operation, head.txnId) == ids
    if not isinstance(request, v3.Read):
        return
    read = found.readRequest
    fences = read.flag == 1
    assert (request.ledger_id, request.entry_id) == (read.ledgerId, read.entryId)
    assert bool(request.flags & Flag.FENCE) == fences
    assert bool(request.flags & Flag.HIGH_PRIORITY) == bool(found.header.priority)
    assert request.key == (read.masterKey if fences else b"")
    assert request.waits == (read.HasField("previousLAC") and not fences)
    answer = v3.read_answer(request.head, Code.OK, *ids[1:], b"entry", request.previous_lac)
    told = ResponseMessage.FromString(answer[LENGTH.size :])
    assert told.IsInitialized()
    assert (told.header.txnId, told.readResponse.body) == (ids[2], b"entry")
    if request.previous_lac is not None:
        assert told.readResponse.maxLAC == read.previousLAC


# Exhaustive cases


COUNTS = [
    dict(zip((LEDGER, ENTRY, MASTER_KEY, BODY, FLAG), counts, strict=True))
    for counts in itertools.product(range(6), range(4), range(3), range(3), range(2))
]


def test_each_field_missing_once_and_repeated() -> None:
    """A missing required field never counts as zero, whatever else there is."""
    one = {field.number: field for field in add_fields(7, 5, Field(FLAG, VARINT, 1))}
    by_hand = 0
    for counts in COUNTS:
        fields = [one[number] for number, count in counts.items() for _ in range(count)]
        for some in (fields, fields[::-1]):
            data = frame(header(v3.Op.ADD, 9), some)
            by_hand += check_run(data)
            check(data)
    assert by_hand > 20, "the hand takes nothing any more"


@pytest.mark.parametrize("more", range(10))
def test_each_number_and_length_in_more_bytes_than_it_needs(more: int) -> None:
    head = header(v3.Op.ADD, 9, Field(4, VARINT, 100))
    body = add_fields(7, 5, Field(FLAG, VARINT, 1))
    for place in range(len(head)):
        some = [*head[:place], head[place]._replace(padded=more), *head[place + 1 :]]
        check(frame(some, body))
    for place in range(len(body)):
        some = [*body[:place], body[place]._replace(padded=more), *body[place + 1 :]]
        check(frame(head, some))
    parts = [Field(HEADER, BYTES, message(head)), Field(ADD_BODY, BYTES, message(body))]
    for place in range(2):
        check(framed(message([one._replace(padded=more * (at == place))
                              for at, one in enumerate(parts)])))  # fmt: skip


def test_each_wire_type_and_the_numbers_beside() -> None:
    body = add_fields(7, 5)
    for place, wire, by in itertools.product(range(len(body)), range(8), (-1, 0, 1, 96, 1 << 26)):
        field = body[place]
        raw = field.encoded[1:] if wire != BYTES else field.value
        changed = Field(max(1, field.number + by), wire, raw)
        check(frame(header(v3.Op.ADD, 9), [*body[:place], changed, *body[place + 1 :]]))


def test_messages_in_two_parts_are_one() -> None:
    """Protobuf joins them; the hand-written code takes neither part for the whole."""
    head, body = message(header(v3.Op.ADD, 9)), add_fields(7, 5)
    for cut in range(len(body) + 1):
        parts = [message(body[:cut]), message(body[cut:])]
        data = framed(message([Field(HEADER, BYTES, head),
                               *(Field(ADD_BODY, BYTES, part) for part in parts)]))  # fmt: skip
        check(data)
        assert isinstance(v3.parse_request(memoryview(data)), v3.Add)


# Random cases


def usual() -> list[list[Field]]:
    """Draw bodies of adds as clients write them: of two ledgers, some of recovery, some with
    flags."""
    recovery, deferred = Field(FLAG, VARINT, 1), Field(WRITE_FLAGS, VARINT, 1)
    return [
        add_fields(7, 5),
        add_fields(7, 126),
        add_fields(2**40, 2**33, recovery),
        [*add_fields(7, 5), deferred],
    ]


KINDS = ("drop", "repeat", "swap", "pad", "number", "wire", "value", "insert", "cut", "none")
VALUES = (0, 1, 2, 5, 7, 127, 128, 2**31, 2**32 - 1, 2**32, 2**56, 2**63, 2**64 - 1)
INSERTS = (
    Field(6, VARINT, 1),
    Field(WRITE_FLAGS, VARINT, 2**31),
    Field(FLAG, VARINT, 2),
    Field(9, 3, b"\x08\x01" + v3.varint(9 << 3 | 4)),
    Field(9, 3, b""),
    Field(9, 5, b"abcd"),
    Field(LEDGER, BYTES, b"\x07"),
)
STEP = struct.Struct(">BBB")


def changed(fields: list[Field], program: bytes) -> list[Field]:
    """Apply each step of `program` to `fields`: kind, place, value."""
    fields = list(fields)
    for which, where, value in STEP.iter_unpack(program[: len(program) // STEP.size * STEP.size]):
        kind = KINDS[which % len(KINDS)]
        if kind == "insert":
            fields.insert(where % (len(fields) + 1), INSERTS[value % len(INSERTS)])
        elif fields:
            at = where % len(fields)
            fields[at : at + 1] = altered(fields, at, kind, value)
    return fields


def altered(fields: list[Field], at: int, kind: str, value: int) -> list[Field]:
    one = fields[at]
    if kind == "drop":
        return []
    if kind == "repeat":
        return [one] * (1 + value % 4)
    if kind == "swap":
        other = value % len(fields)
        fields[other], one = one, fields[other]
    elif kind == "pad":
        one = one._replace(padded=value % 10)
    elif kind == "number":
        one = one._replace(number=value % 120 + 1)
    elif kind == "wire" and isinstance(one.value, bytes):
        one = one._replace(wire=value % 8)
    elif kind == "value" and isinstance(one.value, int):
        one = one._replace(value=VALUES[value % len(VALUES)])
    elif kind == "cut" and isinstance(one.value, bytes):
        one = one._replace(value=one.value[: value % (len(one.value) + 1)])
    return [one]


PROGRAMS = st.binary(max_size=18)


def _fuzz_one(examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(usual()), PROGRAMS, PROGRAMS, MUTATIONS)
    def fuzz(body: list[Field], heads: bytes, bodies: bytes, bits: bytes) -> None:
        head = changed(header(v3.Op.ADD, 300, Field(4, VARINT, 100)), heads)
        data = frame(head, changed(body, bodies))
        check(data)
        check(mutated(data, bits) + add_frame(7, 6))

    fuzz()


def _fuzz_run(examples: int) -> None:
    """Frames of equal length in a row: one is changed, and bits of all."""

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(
        st.integers(17, 40), st.integers(0, 39), st.sampled_from((5, 100, 120, 2**33)), PROGRAMS,
        MUTATIONS,
    )  # fmt: skip
    def fuzz(count: int, which: int, first: int, program: bytes, bits: bytes) -> None:
        frames = [frame(header(v3.Op.ADD, 300 + n), add_fields(7, first + n)) for n in range(count)]
        which %= count
        frames[which] = frame(
            header(v3.Op.ADD, 300 + which), changed(add_fields(7, first + which), program)
        )
        check(b"".join(frames))
        check(mutated(b"".join(frames), bits))

    fuzz()


def _fuzz_read(examples: int) -> None:
    fields = [
        Field(FLAG, VARINT, 2), Field(LEDGER, VARINT, 7), Field(ENTRY, VARINT, 5),
        Field(MASTER_KEY, BYTES, KEY), Field(4, VARINT, 3), Field(5, VARINT, 1000),
    ]  # fmt: skip

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(PROGRAMS, PROGRAMS, MUTATIONS)
    def fuzz(heads: bytes, bodies: bytes, bits: bytes) -> None:
        head = changed(header(v3.Op.READ, 300, Field(4, VARINT, 100)), heads)
        data = frame(head, changed(fields, bodies), READ_BODY)
        check(data)
        check(mutated(data, bits) + read_frame(7, 5))

    fuzz()


@pytest.mark.parametrize(
    "examples", [SHORT_EXAMPLES, pytest.param(EXAMPLES, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("fuzz", [_fuzz_one, _fuzz_run, _fuzz_read])
def test_the_hand_reads_as_protobuf_does(fuzz: Any, examples: int) -> None:
    fuzz(examples)
