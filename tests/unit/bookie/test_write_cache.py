"""Write cache and read cache: what is found, what wins, what is cut, what is bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.read.cache import CachedExtent, ReadCache
from octavo.bookie.write.cache import IntervalMap, Memtable, WriteCache, extents
from octavo.protocol.codes import BookieIOError
from tests.support.storage_support import entry_bytes, make_run


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
