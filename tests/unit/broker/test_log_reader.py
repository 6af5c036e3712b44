"""Readers of a partition whose ledgers are closed or released during a read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import (
    STREAM_CONFLICT,
    AckOutcomeUnknown,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)
from octavo.broker.log.cache import CachedBatch, PartitionTail, TailCache
from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.reader import LogReader, OpenReaders, ReadAheadBudget
from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import State, encode
from octavo.broker.state.stream import Append, StreamConfig
from octavo.broker.types import PartitionName, TopicName, TopicSettings
from octavo.ledger.read.open_batch import opening
from octavo.metadata.topics import PartitionLedger
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from tests.support.kit.refusals import raises_code
from tests.support.memory_cluster import NOW_MS, running

# A read ended with a KeyError when its ledger was released while another reader was being closed.
# At the bound of open ledgers, opening another closes the least recently used and waits for that; a
# release meanwhile took the new reader out of the table, where it was then sought. A reader that
# was being opened while all were closed stayed open for ever. A property test found it.


class Reader:
    def __init__(self) -> None:
        self.may_close = asyncio.Event()
        self.is_closed = False

    async def close(self) -> None:
        await self.may_close.wait()
        self.is_closed = True


async def test_it_may_be_dropped_meanwhile() -> None:
    readers = OpenReaders[Reader](1)
    old, new = Reader(), Reader()

    async def opened() -> Reader:
        return old if readers.get(1) is None else new

    await readers.get_or_open(1, opened)
    opening = asyncio.create_task(readers.get_or_open(2, opened))
    await asyncio.sleep(0)
    new.may_close.set()
    await readers.drop(2, new)
    old.may_close.set()
    assert await opening is new
    assert (old.is_closed, new.is_closed) == (True, True)


async def test_one_that_is_opened_too_late_is_closed() -> None:
    readers = OpenReaders[Reader](1)
    late, go_on = Reader(), asyncio.Event()
    late.may_close.set()

    async def opened() -> Reader:
        await go_on.wait()
        return late

    opening = asyncio.create_task(readers.get_or_open(1, opened))
    await asyncio.sleep(0)
    await readers.close()
    go_on.set()
    assert await opening is late
    assert late.is_closed


# A read that waits while its open ledger, and the next one too, is closed finds its end. The last
# entry of a ledger without a writer was taken for −1, and the read ended in an IndexError. The
# simulator found it (seed 133).


class OneReader:
    """Ledger 1, as it is when it is opened."""

    def __init__(self, last_add_confirmed: int, *, is_closed: bool) -> None:
        self.ledger_id = 1
        self.is_closed = is_closed
        self.last_add_confirmed = last_add_confirmed

    async def close(self) -> None:
        pass


def log_reader(record: Any, written: dict[int, int], *openings: OneReader) -> LogReader:
    """Make a reader to which opening ledger 1 returns `openings` in turn; `written`: its last entry
    here."""
    left = list(openings)

    async def open_ledger(ledger_id: int) -> OneReader:
        assert ledger_id == 1
        return left.pop(0)

    ledgers: Any = SimpleNamespace(open=open_ledger)
    return LogReader(
        PartitionName("public", "t", 0), ledgers, record, EntryIndex(), ReadAheadBudget(1),
        lambda ledger_id: written.get(ledger_id, -1), opening,
    )  # fmt: skip


async def test_the_end_of_a_ledger_that_was_closed_meanwhile() -> None:
    record: Any = SimpleNamespace(ledgers=LedgerList((PartitionLedger(1, 0),)))
    written = {1: 7}
    reader = log_reader(record, written, OneReader(3, is_closed=True))
    link = record.ledgers.find(0)
    assert await reader._last_entry_of(link) == 7
    del written[1]
    written[3] = 0
    record.ledgers = LedgerList(
        (PartitionLedger(1, 0, 4), PartitionLedger(2, 4, 2), PartitionLedger(3, 6))
    )
    assert await reader._last_entry_of(link) == 3, "what the record says now, not what it said"


async def test_a_reader_that_was_opened_while_its_ledger_grew_is_opened_again() -> None:
    """The ledger's end at that time is not its real end."""
    record: Any = SimpleNamespace(ledgers=LedgerList((PartitionLedger(1, 0),)))
    growing, closed = OneReader(3, is_closed=False), OneReader(6, is_closed=True)
    reader = log_reader(record, {}, growing, closed)
    assert await reader._reader(record.ledgers.find(0)) is growing
    record.ledgers = LedgerList((PartitionLedger(1, 0, 7), PartitionLedger(2, 7)))
    for _ in range(2):
        assert await reader._last_entry_of(record.ledgers.find(0)) == 6


READERS_MAX = 3
TASKS = 6


class FakeOpenReader:
    def __init__(self, every: list[FakeOpenReader]) -> None:
        self.closed = 0
        every.append(self)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


@pytest.mark.parametrize("seed", range(30))
async def test_many_at_once_open_use_and_drop(seed: int) -> None:
    rng = random.Random(seed)
    every: list[FakeOpenReader] = []
    readers = OpenReaders[FakeOpenReader](READERS_MAX)

    async def opened() -> FakeOpenReader:
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(0)
        return FakeOpenReader(every)

    async def use() -> None:
        for _ in range(8):
            ledger_id = rng.randint(1, 5)
            reader = await readers.get_or_open(ledger_id, opened)
            await asyncio.sleep(0)
            if rng.random() < 0.3:
                await readers.drop(ledger_id, reader)

    await asyncio.gather(*(use() for _ in range(TASKS)))
    assert sum(not one.closed for one in every) <= READERS_MAX, f"seed {seed}: some are forgotten"
    await readers.close()
    assert all(one.closed for one in every), f"seed {seed}: some were never closed"


@pytest.mark.parametrize("seed", range(10))
async def test_what_is_being_opened_while_all_are_closed(seed: int) -> None:
    rng = random.Random(seed)
    every: list[FakeOpenReader] = []
    readers = OpenReaders[FakeOpenReader](READERS_MAX)

    async def opened() -> FakeOpenReader:
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)
        return FakeOpenReader(every)

    opening = [asyncio.create_task(readers.get_or_open(n % 4, opened)) for n in range(8)]
    for _ in range(rng.randint(0, 4)):
        await asyncio.sleep(0)
    await readers.close()
    await asyncio.gather(*opening)
    assert all(one.closed for one in every), f"seed {seed}"


NAME = TopicName("public", "s")
TEXT = StreamConfig("text/plain")


class Ledger:
    """Takes operations, or leaves their outcome unknown."""

    def __init__(self, partition: Partition) -> None:
        self.ops: list[Any] = []
        self.fails = False
        partition.stream._persist = self.persist

    async def persist(self, op: Any) -> None:
        if self.fails:
            raise AckOutcomeUnknown("who knows")
        self.ops.append(op)

    @property
    def told(self) -> Any:
        return State.told_by([encode([op]) for op in self.ops]).stream


Made = tuple[Partition, Ledger]


@pytest.fixture
async def new() -> AsyncIterator[Made]:
    async with running() as one:
        await one.brokers["b0"].topics.create(NAME, TopicSettings(), for_stream=True)
        partition = await one.partition(str(NAME))
        yield partition, Ledger(partition)


def text(*values: bytes) -> list[Record]:
    return [Record(None, value) for value in values]


async def test_a_stream_that_is_not_written_down_is_not_there(new: Made) -> None:
    partition, ledger = new
    ledger.fails = True
    with pytest.raises(AckOutcomeUnknown):
        await partition.stream.make(TEXT, text(b"a"), closed=False)
    with pytest.raises(StreamNotFound):
        partition.stream.standing()
    assert partition.next_offset == 0
    ledger.fails = False
    assert await partition.stream.make(TEXT, text(b"a"), closed=False)
    assert partition.stream.standing().base == 0
    assert partition.next_offset == 1
    assert not await partition.stream.make(TEXT, text(b"a"), closed=False)
    assert partition.next_offset == 1
    assert ledger.told.whole_at == 1


async def test_a_making_that_broke_off_goes_on(new: Made) -> None:
    partition, _ = new
    store = partition.stream._store

    async def lost(*how: Any) -> int | None:
        raise AckOutcomeUnknown("who knows")

    partition.stream._store = lost
    with pytest.raises(AckOutcomeUnknown):
        await partition.stream.make(TEXT, text(b"a"), closed=True)
    with pytest.raises(StreamNotFound):
        partition.stream.standing()
    partition.stream._store = store
    assert await partition.stream.make(TEXT, text(b"a"), closed=True)
    assert partition.stream.is_closed
    assert partition.next_offset == 1


async def test_what_a_making_has_stored_is_not_stored_again(new: Made) -> None:
    partition, _ = new
    store = partition.stream._store

    async def stored(*how: Any) -> int | None:
        await store(*how)
        raise AckOutcomeUnknown("who knows")

    partition.stream._store = stored
    with pytest.raises(AckOutcomeUnknown):
        await partition.stream.make(TEXT, text(b"a"), closed=False)
    partition.stream._store = store
    assert not await partition.stream.make(TEXT, text(b"a"), closed=False)
    assert partition.next_offset == 1


async def test_an_end_is_shown_when_it_is_durable(new: Made) -> None:
    partition, ledger = new
    stream = partition.stream
    await stream.make(TEXT, [], closed=False)
    ledger.fails = True
    with pytest.raises(AckOutcomeUnknown):
        await stream.close(Append(closes=True))
    assert not stream.is_closed
    with pytest.raises(StreamClosed):
        await stream.append(text(b"a"), Append())
    with pytest.raises(AckOutcomeUnknown):
        await stream.settle()
    assert not stream.is_closed
    ledger.fails = False
    await stream.settle()
    assert stream.is_closed
    assert ledger.told.closed
    count = len(ledger.ops)
    await stream.settle()
    assert (await stream.close(Append(closes=True))).closed
    assert len(ledger.ops) == count, "nothing is left to be told"


async def test_a_close_that_was_not_told_is_told_by_the_next(new: Made) -> None:
    partition, ledger = new
    await partition.stream.make(TEXT, [], closed=False)
    ledger.fails = True
    by = Append("p", 0, 0, closes=True)
    with pytest.raises(AckOutcomeUnknown):
        await partition.stream.close(by)
    ledger.fails = False
    again = await partition.stream.close(by)
    assert again.repeated
    assert again.closed
    assert ledger.told.closed_by == ("p", 0, 0)


async def test_a_repeat_of_something_else_closes_nothing(new: Made) -> None:
    partition, _ = new
    stream = partition.stream
    await stream.make(TEXT, [], closed=False)
    for sequence in range(2):
        await stream.append(text(b"a"), Append("p", 0, sequence))
    found = await stream.close(Append("p", 0, 0, closes=True))
    assert found.repeated
    assert not found.closed
    assert found.sequence == 1
    assert not stream.is_closed


async def test_one_that_is_there_is_compared(new: Made) -> None:
    partition, _ = new
    await partition.stream.make(TEXT, [], closed=False)
    for config, closed in (
        (StreamConfig("text/html"), False),
        (StreamConfig("text/plain", 5), False),
        (StreamConfig("text/plain", forked_from="public/x"), False),
        (TEXT, True),
    ):
        with raises_code(STREAM_CONFLICT):
            await partition.stream.make(config, [], closed=closed)
    assert not await partition.stream.make(StreamConfig("TEXT/plain; x=y"), [], closed=False)


async def test_who_waits_uses_it_and_hears_that_it_is_gone(new: Made) -> None:
    partition, _ = new
    stream = partition.stream
    await stream.make(StreamConfig("text/plain", 1), [], closed=False)
    waiting = asyncio.create_task(stream.wait(0, 30))
    await asyncio.sleep(0)
    stream._used_s -= 5
    assert not stream.is_over, "somebody waits for it"
    await stream.delete()
    with pytest.raises(StreamGone):
        await waiting
    stream._used_s -= 5
    assert stream.is_over


async def test_nothing_expires_by_a_clock_in_doubt(new: Made) -> None:
    partition, _ = new
    time: DeletionTime | None = DeletionTime(NOW_MS, "the clocks differ", 0, NOW_MS)
    partition.stream._deletion_time = lambda: time
    await partition.stream.make(
        StreamConfig("text/plain", None, "2000-01-01T00:00:00Z", 1), [], closed=False
    )
    assert not partition.stream.is_over
    time = None
    assert not partition.stream.is_over
    time = DeletionTime(NOW_MS, "", 0, NOW_MS)
    assert partition.stream.is_over
    with pytest.raises(StreamNotFound):
        partition.stream.standing()


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
