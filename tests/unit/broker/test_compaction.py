"""The reader of compacted views over ledgers in memory: searches, look-ups, views that go away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import COMPACTED_VIEW_UNREADABLE, MessageNotFound, NotOwner
from octavo.broker.log import compaction_rules
from octavo.broker.log.compaction_rules import (
    Choice,
    CompactedBatch,
    CompactionPolicy,
    Dirt,
    Hints,
    NewestOffsets,
    Room,
    View,
    batch_of,
    run_messages_max,
    urgency,
)
from octavo.broker.partition.compacted import _READERS_MAX, CompactedLog, CompactedReader
from octavo.broker.types import MessageId, PartitionName, StoredBatch
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.read.entry_source import EntrySource
from octavo.ledger.read.open_batch import opening
from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.topics import CompactedLedger, CompactionRecord, PartitionRecord
from octavo.protocol.batch import check_batch, read_header, with_base_offset
from octavo.protocol.codes import NoSuchEntry
from octavo.protocol.records import Record, build_batch, read_gapped_records
from tests.support.compacted_views import gapped
from tests.support.kit.refusals import raises_code

ALL = Room(1 << 30, 1 << 30)


class Reader(EntrySource):
    ledger_id = last_add_confirmed = -1

    def __init__(self, world: World, ledger_id: int) -> None:
        self.world = world
        self.ledger_id = ledger_id
        self.is_closed = ledger_id not in world.unclosed
        self.last_add_confirmed = len(world.entries[ledger_id]) - 1

    async def batches(self, first: int, last: int) -> AsyncGenerator[list[Any]]:
        for at in range(first, last + 1, 2):
            yield await self.read(at, min(at + 1, last))

    async def read(self, first: int, last: int) -> list[Any]:
        await asyncio.sleep(0)
        if self.ledger_id in self.world.given_up:
            raise NoSuchEntry("every replica denies it")
        if self.ledger_id not in self.world.entries:
            raise LedgerNotFound(f"ledger {self.ledger_id} was deleted")
        self.world.reads += 1
        entries = self.world.entries[self.ledger_id][first : last + 1]
        return [SimpleNamespace(entry_id=first + at, payload=one) for at, one in enumerate(entries)]

    async def close(self) -> None:
        self.world.open -= 1


class World:
    """Ledgers, and the record in the store; `value` is the owner's version of it."""

    def __init__(self) -> None:
        self.entries: dict[int, list[bytes]] = {}
        self.unclosed: set[int] = set()
        self.given_up: set[int] = set()
        self.stored = PartitionRecord()
        self.value = PartitionRecord()
        self.down = False
        self.behind: PartitionRecord | None = None
        """The answer of a server that has not heard the newest change."""
        self.open_gate: asyncio.Event | None = None
        self.reads = self.looks = self.open = 0
        self._next = 0

    async def look(self, *, newest: bool = False) -> None:
        self.looks += 1
        await asyncio.sleep(0)
        if self.down:
            raise MetadataUnavailable("no answer")
        self.value = self.stored if newest or self.behind is None else self.behind

    async def open_ledger(self, ledger_id: int) -> Reader:
        await asyncio.sleep(0)
        if self.open_gate is not None:
            await self.open_gate.wait()
        if ledger_id not in self.entries:
            raise LedgerNotFound(f"no ledger {ledger_id}: never made, or deleted")
        self.open += 1
        return Reader(self, ledger_id)

    def view(
        self,
        horizon: int,
        *ledgers: list[list[int]],
        values: Callable[[], bytes] | None = None,
    ) -> tuple[CompactedLedger, ...]:
        """Publish a view: ledgers of entries of offsets. A message's time is its offset."""
        made = []
        for entries in ledgers:
            self._next += 1
            base = entries[0][0]
            payloads = [
                gapped(
                    [
                        (at, Record(b"k%d" % at, values() if values else b"%d" % at, (), at))
                        for at in entry
                    ],
                    base,
                )
                for entry in entries
            ]
            self.entries[self._next] = payloads
            size, count = sum(map(len, payloads)), sum(map(len, entries))
            made.append(CompactedLedger(self._next, base, entries[-1][-1], count, size))
        self.stored = PartitionRecord(compaction=CompactionRecord(horizon, tuple(made)))
        return tuple(made)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def reader(world: World) -> CompactedReader:
    ledgers: Any = SimpleNamespace(open=world.open_ledger)
    record: Any = world
    return CompactedReader(PartitionName("public", "t", 0), ledgers, record, opening)


async def read(
    reader: CompactedReader, offset: int, room: Room = ALL
) -> tuple[list[int], int, int]:
    """Return the offsets of a page, where to continue, and the horizon."""
    batches, following, horizon = await reader.read(offset, room)
    every = [
        batch.base_offset + record.offset_delta
        for batch in batches
        for record in read_gapped_records(batch.data)
    ]
    return [one for one in every if one >= offset], following, horizon


async def test_every_offset_by_search_and_by_hint(world: World, reader: CompactedReader) -> None:
    rng = random.Random(8)
    offsets = sorted(rng.sample(range(1_000), 120))
    entries = [offsets[at : at + 4] for at in range(0, 120, 4)]
    world.view(1_000, entries[:11], entries[11:12], entries[12:])
    await reader.learn(at_once=True)
    for start in rng.sample(range(1_001), 300):
        for room in (Room(1, 1), Room(150, 9), ALL):
            found, following, horizon = await read(reader, start, room)
            left = [one for one in offsets if one >= start]
            assert found == left[: len(found)]
            assert (found, following) == ([], 1_000) if not left else found
            ends = found == left
            assert following == (horizon if ends else found[-1] + 1)
    assert (await read(reader, 0))[0] == offsets
    # Page after page costs one read each, wherever the limit cuts.
    at, pages, world.reads = 0, 0, 0
    while at < 1_000:
        found, at, _ = await read(reader, at, Room(1, 1))
        pages += 1
    assert pages == len(entries) == world.reads
    last = entries[20][-1] - 1  # within the batch where a page ended
    await reader.read(entries[20][0], Room(1, 1))
    world.reads = 0
    await reader.read(last, Room(1, 1))
    assert world.reads == 1


async def test_few_readers_stay_open(world: World, reader: CompactedReader) -> None:
    world.view(100, *([[at]] for at in range(3 * _READERS_MAX)))
    await reader.learn(at_once=True)
    at = 0
    while at < 100:
        _, at, _ = await read(reader, at)
    assert world.open == _READERS_MAX
    await reader.close(NotOwner("handed over"))
    assert world.open == 0
    with pytest.raises(NotOwner):
        await reader.read(0, ALL)


async def test_closed_while_a_ledger_is_opened(world: World, reader: CompactedReader) -> None:
    world.view(9, [[1, 5]])
    await reader.learn(at_once=True)
    world.open_gate = asyncio.Event()
    reading = asyncio.create_task(reader.read(0, ALL))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await reader.close(NotOwner("handed over"))
    world.open_gate.set()
    with pytest.raises(NotOwner):
        await reading
    assert world.open == 0


async def test_a_look_now_or_now_and_then(world: World, reader: CompactedReader) -> None:
    await reader.learn(at_once=False)
    world.view(9, [[1, 5]])
    for _ in range(20):
        await reader.learn(at_once=False)
    assert (world.looks, reader.now.horizon) == (1, 0)
    await asyncio.gather(*(reader.learn(at_once=True) for _ in range(50)))
    assert reader.now.horizon == 9
    assert world.looks < 10, "who asks while another one waits for its turn shares its look"
    world.down = True
    world.view(20, [[2, 15]])
    await reader.learn(at_once=True)
    assert await read(reader, 0) == ([1, 5], 9, 9), "without the store by what is known"


async def test_a_read_begins_with_the_newest_view(world: World, reader: CompactedReader) -> None:
    """After retention, only the view has the newest message of such a key (seed 2200328)."""
    world.behind = world.stored
    world.view(9, [[1, 5]])
    await reader.learn(at_once=False)
    assert reader.now.horizon == 0
    await reader.learn(at_once=True)
    assert reader.now.horizon == 9


@pytest.mark.parametrize("how", ["deleted", "given up by bookies"])
async def test_a_view_goes_away(world: World, reader: CompactedReader, how: str) -> None:
    (first, second) = world.view(50, [[3, 8], [9]], [[20, 44]])
    await reader.learn(at_once=True)
    assert await read(reader, 0, Room(1, 1)) == ([3, 8], 9, 50)
    if how == "given up by bookies":
        await read(reader, 0)  # all of it is open
    world.view(90, [[8, 9], [61]], [[80]])

    def gone(*ledgers: CompactedLedger) -> None:
        for one in ledgers:
            world.given_up.add(one.ledger_id)
            if how == "deleted":
                del world.entries[one.ledger_id]

    gone(second)
    assert await read(reader, 3) in (([3, 8, 9], 10, 50), ([3, 8, 9, 20], 10, 50)), "what is there"
    assert await read(reader, 10) == ([61, 80], 90, 90)
    assert await reader.offset_at(62) == (80, 90)
    newest = world.stored.compaction
    assert newest is not None
    gone(*newest.ledgers)
    gone(first)
    for work in (reader.read(0, ALL), reader.offset_at(62)):
        with raises_code(COMPACTED_VIEW_UNREADABLE, match="is incomplete"):
            await work
    with raises_code(COMPACTED_VIEW_UNREADABLE):
        await reader.position(MessageId(newest.ledgers[0].ledger_id, 0, 0))
    world.down = True
    with pytest.raises(MetadataUnavailable):
        await reader.read(0, ALL)


async def test_what_cannot_be_is_an_error(world: World, reader: CompactedReader) -> None:
    (only,) = world.view(50, [[3, 8], [9], [20, 44]])
    await reader.learn(at_once=True)
    whole = list(world.entries[only.ledger_id])

    async def refused(match: str, offset: int = 0) -> None:
        with raises_code(COMPACTED_VIEW_UNREADABLE, match=match):
            await reader.read(offset, ALL)
        await reader.close(NotOwner("x"))
        reader._closed = None

    world.entries[only.ledger_id] = whole[:2]
    await refused("it is the last; the ledger ends at 44")
    await refused("it comes after offset 29", 30)
    world.entries[only.ledger_id] = [whole[1], whole[0], whole[2]]
    await refused("it comes after offset 9")
    world.entries[only.ledger_id] = [whole[0], b"x" * 70, whole[2]]
    await refused("magic")
    world.entries[only.ledger_id] = []
    await refused("open or empty")
    world.entries[only.ledger_id] = whole
    world.unclosed.add(only.ledger_id)
    await refused("open or empty")


class Log:
    """Every message from `earliest_offset` on, in batches of three; a message's key is a letter."""

    def __init__(self, keys: str) -> None:
        self.keys = keys
        self.earliest_offset = 0

    @property
    def end_offset(self) -> int:
        return len(self.keys)

    async def read(self, offset: int, *_: Any) -> list[StoredBatch]:
        await asyncio.sleep(0)
        assert self.earliest_offset <= offset <= self.end_offset
        if offset == self.end_offset:
            return []
        base = max(offset // 3 * 3, self.earliest_offset)
        keys = self.keys[base : offset // 3 * 3 + 3]
        data = with_base_offset(build_batch([Record(key.encode(), b"") for key in keys]), base)
        return [StoredBatch(base, 0, 0, read_header(data), data)]

    def newest(self) -> dict[str, int]:
        return {key: offset for offset, key in enumerate(self.keys)}


@pytest.mark.parametrize("seed", range(40))
async def test_views_come_and_go_between_pages(world: World, seed: int) -> None:
    """Whatever is published, deleted and trimmed meanwhile, the newest message of every key is
    seen."""
    rng = random.Random(seed)
    log = Log("".join(rng.choice("abcdefgh") for _ in range(40)))
    ledgers: Any = SimpleNamespace(open=world.open_ledger)
    record: Any = world
    compacted = CompactedLog(
        PartitionName("public", "t", 0), ledgers, record, cast(Any, log), opening
    )

    def compact() -> None:
        horizon = rng.randrange(len(log.keys) + 1)
        if world.stored.compaction is not None:
            horizon = max(horizon, world.stored.compaction.horizon)
        kept = sorted(Log(log.keys[:horizon]).newest().values())
        entries = [kept[at : at + 2] for at in range(0, len(kept), 2)]
        before = dict(world.entries)
        world.view(horizon, *(entries[at : at + 2] for at in range(0, len(entries), 2)))
        if rng.random() < 0.5:
            for ledger_id in before:  # the ledgers of all earlier views
                del world.entries[ledger_id]
        if rng.random() < 0.5:  # the owner learns of a view before it trims
            world.value = world.stored
            log.earliest_offset = max(log.earliest_offset, horizon)

    if rng.random() < 0.8:
        compact()
    at = await compacted.resolve(at="earliest")
    seen: dict[str, int] = {}
    while True:
        room = rng.randrange(1, 6)
        batches, start, following = await compacted.read(at, bytes_max=1 << 20, count_max=room)
        assert start >= at
        if not batches:
            assert following == log.end_offset, "nothing is the end, and nothing else"
            break
        place = start
        for batch in batches:
            for one in read_gapped_records(batch.data):
                offset = batch.base_offset + one.offset_delta
                if offset >= place:
                    assert (one.key or b"").decode() in (log.keys[offset], f"k{offset}")
                    seen[log.keys[offset]] = offset
                    place = offset + 1
        assert at < place <= following
        at = following
        if rng.random() < 0.3:
            log.keys += rng.choice("abcdefghijk")
        if rng.random() < 0.5:
            compact()
        if rng.random() < 0.5:
            await compacted.resolve(at=0)  # another one begins, and looks
    assert seen == log.newest()


async def test_times_and_ids(world: World, reader: CompactedReader) -> None:
    offsets = [3, 8, 9, 20, 44, 45, 70]
    first, second = world.view(90, [[3, 8], [9]], [[20, 44, 45], [70]])
    await reader.learn(at_once=True)
    for time_ms in range(72):
        expected = next((one for one in offsets if one >= time_ms), None)
        assert await reader.offset_at(time_ms) == (expected, 90)
    assert await reader.position(MessageId(first.ledger_id, 0, 1)) == 8
    assert await reader.position(MessageId(second.ledger_id, 0, 2)) == 45
    assert await reader.position(MessageId(second.ledger_id + 1, 0, 0)) is None
    for wrong in ((first.ledger_id, 0, 2), (first.ledger_id, 2, 0)):
        with pytest.raises(MessageNotFound):
            await reader.position(MessageId(*wrong))


async def test_a_time_is_looked_up_again_when_view_and_log_have_moved_on(world: World) -> None:
    """The log was trimmed up to the horizon of a newer view, which has the trimmed messages."""

    class MovingLog(Log):
        async def offset_at(self, time_ms: int, least: int) -> int:
            if least == 10:
                world.view(30, [[3], [21]])
                world.value, self.earliest_offset = world.stored, 30
            return max(time_ms, least, self.earliest_offset)

    world.view(10, [[3]])
    ledgers: Any = SimpleNamespace(open=world.open_ledger)
    record: Any = world
    log = cast(Any, MovingLog("k" * 40))
    compacted = CompactedLog(PartitionName("public", "t", 0), ledgers, record, log, opening)
    assert await compacted.resolve(time_ms=20) == 21


@pytest.mark.parametrize("seed", range(60))
async def test_random_views_page_by_page_lose_and_repeat_nothing(
    seed: int, world: World, reader: CompactedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of very different sizes in ledgers of very different lengths, pages of any size."""
    rng = random.Random(seed)
    for name in ("_ENTRIES_MAX", "_LEDGERS_IN_PAGE_MAX", "_READERS_MAX"):
        monkeypatch.setattr(
            f"octavo.broker.partition.compacted.{name}", rng.choice((1, 2, 8, 1_000))
        )
    horizon = 400
    offsets = sorted(rng.sample(range(horizon), rng.randint(1, 120)))
    ledgers: list[list[list[int]]] = []
    at = 0
    while at < len(offsets):
        entries = []
        for _ in range(rng.choice((1, 1, 3, 12))):
            entries.append(offsets[at : at + rng.choice((1, 1, 2, 30))])
            at += len(entries[-1])
            if at >= len(offsets):
                break
        ledgers.append(entries)
    value_bytes = rng.choice((1, 1, 200))
    world.view(horizon, *ledgers, values=lambda: b"x" * rng.choice((1, 1, 5, value_bytes)))
    await reader.learn(at_once=True)
    for _ in range(12):
        start = rng.choice((0, rng.randrange(horizon)))
        left = [one for one in offsets if one >= start]
        found: list[int] = []
        room = rng.choice((ALL, Room(rng.randint(1, 2_000), rng.randint(1, 60))))
        while start < horizon:
            page, following, _ = await read(reader, start, room)
            assert following > start, "each page gets on"
            found += page
            start = following
            if rng.random() < 0.3:
                room = Room(rng.randint(1, 2_000), rng.randint(1, 60))
        assert found == left


def ledger(ledger_id: int, first: int, last: int, count: int = 2) -> CompactedLedger:
    return CompactedLedger(ledger_id, first, last, count, 100)


def view(*ledgers: CompactedLedger, horizon: int = 90) -> View:
    return View(CompactionRecord(horizon, ledgers))


def entry(data: bytes, entry_id: int = 0) -> Any:
    return SimpleNamespace(entry_id=entry_id, payload=data)


def batch(first: int, last: int, ledger_id: int = 1, entry_id: int = 0) -> CompactedBatch:
    kept = [(first, Record(b"a", b"1"))] + [(last, Record(b"b", b"2"))] * (last > first)
    return batch_of(ledger(ledger_id, 0, 1_000), entry(gapped(kept, 0), entry_id))


def test_which_ledger_holds_an_offset_or_what_follows_it() -> None:
    found = view(ledger(1, 3, 17), ledger(2, 40, 88), ledger(3, 89, 89, 1))
    numbers = {0: 0, 3: 0, 4: 0, 17: 0, 18: 1, 39: 1, 40: 1, 88: 1, 89: 2, 90: 3, 500: 3}
    assert {offset: found.number_at(offset) for offset in numbers} == numbers
    assert found.ledger(2) == ledger(2, 40, 88)
    assert found.ledger(4) is None


@pytest.mark.parametrize("record", [None, CompactionRecord(run="begun"), CompactionRecord(9)])
def test_a_view_without_ledgers(record: CompactionRecord | None) -> None:
    found = View(record)
    assert found.horizon == (0 if record is None else record.horizon)
    assert found.number_at(0) == 0 == len(found.ledgers)


@pytest.mark.parametrize(
    "ledgers",
    [
        (ledger(1, 3, 17), ledger(2, 17, 30)),
        (ledger(1, 40, 50), ledger(2, 3, 17)),
        (ledger(1, 3, 90),),
        (ledger(1, 5, 4),),
        (ledger(1, 5, 6, 0),),
    ],
)
def test_a_view_that_cannot_be_is_refused(ledgers: tuple[CompactedLedger, ...]) -> None:
    with raises_code(COMPACTED_VIEW_UNREADABLE, match="of the compacted view"):
        view(*ledgers)


def test_an_entry_gets_its_own_offsets_back() -> None:
    kept = [(1_007, Record(b"a", b"1", (), 5)), (1_090, Record(b"b", None, (), 7))]
    one = batch_of(ledger(8, 1_000, 1_090), entry(gapped(kept, 1_000), 3))
    assert (one.base_offset, one.next_offset, one.ledger_id, one.entry_id) == (1_007, 1_091, 8, 3)
    assert one.header == read_header(one.data)
    check_batch(one.data, gaps=True)
    records = list(read_gapped_records(one.data))
    assert [one.base_offset + r.offset_delta for r in records] == [1_007, 1_090]
    assert [(r.key, r.value, r.timestamp_ms) for r in records] == [(b"a", b"1", 5), (b"b", None, 7)]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (gapped([(1_007, Record(b"a", b"1"))], 900), "goes from offset 1107 to 1107"),
        (gapped([(1_007, Record(b"a", b"1")), (1_095, Record(b"a", b"1"))], 1_000), "to 1095"),
        (gapped([(999, Record(b"a", b"1"))], 1_000), "from offset 999"),
        (b"x" * 100, "magic"),
    ],
)
def test_an_entry_outside_its_ledger_is_refused(data: bytes, match: str) -> None:
    with raises_code(COMPACTED_VIEW_UNREADABLE, match=match):
        batch_of(ledger(8, 1_000, 1_090), entry(data))


def test_a_page_takes_about_so_many_entries() -> None:
    whole = CompactedLedger(1, 0, 999, 500, 10_000)
    assert Room(10_000, 500).entries(whole, 50) == 51
    assert Room(1_000, 500).entries(whole, 50) == 6
    assert Room(10_000, 10).entries(whole, 50) == 2
    assert Room(1, 1).entries(whole, 50) == 1
    left = Room(10_000, 3).without(batch(0, 7))
    assert left.messages == 1, "messages count, not offsets"
    assert left.is_left
    assert not left.without(batch(8, 9)).is_left
    assert not Room(1, 100).without(batch(0, 7)).is_left


def test_who_goes_on_where_a_page_ended_need_not_search() -> None:
    hints = Hints()
    hints.note(batch(10, 20, entry_id=4), is_last=False)
    assert [hints.entry_of(1, offset) for offset in (9, 10, 15, 20, 21, 22)] == [
        None, 4, 4, 4, 5, None,
    ]  # fmt: skip
    assert hints.entry_of(2, 15) is None
    hints.note(batch(25, 31, entry_id=5), is_last=True)
    assert [hints.entry_of(1, offset) for offset in (25, 31, 32)] == [5, 5, None]
    assert [hints.entry_of(1, offset) for offset in (20, 21, 22, 24)] == [4, 5, 5, 5]
    for number in range(200):
        hints.note(batch(number, number, 7, number), is_last=True)
    assert hints.entry_of(1, 15) is None, "they are bounded"
    hints.clear()
    assert hints.entry_of(7, 199) is None


KEYS = st.lists(
    st.none() | st.sampled_from([b"", b"a", b"b", b"k" * 15, b"k" * 16, b"k" * 17, b"l" * 300])
)
DAY_MS = 86_400_000


@given(st.lists(KEYS, max_size=6), st.integers(0, 9), st.integers(0, 4))
def test_what_stays_of_new_messages_is_the_newest_of_each_key(
    batches: list[list[bytes | None]], start: int, before: int
) -> None:
    newest = NewestOffsets(start, 1_000, 1_000)
    first = max(0, start - before)  # the first batch may begin before the horizon
    log = list(enumerate((key for batch in batches for key in batch), first))
    at = first
    for batch in batches:
        if at + len(batch) > start:
            newest.note(at, batch)
        at += len(batch)
    for _ in newest.settling():
        pass
    new = [(offset, key) for offset, key in log if offset >= start]
    last = {key: offset for offset, key in new}
    stays = [key is None or last[key] == offset for offset, key in new]
    behind = max(0, at - start)
    assert newest.staying(start, behind) == bytes(stays)
    assert newest.staying(first, at - first) == bytes(at - first - behind) + bytes(stays)
    assert len(newest) == len(last.keys() - {None})
    assert all(key is None or newest.has(key) for key in last)


def test_a_gap_between_batches_keeps_nothing() -> None:
    newest = NewestOffsets(0, 10, 10)
    newest.note(0, [b"a", None])
    newest.note(5, [b"a"])
    for _ in newest.settling():
        pass
    assert newest.staying(0, 6) == bytes([0, 1, 0, 0, 0, 1])


def test_a_run_is_full_with_so_many_keys_or_messages() -> None:
    newest = NewestOffsets(0, 2, 4)
    newest.note(0, [b"a", b"a", None])
    assert not newest.is_full
    newest.note(3, [b"a"])
    assert newest.is_full, "four messages"
    newest = NewestOffsets(0, 2, 4)
    newest.note(0, [b"a", b"b"])
    assert newest.is_full, "two keys"


def test_marks_are_set_some_at_a_time() -> None:
    count = 2 * compaction_rules._SETTLED_AT_ONCE
    newest = NewestOffsets(0, count, count)
    newest.note(0, [b"%d" % number for number in range(count)])
    assert len(list(newest.settling())) == 2
    assert newest.staying(0, count) == b"\1" * count


def test_what_stays_of_the_view_before() -> None:
    newest = NewestOffsets(10, 10, 10)
    newest.note(10, [b"newer"])
    choice = Choice(newest, tombstones_ms=100, now_ms=1_000)
    assert choice.keeps(Record(b"other", b"v", (), 0))
    assert choice.keeps(Record(None, b"v", (), 0)), "no key has no newer message"
    assert not choice.keeps(Record(b"newer", b"v", (), 5_000))
    assert choice.keeps(Record(b"other", None, (), 901)), "a young tombstone"
    assert not choice.keeps(Record(b"other", None, (), 900))
    assert Choice(newest, 100, None).keeps(Record(b"other", None, (), 0)), "nothing goes by age now"


def test_a_run_ends_after_a_few_times_the_view() -> None:
    assert run_messages_max(Dirt(0, 10**9, 10**9, 0)) == 1_000_000
    assert run_messages_max(Dirt(0, 10**9, 10**9, 500_000)) == 2_000_000
    assert run_messages_max(Dirt(0, 10**9, 10**9, 10**9)) == 16_000_000


def test_the_more_is_due_the_more_urgent() -> None:
    policy = CompactionPolicy(after_bytes=1_000, dirty_ratio=0.5, tombstones_ms=DAY_MS)
    assert urgency(Dirt(0, 10, 1_000, 0), policy) == 1
    assert urgency(Dirt(0, 30, 3_000, 0), policy) == 3
    assert urgency(Dirt(0, 30, 3_000, 20), policy) == 1.5, "the ratio was reached later"
    assert urgency(Dirt(0, 0, 0, 20), policy) == 1, "for tombstones alone"
    assert urgency(Dirt(0, 30, 3_000, 20), policy._replace(dirty_ratio=0)) == 3
    assert urgency(Dirt(0, 30, 3_000, 20), policy._replace(dirty_ratio=1)) == 3
