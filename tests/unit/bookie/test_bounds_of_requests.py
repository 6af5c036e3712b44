"""A bookie's requests and answers are bounded in memory and in steps."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.overload import (
    RESIDENT_MIB_MAX,
    Result,
    caches_mib,
    half_frames,
    long_entries,
    slow_disk,
    slow_readers,
)
from octavo.bookie import back_pressure
from octavo.bookie.back_pressure import Budget, Turns
from octavo.bookie.ledgers.control import LacWatches
from octavo.bookie.read.cache import CachedExtent
from octavo.bookie.read.path import ReadPath
from octavo.bookie.wire.in_flight import InFlight
from octavo.bookie.wire.read_scheduler import ReadScheduler
from octavo.protocol import extension, v3
from octavo.protocol.codes import Code, ProtocolError
from octavo.protocol.extension import Answer, Op, decode_request, encode_request
from octavo.protocol.frames import read_request
from octavo.protocol.v3 import STATUS
from tests.support.raw_bookie import RawClient, add_of, running_bookie, until
from tests.support.v3_frames import V3Client, read_frame, request_frame

# One turn of the loop read all that had come: 100,000 requests on 20 connections stopped it for 8
# s.

SCRATCH_BYTES = 4096
REQUESTS_PER_TURN, REQUESTS_PER_CHUNK = 200, 20
CONNECTIONS, REQUESTS = 20, 250
KINDS = {
    "reads": read_request(1, 0),
    "reads in v3": read_frame(1, 0),
    "long polls": encode_request(Op.WAIT_LAC, 1, {"ledger": 1, "after": 5}),
    "long polls in v3": read_frame(1, 0, previousLAC=5, timeOut=60_000),
    "unknown operations in v3": request_frame(99),
    "adds to ledgers in turn": add_of(1, 0, b"") + add_of(2, 0, b""),
    "versions that are none": read_request(1, 0)[:4] + b"\x01" + read_request(1, 0)[5:],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_it_takes_so_many_requests_and_others_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(back_pressure, "REQUESTS_PER_TURN", REQUESTS_PER_TURN)
    monkeypatch.setattr(back_pressure, "REQUESTS_PER_CHUNK", REQUESTS_PER_CHUNK)
    monkeypatch.setattr(back_pressure, "CHUNK_BYTES_MIN", 64)
    took: list[int] = [0]
    count, begin = Turns.took, Turns._next

    def counted(self: Turns, requests: int) -> None:
        took[-1] += requests
        count(self, requests)

    def begun(self: Turns) -> None:
        took.append(0)
        begin(self)

    monkeypatch.setattr(Turns, "took", counted)
    monkeypatch.setattr(Turns, "_next", begun)
    async with running_bookie(tmp_path, scratch_bytes=SCRATCH_BYTES, long_polls_max=1) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0, b"")) is Code.OK
        others = [await asyncio.open_connection("127.0.0.1", bookie.port) for _ in range(20)]
        first = KINDS[kind]
        for _, writer in others:
            writer.write(first * REQUESTS)
            writer.write_eof()
        for reader, _ in others:
            async with asyncio.timeout(60):
                while await reader.read(1 << 20):
                    pass
        assert await client.read(1, 0) != Code.NO_ENTRY
        in_a_chunk = SCRATCH_BYTES // len(first) * (2 if "adds" in kind else 1) + 1
        by_a_byte = CONNECTIONS
        assert max(took) <= REQUESTS_PER_TURN + in_a_chunk + by_a_byte
        full = [
            turn for turn in took if turn > REQUESTS_PER_TURN + 2 * REQUESTS_PER_CHUNK + by_a_byte
        ]
        assert len(full) <= CONNECTIONS, "a socket has one long chunk, its first"
        assert sum(took) >= CONNECTIONS * REQUESTS
        for _, writer in others:
            writer.close()
        client.close()


async def test_who_is_gone_waits_for_no_turn(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        turns = bookie.server.turns
        turns._over_at = 0
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
            writer.write(request_frame(v3.Op.READ))
            writer.transport.abort()
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        assert not turns._waiting
        client.close()


# Readers that take nothing: the budget did not count bytes in the kernel's buffers, though the
# answer stays in memory until its last byte is out; and a waiting read kept its data.

MIB = 1024 * 1024
ENTRY_BYTES = 5 * MIB - 1024


async def test_what_is_held_counts_until_all_of_it_is_out(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie, limit=4096)
        assert await client.add(add_of(1, 0, bytes(ENTRY_BYTES))) is Code.OK
        client._reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(read_request(1, 0))
        [connection] = bookie.server._connections
        await until(lambda: connection.flow.unsent_bytes)
        assert bookie.server.memory()["answers"][0] >= ENTRY_BYTES > connection.flow.unsent_bytes
        client._reader._transport.resume_reading()  # type: ignore[attr-defined]
        await client.answer()
        await until(lambda: bookie.server.memory()["answers"][0] == 0)
        client.close()


class _Run(CachedExtent):
    __slots__ = ("__weakref__",)


class _Nothing:
    wait_s_max = 10.0

    def find(self, *_: int) -> tuple[None, int]:
        return None, 2**63

    def known(self, _: int) -> None:
        pass


class _NothingRead:
    def find(self, *_: int) -> None:
        pass


class _Cold:
    wait_s_max = 10.0

    def __init__(self, answers: Budget) -> None:
        self._answers = answers
        self.brought: list[weakref.ref[_Run]] = []

    async def run_with(self, ledger_id: int, entry_id: int, *_: int, **__: bool) -> _Run:
        self._answers.change(10)
        frame = add_of(ledger_id, entry_id)
        run = _Run(ledger_id, entry_id, entry_id, frame)
        self.brought.append(weakref.ref(run))
        return run


async def test_a_read_that_waits_for_room_holds_no_run() -> None:
    answers = Budget(10)
    cold = _Cold(answers)
    reading = ReadPath(
        _Nothing(),  # type: ignore[arg-type]
        _Nothing(),  # type: ignore[arg-type]
        _NothingRead(),  # type: ignore[arg-type]
        cold,  # type: ignore[arg-type]
        answers,
        {"entry_log": 0},
    )
    task = asyncio.create_task(reading.read_many(1, 0, 1, 1000))
    while not cold.brought:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert not task.done()
    assert cold.brought[0]() is None, "what it found is held while it waits"
    task.cancel()


# Lists of a ledger full of holes, never taken, cost 1.5 GB and stopped the loop for 19 s: there was
# no check for room before a list was made.

LIST_MIB = 1 << 20
RUNS = [(3 * n, 3 * n + n % 2) for n in range(20_000)]
LIST_CONNECTIONS, LIST_REQUESTS = 5, 100
LIST_BYTES = 24 * len(RUNS) + 1_000
V3 = request_frame(v3.Op.LIST_ENTRIES, 1, "getListOfEntriesOfLedgerRequest", ledgerId=1)
V2 = extension.encode_request(extension.Op.LIST_ENTRIES, 1, {"ledger": 1})


@pytest.mark.parametrize("request_of", [V2, V3], ids=["v2", "v3"])
async def test_no_list_is_made_while_answers_are_not_taken(
    tmp_path: Path, request_of: bytes
) -> None:
    async with running_bookie(tmp_path, answer_bytes_max=LIST_MIB, read_wait_ms_max=200) as bookie:
        at_once = [0, 0]

        async def held(_: int) -> list[tuple[int, int]]:
            at_once[0] += 1
            at_once[1] = max(at_once)
            await asyncio.sleep(0.001)
            at_once[0] -= 1
            return RUNS

        reads: Any = bookie.storage.reads
        reads.held = held
        clients = [await RawClient.connect(bookie) for _ in range(LIST_CONNECTIONS)]
        assert await clients[0].add(add_of(1, 0)) is Code.OK
        for client in clients:
            reading: Any = client.writer.transport
            reading.pause_reading()
            client.send(request_of * LIST_REQUESTS)
        server = bookie.server
        # Some are refused for waiting too long; others may wait behind answers that are not taken.
        await until(lambda: at_once[1] > 0 and server.reads.tasks == 0)
        await asyncio.sleep(0.5)
        assert at_once[1] <= 2
        assert server.answers.peak <= LIST_MIB + 3 * LIST_BYTES
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: not server.answers.used)


async def test_none_is_made_without_room(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, answer_bytes_max=LIST_MIB, read_wait_ms_max=200) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == v3.STATUS[Code.OK]
        made: list[int] = []
        reads: Any = bookie.storage.reads
        held = reads.held
        reads.held = lambda ledger: (made.append(ledger), held(ledger))[1]
        for used, code in ((LIST_MIB, Code.TOO_MANY_REQUESTS), (-LIST_MIB, Code.OK)):
            bookie.server.answers.change(used)
            answer = await client.ask(
                v3.Op.LIST_ENTRIES, "getListOfEntriesOfLedgerRequest", ledgerId=1
            )
            assert answer.status == v3.STATUS[code]
        assert made == [1], "the one that was answered"
        client.close()


# A long poll was counted only once its task waited: one client could start 7,000 tasks with a
# chunk.

POLLS = 1_000
POLLS_MAX = 3
TASKS_MAX = POLLS_MAX + 64 + 32
"""The polls, and the tasks of a connection's other requests (in_flight.py)."""


class Peak:
    tasks = 0


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    found, spawn = Peak(), InFlight._spawn

    def counted(self: InFlight, *work: object) -> asyncio.Task[None]:
        task = spawn(self, *work)  # type: ignore[arg-type]
        found.tasks = max(found.tasks, len(self._tasks))
        return task

    monkeypatch.setattr(InFlight, "_spawn", counted)
    return found


@pytest.mark.parametrize("satisfied", [False, True], ids=["waits", "answered"])
async def test_of_v3_reads(tmp_path: Path, peak: Peak, satisfied: bool) -> None:
    async with running_bookie(tmp_path, long_polls_max=POLLS_MAX) as bookie:
        client = await V3Client.connect(bookie)
        for entry in range(2):
            assert await client.add(1, entry) == STATUS[Code.OK]
        lac = -1 if satisfied else 0
        frames = (
            read_frame(1, 0, txn=txn, previousLAC=lac, timeOut=60_000) for txn in range(POLLS)
        )
        client.send(b"".join(frames))
        parked = 0 if satisfied else POLLS_MAX
        found = [await client.answer() for _ in range(POLLS - parked)]
        wanted = Code.OK if satisfied else Code.TOO_MANY_REQUESTS
        assert {answer.status for answer in found} == {STATUS[wanted]}
        assert len({answer.header.txnId for answer in found}) == len(found)
        assert peak.tasks <= TASKS_MAX
        assert bookie.server.requests.polls == parked
        client.writer.transport.abort()
        await until(lambda: not bookie.server.requests.polls)


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
async def test_who_is_gone_keeps_no_place(tmp_path: Path, reset: bool) -> None:
    """After a reset the connection's stream reports no end."""
    async with running_bookie(tmp_path, long_polls_max=POLLS_MAX) as bookie:
        client = await V3Client.connect(bookie)
        assert await client.add(1, 0) == STATUS[Code.OK]
        for _ in range(POLLS_MAX):
            client.send(read_frame(1, 0, previousLAC=5, timeOut=60_000))
        await until(lambda: bookie.server.requests.polls == POLLS_MAX)
        if reset:
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        await until(lambda: not bookie.server.requests.polls)


@pytest.mark.parametrize("satisfied", [False, True], ids=["waits", "answered"])
async def test_of_v2_requests(tmp_path: Path, peak: Peak, satisfied: bool) -> None:
    async with running_bookie(tmp_path, long_polls_max=POLLS_MAX) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        assert await client.add(add_of(1, 1)) is Code.OK
        body = {"ledger": 1, "after": -1 if satisfied else 0, "timeout_ms": 60_000}
        client.send(b"".join(encode_request(Op.WAIT_LAC, n, body) for n in range(POLLS)))
        parked = 0 if satisfied else POLLS_MAX
        found = [await client.answer() for _ in range(POLLS - parked)]
        wanted = Code.OK if satisfied else Code.TOO_MANY_REQUESTS
        assert {answer.code for answer in found if isinstance(answer, Answer)} == {wanted}
        assert peak.tasks <= TASKS_MAX
        client.close()
        await until(lambda: not bookie.server.requests.polls)


def test_nested_arrays_take_no_more_than_they_hold() -> None:
    """msgpack allocates an announced array at once; the bound on items held for each array alone,
    so that a thousand nested levels of a 5 kB frame took 2 GB."""
    front = encode_request(Op.READ_LAC, 1, {})[:8]
    body = (b"\xdd" + (262_144).to_bytes(4)) * 1000
    tracemalloc.start()
    try:
        for announced in (b"\xdd" + (60).to_bytes(4)) * 1000, body:
            with pytest.raises(ProtocolError, match="is not msgpack"):
                decode_request(memoryview(front + announced))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


PARKED = 4096


class Counted(dict[asyncio.Future[int], int]):
    """Counts how often all parked readers are walked."""

    walks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().__iter__()

    def items(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().items()


async def test_one_walk_lets_all_of_them_go() -> None:
    """Each released reader copied the list of parked readers: eight million items for 4,096
    readers."""
    watches = LacWatches()
    watches._parked[1] = Counted()
    futures = [watches.park(1, 4) for _ in range(PARKED)]
    watches.moved(1, 5)
    assert await asyncio.gather(*futures) == [5] * PARKED
    await asyncio.sleep(0)
    assert len(watches) == 0
    assert Counted.walks == 1


class Reader:
    def __init__(self, line: ReadScheduler, cached: set[str]) -> None:
        self._line = line
        self._cached = cached
        self.waits = True
        self.refused = False

    @property
    def wants_turn(self) -> bool:
        return self.waits

    def serve(self) -> int | None:
        if not self._cached:
            if not self._line.has_task:
                return None
            self._line.tasks += 1
        self.waits = False
        return 1

    def refuse_waiting(self) -> None:
        self.refused = True


async def test_those_behind_who_found_it_in_the_cache_go_on_too() -> None:
    """A waiting connection that found its entry in the cache needed no task, so that no ending task
    released the next connection: an idle bookie refused them seconds later."""
    line = ReadScheduler(Budget(1000), waiting_max=10, tasks_max=1, wait_ms_max=400)
    cached: set[str] = set()
    readers = [Reader(line, cached) for _ in range(5)]
    for reader in readers:
        line.join(reader)
    await asyncio.sleep(0.05)
    assert [reader.waits for reader in readers] == [False, True, True, True, True]
    cached.add("what the first of them brought")
    line.task_ended()
    await asyncio.sleep(0.05)
    assert not any(reader.waits for reader in readers)
    await asyncio.sleep(0.6)
    assert not any(reader.refused for reader in readers)
    line.close()


# A bookie's memory under overload: the short form of bench/overload.py. Without the budgets that
OVERLOAD_CONNECTIONS = 300
SECONDS = 1.0
LONGER_S = (1.0, 5.0, 25.0)
"""How long to load a bookie without budgets: a busy machine needs longer."""
HANGS_MS = 60_000
GOAL_MIB = caches_mib() + RESIDENT_MIB_MAX
UNBOUNDED = 1 << 40
ADDS = {
    "journal_queue_bytes_max": UNBOUNDED,
    "add_bytes_max": UNBOUNDED,
    "connection_add_bytes_max": UNBOUNDED,
}
FRAMES = {"receive_bytes_max": UNBOUNDED}
ANSWERS = {"answer_bytes_max": UNBOUNDED, "connection_answer_bytes_max": UNBOUNDED}

Scenario = Callable[..., Result]


@pytest.mark.long
@pytest.mark.parametrize("scenario", [half_frames, long_entries, slow_disk, slow_readers])
def test_memory_stays_within_the_caches_and_150_mib(scenario: Scenario, tmp_path: Path) -> None:
    result = scenario(str(tmp_path), OVERLOAD_CONNECTIONS, SECONDS)
    assert result.peak_mib <= GOAL_MIB, result
    assert result.modest_ms < HANGS_MS, f"a modest client's add hangs: {result}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "connections", "without"),
    [
        (half_frames, 300, FRAMES),
        (long_entries, 80, {**FRAMES, **ADDS, "sync_s": 1.0}),
        (slow_disk, 450, {**ADDS, "sync_s": 1.0}),
        (slow_readers, 16, ANSWERS),
    ],
    ids=["half_frames", "long_entries", "slow_disk", "slow_readers"],
)
def test_without_its_budgets_far_less_load_goes_past_the_goal(
    scenario: Scenario, connections: int, without: dict[str, Any], tmp_path: Path
) -> None:
    results = []
    for for_s in LONGER_S:
        folder = tmp_path / f"{for_s}"
        folder.mkdir()
        results.append(scenario(str(folder), connections, for_s, asks=False, **without))
        if results[-1].peak_mib > GOAL_MIB:
            return
    pytest.fail(f"the load shows nothing: {results}")
