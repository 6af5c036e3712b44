"""A state log that is closed while its writer is slow: queued changes have a writer until the
end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    EpochBegun,
    NotOwner,
    StaleStreamEpoch,
    StreamClosed,
    StreamSequence,
    StreamSequenceGap,
    SubscriptionBusy,
)
from octavo.broker.state.cursor import Cursor, pack_ranges, ranges_of, unpack_ranges
from octavo.broker.state.format import (
    SNAPSHOT_ENTRY_BYTES,
    BadStateLedger,
    CursorState,
    State,
    ack_op,
    cursor_op,
    delete_op,
    encode,
    producers_op,
    snapshot,
    used_op,
)
from octavo.broker.state.leases import (
    ASLEEP,
    OUT,
    LeftLeases,
    LeftMessages,
    bounded,
    left_ops,
    messages_told,
)
from octavo.broker.state.log import StateLog
from octavo.broker.state.producers import ProducerState, ProducerTable, Remembered
from octavo.broker.state.stream import (
    MARKER,
    Append,
    StreamConfig,
    StreamState,
    append_of,
    marker_of,
)
from octavo.broker.subscriptions.consumer_selection import ConsumerSelection
from octavo.broker.subscriptions.dead_letters import SpentMessages
from octavo.broker.subscriptions.dispatch import DispatchedBatch, Dispatcher
from octavo.broker.subscriptions.member_fence import MemberFence
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.topics import PartitionRecord
from tests.support.kit.quiescence import in_use
from tests.support.memory_state_ledgers import Served


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closed_while_changes_wait(drain: bool, turns: int) -> None:
    """With `drain` all are written in order; otherwise each gets an error."""
    served = Served(list, state_ledger_entries_max=100)
    log = served.log
    await log.append(used_op("s", 1))  # the snapshot: from here on each change is an entry
    held = served.writer
    held.go_on.clear()
    written = [asyncio.ensure_future(log.append(used_op("s", number))) for number in (2, 3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    written.append(asyncio.ensure_future(log.append(used_op("s", 4))))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(log.close(drain=drain))
    for _ in range(10):
        await asyncio.sleep(0)
        assert log.waits_in_vain() == ""
    assert closing.done() == (not drain)
    held.go_on.set()
    await closing
    outcomes = await asyncio.gather(*written, return_exceptions=True)
    assert [type(one) for one in outcomes] == 3 * [type(None) if drain else NotOwner]
    assert (in_use(log), log.waits_in_vain()) == ({}, "")
    with pytest.raises(NotOwner):
        await log.append(used_op("s", 5))


# After a take-over a producer got `sequence-gap` for ever, or its batch was stored twice.
# Checkpoints make producers durable. A checkpoint that was queued while the state ledger was being
# replaced came after the snapshot in the new ledger, although it was older. Replay took the
# producer back to it; the snapshot counted the newer state as written, so no later checkpoint wrote
# it again. Seed 1922004 of the profile `topic` found it.


class Writer:
    """A state ledger in memory."""

    def __init__(self, ledger_id: int, last: int) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = last
        self.length = 0
        self.metadata = None
        self.entries: list[bytes] = []

    async def append(self, payload: bytes) -> None:
        self.entries.append(payload)

    async def close(self) -> None: ...

    def abandon(self, why: object) -> None: ...


class Ledgers:
    """Ledgers are made when `gate` opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.made: list[Writer] = []

    def has_unsure_bookie(self, _: object) -> bool:
        return False

    async def create(self, **_: Any) -> Writer:
        await self.gate.wait()
        self.made.append(Writer(7, -1))
        return self.made[-1]

    async def delete(self, ledger_id: int) -> None: ...


class Record:
    """The partition's record."""

    def __init__(self, value: PartitionRecord) -> None:
        self.value = value

    async def change(self, how: Any) -> None:
        self.value = how(self.value)


async def test_what_was_queued_before_a_snapshot_takes_no_producer_back() -> None:
    config = BrokerConfig()
    table = ProducerTable(10)
    ledgers = Ledgers()
    end = 0

    def publish(producer: int, sequence: int) -> None:
        nonlocal end
        table.accept(producer, 0, sequence, 1, end)
        end += 1

    def whole() -> Iterator[bytes]:
        table.take_changed()
        return snapshot([("s", 1, Cursor(0))], table.snapshot(), end)

    log = StateLog(
        cast(Any, ledgers),
        cast(Any, Record(PartitionRecord(epoch=1, incarnation="i", state_ledger=3))),
        PartitionName("public", "t", 0),
        config,
        TopicSettings,
        whole,
        lambda error: None,
        cast(Any, Writer(3, config.state_ledger_entries_max)),
    )
    publish(1, 0)
    ack = asyncio.create_task(log.append(ack_op("s", [(0, 1)])))
    await asyncio.sleep(0.01)  # the ledger is long: a new one is being made
    checkpoint = asyncio.create_task(log.append(producers_op(end, table.take_changed())))
    await asyncio.sleep(0.01)
    publish(1, 1)
    ledgers.gate.set()
    await asyncio.gather(ack, checkpoint)
    publish(2, 0)
    await log.append(producers_op(end, table.take_changed()))
    state = State()
    for entry in ledgers.made[0].entries:
        state.apply(entry)
    assert len(ledgers.made[0].entries) == 3
    assert state.producers_upto == 3
    assert {one: held.batches[-1].last_sequence for one, held in state.producers.items()} == {
        1: 1,
        2: 0,
    }
    await log.close(drain=False)


def test_coverage_never_goes_back() -> None:
    """A checkpoint of an older state, after a newer one, only adds what it knows."""
    table = ProducerTable(10)
    table.accept(1, 0, 0, 5, 0)
    old = producers_op(5, list(table.snapshot()))
    table.accept(1, 1, 0, 5, 5)
    state = State()
    for entry in snapshot([], table.snapshot(), 10):
        state.apply(entry)
    state._apply(old)
    assert state.producers_upto == 10
    assert state.producers[1].epoch == 1


acks = st.lists(st.tuples(st.integers(0, 9_000), st.integers(1, 300)), max_size=12)


def replayed(*entries: bytes) -> State:
    state = State()
    for entry in entries:
        state.apply(entry)
    return state


@given(st.dictionaries(st.sampled_from("abc"), acks), st.integers(0, 20))
def test_deltas_and_snapshots_give_the_same_state(
    acked: dict[str, list[tuple[int, int]]], floor: int
) -> None:
    cursors = {name: Cursor(floor) for name in acked}
    entries = [encode([cursor_op(name, 5, floor) for name in acked])]
    for name, ranges in acked.items():
        for start, length in ranges:
            cursors[name].ack(start, start + length)
            entries.append(encode([ack_op(name, [(start, start + length)])]))
    by_deltas = replayed(*entries, entries[-1])
    by_snapshot = replayed(*snapshot([(n, 5, c) for n, c in cursors.items()], [], 0))
    for state in (by_deltas, by_snapshot):
        assert state.cursors.keys() == cursors.keys()
        for name, held in state.cursors.items():
            assert held.created_ms == 5
            assert held.cursor.committed_offset == cursors[name].committed_offset
            assert list(held.cursor.ranges()) == list(cursors[name].ranges())


def test_producers_are_replaced_one_by_one_and_keep_their_order_of_activity() -> None:
    one = ProducerState(1, 0, (Remembered(0, 9, 100),))
    two = ProducerState(2, 3, (Remembered(0, 0, 110), Remembered(1, 4, 111)))
    newer = ProducerState(1, 1, (Remembered(0, 2, 200),))
    state = replayed(*snapshot([], [one, two], 116), encode([producers_op(203, [newer])]))
    assert list(state.producers.values()) == [two, newer]
    assert state.producers_upto == 203


def test_a_seek_forgets_and_a_deletion_removes() -> None:
    made = encode([cursor_op("s", 1, 0), ack_op("s", [(5, 9)])])
    assert list(replayed(made).cursors["s"].cursor.ranges()) == [(5, 9)]
    sought = replayed(made, encode([cursor_op("s", 1, 3)]))
    assert list(sought.cursors["s"].cursor.ranges()) == []
    assert replayed(made, encode([delete_op("s")])).cursors == {}


def test_a_million_holes_are_several_entries_of_bounded_size() -> None:
    cursor = Cursor()
    for offset in range(1, 2_000_000, 2):
        cursor.ack(offset, offset + 1)
    entries = list(snapshot([("s", 1, cursor)], [], 0))
    assert max(map(len, entries)) < SNAPSHOT_ENTRY_BYTES + 2_000
    assert len(entries) >= 2 or len(entries[0]) < SNAPSHOT_ENTRY_BYTES + 2_000
    held = replayed(*entries).cursors["s"].cursor
    assert held.acked_beyond == held.hole_count() == 1_000_000


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb([7]),
        msgpack.packb([["x"]]),
        msgpack.packb([["c", "s", "late", 0]]),
        msgpack.packb([["a", "unknown", [0]]]),
        msgpack.packb([["c", "s", 1, 0], ["a", "s", [0]]]),
        msgpack.packb([["p", 1, [[1, 2, [3]]]]]),
        msgpack.packb([["v", 2]]),
    ],
)
def test_what_cannot_be_read_is_refused_with_one_error(entry: bytes) -> None:
    with pytest.raises(BadStateLedger):
        State().apply(entry)


@given(st.binary(max_size=200))
def test_noise_gives_no_other_error(noise: bytes) -> None:
    try:
        State().apply(noise)
    except BadStateLedger:
        pass


END = 7


def opened(**more: Any) -> StreamState:
    return StreamState(StreamConfig("text/plain"), **more)


def by(sequence: int, epoch: int = 0, producer: str = "p", **more: Any) -> Append:
    return Append(producer, epoch, sequence)._replace(**more)


def test_a_producers_appends_follow_one_another() -> None:
    stream = opened()
    for number in range(3):
        assert stream.check(by(number), number) is None
        stream.accept(by(number), number + 1)
    assert stream.check(by(1), END) == 3, "as far as it has come"
    with pytest.raises(StreamSequenceGap) as gap:
        stream.check(by(4), END)
    assert (gap.value.expected, gap.value.received) == (3, 4)
    with pytest.raises(EpochBegun):
        stream.check(by(3, epoch=1), END)
    assert stream.check(by(0, epoch=5), END) is None
    stream.accept(by(0, epoch=5), 4)
    with pytest.raises(StaleStreamEpoch) as stale:
        stream.check(by(3, epoch=4), END)
    assert stale.value.epoch == 5
    assert stream.check(by(0, producer="q"), END) is None
    with pytest.raises(StreamSequenceGap):
        stream.check(by(1, producer="q"), END)


def test_a_closed_stream_takes_nothing_but_repeats() -> None:
    stream = opened()
    stream.accept(by(0, closes=True), 1)
    assert stream.closed_by == ("p", 0, 0)
    assert stream.check(by(0, closes=True), END) == 1
    for late in (by(1), by(0, producer="q"), Append(), by(0, epoch=1), Append(closes=True)):
        with pytest.raises(StreamClosed) as closed:
            stream.check(late, END)
        assert closed.value.next_offset == END
    assert stream.check(Append(is_first=True), END) is None, "what it was made with"


def test_stream_seq_ascends_letter_by_letter() -> None:
    stream = opened()
    stream.accept(Append(stream_seq="2"), 1)
    for seq in ("2", "10", "", "1"):
        with pytest.raises(StreamSequence):
            stream.check(Append(stream_seq=seq), END)
    for seq in ("20", "3", "a"):
        assert stream.check(Append(stream_seq=seq), END) is None
    assert stream.check(Append(), END) is None, "who says none is not asked"
    repeat = by(0, stream_seq="3")
    stream.accept(repeat, 2)
    assert stream.check(repeat, END) == 2, "a repeat is one, whatever it says"


def test_the_one_silent_for_longest_is_forgotten() -> None:
    stream = opened(producers_max=2)
    for name in ("a", "b", "a", "c"):
        stream.accept(by(0, producer=name), 1)
    assert list(stream.producers) == ["a", "c"]


@pytest.mark.parametrize(
    "append",
    [by(3, epoch=2**53 - 1), Append(stream_seq="ä"), Append(closes=True), by(0, closes=True)],
)
def test_a_batch_says_what_its_append_changes(append: Append) -> None:
    marker = marker_of(append)
    assert marker is not None
    assert append_of([("other", b"x"), (MARKER, marker)]) == append


def test_a_plain_append_needs_no_word() -> None:
    assert marker_of(Append()) is None
    assert append_of([("other", b"x")]) is None
    for damaged in (b"", b"\x01", b"\x93\x01\x02\x03"):
        with pytest.raises(ValueError, match=MARKER):
            append_of([(MARKER, damaged)])


def replayed_stream_state(*entries: bytes) -> State:
    return State.told_by([encode([["v", 1]]), *entries])


def test_what_was_queued_before_a_snapshot_takes_nothing_back() -> None:
    stream = opened()
    early = encode([stream.change(0)])
    for number in range(4):
        stream.accept(by(number), number + 1)
    stream.revision += 1
    stream.accept(Append(closes=True), 4)
    whole = list(snapshot([], [], 4, stream=stream))
    found = replayed_stream_state(*whole, early).stream
    assert found is not None
    assert found.closed
    assert found.upto == 4
    assert found.producers == stream.producers


@pytest.mark.parametrize("damage", [[52], [52, 1, 0, 5, 0, 0, 0, None, None, 0, []]])
def test_a_damaged_operation_is_named(damage: list[object]) -> None:
    with pytest.raises(BadStateLedger):
        replayed_stream_state(encode([damage]))


@pytest.mark.parametrize("seed", range(20))
def test_owners_that_die_know_all_that_was_stored(seed: int) -> None:
    """Operations now and then, batches with their markers between: a take-over replays the
    operations and reads the batches after them."""
    rng = random.Random(seed)
    stream = opened()
    log: list[tuple[int, bytes | None]] = []
    ops = [encode([stream.change(0)])]
    for _ in range(200):
        end = len(log)
        step = rng.random()
        if step < 0.7:
            name = rng.choice("abc")
            known = stream.producers.get(name)
            append = by(0 if known is None else known.sequence + 1, 0, name)
            if known is not None and rng.random() < 0.1:
                append = by(0, known.epoch + 1, name)
            elif known is not None:
                append = append._replace(epoch=known.epoch)
            if rng.random() < 0.3:
                append = append._replace(stream_seq=f"{end:06d}")
            assert stream.check(append, end) is None
            log.append((end + 1, marker_of(append)))
            stream.accept(append, end + 1)
        elif step < 0.8:
            log.append((end + 1, None))
        elif step < 0.9:
            ops.append(encode([stream.change(end)]))
        else:
            found = replayed_stream_state(*ops).stream
            assert found is not None
            for ends, marker in log:
                if marker is not None and ends > found.upto:
                    append_found = append_of([(MARKER, marker)])
                    assert append_found is not None
                    found.replay(append_found, ends)
            assert dict(found.producers) == dict(stream.producers)
            assert found.stream_seq == stream.stream_seq
            stream = found
            ops = list(snapshot([], [], end, stream=stream))


def test_a_copy_goes_its_own_way() -> None:
    stream = opened()
    stream.accept(by(0), 1)
    other = stream.copy()
    other.accept(by(1), 2)
    assert stream.producers["p"].sequence == 0
    assert other.producers["p"].sequence == 1


def test_many_producers_are_told_in_parts() -> None:
    stream = opened()
    for number in range(2_500):
        stream.accept(by(0, producer=f"p{number}"), number + 1)
    found = replayed_stream_state(*snapshot([], [], 2_500, stream=stream)).stream
    assert found is not None
    assert found.producers == stream.producers
    assert next(iter(stream.told(2_500)))[-1][0][0] == "p0"
    assert len(list(stream.told(2_500))) == 3


SPAN = 20_000  # several chunks of the bitmap
offsets = st.integers(0, SPAN)
near_edges = st.sampled_from([4095, 4096, 4097, 8191, 8192, 8193])
acks_cursor = st.lists(
    st.tuples(offsets | near_edges, st.integers(1, 50) | st.integers(4000, 9000)), max_size=30
)


def first_missing(model: set[int], start: int) -> int:
    while start in model:
        start += 1
    return start


@given(floor=st.integers(0, 9000), acked=acks_cursor)
def test_acks_against_a_set(floor: int, acked: list[tuple[int, int]]) -> None:
    cursor = Cursor(floor)
    model = set(range(floor))
    for start, length in acked:
        new = set(range(start, start + length)) - model
        model |= new
        assert cursor.ack(start, start + length) == len(new)
    mark = first_missing(model, 0)
    assert cursor.committed_offset == mark
    assert cursor.acked_beyond == len([o for o in model if o > mark])
    beyond = ranges_of(sorted(o for o in model if o >= mark))
    assert list(cursor.ranges()) == beyond
    assert cursor.hole_count() == len(beyond)
    end = SPAN + 20_000
    assert cursor.backlog(end) == end - len(model)
    for probe in {0, mark, *(s for s, _ in acked), *(s + n for s, n in acked)}:
        assert cursor.is_acked(probe) == (probe in model)
        assert cursor.next_unacked(probe) == first_missing(model, max(probe, mark))
        limit = probe + 5000
        later = [o for o in model if o >= probe]
        assert cursor.next_acked(probe, limit) == min([*later, limit])


@given(acked=acks_cursor, split=st.integers(0, 5))
def test_dump_and_load(acked: list[tuple[int, int]], split: int) -> None:
    cursor = Cursor(100)
    for start, length in acked:
        cursor.ack(start, start + length)
    again = Cursor(cursor.committed_offset)
    dump = cursor.dump()
    again.load(dump[:split])
    again.load(dump[split:])
    again.load(dump)
    assert again.committed_offset == cursor.committed_offset
    assert list(again.ranges()) == list(cursor.ranges())
    assert again.acked_beyond == cursor.acked_beyond


def test_load_below_the_floor_is_not_counted() -> None:
    cursor = Cursor(10)
    cursor.load([(0, b"\xff\xff\xff")])
    assert (cursor.committed_offset, cursor.acked_beyond) == (24, 0)
    cursor.load([(0, b"\xff\xff\xff\x02")])
    assert list(cursor.ranges()) == [(25, 26)]


@given(st.sets(st.integers(0, 300)))
def test_ranges_pack(model: set[int]) -> None:
    ranges = ranges_of(sorted(model))
    assert {o for start, end in ranges for o in range(start, end)} == model
    assert unpack_ranges(pack_ranges(ranges)) == ranges


@pytest.mark.parametrize("packed", [[1], [1, 0], [-1, 2]])
def test_senseless_ranges_are_refused(packed: list[int]) -> None:
    with pytest.raises(ValueError, match="pairs of a gap and a length"):
        unpack_ranges(packed)


def test_reset_forgets_what_was_beyond() -> None:
    cursor = Cursor()
    cursor.ack(5, 9000)
    cursor.reset(3)
    assert (cursor.committed_offset, cursor.acked_beyond, list(cursor.ranges())) == (3, 0, [])


@pytest.mark.parametrize("holes", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_holes_stay_cheap_and_small(holes: int) -> None:
    cursor = Cursor()
    started = time.process_time()
    for offset in range(1, 2 * holes, 2):
        cursor.ack(offset, offset + 1)
    seconds = time.process_time() - started
    assert cursor.acked_beyond == cursor.hole_count() == holes
    assert sum(len(raw) for _, raw in cursor.dump()) <= 2 * holes // 8 + 512
    assert seconds < holes / 50_000, "an ack must not cost more the more holes there are"
    assert cursor.ack(0, 2 * holes) == holes
    assert cursor.committed_offset == 2 * holes


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 9_000), st.integers(1, 5_000)), max_size=6),
    st.integers(1, 12_000),
    st.integers(0, 14_000),
)
def test_the_first_so_many_unacked(
    floor: int, acked: list[tuple[int, int]], count: int, end: int
) -> None:
    cursor = Cursor(floor)
    for start, length in acked:
        cursor.ack(start, start + length)
    unacked = [offset for offset in range(end) if not cursor.is_acked(offset)]
    assert cursor.first_unacked(count, end) == unacked[:count]
    behind = cursor.after_unacked(count, end)
    if len(unacked) >= count:
        assert behind == unacked[count - 1] + 1
    else:
        assert behind == end


LEASE = 100
LEASES_END = 60


def dispatcher(type_: Any, cursor: Cursor, told: dict[int, int] | None = None) -> Dispatcher:
    return Dispatcher(
        cursor,
        ack_timeout_ms=LEASE,
        leased_max=1_000,
        delayed_max=1_000,
        turns=ConsumerSelection(type_, 50, 0),
        exclusive=type_ == "exclusive",
        in_order=type_ in ("exclusive", "failover"),
        attempts=told,
    )


def told(state: CursorState) -> CursorState:
    """Return the same after writing and reading."""
    assert state.left is not None
    there = State({"s": CursorState(7, Cursor(0))})
    there.apply(encode(left_ops("s", 7, state.left)))
    found = there.cursors["s"].left
    assert found == state.left
    return CursorState(7, state.cursor, left=found)


def left_by(one: Dispatcher, now: int) -> LeftLeases:
    left = LeftLeases(1, 1, 0)
    one.leave(left, now)
    found = told(CursorState(7, one.cursor, left=left)).left
    assert found is not None
    return found


def take(one: Dispatcher, name: str, now: int, most: int = 100) -> DispatchedBatch | None:
    one.enter(name, now)
    found = one.dispatch(name, now, LEASES_END, most)
    if found is not None:
        one.reading(found)
        one.begin(found, now)
    return found


def ack(one: Dispatcher, *offsets: int) -> None:
    for offset in offsets:
        one.cursor.ack(offset, offset + 1)
    one.acked(offsets)


def handed(type_: Any, one: Dispatcher, now: int, told: dict[int, int] | None = None) -> Dispatcher:
    left = left_by(one, now)
    other = dispatcher(type_, one.cursor, told)
    other.resume(left, now)
    return other


@dataclass
class Model:
    """A model of a shared subscription without keys, under any owner."""

    acked: set[int] = field(default_factory=set)
    out: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset → lease, deadline
    asleep: dict[int, int] = field(default_factory=dict)
    tried: dict[int, int] = field(default_factory=dict)

    def expire(self, now: int) -> None:
        for offset in [one for one, (_, until) in self.out.items() if until <= now]:
            del self.out[offset]
            self.tried[offset] = self.tried.get(offset, 0) + 1


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("type_", ["shared", "failover", "exclusive"])
def test_all_goes_on_at_the_next_owner_as_if_it_was_the_same(type_: str, seed: int) -> None:
    rng = random.Random(f"{type_} {seed}")
    one, model, now = dispatcher(type_, Cursor(0)), Model(), 0
    for _ in range(120):
        now += rng.randint(0, 30)
        model.expire(now)
        what = rng.choice(("take", "take", "ack", "nack", "extend", "hand over"))
        held = sorted(model.out)
        name = rng.choice("ab") if type_ == "shared" else "a"
        if what == "hand over":
            one = handed(type_, one, now)
        elif what == "take":
            waiting = sorted(set(range(LEASES_END)) - model.acked - set(model.out))
            found = take(one, name, now, rng.randint(1, 7))
            if found is not None:
                assert found.offsets == sorted(found.offsets), "readers of the log go forward"
                if type_ != "shared":
                    assert found.offsets == waiting[: len(found.offsets)], "none overtakes another"
            for offset in [] if found is None else found.offsets:
                assert found is not None
                assert offset not in model.out, "nobody has it"
                assert offset not in model.acked
                assert model.asleep.pop(offset, 0) <= now, "its delay is over"
                assert found.counts.get(offset, 1) == model.tried.get(offset, 0) + 1
                if type_ != "shared":
                    assert all(offset < other for other, at in model.asleep.items() if at > now)
                model.out[offset] = found.number, now + LEASE
            if found is None:
                free = set(range(LEASES_END)) - model.acked - set(model.out)
                asleep = [other for other in free if model.asleep.get(other, 0) > now]
                first = LEASES_END if type_ == "shared" else min(asleep, default=LEASES_END)
                assert all(other in asleep or other > first for other in free)
        elif held:
            some = rng.sample(held, rng.randint(1, len(held)))
            numbers = {one_: model.out[one_][0] for one_ in some}
            assert all(one.holds(offset, numbers[offset]) for offset in some)
            if what == "extend":
                one.extend(some, now)
                model.out |= {offset: (numbers[offset], now + LEASE) for offset in some}
            for offset in some:
                if what == "ack":
                    ack(one, offset)
                    model.acked.add(offset)
                elif what == "nack":
                    delay = rng.choice((0, 40, 200))
                    one.nack(offset, now, delay)
                    model.asleep[offset] = now + delay
                    model.tried[offset] = model.tried.get(offset, 0) + 1
                if what != "extend":
                    del model.out[offset]
        one.expire(now)
        assert one.leased == len(model.out) == sum(c.leased for c in one.consumers.values())
        assert all(one.holds(offset, number) for offset, (number, _) in model.out.items())


def test_what_no_consumer_was_given_is_not_left_leased() -> None:
    """It was being read from the bookies when the owner ended: the successor delivers it."""
    one = dispatcher("shared", Cursor(0))
    one.enter("a", 0)
    found = one.dispatch("a", 0, LEASES_END, 2)
    assert found is not None
    one.reading(found)
    one = handed("shared", one, 1)
    again = take(one, "b", 2, 2)
    assert again is not None
    assert (again.offsets, again.counts) == ([0, 1], {})


def test_an_exclusive_subscription_stays_with_who_holds_it() -> None:
    one = dispatcher("exclusive", Cursor(0))
    take(one, "a", 0, 1)
    one = handed("exclusive", one, 40)
    with pytest.raises(SubscriptionBusy):
        one.enter("b", 99)
    one.enter("b", 101)


def test_the_active_consumer_stays_the_one_until_it_holds_nothing() -> None:
    one = dispatcher("failover", Cursor(0))
    first = take(one, "b", 0, 3)
    assert first is not None
    one = handed("failover", one, 10)
    assert take(one, "a", 20) is None, "b holds the first ones"
    ack(one, *first.offsets)
    second = take(one, "a", 30, 1)
    assert second is not None
    assert second.offsets == [3]
    assert second.number > first.number, "no lease number comes twice"


def test_a_group_keeps_its_generation() -> None:
    hold = MemberFence()
    hold.enter("m", 5, 0, 100)
    left = hold.leave(40)
    assert left is not None
    other = MemberFence()
    other.resume(left, 1_000)
    with pytest.raises(SubscriptionBusy):
        other.enter("n", 5, 1_059, 100)
    assert other.enter("n", 5, 1_061, 100)
    assert MemberFence().leave(0) is None


def test_what_is_spent_is_so_at_the_next_owner() -> None:
    def made() -> Dispatcher:
        spent = SpentMessages(1, 10)
        return Dispatcher(
            cursor, ack_timeout_ms=LEASE, leased_max=10, delayed_max=10, spent=spent
        )  # fmt: skip

    cursor = Cursor(0)
    one = made()
    take(one, "a", 0, 2)
    one.nack(0, 0, 500)
    one.nack(1, 0, None)
    left = left_by(one, 10)
    other = made()
    other.resume(left, 10)
    assert other._spent.offsets() == [0, 1]
    assert (other._spent.due_ms(0), other._spent.due_ms(1)) == (500, None)
    third = take(other, "a", 20, 1)
    assert third is not None
    assert third.offsets == [2]


def test_leases_run_on_while_nobody_uses_the_subscription() -> None:
    one = dispatcher("shared", Cursor(0))
    take(one, "a", 0, 2)
    left = left_by(one, 10).later(60)
    other = dispatcher("shared", one.cursor)
    other.resume(left, 1_000)
    other.expire(1_029)
    assert other.leased == 2
    other.expire(1_030)
    assert other.leased == 0


def test_a_delay_runs_on_while_nobody_uses_the_subscription() -> None:
    left = LeftLeases(1, 1, 1, messages=[LeftMessages(ASLEEP, 100, 0, "", [0], [1], [])])
    other = dispatcher("shared", Cursor(0))
    other.resume(left.later(60), 1_000)
    found = [take(other, "a", now, 1) for now in (1_039, 1_040)]
    assert [one and one.offsets for one in found] == [[1], [0]]


@pytest.mark.parametrize("count", [10_000, 10_001, 25_000])
def test_a_long_table_is_told_in_parts_that_say_the_same(count: int) -> None:
    """When cut badly, counts and keys of the second operation were those of the first."""
    offsets = list(range(7, 7 + 2 * count, 2))
    attempts = [1 + number // 6_000 for number in range(count)]
    keys: list[int | None] = [number % 9_973 for number in range(count)]
    told = LeftMessages(OUT, 500, 3, "a", offsets, attempts, keys)
    ops = left_ops("s", 7, LeftLeases(1, 1, 3, messages=[told]))
    assert len(ops) == 1 + -(-count // 10_000)
    found = LeftLeases(1, 1, 3)
    for op in ops[1:]:
        messages_told(found, op)
    assert [one for part in found.messages for one in part.offsets] == offsets
    assert [one for part in found.messages for one in part.attempts] == attempts
    assert [one for part in found.messages for one in part.keys] == keys


def test_leases_count_for_the_next_opening_alone() -> None:
    """From another epoch: their owner was not the last one."""
    state = State({"s": CursorState(7, Cursor(0), left=LeftLeases(3, 1, 9))})
    state.keep_leases_of(4)
    assert state.cursors["s"].left is None
    state.cursors["s"].left = LeftLeases(3, 1, 9)
    state.keep_leases_of(3)
    assert state.cursors["s"].left == LeftLeases(3, 1, 9)


def test_they_are_of_one_subscription_and_no_namesake() -> None:
    one = dispatcher("shared", Cursor(0))
    take(one, "a", 0, 2)
    ops = left_ops("s", 7, left_by(one, 10))
    state = State({"s": CursorState(8, Cursor(0))})
    state.apply(encode(ops))
    assert state.cursors["s"].left is None
    state = State({"s": CursorState(7, Cursor(0))})
    state.apply(encode([*ops, ["c", "s", 7, 1]]))
    assert state.cursors["s"].left is None, "a seek ends them"


def test_a_table_that_is_too_long_is_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.broker.state.leases.LEASES_BYTES_MAX", 40)
    long, short = [[22, "long" * 20]], [[22, "s"], [23, "s"]]
    assert bounded([long, short]) == short


@pytest.mark.parametrize(
    "op",
    [
        [22, "s", 7, 1],
        [22, "s", 7, 1, 1, -1, "", None, None, [], [], None],
        [22, "s", 7, 1, 1, 1, b"", None, None, [], [], None],
        [22, "s", 7, 1, 1, 1, "", None, None, [["a", 0, 0]], [], None],
        [23, "s", 4, 0, 0, "", [0, 1], [], []],
        [23, "s", 0, 0, 0, "", [0, 2**40], [], []],
        [23, "s", 0, 0, 0, "", [0, 2], [1, 3], []],
        [23, "s", 0, 0, 0, "", [0, 2], [], [1]],
        [23, "s", 0, "0", 0, "", [0, 2], [], []],
    ],
)
def test_what_cannot_be_is_refused(op: list[Any]) -> None:
    state = State({"s": CursorState(7, Cursor(0), left=LeftLeases(1, 1, 1))})
    with pytest.raises(BadStateLedger):
        state.apply(encode([op]))
