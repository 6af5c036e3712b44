"""The publish pipeline over a ledger writer that the test answers by hand."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    NotOwner,
    OffsetMismatch,
    Overloaded,
    PartitionUnavailable,
    PublishOutcomeUnknown,
    SequenceGap,
    StaleProducerEpoch,
)
from octavo.broker.http.problems import Problem
from octavo.broker.http.request_body import GROWTH_FREE_BYTES, GROWTH_MAX, PIECE_BYTES, Decompressor
from octavo.broker.log.cache import TailCache
from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.partition import message_batcher
from octavo.broker.partition.message_batcher import MessageBatcher, Placed
from octavo.broker.partition.publisher import OpenSegment, Publisher
from octavo.broker.partition.stream import Appended, PartitionStream
from octavo.broker.state.producers import (
    BATCHES_REMEMBERED,
    SEQUENCE_MODULUS,
    Access,
    AccessState,
    Duplicate,
    ProducerState,
    ProducerTable,
    Remembered,
    next_sequence,
)
from octavo.broker.state.stream import Append, StreamConfig, StreamState, stream_told
from octavo.broker.types import PartitionName, Published
from octavo.ledger.actions import Closed, Ended
from octavo.ledger.errors import LedgerFenced, NotEnoughBookies, OutcomeUnknown, WriterBusy
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record, build_batch, read_records

NAME = PartitionName("public", "t", 0)
Done = Callable[[int, OctavoError | None], None]


class FakeWriter:
    """Keeps adds until the test confirms them."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.added: list[bytes] = []
        self.dones: list[Done] = []
        self.busy = False
        self.takes = 0
        """How many more it takes, though it is busy."""
        self.drained = asyncio.Event()
        self.error: OctavoError | None = None
        self.answered = 0
        self.on_event: list[Callable[[object], None]] = []
        self.deferred = False

    def add(self, payload: bytes, done: Done) -> int:
        if self.error is not None:
            raise self.error
        if self.busy and not self.takes:
            raise WriterBusy("slow down")
        self.takes = max(0, self.takes - 1)
        self.added.append(payload)
        self.dones.append(done)
        return len(self.added) - 1

    async def drain(self) -> None:
        await self.drained.wait()

    def abandon(self, error: OctavoError) -> None:
        self.error = error

    def confirm(self, count: int = 1) -> None:
        for _ in range(count):
            self.dones[self.answered](self.answered, None)
            self.answered += 1


class Bench:
    def __init__(self, **config: Any) -> None:
        self.writer = FakeWriter(1)
        self.confirmed: list[tuple[int, int]] = []
        self.failed: list[OctavoError] = []
        self.now_ms = 1_000
        self.tail = TailCache(1 << 20).partition()
        self.publisher = Publisher(
            NAME,
            BrokerConfig(**config),
            self.segment(self.writer, 100),
            ProducerTable(10),
            self.tail,
            EntryIndex(),
            lambda size, entries: self.confirmed.append((size, entries)),
            self.failed.append,
            Access(AccessState()),
            lambda: self.now_ms,
        )

    @staticmethod
    def segment(
        writer: Any, base: int, *, released: bool = True, appended_ms: int | None = None
    ) -> OpenSegment:
        return OpenSegment(writer, base, 0, released=released, appended_ms=appended_ms)

    def publish(
        self, count: int = 1, expected: int | None = None, sequence: int = -1, size: int = 1
    ) -> asyncio.Task[Published]:
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
        records = [Record(None, b"x" * size, (), i) for i in range(count)]
        batch = build_batch(records, **(producer if sequence >= 0 else {}))
        return asyncio.create_task(self.publisher.publish(batch, read_header(batch), expected))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_batch_gets_its_offset_at_once_and_its_answer_when_confirmed() -> None:
    bench = Bench()
    first, second = bench.publish(3), bench.publish(2)
    await turns()
    assert [read_header(p).base_offset for p in bench.writer.added] == [0, 3]
    assert (bench.publisher.next_offset, bench.publisher.confirmed_offset) == (105, 100)
    assert not first.done()
    bench.writer.confirm()
    assert await first == Published(100, 102, 1, 0, 3, False)
    assert not second.done()
    bench.writer.confirm()
    assert await second == Published(103, 104, 1, 1, 2, False)
    assert [b.base_offset for b in bench.tail.read(100, 999, 999)] == [100, 103]
    assert len(bench.confirmed) == 2


async def test_the_new_ledgers_answers_wait_until_the_record_names_it() -> None:
    bench = Bench()
    old = bench.publish()
    await turns()
    other = FakeWriter(2)
    segment = bench.segment(other, bench.publisher.next_offset, released=False)
    bench.publisher.switch_to(segment)
    new = bench.publish(2)
    await turns()
    assert [read_header(p).base_offset for p in other.added] == [0]
    other.confirm()
    await turns()
    assert not new.done(), "the old ledger's entry is still under way"
    reached = asyncio.create_task(bench.publisher.confirmed_up_to(101))
    bench.writer.confirm()
    assert (await old).ledger_id == 1
    await reached
    assert not new.done(), "no record names its ledger yet"
    assert bench.publisher.confirmed_offset == 101
    bench.publisher.release(segment)
    assert await new == Published(101, 102, 2, 0, 2, False)


async def test_offsets_leap_over_what_is_inserted_when_the_record_names_it() -> None:
    bench = Bench()
    old = bench.publish(2)
    await turns()
    other = FakeWriter(2)
    segment = bench.segment(other, bench.publisher.next_offset + 5, released=False)
    bench.publisher.switch_to(segment)
    new = bench.publish(3)
    await turns()
    assert [read_header(p).base_offset for p in other.added] == [0]
    other.confirm()
    bench.writer.confirm()
    assert (await old).last_offset == 101
    assert bench.publisher.confirmed_offset == 102, "nothing of the bulk load is visible yet"
    tail = TailCache(1 << 20).partition()
    seen = len(bench.confirmed)
    bench.publisher.release(segment, tail)
    assert await new == Published(107, 109, 2, 0, 3, False)
    assert bench.publisher.confirmed_offset == 110
    assert bench.confirmed[seen] == (0, 0), "readers look again, though nothing was published"
    assert [b.base_offset for b in tail.read(107, 999, 999)] == [107]
    assert tail.read(104, 999, 999) == []


async def test_readers_are_told_of_a_bulk_load_when_nobody_publishes() -> None:
    bench = Bench()
    segment = bench.segment(FakeWriter(2), 105, released=False)
    bench.publisher.switch_to(segment)
    reached = asyncio.create_task(bench.publisher.confirmed_up_to(105))
    await turns()
    assert not reached.done()
    bench.publisher.release(segment, TailCache(1 << 20).partition())
    await reached
    assert (bench.publisher.confirmed_offset, bench.publisher.next_offset) == (105, 105)
    assert bench.confirmed == [(0, 0)]


async def test_a_failure_leaves_everything_pending_unknown_and_the_rest_not_stored() -> None:
    bench = Bench(inflight_bytes_max=150)
    pending, waiting = bench.publish(), bench.publish(size=200)
    duplicate = bench.publish()
    await turns()
    cause = LedgerFenced("ledger 1 was fenced")
    bench.writer.dones[0](0, OutcomeUnknown(1, 0, cause))
    with pytest.raises(PublishOutcomeUnknown, match="ledger-fenced: ledger 1 was fenced"):
        await pending
    for one in (waiting, duplicate):
        with pytest.raises(NotOwner, match="not stored"):
            await one
    assert bench.failed == [cause]
    with pytest.raises(NotOwner, match="not stored"):
        await bench.publish()
    bench.publisher.fail(NotEnoughBookies("x", 3, []))
    assert bench.failed == [cause], "it fails once"


async def test_too_few_bookies_is_no_reason_to_look_for_another_owner() -> None:
    bench = Bench()
    bench.publisher.fail(NotEnoughBookies("a write set", 2, ["b1"]))
    with pytest.raises(PartitionUnavailable, match=r"2 bookies needed, 1 usable \(b1\)"):
        await bench.publish()


async def test_a_late_answer_after_a_failure_confirms_nothing() -> None:
    bench = Bench()
    first, second = bench.publish(), bench.publish()
    await turns()
    bench.publisher.fail(LedgerFenced("gone"))
    bench.writer.confirm(2)
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(r) for r in results] == [PublishOutcomeUnknown] * 2
    assert bench.publisher.confirmed_offset == 100


async def test_a_writer_that_ended_is_reported_by_the_next_add() -> None:
    bench = Bench()
    bench.writer.error = LedgerFenced("somebody closed it")
    with pytest.raises(PublishOutcomeUnknown):
        await bench.publish()
    assert bench.failed == [bench.writer.error]


async def test_a_writer_that_ends_while_nothing_is_added_is_the_end() -> None:
    bench = Bench()
    first, second = FakeWriter(2), FakeWriter(3)
    for writer in (first, second):
        bench.publisher.switch_to(bench.segment(writer, 100))
    first.on_event[0](Closed(None))  # type: ignore[arg-type]
    assert bench.failed == []
    error = PartitionUnavailable("no bookie")
    second.on_event[0](Ended(error))
    assert bench.failed == [error]


async def test_publishers_wait_for_room_in_the_order_of_their_calls() -> None:
    bench = Bench(inflight_bytes_max=200)
    tasks = [bench.publish(sequence=n) for n in range(12)]
    await turns()
    sent = len(bench.writer.added)
    assert 1 <= sent <= 3
    assert bench.publisher.inflight_bytes <= 200
    while not tasks[-1].done():
        bench.writer.confirm()
        await turns(1)
    assert [(await t).first_offset for t in tasks] == list(range(100, 112))
    assert bench.publisher.inflight_bytes == 0


async def test_too_many_waiting_bytes_are_refused() -> None:
    bench = Bench(inflight_bytes_max=100)
    tasks = [bench.publish(size=100) for _ in range(6)]
    await turns()
    refused = [t for t in tasks if t.done()]
    assert refused
    for task in refused:
        with pytest.raises(Overloaded, match="publish more slowly"):
            await task
    bench.publisher.fail(LedgerFenced("end of test"))
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_busy_writer_slows_publishing_and_fails_nothing() -> None:
    bench = Bench()
    bench.writer.busy = True
    first, second = bench.publish(sequence=0), bench.publish(sequence=1)
    await turns()
    assert not bench.writer.added
    bench.writer.busy = False
    bench.writer.drained.set()
    await turns()
    bench.writer.confirm(2)
    assert [(await t).first_offset for t in (first, second)] == [100, 101]


async def test_a_duplicate_is_answered_only_when_its_first_copy_is_durable() -> None:
    bench = Bench()
    first, repeat = bench.publish(2, sequence=0), bench.publish(2, sequence=0)
    await turns()
    assert len(bench.writer.added) == 1
    assert not repeat.done()
    bench.writer.confirm()
    assert (await first).duplicate is False
    assert await repeat == Published(100, 101, -1, -1, 2, True)
    assert await bench.publish(2, sequence=0) == Published(100, 101, -1, -1, 2, True)


async def test_a_repeat_with_an_expected_offset_is_a_duplicate_not_a_mismatch() -> None:
    bench = Bench()
    first = bench.publish(1, expected=100, sequence=0)
    await turns()
    bench.writer.confirm()
    await first
    assert (await bench.publish(1, expected=100, sequence=0)).duplicate
    with pytest.raises(OffsetMismatch) as mismatch:
        await bench.publish(1, expected=100, sequence=1)
    assert mismatch.value.next_offset == 101


async def test_a_caller_that_goes_away_does_not_take_its_batch_along() -> None:
    bench = Bench()
    first, second = bench.publish(), bench.publish()
    await turns()
    first.cancel()
    await turns()
    bench.writer.confirm(2)
    assert (await second).first_offset == 101
    assert bench.publisher.confirmed_offset == 102


async def test_no_ack_in_time_is_unknown_and_no_room_in_time_is_not_stored() -> None:
    bench = Bench(publish_timeout_ms=20, inflight_bytes_max=150)
    sent, waiting = bench.publish(), bench.publish(size=200)
    with pytest.raises(PublishOutcomeUnknown, match="no ack quorum within 20 ms"):
        await sent
    with pytest.raises(Overloaded, match="no room within 20 ms; not stored"):
        await waiting
    bench.writer.confirm()
    assert bench.publisher.confirmed_offset == 101
    assert len(bench.writer.added) == 1


async def test_only_confirmed_batches_are_in_what_a_snapshot_may_hold() -> None:
    bench = Bench()
    tasks = [bench.publish(sequence=n) for n in range(3)]
    await turns()
    assert list(bench.publisher.stored_producers.snapshot()) == []
    bench.writer.confirm(2)
    (state,) = bench.publisher.stored_producers.snapshot()
    assert [b.first_offset for b in state.batches] == [100, 101]
    bench.publisher.fail(LedgerFenced("end of test"))
    await asyncio.gather(*tasks, return_exceptions=True)


class StreamBench(Bench):
    """The log is a durable stream."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.publisher.begin_stream(StreamState(StreamConfig(), upto=100, base=100))
        self.stream = PartitionStream(
            NAME, lambda: self.publisher, self.store, self.persist, self.prove, lambda: None, 10
        )

    async def store(self, batch: bytes, append: Append, expected: int | None) -> int | None:
        published = await self.publisher.publish(batch, read_header(batch), expected, append=append)
        return None if published.duplicate else published.last_offset + 1

    async def persist(self, op: Any) -> None:
        self.told.append(op)

    async def prove(self) -> None: ...

    def append(self, sequence: int) -> asyncio.Task[Appended]:
        said = Append("p", 0, sequence)
        return asyncio.create_task(self.stream.append([Record(None, b"x")], said))


async def test_a_repeat_of_what_is_under_way_waits_for_it() -> None:
    bench = StreamBench()
    before = bench.append(0)
    await turns()
    bench.writer.confirm()
    await before
    first, again = bench.append(1), bench.append(1)
    await turns()
    assert not again.done(), "nobody knows yet whether it is stored"
    bench.writer.confirm()
    assert not (await first).repeated
    assert (await again).repeated
    lost, again = bench.append(2), bench.append(2)
    await turns()
    bench.publisher.fail(LedgerFenced("somebody else"))
    for one in (lost, again):
        with pytest.raises(PublishOutcomeUnknown):
            await one


async def test_a_close_waits_for_what_was_let_in_before_it() -> None:
    bench = StreamBench()
    append = bench.append(0)
    await turns()
    closing = asyncio.create_task(bench.stream.close(Append(closes=True)))
    await turns()
    assert not bench.told, "how long it is nobody knows yet"
    assert not bench.stream.is_closed
    bench.writer.confirm()
    assert (await closing).end == (await append).end == 101
    assert bench.stream.is_closed
    (op,) = bench.told
    assert stream_told(None, op).upto == 101


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_a_publisher_that_gives_up_frees_its_place_in_the_line(how: str) -> None:
    """A long batch without room was given up, and the short batch behind it waited on."""
    bench = Bench(inflight_bytes_max=300, publish_timeout_ms=50 if how == "too late" else 30_000)
    under_way, long = bench.publish(), bench.publish(size=400)
    await turns()
    patient: Any = bench.publisher
    patient._config = BrokerConfig(inflight_bytes_max=300, publish_timeout_ms=30_000)
    short = bench.publish()
    await turns()
    if how == "cancelled":
        long.cancel()
    await asyncio.wait((long,))
    await turns()
    assert len(bench.writer.added) == 2, "there is room for the short one"
    bench.writer.confirm(2)
    await asyncio.gather(under_way, long, return_exceptions=True)
    assert (await short).first_offset == 101
    assert not any(bench.publisher.describe().values())


@pytest.mark.parametrize("takes", [1, 2, 3])
async def test_a_writer_that_is_busy_again_after_some_keeps_the_order(takes: int) -> None:
    """Waiting batches keep their order, however few the writer takes at a time."""
    bench = Bench()
    bench.writer.busy = True
    asked = [bench.publish(count) for count in (1, 2, 3, 4, 5, 6)]
    await turns()
    late: list[asyncio.Task[Published]] = []
    for _ in range(8):
        bench.writer.takes = takes
        bench.writer.drained.set()
        await turns()
        bench.writer.drained = asyncio.Event()
        late.append(bench.publish(7))  # a later batch goes behind the waiting ones
        await turns()
    bench.writer.busy = False
    bench.writer.drained.set()
    await turns(20)
    bench.writer.confirm(len(bench.writer.added))
    counts = [read_header(payload).record_count for payload in bench.writer.added]
    assert counts == [1, 2, 3, 4, 5, 6] + [7] * len(late)
    await asyncio.gather(*asked, *late)
    assert not any(bench.publisher.describe().values())


LAST = SEQUENCE_MODULUS - 1

attempts = st.lists(
    st.tuples(
        st.integers(1, 3),  # producer
        st.integers(0, 2),  # epoch
        st.integers(-12, 3),  # distance from the next sequence
        st.integers(1, 4),  # messages
    ),
    max_size=60,
)


@given(attempts)
def test_against_a_dict(tries: list[tuple[int, int, int, int]]) -> None:
    against_a_dict(tries, None)


@given(attempts, st.integers(LAST - 40, LAST + 1))
def test_against_a_dict_where_sequences_wrap(
    tries: list[tuple[int, int, int, int]], at: int
) -> None:
    against_a_dict(tries, at)


def against_a_dict(tries: list[tuple[int, int, int, int]], at: int | None) -> None:
    """Check against the dict, which counts on where sequences wrap. `at`: the number of earlier
    messages."""
    table = ProducerTable(10)
    stored: dict[tuple[int, int, int], int] = {}
    epochs: dict[int, int] = {}
    following: dict[int, int] = {}
    end = 0
    for producer in (1, 2, 3):
        if at is None:
            break
        known = Remembered(at - 20, at - 1, end)
        table.restore(ProducerState(producer, 0, (known,)))
        stored.update({(producer, 0, at - 20 + i): end + i for i in range(20)})
        epochs[producer], following[producer] = 0, at
        end += 20
    for producer, epoch, distance, count in tries:
        fresh = epoch > epochs.get(producer, -1)
        expected = 0 if fresh else following[producer]
        first = max(0, expected + distance)
        wanted = [(producer, epoch, first + i) for i in range(count)]
        sent = first % SEQUENCE_MODULUS
        if epoch < epochs.get(producer, -1):
            with pytest.raises(StaleProducerEpoch):
                table.check(producer, epoch, sent, count)
        elif first == expected:
            assert table.check(producer, epoch, sent, count) is None
            table.accept(producer, epoch, sent, count, end)
            stored.update({key: end + i for i, key in enumerate(wanted)})
            epochs[producer], following[producer] = epoch, first + count
            end += count + 2  # other producers' messages lie between
        elif not fresh and all(key in stored for key in wanted):
            found = table.check(producer, epoch, sent, count)
            assert found is not None
            if found.first_offset >= 0:
                places = (stored[wanted[0]], stored[wanted[-1]])
                assert (found.first_offset, found.last_offset) == places
            assert found.stored_from >= stored[wanted[-1]]
        else:
            with pytest.raises(SequenceGap) as gap:
                table.check(producer, epoch, sent, count)
            assert gap.value.expected == expected % SEQUENCE_MODULUS


def filled(batches: int, size: int = 10) -> ProducerTable:
    table = ProducerTable(10)
    for i in range(batches):
        assert table.check(7, 0, i * size, size) is None
        table.accept(7, 0, i * size, size, 1000 * i)
    return table


def test_the_last_five_batches_have_their_offsets_and_older_ones_are_only_known_stored() -> None:
    table = filled(BATCHES_REMEMBERED + 2)
    assert table.check(7, 0, 20, 10) == Duplicate(2000, 2009, 2009)
    assert table.check(7, 0, 10, 10) == Duplicate(-1, -1, 2000)


def test_a_repeat_with_other_boundaries_finds_its_messages() -> None:
    table = filled(4)
    assert table.check(7, 0, 15, 3) == Duplicate(1005, 1007, 1007)
    assert table.check(7, 0, 15, 10) == Duplicate(1005, 2004, 2004)


def test_a_batch_that_is_half_old_and_half_new_is_a_gap() -> None:
    with pytest.raises(SequenceGap) as gap:
        filled(3).check(7, 0, 25, 10)
    assert gap.value.expected == 30


def test_sequences_wrap_as_int32() -> None:
    table = ProducerTable(10)
    table.restore(ProducerState(7, 0, (Remembered(LAST - 9, LAST - 5, 50),)))
    assert table.check(7, 0, LAST - 4, 10) is None
    table.accept(7, 0, LAST - 4, 10, 100)
    assert next_sequence(LAST - 4, 10) == 5
    assert table.check(7, 0, 5, 1) is None
    assert table.check(7, 0, LAST - 4, 10) == Duplicate(100, 109, 109)
    assert table.check(7, 0, LAST, 2) == Duplicate(104, 105, 105)
    with pytest.raises(SequenceGap):
        table.check(7, 0, 6, 1)


def test_an_unknown_producer_begins_at_zero() -> None:
    with pytest.raises(SequenceGap, match="must begin at 0") as gap:
        ProducerTable(10).check(7, 0, 3, 1)
    assert gap.value.expected == 0


def test_a_new_epoch_begins_at_zero_and_shuts_the_old_one_out() -> None:
    table = filled(2)
    with pytest.raises(SequenceGap):
        table.check(7, 1, 20, 1)
    assert table.check(7, 1, 0, 1) is None
    table.accept(7, 1, 0, 1, 9000)
    with pytest.raises(StaleProducerEpoch, match="has epoch 1; epoch 0"):
        table.check(7, 0, 20, 1)


def test_the_silent_one_is_forgotten_first() -> None:
    table = ProducerTable(2)
    for offset, producer in enumerate((1, 2, 1, 3)):
        first = 1 if offset == 2 else 0
        assert table.check(producer, 0, first, 1) is None
        table.accept(producer, 0, first, 1, offset)
    assert len(table) == 2
    with pytest.raises(SequenceGap, match="not known here"):
        table.check(2, 0, 1, 1)
    assert table.check(1, 0, 2, 1) is None


def test_a_snapshot_carries_all_and_a_scan_over_it_changes_nothing() -> None:
    table = filled(7)
    again = ProducerTable(10)
    for state in table.snapshot():
        again.restore(state)
    again.accept(7, 0, 50, 10, 5000)
    again.accept(7, 0, 60, 10, 6000)
    assert list(again.snapshot()) == list(table.snapshot())


def test_only_what_changed_is_handed_out_again() -> None:
    table = filled(2)
    assert [state.producer_id for state in table.take_changed()] == [7]
    assert table.take_changed() == []
    table.accept(8, 0, 0, 1, 5)
    assert [state.producer_id for state in table.take_changed()] == [8]


@pytest.fixture
def two_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batcher, "UNDER_WAY_MAX", 2)


class Log:
    """Takes batches; each is stored when the test says so."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.sizes: list[int] = []
        self.waiting: list[asyncio.Future[None]] = []

    async def publish(self, batch: bytes) -> Published:
        count = check_batch(batch).record_count
        first, entry = len(self.values), len(self.sizes)
        self.values += [record.value or b"" for record in read_records(batch)]
        self.sizes.append(count)
        stored = asyncio.get_running_loop().create_future()
        self.waiting.append(stored)
        await stored
        return Published(first, first + count - 1, 7, entry, count, False)

    async def store(self, error: Exception | None = None) -> None:
        """Store the oldest batch in flight."""
        first = self.waiting.pop(0)
        first.set_result(None) if error is None else first.set_exception(error)
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def calls(of: MessageBatcher, *values: bytes) -> list[asyncio.Task[Placed]]:
    return [asyncio.ensure_future(of.publish(Record(None, value, (), 5))) for value in values]


@pytest.mark.usefixtures("two_under_way")
async def test_the_first_go_at_once_and_the_others_together() -> None:
    log = Log()
    of = MessageBatcher(log.publish)
    tasks = calls(of, b"a", b"b", b"c", b"d", b"e")
    await settle()
    assert log.sizes == [1, 1]
    await log.store()
    assert log.sizes == [1, 1, 3]
    await log.store()
    await log.store()
    found = await asyncio.gather(*tasks)
    assert [one.published.first_offset for one in found] == [0, 1, 2, 3, 4]
    assert [one.published.entry_id for one in found] == [0, 1, 2, 2, 2]
    assert [one.number for one in found] == [0, 0, 0, 1, 2]
    assert {one.published.count for one in found} == {1}
    assert log.values == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.usefixtures("two_under_way")
async def test_a_full_batch_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_batcher, "SHARED_MESSAGES", 3)
    log = Log()
    of = MessageBatcher(log.publish)
    tasks = calls(of, *[b"%d" % number for number in range(9)])
    await settle()
    assert log.sizes == [1, 1, 3, 3]
    while log.waiting:
        await log.store()
    assert log.sizes == [1, 1, 3, 3, 1]
    await asyncio.gather(*tasks)


@pytest.mark.usefixtures("two_under_way")
async def test_a_long_message_goes_alone_and_behind_those_before_it() -> None:
    log = Log()
    of = MessageBatcher(log.publish)
    long = bytes(message_batcher.SHARED_BYTES)
    tasks = calls(of, b"a", b"b", b"c", long, b"d", long)
    await settle()
    assert log.sizes == [1, 1, 1, 1, 1, 1]
    assert log.values == [b"a", b"b", b"c", long, b"d", long]
    while log.waiting:
        await log.store()
    assert [(await task).published.first_offset for task in tasks] == [*range(6)]


@pytest.mark.usefixtures("two_under_way")
async def test_all_of_a_batch_fail_together_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_batcher, "UNDER_WAY_MAX", 1)
    log = Log()
    of = MessageBatcher(log.publish)
    first, *tasks = calls(of, b"a", b"b", b"c")
    await settle()
    await log.store()
    (last,) = calls(of, b"d")
    await settle()
    assert log.sizes == [1, 2]
    await log.store(NotOwner("it moved"))
    for task in tasks:
        with pytest.raises(NotOwner):
            await task
    assert log.sizes == [1, 2, 1]
    await log.store()
    assert [(await one).published.first_offset for one in (first, last)] == [0, 3]


@pytest.mark.usefixtures("two_under_way")
async def test_who_goes_away_takes_nothing_from_the_others() -> None:
    log = Log()
    of = MessageBatcher(log.publish)
    tasks = calls(of, b"a", b"b", b"c", b"d")
    await settle()
    for number in (0, 2):
        tasks[number].cancel()
    await settle()
    while log.waiting:
        await log.store()
    assert (await tasks[3]).published.first_offset == 3
    assert log.values == [b"a", b"b", b"c", b"d"]


@pytest.mark.usefixtures("two_under_way")
@pytest.mark.parametrize("seed", range(20))
async def test_each_place_holds_its_own_message(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(message_batcher, "SHARED_MESSAGES", rng.choice((1, 2, 5, 1000)))
    monkeypatch.setattr(message_batcher, "UNDER_WAY_MAX", rng.choice((1, 2, 4)))
    log = Log()
    of = MessageBatcher(log.publish)
    tasks: list[asyncio.Task[Placed]] = []
    for number in range(60):
        tasks += calls(of, b"%d" % number)
        if rng.random() < 0.3:
            await settle()
        if log.waiting and rng.random() < 0.4:
            await log.store()
    await settle()
    while log.waiting:
        await log.store()
    found = await asyncio.gather(*tasks)
    for number, one in enumerate(found):
        assert log.values[one.published.first_offset] == b"%d" % number
        batch = one.published.first_offset - one.number
        assert batch == sum(log.sizes[: one.published.entry_id])
    assert log.values == [b"%d" % number for number in range(60)], "in the order of the calls"


def unpacked(encoding: str, pieces: list[bytes]) -> bytes:
    inflater = Decompressor(encoding)
    found = [piece for data in pieces for piece in inflater.feed(data)]
    assert all(0 < len(piece) <= PIECE_BYTES for piece in found)
    inflater.finish()
    return b"".join(found)


def bare(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


FORMS = {
    "gzip": ("gzip", gzip.compress),
    "members": ("gzip", lambda some: gzip.compress(some[:7]) + gzip.compress(some[7:])),
    "zlib": ("deflate", zlib.compress),
    "bare": ("deflate", bare),
}


def cut(content: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(place, len(content)) for place in cuts} | {0, len(content)})
    return [content[start:end] for start, end in pairwise(places)]


@given(st.sampled_from(sorted(FORMS)), st.binary(), st.lists(st.integers(0, 300)))
def test_comes_back_whole_in_any_pieces(form: str, content: bytes, cuts: list[int]) -> None:
    encoding, pack = FORMS[form]
    assert unpacked(encoding, cut(pack(content), cuts)) == content


@given(st.sampled_from(["gzip", "zlib", "bare"]), st.binary(min_size=1), st.data())
def test_never_a_part_of_it(form: str, content: bytes, data: st.DataObject) -> None:
    encoding, pack = FORMS[form]
    packed = pack(content)
    length = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(Problem) as refused:
        unpacked(encoding, [packed[:length]])
    assert refused.value.code == "broken-content-encoding"


@given(st.sampled_from(["gzip", "deflate"]), st.lists(st.binary(max_size=40)))
def test_any_bytes_give_a_problem_at_worst(encoding: str, pieces: list[bytes]) -> None:
    with suppress(Problem):
        unpacked(encoding, pieces)


def test_bytes_after_the_end_are_no_part_of_it() -> None:
    with pytest.raises(Problem, match="follow its end"):
        unpacked("deflate", [zlib.compress(b"x") + b"more"])
    with pytest.raises(Problem):
        unpacked("gzip", [gzip.compress(b"x") + b"more"])


def test_a_bomb_is_refused_before_it_has_grown() -> None:
    packed = gzip.compress(bytes(50_000_000))
    pieces = Decompressor("gzip").feed(packed)
    given = 0

    def unpack() -> None:
        nonlocal given
        for piece in pieces:
            given += len(piece)

    with pytest.raises(Problem) as refused:
        unpack()
    assert refused.value.status == 413
    assert given <= max(GROWTH_FREE_BYTES, GROWTH_MAX * len(packed)) + PIECE_BYTES
