"""A connection behaves the same however its bytes are cut; a recording transport is the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.adds import AddBatch
from octavo.bookie.back_pressure import AddPressure, Budget, FrameRoom, Turns
from octavo.bookie.config import BookieConfig
from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.wire.connection import Connection
from octavo.bookie.wire.read_scheduler import ReadScheduler
from octavo.bookie.write.cache import WriteCache
from octavo.protocol import v3
from octavo.protocol.answers import Added, ReadAnswer, parse_answers
from octavo.protocol.codes import Code
from octavo.protocol.frames import ReadRequest, read_answer, read_request
from octavo.protocol.v3_schema import ResponseMessage
from tests.support.raw_bookie import add_of, entry_of
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
