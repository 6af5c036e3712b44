"""A bookie's reads: caches, read-ahead, cold reads, waiting reads."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.back_pressure import AddBurst, Budget
from octavo.bookie.ledgers.control import LacWatches
from octavo.bookie.read import read_ahead
from octavo.bookie.read.cache import CachedExtent, ReadCache
from octavo.bookie.read.cold_reads import ColdReads
from octavo.bookie.read.path import ReadPath
from octavo.bookie.read.read_ahead import ReadAhead
from octavo.bookie.stats import ReadStats
from octavo.bookie.write.cache import IntervalMap, Memtable, WriteCache, extents
from octavo.protocol.codes import BookieIOError, TooManyRequests, UnknownState
from tests.support.kit.quiescence import in_use
from tests.support.raw_bookie import adds_of, config_in, entry_of
from tests.support.storage_support import entry_bytes, make_run

LEDGER = 1


class Threads(Executor):
    def __init__(self) -> None:
        self.under_way: list[Future[list[CachedExtent]]] = []

    def submit(self, *_: object, **__: object) -> Future[Any]:
        self.under_way.append(Future())
        return self.under_way[-1]


def a_run(payload: bytes) -> CachedExtent:
    return CachedExtent(LEDGER, 0, 1, adds_of(LEDGER, range(2), payload))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_flush_ends_what_older_reads_may_answer() -> None:
    """A later request neither joins them nor finds their result in the cache."""
    threads, unused = Threads(), Any
    cache = ReadCache(1 << 20)
    cold = ColdReads(
        config_in(Path("/nowhere"), read_threads=2),
        executor=threads,
        index=unused,  # type: ignore[arg-type]
        logs=unused,  # type: ignore[arg-type]
        cache=cache,
        damages=unused,  # type: ignore[arg-type]
        stats=ReadStats(),
        burst=AddBurst(),
    )
    before = asyncio.create_task(cold.run_with(LEDGER, 0))
    joined = asyncio.create_task(cold.run_with(LEDGER, 0))
    await turns()
    cold.index_changed()
    after = asyncio.create_task(cold.run_with(LEDGER, 0))
    await turns()
    assert len(threads.under_way) == 2, "the second one joined, the third one may not"

    threads.under_way[0].set_result([a_run(b"older")])
    for read in (before, joined):
        run = await read
        assert run is not None
        assert run.entry(0) == entry_of(LEDGER, 0, b"older")
    assert not after.done()
    assert cache.find(LEDGER, 0) is None

    threads.under_way[1].set_result([a_run(b"newer")])
    run = await after
    assert run is not None
    assert run.entry(0) == entry_of(LEDGER, 0, b"newer")
    assert cache.find(LEDGER, 1) is run


async def test_what_cannot_be_read_ends_a_batch_that_has_something() -> None:
    """The reader gets the good entries, and the error when it asks for the bad one alone."""

    class Damaged:
        wait_s_max = 1.0

        async def run_with(self, *_: object, **__: object) -> None:
            raise BookieIOError("entry log /l/1.log at byte 5: checksum does not match")

    cache = WriteCache(1 << 20)
    cache.active.put(make_run(LEDGER, 0, [b"a", b"b"]))
    control: Any = SimpleNamespace(
        known=lambda _: None, deny=lambda *_: None, last_entry=lambda _: 9
    )
    damaged: Any = Damaged()
    lookups = ReadStats().lookups
    reads = ReadPath(control, cache, ReadCache(1 << 20), damaged, Budget(1 << 20), lookups)
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    with pytest.raises(BookieIOError):
        await reads.read_many(LEDGER, 2, 9, 1 << 20)
    assert reads._answers.used == 0


async def test_who_has_the_last_entry_from_memory_does_not_ask_the_disk() -> None:
    """If the bookie may have lost later entries, the disk's answer counts."""

    class Asked:
        wait_s_max = 1.0
        times = 0

        async def run_with(self, *_: object, **__: object) -> None:
            self.times += 1

    def unsure(_: int) -> int:
        raise UnknownState("this bookie may have lost some of it")

    cache = WriteCache(1 << 20)
    cache.active.put(make_run(LEDGER, 0, [b"a", b"b"]))
    control: Any = SimpleNamespace(
        known=lambda _: None, deny=lambda *_: None, last_entry=lambda _: 1
    )
    disk: Any = Asked()
    lookups = ReadStats().lookups
    reads = ReadPath(control, cache, ReadCache(1 << 20), disk, Budget(1 << 20), lookups)
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    assert len(reads.read_now(LEDGER, 1, 9, 1 << 20) or ()) == 1
    assert disk.times == 0
    control.last_entry = lambda _: 2
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    control.last_entry = unsure
    assert len(await reads.read_many(LEDGER, 0, 9, 1 << 20)) == 2
    assert disk.times == 2


# Read-ahead: each reader has its share, and readers that left have none.
KIB = 1024
AHEAD, CACHE = 1024 * KIB, 64 * 1024 * KIB


def test_a_reader_that_goes_on_gets_more_each_time_up_to_the_bound() -> None:
    found = ReadAhead(AHEAD, CACHE)
    windows = []
    at = 0
    for _ in range(6):
        window, entries = found.window(1, at, 0.0)
        windows.append(window)
        assert entries == (10 if at else 1)
        found.ended(1, at, at + 9, window, 0.0)
        at += 10
    assert windows == [0, 128 * KIB, 256 * KIB, 512 * KIB, AHEAD, AHEAD]
    assert found.window(1, at + 1, 0.0) == (0, 1), "a jump begins anew"


def test_readers_share_half_of_the_cache() -> None:
    found = ReadAhead(AHEAD, 2 * AHEAD)
    for ledger in range(4):
        for at in range(6):
            found.ended(ledger, at, at, AHEAD, 0.0)
    assert {found.window(ledger, 6, 1.0)[0] for ledger in range(4)} == {2 * AHEAD // 8}


@pytest.mark.parametrize(("silent_s", "share"), [(4.999, 4), (5.0, 1), (5.001, 1)])
def test_those_that_are_silent_give_their_share_back(silent_s: float, share: int) -> None:
    found = ReadAhead(AHEAD, 2 * AHEAD)
    for ledger in range(3):
        found.ended(ledger, 0, 0, AHEAD, 10.0)
    for at in range(6):
        found.ended(9, at, at, AHEAD, 10.0 + silent_s)
    assert found.window(9, 6, 10.0 + silent_s)[0] == min(AHEAD, AHEAD // share)


def test_as_many_are_known_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with readers that jump, each of which leaves an unused place behind."""
    monkeypatch.setattr(read_ahead, "_READERS_MAX", 3)
    found = ReadAhead(AHEAD, CACHE)
    for ledger in range(4):
        found.ended(ledger, 0, 0, 0, float(ledger))
        assert len(found._readers) == min(3, ledger + 1)
    assert [found.window(ledger, 1, 3.0)[0] > 0 for ledger in range(4)] == [False, True, True, True]


# Reads that wait for room are woken each time there is some; lists give their turn back.
class Cold:
    wait_s_max = 600.0

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def intervals(self, _: int) -> list[tuple[int, int]]:
        if self.error is not None:
            raise self.error
        return [(0, 1)]


def path_of(answers: Budget, cold: Cold) -> ReadPath:
    cache = WriteCache(1 << 20)
    cache.active.put(make_run(LEDGER, 0, [b"a", b"b"]))
    control: Any = SimpleNamespace(
        known=lambda _: None, deny=lambda *_: None, sure=lambda *_: None, last_entry=lambda _: 1
    )
    return ReadPath(
        control, cache, ReadCache(1 << 20), cast(Any, cold), answers, ReadStats().lookups
    )


async def few_turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_all_who_wait_for_room_are_woken_also_after_it_was_taken_again() -> None:
    answers = Budget(100)
    reads = path_of(answers, Cold())
    answers.change(100)
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(reads.read_many(LEDGER, 0, 2, 1 << 20)) for _ in range(3)
    ]
    waiting.append(asyncio.ensure_future(reads.entries(LEDGER)))
    await few_turns()
    for _ in range(3):
        assert in_use(reads) == {"waiting": 4}
        answers.change(-100)
        answers.change(100)
        await few_turns()
        assert not any(one.done() for one in waiting)
    answers.change(-1)
    await few_turns()
    assert [len(one.result()) for one in waiting] == [2, 2, 2, 1]
    assert in_use(reads) == {}
    assert reads.waits_in_vain() == ""


@pytest.mark.parametrize("ends", ["well", "with an error", "for want of room", "cancelled"])
async def test_a_list_gives_its_turn_back(ends: str) -> None:
    """After two lists that kept their turns, each list was refused."""
    answers, cold = Budget(100), Cold()
    reads = path_of(answers, cold)
    for _ in range(5):
        cold.error = BookieIOError("entry log 1") if ends == "with an error" else None
        if ends in ("for want of room", "cancelled"):
            answers.change(100)
            cold.wait_s_max = 0.01 if ends == "for want of room" else 600.0
        task = asyncio.ensure_future(reads.entries(LEDGER))
        await few_turns()
        if ends == "cancelled":
            task.cancel()
        elif not answers.is_spent:
            assert task.done(), "there is a turn for it"
        await asyncio.wait([task])
        if ends == "well":
            assert task.result() == [(0, 1)]
        elif ends == "cancelled":
            assert task.cancelled()
        else:
            assert isinstance(task.exception(), BookieIOError | TooManyRequests)
        answers.change(-answers.used)
    cold.error, cold.wait_s_max = None, 600.0
    another = asyncio.ensure_future(reads.entries(LEDGER))
    await few_turns()
    assert another.done(), "there is a turn for it"
    assert another.result() == [(0, 1)]
    assert in_use(reads) == {}


# Parked readers end when the LAC has passed their own, and not before.
@pytest.mark.parametrize("seed", range(20))
async def test_a_reader_ends_at_the_first_lac_above_its_own(seed: int) -> None:
    rng = random.Random(seed)
    watches = LacWatches()
    parked: list[tuple[int, int, asyncio.Future[int]]] = []
    lacs = {1: -1, 2: -1}
    for _ in range(60):
        ledger_id = rng.choice((1, 2))
        if rng.random() < 0.5:
            after = lacs[ledger_id] + rng.randint(0, 3)
            parked.append((ledger_id, after, watches.park(ledger_id, after)))
        elif rng.random() < 0.2 and parked:
            parked.pop(rng.randrange(len(parked)))[2].cancel()
        else:
            lacs[ledger_id] += rng.randint(1, 2)
            watches.moved(ledger_id, lacs[ledger_id])
        await asyncio.sleep(0)
        for its, after, future in parked:
            assert future.done() == (lacs[its] > after)
            assert not future.done() or after < future.result() <= lacs[its]
        assert len(watches) == sum(not future.done() for _, _, future in parked)
    watches.wake(1, 99)
    await asyncio.sleep(0)
    for its, _, future in parked:
        assert future.done() or its == 2
    assert len(watches) == sum(not future.done() for _, _, future in parked)
    watches.cancel_all()
    await asyncio.sleep(0)
    assert not len(watches)


# Write cache and read cache: what is found, what wins, what is cut, what is bounded.
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=25),
    st.sampled_from([2, 3, 5, 64]),
)
def test_the_latest_write_wins(spans: list[tuple[int, int]], join_runs: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.bookie.write.cache._JOIN_RUNS", join_runs)
        check_latest_wins(spans)


@pytest.mark.parametrize("join_runs", range(2, 9))
def test_resends_among_runs_that_are_joined(
    join_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that adds singly, and sometimes resends some of the last entries."""
    monkeypatch.setattr("octavo.bookie.write.cache._JOIN_RUNS", join_runs)
    for seed in range(150):
        rng = random.Random(seed)
        spans: list[tuple[int, int]] = []
        end = 0
        for _ in range(rng.randrange(40)):
            if rng.random() < 0.25:
                spans.append((max(0, end - 1 - rng.randrange(8)), rng.randint(1, 4)))
            else:
                spans.append((end + (rng.random() < 0.1), rng.randint(1, 2)))
            end = max(end, sum(spans[-1]))
        try:
            check_latest_wins(spans)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {spans}") from error


def check_latest_wins(spans: list[tuple[int, int]]) -> None:
    held = IntervalMap()
    wanted: dict[int, bytes] = {}
    for serial, (first, count) in enumerate(spans):
        payloads = [b"%d:%d" % (serial, n) for n in range(count)]
        held.put(make_run(1, first, payloads))
        wanted |= {first + n: entry_bytes(1, first + n, payloads[n]) for n in range(count)}
    for entry_id in range(max(wanted, default=0) + 3):
        piece = held.find(entry_id)
        assert wanted.get(entry_id) == (piece and piece.entry(entry_id))
        later = [piece.first for piece in held.pieces if piece.first > entry_id]
        assert held.first_after(entry_id) == min(later, default=2**63)
    for before, after in zip(held.pieces, held.pieces[1:], strict=False):
        assert before.last < after.first


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.lists(st.integers(0, 300), min_size=1)),
        max_size=15,
    ),
    st.sampled_from([1, 200, 1000, 10**6]),
)
def test_log_runs_hold_every_entry_once_in_order(
    adds: list[tuple[int, int, list[int]]], bytes_max: int
) -> None:
    half = Memtable()
    wanted: dict[tuple[int, int], bytes] = {}
    for ledger_id, first, sizes in adds:
        half.put(make_run(ledger_id, first, [b"x" * size for size in sizes]))
        for n, size in enumerate(sizes):
            wanted[ledger_id, first + n] = entry_bytes(ledger_id, first + n, b"x" * size)
    found: dict[tuple[int, int], bytes] = {}
    runs = list(extents(half, bytes_max))
    for run in runs:
        frames = b"".join(run.frames)
        assert len(frames) == run.frames_bytes
        assert run.frames_bytes <= bytes_max or run.entries == 1
        last = run.first_entry + run.entries - 1
        cached = CachedExtent(run.ledger_id, run.first_entry, last, frames)
        for entry_id in range(run.first_entry, last + 1):
            assert (run.ledger_id, entry_id) not in found
            found[run.ledger_id, entry_id] = cached.entry(entry_id)
    assert found == wanted
    order = [(run.ledger_id, run.first_entry) for run in runs]
    assert order == sorted(order)


def test_neighbours_are_joined_and_long_runs_cut() -> None:
    half = Memtable()
    for first in range(100):
        half.put(make_run(1, first, [b"x" * 100]))
    assert len(list(extents(half, 10**6))) == 1
    half = Memtable()
    half.put(make_run(1, 0, [b"x" * 100] * 1000))
    assert [run.entries for run in extents(half, 64 * 1024)] == [399, 399, 202]


def test_single_adds_are_joined_in_the_cache() -> None:
    half = Memtable()
    for first in range(1000):
        half.put(make_run(1, first, [b"%d" % first]))
    half.put(make_run(1, 2000, [b"after a gap"]))
    held = half.ledgers[1]
    assert len(held.pieces) == 1000 // 64 + 1000 % 64 + 1
    for entry_id in range(1000):
        piece = held.find(entry_id)
        assert piece is not None
        assert piece.entry(entry_id) == entry_bytes(1, entry_id, b"%d" % entry_id)
    frames = sum(len(piece.batch.frames) for piece in held.pieces)
    assert frames < half.bytes < frames + 41 * 360 + 15 * 320 + 4000


def test_two_halves() -> None:
    cache = WriteCache(1000)
    cache.active.put(make_run(1, 0, [b"old"] * 5))
    assert not cache.is_full
    flushing = cache.swap()
    cache.active.put(make_run(1, 2, [b"new"]))
    piece, last = cache.find(1, 0)
    assert piece is not None
    assert last == 1, "entry 2 is newer in the active half"
    piece, last = cache.find(1, 2)
    assert piece is not None
    assert piece.entry(2) == entry_bytes(1, 2, b"new")
    assert cache.find(1, 9) == (None, 2**63 - 1)
    assert cache.find(1, -1) == (None, -1)
    with pytest.raises(AssertionError):
        cache.swap()
    cache.active.put(make_run(2, 0, [b"x" * 700]))
    assert cache.is_full
    assert flushing is cache.flushing
    cache.drop_flushed()
    assert cache.find(1, 0) == (None, 1)
    cache.forget(2)
    assert cache.find(2, 0)[0] is None


def cached(ledger_id: int, first: int, count: int) -> CachedExtent:
    run = make_run(ledger_id, first, [b"x" * 100] * count)
    return CachedExtent(ledger_id, first, first + count - 1, run.frames)


def test_read_cache_is_bounded_and_forgets_the_least_used() -> None:
    one = cached(1, 0, 10).bytes
    cache = ReadCache(3 * one)
    for first in (0, 10, 20):
        cache.put(cached(1, first, 10))
    assert cache.find(1, 5) is not None
    cache.put(cached(2, 0, 10))
    assert cache.find(1, 15) is None
    assert cache.find(1, 5) is not None
    assert cache.find(1, 25) is not None
    assert cache.bytes == 3 * one
    cache.put(cached(3, 0, 100))
    assert cache.find(3, 0) is None, "longer than half of the bound: not kept"
    cache.drop(1)
    assert cache.find(1, 5) is None
    assert cache.bytes == one


def test_read_cache_replaces_what_overlaps() -> None:
    cache = ReadCache(10**6)
    cache.put(cached(1, 0, 10))
    cache.put(cached(1, 10, 10))
    cache.put(cached(1, 8, 4))
    assert cache.find(1, 0) is None
    assert cache.find(1, 15) is None
    assert cache.find(1, 9) is not None
    cache.drop(1, 0, 7)
    assert cache.find(1, 9) is not None
    cache.drop(1, 11, 11)
    assert cache.find(1, 9) is None
    assert cache.bytes == 0


def test_a_run_that_is_not_what_the_index_says_is_an_io_error() -> None:
    frames = make_run(1, 5, [b"x"] * 5).frames
    assert CachedExtent(1, 6, 8, frames).entry(7) == entry_bytes(1, 7, b"x")
    for ledger_id, first, last in ((2, 5, 9), (1, 4, 9), (1, 5, 10), (1, 20, 21)):
        with pytest.raises(BookieIOError):
            CachedExtent(ledger_id, first, last, frames)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=8),
    st.integers(0, 25),
)
def test_nothing_newer_lies_up_to_where_find_says(
    older: list[tuple[int, int]], newer: list[tuple[int, int]], entry_id: int
) -> None:
    """A reader that continues from there through an older copy would miss a newer one."""
    cache = WriteCache(10**6)
    halves: list[set[int]] = []
    for spans in (older, newer):
        held: set[int] = set()
        for first, count in spans:
            cache.active.put(make_run(1, first, [b"x"] * count))
            held.update(range(first, first + count))
        halves.append(held)
        if len(halves) == 1:
            cache.swap()
    piece, last = cache.find(1, entry_id)
    old, new = halves
    assert (piece is not None) == (entry_id in old | new)
    covering = new if piece is None or entry_id in old - new else set()
    covering = covering | old if piece is None else covering
    assert all(other not in covering for other in range(entry_id, min(last, 40) + 1))
    if piece is not None:
        assert last <= piece.last
