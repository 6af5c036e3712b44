"""The tail cache and the sparse entry index against plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.cache import CachedBatch, PartitionTail, TailCache
from octavo.broker.log.entry_index import EntryIndex
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch

BATCHES = {n: build_batch([Record(None, b"v", (), 7)] * n) for n in range(1, 5)}


def cached(base: int, count: int, entry_id: int) -> CachedBatch:
    data = BATCHES[count]
    return CachedBatch(base, 9, entry_id, read_header(data), data)


@given(
    counts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=60),
    bytes_max=st.integers(1, 20_000),
    probe=st.integers(0, 250),
)
def test_the_tail_is_the_newest_part_of_each_partition(
    counts: list[tuple[int, int]], bytes_max: int, probe: int
) -> None:
    cache = TailCache(bytes_max)
    tails = [cache.partition() for _ in range(3)]
    logs: list[list[tuple[int, int]]] = [[], [], []]
    order: list[int] = []
    for which, count in counts:
        log = logs[which]
        base = sum(log[-1]) if log else 0
        batch = cached(base, count, len(log))
        log.append((base, count))
        order.append(which)
        tails[which].append(batch)
    assert cache.cached_bytes <= bytes_max
    kept = sum(len(tail) for tail in tails)
    for which, tail in enumerate(tails):
        newest = order[len(order) - kept :].count(which)
        assert len(tail) == newest, "what has been here longest goes first"
        expected = logs[which][len(logs[which]) - newest :]
        found = tail.read(probe, 1 << 20, 1 << 20)
        wanted = [(b, c) for b, c in expected if b + c > probe]
        if not expected or probe < expected[0][0]:
            wanted = []
        assert [(b.base_offset, b.header.record_count) for b in found] == wanted
        assert all(read_header(b.data).base_offset == b.base_offset for b in found)
        for base, _ in expected:
            entry = logs[which].index((base, _))
            assert tail.find(9, entry) is not None
        assert tail.find(9, 1000) is None


def filled(cache: TailCache, count: int) -> PartitionTail:
    tail = cache.partition()
    for n in range(count):
        tail.append(cached(n, 1, n))
    return tail


def test_a_read_is_bounded_but_never_empty() -> None:
    tail = filled(TailCache(1 << 20), 10)
    assert len(tail.read(3, 1, 100)) == 1
    assert len(tail.read(3, 1 << 20, 4)) == 4
    assert tail.read(10, 100, 100) == []


def test_clearing_gives_the_memory_back_and_ends_the_part() -> None:
    cache = TailCache(1 << 20)
    kept, gone = filled(cache, 5), filled(cache, 50)
    gone.clear()
    gone.append(cached(50, 1, 50))
    assert gone.read(10, 100, 100) == []
    assert cache.cached_bytes == 5 * cached(0, 1, 0).cost_bytes
    for n in range(5, 3_000):
        kept.append(cached(n, 1, n))
    assert cache.cached_bytes <= 1 << 20
    kept.clear()
    assert cache.cached_bytes == 0


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=300),
    noted=st.sets(st.integers(0, 299)),
    probe=st.integers(0, 2_700),
)
def test_the_index_never_excludes_the_right_entry(
    counts: list[int], noted: set[int], probe: int
) -> None:
    starts = [sum(counts[:n]) for n in range(len(counts))]
    index = EntryIndex()
    for entry in noted:
        if entry < len(counts):
            index.note(3, starts[entry], entry)
    offset = probe % sum(counts)
    right = max(n for n, start in enumerate(starts) if start <= offset)
    bounds = index.bounds(3, offset, len(counts) - 1)
    assert bounds.entry_low <= right <= bounds.entry_high
    assert starts[bounds.entry_low] == bounds.offset_low <= offset
    if bounds.offset_high is not None:
        assert bounds.offset_high == starts[bounds.entry_high + 1] > offset


def test_the_index_of_a_long_ledger_stays_small_and_right() -> None:
    index = EntryIndex()
    for entry in range(100_000):
        index.note(3, 10 * entry, entry)
    points = index._ledgers[3]
    assert len(points.entries) <= 4_097
    for offset in (0, 9, 77_777, 999_999):
        low, offset_low, high, _ = index.bounds(3, offset, 99_999)
        assert low <= offset // 10 <= high
        assert high - low < 100
        assert offset_low == 10 * low


def test_the_index_forgets_old_ledgers() -> None:
    index = EntryIndex()
    for ledger in range(1_000):
        index.note(ledger, 5, 1)
    assert len(index._ledgers) <= 256
    index.forget(999)
    assert index.bounds(999, 7, 4) == (0, 0, 4, None)
