"""A busy member keeps no other from its turn; what cannot be served is refused at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.back_pressure import (
    BURST_S,
    PEAK_BYTES,
    RUN_BYTES,
    AddBurst,
    AddPressure,
    Budget,
    Pressure,
)
from octavo.bookie.journal.journal import JournalQueue
from octavo.bookie.read.cache import ReadCache
from octavo.bookie.read.cold_reads import ColdReads
from octavo.bookie.stats import ReadStats
from octavo.bookie.wire.read_scheduler import ReadScheduler
from octavo.bookie.write.cache import WriteCache
from octavo.protocol.codes import Code, TooManyRequests
from octavo.protocol.fair_queue import FairQueue
from octavo.protocol.frames import Flag
from tests.support.raw_bookie import (
    RawClient,
    TroubledDisk,
    add_of,
    adds_of,
    config_in,
    entry_of,
    running_bookie,
    until,
)

KIB = 1024
RECOVERY = int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY | Flag.CRC32C)
PUSHES = st.lists(st.one_of(st.integers(0, 3), st.none()), max_size=60)


# The line in which ledgers take turns


@given(PUSHES)
def test_nobody_has_two_turns_while_another_waits(steps: list[int | None]) -> None:
    """A number pushes an item of that ledger, None pops one."""
    line: FairQueue[int, int] = FairQueue()
    waiting: dict[int, list[int]] = {}
    passed_over: dict[int, set[int]] = {}
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            line.push(step, number)
            waiting.setdefault(step, []).append(number)
            passed_over.setdefault(step, set())
        elif waiting:
            ledger_id, item = line.pop()
            assert item == waiting[ledger_id].pop(0), "not in the order of its ledger"
            for other in waiting.keys() - {ledger_id}:
                assert ledger_id not in passed_over[other], "twice before another's turn"
                passed_over[other].add(ledger_id)
            passed_over[ledger_id] = set()
            if not waiting[ledger_id]:
                del waiting[ledger_id]
        assert len(line) == sum(map(len, waiting.values()))


def test_a_line_served_by_arrival_would_be_noticed() -> None:
    line: FairQueue[str, int] = FairQueue()
    for number in range(100):
        line.push("greedy", number)
    line.push("modest", 0)
    order = [line.pop()[0] for _ in range(3)]
    assert order == ["greedy", "modest", "greedy"]


def test_what_is_taken_out_or_put_back_keeps_its_order() -> None:
    line: FairQueue[str, int] = FairQueue()
    for number in range(6):
        line.push("a", number)
    assert list(line.take("a", lambda item: item % 2 == 0)) == [0, 2, 4]
    key, item = line.pop()
    line.push_back(key, item)
    assert line.clear() == [1, 3, 5]


# The line of connections


class _Member:
    """Wants `reads` turns; counts them in `turns`."""

    def __init__(self, name: str, reads: int, turns: list[str], *, blocked: bool = False) -> None:
        self.name = name
        self.reads = reads
        self.turns = turns
        self.blocked = blocked
        self.refused = False

    @property
    def wants_turn(self) -> bool:
        return self.reads > 0

    def serve(self) -> int | None:
        if self.blocked:
            return None
        self.reads -= 1
        self.turns.append(self.name)
        return 10

    def refuse_waiting(self) -> None:
        self.refused = True
        self.reads = 0


def read_line(answers: Budget, wait_ms_max: int = 60_000) -> ReadScheduler:
    return ReadScheduler(answers, waiting_max=4, tasks_max=2, wait_ms_max=wait_ms_max)


async def test_connections_take_turns() -> None:
    line, turns = read_line(Budget(1000)), list[str]()
    for member in _Member("greedy", 300, turns), _Member("modest", 3, turns):
        line.join(member)
    async with asyncio.timeout(5):
        while len(turns) < 303:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert turns[:6] == ["greedy", "modest"] * 3
    line.close()


async def test_nobody_has_a_turn_while_answers_are_not_taken_and_all_when_they_are() -> None:
    answers = Budget(100)
    line, turns = read_line(answers), list[str]()
    answers.change(100)
    line.join(_Member("one", 2, turns))
    for _ in range(5):
        await asyncio.sleep(0)
    assert turns == []
    answers.change(-1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert turns == ["one", "one"]
    line.close()


async def test_who_has_no_turn_in_time_hears_so_and_who_has_one_does_not() -> None:
    line, turns = read_line(Budget(1000), wait_ms_max=40), list[str]()
    stuck, served = _Member("stuck", 1, turns, blocked=True), _Member("served", 1, turns)
    line.join(stuck)
    line.join(served)
    await until(lambda: stuck.refused)
    assert turns == ["served"]
    assert not served.refused
    line.close()


async def test_one_more_than_may_wait_is_refused_and_what_is_urgent_has_twice_the_room() -> None:
    line = read_line(Budget(1000))
    for waiting, full, full_for_urgent in (3, False, False), (4, True, False), (8, True, True):
        line.waiting = waiting
        assert line.is_full(urgent=False) is full
        assert line.is_full(urgent=True) is full_for_urgent


# The line of the journal


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.sampled_from([100, 30_000, 200_000])),
            st.tuples(st.none(), st.just(50)),
        ),
        max_size=60,
    )
)
def test_lanes_keep_their_order_and_nothing_passes_a_fence(
    pushes: list[tuple[str | None, int]],
) -> None:
    queue: JournalQueue[tuple[int, str | None]] = JournalQueue()
    for number, (lane, size) in enumerate(pushes):
        queue.push((number, lane), size, lane)
    order = [item for _ in pushes if (item := queue.pop(1 << 30)) is not None]
    assert len(order) == len(pushes)
    assert len(queue) == 0
    for lane in "ab":
        mine = [number for number, its_lane in order if its_lane == lane]
        assert mine == sorted(mine)
    for place, (number, lane) in enumerate(order):
        if lane is None:
            assert {before for before, _ in order[:place]} == set(range(number))


def test_who_floods_has_its_share_by_bytes_and_who_is_new_goes_first() -> None:
    queue: JournalQueue[str] = JournalQueue()
    for _ in range(100):
        queue.push("many small", 1 * KIB, 1)
        queue.push("few long", 64 * KIB, 2)
    order = [queue.pop(1 << 30) for _ in range(66)]
    assert order.count("few long") in (1, 2), "a turn is of bytes, not of items"
    queue.push("new", 100, 3)
    assert "new" in [queue.pop(1 << 30) for _ in range(2)]


# Cold reads


class _OneByOne(Executor):
    def __init__(self) -> None:
        self.ledgers: list[int] = []
        self.under_way: list[Future[list[object]]] = []

    def submit(self, _: object, /, *args: Any, **__: object) -> Future[Any]:
        self.ledgers.append(args[0])
        self.under_way.append(Future())
        return self.under_way[-1]


def cold_reads(
    executor: Executor, burst: Any = None, *, read_threads: int = 1, **how: int
) -> ColdReads:
    config = config_in(Path("/nowhere"), read_threads=read_threads, **how)
    nothing: Any = None
    stats = ReadStats()
    return ColdReads(
        config,
        executor=executor,
        index=nothing,
        logs=nothing,
        cache=ReadCache(1 << 20, stats),
        damages=nothing,
        stats=stats,
        burst=burst or AddBurst(),
    )


async def test_ledgers_take_turns_at_the_disk() -> None:
    executor = _OneByOne()
    cold = cold_reads(executor)
    tasks = [asyncio.create_task(cold.run_with(1, 1000 * number)) for number in range(20)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(cold.run_with(2, 0)))
    for number in range(3):
        await until(lambda n=number: len(executor.under_way) > n)  # type: ignore[misc]
        executor.under_way[number].set_result([])
    assert executor.ledgers[:3] == [1, 1, 2], "at most one turn of the other comes before"
    for task in tasks:
        task.cancel()


async def test_one_cold_read_too_many_is_refused_while_the_disk_still_hangs() -> None:
    cold = cold_reads(_OneByOne(), reads_waiting_max=5)
    tasks = [asyncio.create_task(cold.run_with(1, 1000 * number)) for number in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="5 reads wait for the disk"):
        await cold.run_with(2, 0)
    for task in tasks:
        task.cancel()


class _Burst:
    is_there = True


async def test_during_a_burst_of_adds_one_thread_reads_and_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_REST_RATIO", "_REST_S_MAX"):
        monkeypatch.setattr(f"octavo.bookie.read.cold_reads.{name}", 10**9)
    executor, burst = _OneByOne(), _Burst()
    cold = cold_reads(executor, burst, read_threads=2, read_wait_ms_max=60_000)
    burst.is_there = False
    tasks = [asyncio.create_task(cold.run_with(n, 0)) for n in range(5)]
    await until(lambda: len(executor.under_way) == 2)
    burst.is_there = True
    executor.under_way[0].set_result([])
    await asyncio.sleep(0.01)
    assert len(executor.under_way) == 2, "a second thread begins nothing more"
    executor.under_way[1].set_result([])
    await asyncio.sleep(0.01)
    assert len(executor.under_way) == 2, "and the first one rests"
    burst.is_there = False
    tasks.append(asyncio.create_task(cold.run_with(9, 0)))
    await until(lambda: len(executor.under_way) == 4)
    for task in tasks:
        task.cancel()


async def test_it_rests_four_times_as_long_as_it_has_read() -> None:
    executor = _OneByOne()
    cold = cold_reads(executor, _Burst(), read_wait_ms_max=60_000)
    tasks = [asyncio.create_task(cold.run_with(n, 0)) for n in range(2)]
    await until(lambda: len(executor.under_way) == 1)
    await asyncio.sleep(0.02)
    began = asyncio.get_running_loop().time()
    executor.under_way[0].set_result([])
    await until(lambda: len(executor.under_way) == 2)
    assert asyncio.get_running_loop().time() - began >= 0.08
    for task in tasks:
        task.cancel()


async def test_urgent_reads_make_no_room_and_nobody_does_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_REST_RATIO", "_REST_S_MAX"):
        monkeypatch.setattr(f"octavo.bookie.read.cold_reads.{name}", 10**9)
    executor = _OneByOne()
    cold = cold_reads(executor, _Burst(), read_threads=2, read_wait_ms_max=4_000)
    tasks = [asyncio.create_task(cold.run_with(n, 0)) for n in range(2)]
    await asyncio.sleep(0.01)
    assert executor.ledgers == [0]
    tasks.append(asyncio.create_task(cold.run_with(7, 0, urgent=True)))
    await asyncio.sleep(0.01)
    assert executor.ledgers == [0, 7]
    executor.under_way[1].set_result([])
    await asyncio.sleep(2.1)  # more than half of the wait that is allowed
    assert executor.ledgers == [0, 7]
    executor.under_way[0].set_result([])
    await until(lambda: executor.ledgers == [0, 7, 1])
    for task in tasks:
        task.cancel()


async def test_a_burst_is_much_at_once_twice_and_not_much_in_a_second() -> None:
    burst, now = AddBurst(), 0.0
    burst._loop = SimpleNamespace(time=lambda: now)  # type: ignore[assignment]
    for _ in range(20):
        burst.came(PEAK_BYTES // 2 - 1)
        now += 0.002
    assert not burst.is_there
    burst.came(PEAK_BYTES)
    assert not burst.is_there, "the loop was kept from it for a moment"
    now += BURST_S * 1.5
    for _ in range(2):
        assert not burst.is_there
        for _ in range(64):
            burst.came(PEAK_BYTES // 64)
    assert burst.is_there
    now += BURST_S * 1.5
    assert not burst.is_there


# The level of pressure


def test_pressure_rises_by_steps_and_falls_late() -> None:
    pressure = AddPressure(WriteCache(1 << 40), 100 * KIB, 300 * KIB)
    seen: list[Pressure] = []
    pressure.on_change(seen.append)
    for used_kib in (99, 101, 150, 201, 299, 300, 400, 250, 199, 60, 51, 49, 99):
        pressure.update(used_kib * KIB - 2 * RUN_BYTES, 2)
    assert seen == [
        Pressure.GREEDY,
        Pressure.ALL,
        Pressure.FULL,
        Pressure.ALL,
        Pressure.GREEDY,
        Pressure.NONE,
    ]
    assert pressure.peak == 400 * KIB


def test_recovery_has_a_quarter_more_room_and_one_run_always_passes() -> None:
    pressure = AddPressure(WriteCache(1 << 40), 100 * KIB, 100 * KIB)
    pressure.update(100 * KIB, 2)
    assert pressure.level is Pressure.FULL
    assert pressure.has_room_for_recovery
    pressure.update(125 * KIB, 2)
    assert not pressure.has_room_for_recovery
    pressure.update(125 * KIB, 1)
    assert pressure.level is Pressure.NONE


def test_objects_count_not_only_bytes() -> None:
    pressure = AddPressure(WriteCache(1 << 40), 100 * KIB, 100 * KIB)
    pressure.update(0, 100 * KIB // RUN_BYTES + 1)
    assert pressure.level is Pressure.FULL


# A whole bookie


@contextmanager
def hanging(disk: TroubledDisk) -> Iterator[None]:
    gate = threading.Event()
    disk.hook = lambda call, path: (gate.wait(20), None)[1] if call == "datasync" else None
    try:
        yield
    finally:
        gate.set()


BOUNDS: dict[str, Any] = {
    "scratch_bytes": 64 * KIB,
    "journal_group_bytes_max": 16 * KIB,
    "journal_queue_bytes_max": 64 * KIB,
    "add_bytes_max": 128 * KIB,
}


async def test_an_add_there_is_no_room_for_is_refused_while_the_disk_still_hangs(
    tmp_path: Path,
) -> None:
    """A client hears of a full bookie without waiting for the disk. Adds of recoveries pass."""
    disk = TroubledDisk()
    async with running_bookie(tmp_path, disk=disk, **BOUNDS) as bookie:
        crowd = [await RawClient.connect(bookie) for _ in range(60)]
        late, recovery = [await RawClient.connect(bookie) for _ in range(2)]
        with hanging(disk):
            for number, client in enumerate(crowd):  # each takes little, together too much
                client.send(adds_of(number, range(4), bytes(2 * KIB)))
            await until(lambda: bookie.server.pressure is Pressure.FULL)
            assert await late.add(add_of(100, 0)) is Code.TOO_MANY_REQUESTS
            recovery.send(add_of(101, 0, flags=RECOVERY))
            await until(lambda: bookie.storage.pressure.used > BOUNDS["add_bytes_max"])
            count = bookie.metrics.registry.get_sample_value
            refused = count("octavo_bookie_throttled_total", {"cause": "adds"}) or 0
            assert refused >= 1
        assert await recovery.acked(1) == [(101, 0)]
        await until(lambda: bookie.server.pressure is Pressure.NONE)
        assert await late.add(add_of(100, 0)) is Code.OK, "and it is welcome again"
        assert await late.read(100, 0) == entry_of(100, 0)
        for client in (*crowd, late, recovery):
            client.close()
