"""The simulated loop keeps asyncio's promises and its own, and the real world is out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections import Counter as Counts
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from tests.sim.__main__ import run_chunk
from tests.sim.digest import ALL, digests
from tests.sim.guard import RealWorldTouched, forbid_real_world
from tests.sim.loop import SimLoop, SimStuck
from tests.sim.network import SimNetwork
from tests.sim.process import Process, ProcessCrashed, current_process
from tests.sim.run import SeedResult
from tests.sim.trace import Trace


def a_loop(seed: int = 1, mode: str | None = None) -> SimLoop:
    loop = SimLoop(seed, trace=Trace())
    if mode is not None:
        loop.mode = mode
    return loop


def test_time_jumps_and_timers_fire_in_order() -> None:
    loop = a_loop()
    fired: list[tuple[str, float]] = []

    async def sleep(name: str, s: float) -> None:
        await asyncio.sleep(s)
        fired.append((name, round(loop.time(), 3)))

    async def main() -> None:
        await asyncio.gather(sleep("b", 2000), sleep("a", 1), sleep("c", 2000.5))

    loop.run_until_complete(main())
    assert fired == [("a", 1.0), ("b", 2000.0), ("c", 2000.5)]
    assert loop.wall_ms() == loop.epoch_ms + 2_000_500
    assert loop.errors == []


@pytest.mark.parametrize("mode", ["fifo", "uniform", "pct"])
def test_callbacks_of_one_process_keep_their_order(mode: str) -> None:
    loop = a_loop(mode=mode)
    seen: list[tuple[str, int]] = []
    for name in ("a", "b", "c"):
        process = Process(loop, name)
        for number in range(20):
            process.run(
                loop.call_soon, lambda name=name, number=number: seen.append((name, number))
            )
    loop.run_until(lambda: len(seen) == 60, virtual_s_max=1)
    for name in ("a", "b", "c"):
        assert [number for who, number in seen if who == name] == list(range(20))


def test_seeds_make_different_schedules_and_the_same_seed_the_same() -> None:
    def one(seed: int) -> tuple[str, tuple[str, ...]]:
        loop = a_loop(seed, "uniform")
        seen: list[str] = []
        for name in "abc":
            process = Process(loop, name)
            for _ in range(5):
                process.run(loop.call_soon, seen.append, name)
        loop.run_until(lambda: len(seen) == 15, virtual_s_max=1)
        return loop.trace.hash(), tuple(seen)

    assert one(7) == one(7)
    assert len({one(seed) for seed in range(20)}) > 15


def test_everything_of_asyncio_that_the_product_uses_works() -> None:
    loop = a_loop()

    async def main() -> list[Any]:
        found: list[Any] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        found.append(round(loop.time()))
        event = asyncio.Event()
        loop.call_later(1, event.set)
        await event.wait()
        done, pending = await asyncio.wait(
            {asyncio.create_task(asyncio.sleep(s, s)) for s in (1, 2)},
            return_when=asyncio.FIRST_COMPLETED,
        )
        found += [task.result() for task in done]
        await asyncio.gather(*pending)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(loop.create_future()), 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
            group.create_task(asyncio.sleep(2))
        lock, gate = asyncio.Lock(), asyncio.Semaphore(1)
        async with lock, gate:
            found.append(await loop.run_in_executor(None, sum, (1, 2)))
        queue: asyncio.Queue[int] = asyncio.Queue()
        loop.call_soon_threadsafe(queue.put_nowait, 4)
        found.append(await queue.get())
        return found

    assert loop.run_until_complete(main()) == [5, 1, 3, 4]
    loop.close()
    assert loop.errors == []


def test_one_worker_keeps_the_order_and_errors_come_back() -> None:
    loop = a_loop()
    ran: list[int] = []
    pool = ThreadPoolExecutor(1)

    def job(number: int) -> int:
        loop.spend(1.0 if number == 0 else 0.0)
        ran.append(number)
        if number == 3:
            raise OSError("disk")
        return number

    async def main() -> list[Any]:
        jobs = [loop.run_in_executor(pool, job, number) for number in range(6)]
        return await asyncio.gather(*jobs, return_exceptions=True)

    found = loop.run_until_complete(main())
    assert ran == list(range(6))
    assert [one for one in found if isinstance(one, int)] == [0, 1, 2, 4, 5]
    assert isinstance(found[3], OSError)
    assert loop.time() > 1.0
    pool.shutdown()
    with pytest.raises(RuntimeError):
        loop.run_in_executor(pool, job, 1)


def test_a_crashed_process_never_runs_again_not_even_its_finally() -> None:
    loop = a_loop()
    ran: list[str] = []

    async def work(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ran.append(name)
        finally:
            ran.append(f"finally {name}")

    victim, other = Process(loop, "victim"), Process(loop, "other")
    told: list[Process] = []
    victim.on_crash.append(told.append)
    victim.spawn(work("victim"), "work")
    other.spawn(work("other"), "work")
    loop.run_until(lambda: loop.time() > 3.5, virtual_s_max=10)
    victim.crash()
    victim.crash()
    before = ran.count("victim")
    loop.run_until(lambda: loop.time() > 9.5, virtual_s_max=10)
    assert ran.count("victim") == before
    assert ran.count("other") >= 9
    assert "finally victim" not in ran
    assert told == [victim]
    loop.close()
    assert loop.errors == []


def test_a_crash_can_hit_any_step() -> None:
    reached: set[int] = set()
    for step in range(1, 12):
        loop = a_loop()
        process = Process(loop, "victim")
        seen: list[int] = []

        async def work(seen: list[int]) -> None:
            for number in range(10):
                seen.append(number)
                await asyncio.sleep(0)

        process.spawn(work(seen), "work")
        process.crash_after(step)
        with pytest.raises(SimStuck):
            loop.run_until(lambda: False, virtual_s_max=1)
        reached.add(len(seen))
        loop.close()
    assert reached == set(range(1, 11))


def test_a_crash_within_a_blocking_call_takes_the_process_along() -> None:
    loop = a_loop()
    process = Process(loop, "victim")
    after: list[str] = []

    def job() -> None:
        process.crash()
        raise ProcessCrashed

    async def work() -> None:
        await loop.run_in_executor(None, job)
        after.append("went on")

    process.spawn(work(), "work")
    with pytest.raises(SimStuck):
        loop.run_until(lambda: bool(after), virtual_s_max=1)
    assert not process.alive
    assert loop.errors == []


def test_a_paused_process_stands_still_and_its_timers_fire_late() -> None:
    loop = a_loop()
    at: list[float] = []

    async def work() -> None:
        while True:
            await asyncio.sleep(1)
            at.append(round(loop.time(), 2))

    process = Process(loop, "paused")
    process.spawn(work(), "work")
    loop.world_later(1.5, process.pause, 5)
    loop.run_until(lambda: len(at) >= 2, virtual_s_max=10)
    assert at == [1.0, 6.5]


def test_a_slow_process_takes_its_time() -> None:
    loop = a_loop()
    process = Process(loop, "slow")
    process.slow_down(0.1)

    async def work() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    task = process.spawn(work(), "work")
    loop.run_until(task, virtual_s_max=10)
    assert loop.time() >= 1.0


def test_code_knows_its_process_through_every_kind_of_callback() -> None:
    loop = a_loop()
    process = Process(loop, "mine")
    seen: list[Process | None] = []

    def note() -> None:
        seen.append(current_process())

    async def work() -> None:
        note()
        loop.call_soon(note)
        loop.call_later(1, note)
        await loop.run_in_executor(None, note)
        await asyncio.gather(asyncio.create_task(noting()))
        await asyncio.sleep(2)

    async def noting() -> None:
        note()

    loop.run_until(process.spawn(work(), "work"), virtual_s_max=10)
    assert seen == [process] * 5
    assert current_process() is None


def fails_in_a_callback(loop: SimLoop) -> None:
    loop.call_soon(lambda: 1 // 0)


def fails_in_a_task(loop: SimLoop) -> None:
    async def work() -> None:
        raise ConnectionError("nobody looks")

    loop.create_task(work())


def reports_to_the_loop(loop: SimLoop) -> None:
    loop.call_soon(loop.call_exception_handler, {"message": "odd"})


@pytest.mark.parametrize("fail", [fails_in_a_callback, fails_in_a_task, reports_to_the_loop])
def test_errors_that_a_loop_would_only_log_are_kept(fail: Callable[[SimLoop], None]) -> None:
    loop = a_loop()
    fail(loop)
    loop.world_later(1, lambda: None)
    loop.run_until(lambda: loop.time() >= 1, virtual_s_max=2)
    loop.close()
    assert len(loop.errors) == 1


def test_what_never_comes_is_told_with_who_waits() -> None:
    loop = a_loop()
    process = Process(loop, "waiter")

    async def wait() -> None:
        await asyncio.Event().wait()

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    task = process.spawn(wait(), "for nothing")
    with pytest.raises(SimStuck, match=r"nothing is left to do.*for nothing of waiter"):
        loop.run_until(task, virtual_s_max=10)
    process.spawn(spin(), "busy")
    with pytest.raises(SimStuck, match="time is over"):
        loop.run_until(task, virtual_s_max=0.01)
    loop.close()


def test_sets_of_tasks_have_the_same_order_in_each_run() -> None:
    def one() -> list[str]:
        loop = a_loop()

        async def main() -> list[str]:
            tasks = {asyncio.create_task(asyncio.sleep(0), name=str(n)) for n in range(40)}
            done, _ = await asyncio.wait(tasks)
            return [task.get_name() for task in done]

        return loop.run_until_complete(main())

    waste = [object() for _ in range(1000)]
    first = one()
    del waste[::3]
    assert one() == first


def test_clocks_of_processes_are_skewed_and_drift() -> None:
    loop = a_loop()
    process = Process(loop, "ahead")
    process.skew_ms, process.drift = 3_600_000, 0.01
    loop.run_until(loop.create_task(asyncio.sleep(100)), virtual_s_max=200)
    assert 1_000 <= process.clock_ms() - loop.wall_ms() - 3_600_000 <= 1_001


def test_streams_do_not_shift_one_another() -> None:
    first, second = a_loop(5), a_loop(5)
    first.stream("other").random()
    assert first.stream("mine").random() == second.stream("mine").random()
    assert first.stream("mine").random() != first.stream("theirs").random()


async def _mistaken() -> None:
    await asyncio.sleep(0.1)
    raise KeyError("nobody foresees this")


def test_an_error_that_nobody_foresees_counts_although_it_is_swallowed() -> None:
    async def gathers() -> None:
        await asyncio.gather(_mistaken(), return_exceptions=True)

    async def suppresses() -> None:
        with contextlib.suppress(Exception):
            await asyncio.create_task(_mistaken())

    async def leaves_it_to_a_thread() -> None:
        with contextlib.suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(None, {}.__getitem__, "x")  # type: ignore[arg-type]

    async def leaves_it_to_nobody() -> None:
        process.spawn(_mistaken(), "left")
        await asyncio.sleep(1)

    for swallows in (gathers, suppresses, leaves_it_to_a_thread, leaves_it_to_nobody):
        loop = a_loop()
        process = Process(loop, "p")
        loop.run_until(process.spawn(swallows(), "main"), virtual_s_max=5)
        assert len(loop.errors) == 1, swallows.__name__
        assert "KeyError" in loop.errors[0]


def test_errors_that_belong_to_life_count_only_when_nobody_looks() -> None:
    async def fails() -> None:
        raise ConnectionResetError

    async def looks() -> None:
        await asyncio.gather(fails(), return_exceptions=True)

    loop = a_loop()
    process = Process(loop, "p")
    loop.run_until(process.spawn(looks(), "looks"), virtual_s_max=5)
    assert loop.errors == []
    left = process.spawn(fails(), "left")
    loop.run_until(left.done, virtual_s_max=5)
    loop.look_for_unseen_errors(process)
    assert len(loop.errors) == 1
    assert "nobody looked at task left" in loop.errors[0]


def test_who_is_about_to_look_has_not_failed_to() -> None:
    """The seed may end between the end of a task and its callback (seed 2301706 of `beyond`)."""

    async def fails() -> None:
        raise ConnectionResetError

    loop = a_loop()
    process = Process(loop, "p")

    async def leaves_it() -> asyncio.Task[None]:
        left = loop.create_task(fails(), name="left")
        left.add_done_callback(lambda task: None)
        return left

    left = loop.run_until_complete(process.spawn(leaves_it(), "main"))
    loop.run_until(left, virtual_s_max=5)
    loop.look_for_unseen_errors()
    assert loop.errors == []
    loop.run_until(lambda: not process.queue, virtual_s_max=5)
    loop.look_for_unseen_errors()
    assert len(loop.errors) == 1, "it has not looked after all"


def test_a_call_that_goes_wrong_counts_although_the_caller_has_gone() -> None:
    loop = a_loop()
    network = SimNetwork(loop)
    caller, called = Process(loop, "caller"), Process(loop, "called")

    async def asks() -> None:
        with contextlib.suppress(TimeoutError):
            await network.call(caller, called, _mistaken, 0.01)

    loop.run_until(caller.spawn(asks(), "asks"), virtual_s_max=5)
    loop.run_until(lambda: loop.now > 1 or loop.errors, virtual_s_max=5)
    assert "KeyError" in loop.errors[0]


# The real world is out of reach while a seed runs, and within reach afterwards.
TOUCHES: dict[str, Callable[[], Any]] = {
    "time": lambda: time.time(),
    "monotonic": lambda: time.monotonic(),
    "perf_counter": lambda: time.perf_counter(),
    "time_ns": lambda: time.time_ns(),
    "sleep": lambda: time.sleep(0),
    "random": lambda: random.random(),
    "choice": lambda: random.choice([1]),
    "shuffle": lambda: random.shuffle([1, 2]),
    "unseeded": lambda: random.Random(),
    "system": lambda: random.SystemRandom().random(),
    "system choice": lambda: random.SystemRandom().choice([1, 2, 3]),
    "urandom": lambda: os.urandom(1),
    "uuid4": lambda: uuid.uuid4(),
    "secrets": lambda: secrets.token_hex(2),
    "thread": lambda: threading.Thread(target=print).start(),
    "pool": lambda: ThreadPoolExecutor(1).submit(int),
    "socket": lambda: socket.socket(),
    "connect": lambda: socket.create_connection(("127.0.0.1", 1)),
    "open": lambda: open("/dev/null"),  # noqa: SIM115
    "os.open": lambda: os.open("/dev/null", os.O_RDONLY),
    "path": lambda: Path("/dev/null").read_bytes(),
    "loop": lambda: asyncio.new_event_loop(),
    "process": lambda: subprocess.run(["true"], check=False),
}


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touch_raises_and_names_the_place(name: str) -> None:
    with pytest.raises(RealWorldTouched, match=r"test_loop|\.py:\d+"), forbid_real_world():
        TOUCHES[name]()


def test_a_swallowed_touch_is_told_in_the_end() -> None:
    def swallow() -> None:
        try:
            time.time()
        except BaseException:
            pass

    with pytest.raises(RealWorldTouched, match=r"time\.time called by .*swallow"):  # noqa: SIM117
        with forbid_real_world():
            swallow()


def test_everything_works_again_afterwards_also_when_nested() -> None:
    with forbid_real_world(), forbid_real_world():
        random.Random(1).random()
    assert time.time() > 0
    assert 0 <= random.random() < 1
    assert open("/dev/null").close() is None
    assert random.Random().random() != random.Random().random()
    with socket.socket():
        pass


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"), forbid_real_world():
        raise ValueError("mine")
    time.time()


def test_imports_metrics_and_other_threads_are_let_alone(tmp_path: Path) -> None:
    (tmp_path / "freshly_imported.py").write_text("answer = 42\n")
    sys.path.insert(0, str(tmp_path))
    go, seen = threading.Event(), []

    def other() -> None:
        go.wait(10)
        seen.append(time.monotonic())

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with forbid_real_world():
            assert importlib.import_module("freshly_imported").answer == 42
            counter = Counter("guarded", "A metric", ["kind"], registry=CollectorRegistry())
            counter.labels("one").inc()
            go.set()
            thread.join(10)
    finally:
        sys.path.remove(str(tmp_path))
    assert len(seen) == 1


def test_entering_is_cheap() -> None:
    best = 1.0
    for _ in range(50):
        started = time.perf_counter()
        with forbid_real_world():
            pass
        best = min(best, time.perf_counter() - started)
    assert best < 0.000_3


# The simulator, not the garbage collector, closes a killed process's unfinished coroutines.
closed: list[str] = []


async def _close(name: str) -> None:
    closed.append(name)


async def _life() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.gather(*[_close(name) for name in "abc"])


async def _longer_life() -> None:
    try:
        await _life()
    finally:
        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            for name in "de":
                group.create_task(_close(name))


def test_nothing_is_left_that_was_never_awaited() -> None:
    loop = SimLoop(1, trace=Trace())
    process = Process(loop, "killed")
    for life in (_life, _longer_life):
        process.spawn(life(), life.__name__)
    loop.run_until(lambda: loop.steps > 1, virtual_s_max=1.0)
    process.crash(power=False)
    process.spawn(_close("never begun"), "late")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop.close()
        gc.collect()
    assert [str(one.message) for one in said] == []
    assert closed == [], "nobody is there any more to do it"


# `make sim-digest`: equal for equal stories, different as soon as one differs.
TOLD = SeedResult(
    seed=7,
    trace_hash="0011223344556677",
    steps=900,
    virtual_s=1.25,
    failure=None,
    faults=Counts(kill=2, cut=1),
    probes=Counts({"writer.Ended": 3}),
    wall_s=0.5,
    profile="ledger",
)
OTHER = replace(TOLD, seed=8, profile="topic")


@pytest.mark.parametrize(
    "change",
    [
        {"trace_hash": "0011223344556678"},
        {"steps": 901},
        {"virtual_s": 1.2500001},
        {"failure": "S1 an acknowledged entry is lost"},
        {"faults": Counts(kill=2)},
        {"probes": Counts({"writer.Ended": 4})},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_told_otherwise_shows_in_its_profile_and_in_all(change: dict[str, Any]) -> None:
    before, after = digests([TOLD, OTHER]), digests([replace(TOLD, **change), OTHER])
    assert [name for name in before if before[name] != after[name]] == ["ledger", ALL]


def test_what_depends_on_the_machine_or_names_a_file_does_not_show() -> None:
    failed = replace(TOLD, failure="unhandled: bookie/journal/journal.py line 7")
    moved = replace(failed, failure="unhandled: elsewhere.py line 9", events=["one"], wall_s=9.0)
    counted_otherwise = replace(TOLD, faults=Counts(cut=1, kill=2))
    assert digests([failed]) == digests([moved])
    assert digests([TOLD]) == digests([counted_otherwise])


def test_two_runs_of_the_same_seeds_agree() -> None:
    job = ([3, 4], None, "ledger")
    assert digests(run_chunk(job)) == digests(run_chunk(job))
    assert digests(run_chunk(job)) != digests(run_chunk(([3, 5], None, "ledger")))
