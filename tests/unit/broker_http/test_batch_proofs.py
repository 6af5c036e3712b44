"""Batches are verified when they arrive, at a bounded cost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import random
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import Overloaded
from octavo.broker.http.call import RECORD_BATCH
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.operations import batch_proofs
from octavo.broker.operations.batch_proofs import BatchProofs
from octavo.broker.types import StoredBatch, SubscriptionSettings
from octavo.ledger.read.open_batch import open_batch, unpacked_if_small
from octavo.protocol.batch import HEADER, HEADER_BYTES, InvalidBatch, check_batch, read_header
from octavo.protocol.compression import Compression, UnsupportedCompression
from octavo.protocol.limits import BATCH_RECORDS_MAX, RECORD_HEADERS_MAX, RECORDS_BYTES_MAX
from octavo.protocol.records import Record, build_batch, build_gapped_batch, read_records
from octavo.protocol.windows import STEP_RECORDS, WINDOW_BYTES, WINDOW_RECORDS
from tests.support.cluster import make_topic, owned, running_cluster
from tests.support.memory_cluster import Running, running

# Sixty-six bytes made a broker take a hundred megabytes and stand still for seconds. A snappy
# record batch that claims a million records was stored unseen. A receive expanded it to a million
# messages, and sixteen such receives took 90 → 2,162 MB and stopped the loop for 2.2 s. Valid
# batches of 747 KB reached 3.6 GB and 4.5 s.

STALL_S_MAX = 0.25
COUNT = 100_000
MIB = 1 << 20
TOPIC = "/v1/topics/public/one"


def batch_of(records: bytes, count: int, attributes: int = 0, **changes: int) -> bytes:
    """Build a batch of these bytes, with a fitting length and checksum."""
    head = read_header(build_batch([Record(None, b"x")]))._replace(
        batch_length=HEADER_BYTES - 12 + len(records),
        attributes=attributes,
        record_count=count,
        last_offset_delta=count - 1,
        **changes,
    )
    data = bytearray(HEADER.pack(*head) + records)
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


FORGED = batch_of(b"\xff\xff\xff\xff\x0f", 1_000_000, Compression.SNAPPY)


def many(count: int, kind: Compression = Compression.ZSTD) -> bytes:
    """Build as many small messages as the batch claims."""
    return build_batch([Record(None, b"%d" % n) for n in range(count)], compression=kind)


@pytest.fixture(scope="module")
def million() -> bytes:
    """Build a valid batch of the most messages that a packed batch may have."""
    return many(BATCH_RECORDS_MAX)


@pytest.fixture(scope="module")
def large() -> bytes:
    """Build a valid batch of very many messages."""
    return many(COUNT)


def stored(data: bytes, entry_id: int) -> StoredBatch:
    return StoredBatch(0, 1, entry_id, read_header(data), data)


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """Measure the longest turn of the loop, by its thread's processor time. Neither a busy machine
    nor garbage collections of other tests' objects count."""
    found = [0.0]

    async def tick() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            found[0], last = max(found[0], now - last), now

    ticking = asyncio.create_task(tick())
    gc.freeze()
    try:
        yield found
    finally:
        gc.unfreeze()
        ticking.cancel()


@contextlib.contextmanager
def memory() -> Iterator[list[int]]:
    """Measure the most memory that Python took."""
    found = [0]
    tracemalloc.start()
    try:
        yield found
        found[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ---- at the door


async def send(one: Running, body: bytes, broker: int = 0, query: str = "") -> Any:
    return await one.apis[broker].call(
        "POST", f"{TOPIC}/messages{query}", data=body, headers={"Content-Type": RECORD_BATCH}
    )


WRONG = {
    "forged": (FORGED, "unpack"),
    "too few": (batch_of(many(9)[HEADER_BYTES:], 10, Compression.ZSTD), "record 9 of 10"),
    "too many": (batch_of(many(9)[HEADER_BYTES:], 8, Compression.ZSTD), "follow the last one"),
    "far too many": (
        batch_of(many(9)[HEADER_BYTES:], BATCH_RECORDS_MAX, Compression.ZSTD), "record 9 of"
    ),
    "beyond the limit": (
        batch_of(many(9)[HEADER_BYTES:], BATCH_RECORDS_MAX + 1, Compression.ZSTD),
        str(BATCH_RECORDS_MAX),
    ),
    "gaps": (
        batch_of(
            build_gapped_batch(
                [Record(None, b"a", (), 0, 0), Record(None, b"b", (), 0, 5)], 0,
                compression=Compression.GZIP,
            )[HEADER_BYTES:],
            2, Compression.GZIP,
        ),
        "count up by one",
    ),
    "another packing": (batch_of(many(9)[HEADER_BYTES:], 9, Compression.LZ4), "damaged"),
    "unpacks too far": (
        build_batch([Record(None, bytes(4 * MIB))] * 17, compression=Compression.ZSTD),
        str(RECORDS_BYTES_MAX),
    ),
    "a long message": (
        build_batch([Record(None, bytes(6 * MIB))], compression=Compression.ZSTD), "the most is"
    ),
    "many headers": (
        build_batch(
            [Record(None, None, [("", None)] * (RECORD_HEADERS_MAX + 1))],
            compression=Compression.GZIP,
        ),
        str(RECORD_HEADERS_MAX),
    ),
}  # fmt: skip


@pytest.mark.parametrize("query", ["", "?results=batches"], ids=["alone", "with others"])
@pytest.mark.parametrize("name", WRONG)
async def test_a_packed_batch_that_is_not_what_it_says_is_refused(name: str, query: str) -> None:
    body, says = WRONG[name]
    async with running(2) as two:
        assert (await two.api.put(TOPIC)).status == 201
        for broker in (0, 1):
            sound = many(3) if query else b""
            answer = await send(two, sound + body, broker, query)
            assert answer.status == 422, answer
            assert answer.json()["code"] == "invalid-batch"
            assert says in answer.json()["detail"], answer
        assert two.next_offset("public/one") == 0, "nothing was stored"


@pytest.mark.parametrize("kind", list(Compression))
async def test_sound_ones_are_stored_as_they_are(kind: Compression) -> None:
    async with running(1) as one:
        assert (await one.api.put(TOPIC)).status == 201
        for count in (1, WINDOW_RECORDS + 1, 2 * STEP_RECORDS + 3):
            answer = await send(one, many(count, kind))
            assert answer.status == 200, answer
            assert answer.json()["count"] == count
        long = build_batch([Record(None, b"x" * 4 * MIB), Record(b"k", None)], compression=kind)
        assert (await send(one, long)).status == 200


@pytest.mark.long
async def test_the_most_a_batch_may_hold_does_not_stop_the_loop(
    large: bytes, million: bytes
) -> None:
    """It is charged to its sender during verification, and given back."""
    held: list[int] = []

    async def hold(size: int) -> None:
        held.append(size)

    long = build_batch([Record(None, bytes(4 * MIB))] * 15, compression=Compression.ZSTD)
    assert len(long) < 10_000
    with memory() as peak:
        for batch in (large, long):
            await BatchProofs().prove(read_header(batch), batch, "p", hold)
    assert peak[0] < 2 * RECORDS_BYTES_MAX
    assert held == [RECORDS_BYTES_MAX, 0] * 2
    async with watched() as stall:
        for batch in (million, long):
            await BatchProofs().prove(read_header(batch), batch, "p", hold)
    assert stall[0] < STALL_S_MAX


async def test_one_large_batch_at_a_time() -> None:
    most = under_way = 0

    async def hold(size: int) -> None:
        nonlocal most, under_way
        under_way += 1 if size else -1
        most = max(most, under_way)
        await asyncio.sleep(0)

    proofs = BatchProofs()
    large = many(70_000)
    await asyncio.gather(*(proofs.prove(read_header(large), large, "p", hold) for _ in range(5)))
    assert (most, under_way) == (1, 0)
    with pytest.raises(InvalidBatch):
        await proofs.prove(read_header(FORGED), FORGED, "p", hold)
    await asyncio.wait_for(proofs.prove(read_header(large), large, "p", hold), 60)


# ---- what was stored before


@contextlib.asynccontextmanager
async def receiving(folder: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Make a partition with a subscription; its messages were stored before the check existed."""
    async with running_cluster(folder) as brokers:
        broker = (await brokers.start("A")).broker
        name = await make_topic(broker)
        partition = await owned(broker, name)
        info, _ = await broker.topics.create_subscription(
            name.topic_name, "s", SubscriptionSettings(start="earliest")
        )
        yield partition, await partition.subscribe(info)


async def test_forged_ones_of_old_cost_what_is_asked_for(tmp_path: Path) -> None:
    async with receiving(tmp_path) as (partition, subscription):
        for _ in range(16):
            await partition.publish(FORGED)
        await partition.publish(build_batch([Record(None, b"sound")]))
        with memory() as peak:
            async with watched() as stall:
                got = []
                for at in range(16):
                    await subscription.seek(at * 1_000_000)
                    got += await subscription.receive("c", messages_max=100)
        assert peak[0] < 8 * MIB
        assert stall[0] < STALL_S_MAX
        assert [one.offset for one in got] == [
            at * 1_000_000 + n for at in range(16) for n in range(100)
        ]
        assert {name for one in got for name, _ in one.record.headers} == {"octavo-error"}
        await subscription.seek(16_000_000)
        (last,) = await subscription.receive("c", messages_max=10)
        assert last.record.value == b"sound"


@pytest.mark.long
async def test_sound_ones_cost_what_is_asked_for(
    large: bytes, million: bytes, tmp_path: Path
) -> None:
    async with receiving(tmp_path) as (partition, subscription):
        for _ in range(8):
            await partition.publish(large)
        with memory() as peak:
            for at in range(8):
                await subscription.seek((at + 1) * COUNT - 10)
                got = await subscription.receive("c", messages_max=20)
                values = [one.record.value for one in got]
                wanted = [*range(COUNT - 10, COUNT), *(range(10) if at < 7 else ())]
                assert values == [b"%d" % n for n in wanted]
        assert peak[0] < 32 * MIB + 2 * 20 * MIB
        for _ in range(2):
            await partition.publish(million)
        async with watched() as stall:
            for at in range(2):
                await subscription.seek(8 * COUNT + at * BATCH_RECORDS_MAX + 500_000)
                assert len(await subscription.receive("c", messages_max=10_000)) == 10_000
        assert stall[0] < STALL_S_MAX


@pytest.mark.long
async def test_an_answer_has_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    """Fifteen megabytes per message in a packed batch of kilobytes; the rest comes next."""
    value = bytes(3 * MIB)
    batch = build_batch([Record(None, value)] * 15, compression=Compression.ZSTD)
    async with receiving(tmp_path) as (partition, subscription):
        for _ in range(3):
            await partition.publish(batch)
        seen: list[int] = []
        with memory() as peak:
            while len(seen) < 45:
                got = await subscription.receive("c", messages_max=1000, request=f"r-{len(seen)}")
                assert len(got) == 1
                again = await subscription.receive("c", messages_max=1, request=f"r-{len(seen)}")
                assert [one.offset for one in again] == [one.offset for one in got]
                assert {one.delivery_count for one in got} == {1}
                seen += [one.offset for one in got]
                await subscription.acknowledge([one.ack_id for one in got])
        assert seen == list(range(45))
        assert peak[0] < 200 * MIB
        assert subscription.stats().backlog == 0


async def test_times_are_looked_up_without_holding_up(tmp_path: Path) -> None:
    old = build_batch([Record(None, b"x", (), 5)] * 300_000, compression=Compression.ZSTD)
    lie = batch_of(old[HEADER_BYTES:], 300_000, Compression.ZSTD, max_timestamp=100)
    async with receiving(tmp_path) as (partition, _):
        await partition.publish(lie)
        await partition.publish(FORGED)
        await partition.publish(build_batch([Record(None, b"new", (), 90)]))
        async with watched() as stall:
            assert await partition.offset_at(50) == 1_300_000
        assert stall[0] < STALL_S_MAX


async def test_reading_as_json(large: bytes) -> None:
    async with running(1) as one:
        assert (await one.api.put(TOPIC)).status == 201
        partition = await one.partition("public/one")
        for data in (large, FORGED):
            await partition.publish(data)
        async with watched() as stall:
            answer = await one.api.get(f"{TOPIC}/messages?from={COUNT - 10}&limit=10000")
        assert stall[0] < STALL_S_MAX
        assert [one["value"] for one in answer.json()["messages"]] == list(range(COUNT - 10, COUNT))
        answer = await one.api.get(f"{TOPIC}/messages?from={COUNT}&limit=10000")
        assert (answer.status, answer.json()["code"]) == (406, "batch-not-readable")
        assert answer.json()["next_offset"] == COUNT + 1_000_000


# ---- what is kept


@given(st.integers(0, 2**32), st.integers(0, 60_000))
async def test_the_cache_counts_what_it_holds(seed: int, bytes_max: int) -> None:
    rng = random.Random(seed)
    batches = [
        stored(
            batch_of(b"\xff", 5, Compression.SNAPPY)
            if rng.random() < 0.2
            else build_batch(
                [Record(None, bytes(rng.randrange(300)))] * rng.randint(1, 300),
                compression=rng.choice(list(Compression)),
            ),
            entry_id,
        )
        for entry_id in range(rng.randint(1, 12))
    ]
    cache = OpenBatches(bytes_max)
    for _ in range(40):
        batch = rng.choice(batches)
        async with cache.readable(batch) as found:
            index = rng.randrange(batch.header.record_count)
            await found.turn_to(index)
            assert found.holds(index)
        kept = sum(1024 + getattr(one, "held_bytes", 0) for one in cache._kept.values())
        assert cache.kept_bytes == kept <= bytes_max
        if cache.kept_bytes + 1024 + 100_000 < bytes_max:
            assert (1, batch.entry_id) in cache._kept


# ---- windows


messages = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=5),
        st.none() | st.binary(max_size=20) | st.integers(0, 90_000).map(bytes),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
        st.integers(0, 10**12),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=8,
)


@given(messages, st.sampled_from(Compression), st.data())
async def test_windows_give_what_reading_at_once_gives(
    drawn: list[Any], kind: Compression, data: st.DataObject
) -> None:
    records = [
        Record(key, value, headers, time_ms)
        for key, value, headers, time_ms, times in drawn
        for _ in range(times if len(value or b"") < 100 else 1)
    ]
    batch = build_batch(records, compression=kind)
    whole = list(read_records(batch))
    windows = await open_batch(batch)
    assert [one for _, some in windows.following(0) for one in some] == whole
    index = data.draw(st.integers(0, len(whole) - 1))
    first, some = windows.window(index)
    assert first <= index < first + len(some) <= first + WINDOW_RECORDS
    assert some == whole[first : first + len(some)]
    assert list(windows.span(index)) == list(range(first, first + len(some)))
    assert len(some) == 1 or sum(len(one.value or b"") for one in some) <= WINDOW_BYTES
    for number in range(windows.windows):
        windows.prove(number)


async def test_damage_behind_the_first_window_is_refused() -> None:
    """Lengths fit, so the batch can be walked over; its last record claims a header."""
    count = 3 * WINDOW_RECORDS
    body = bytearray(many(count, Compression.NONE)[HEADER_BYTES:])
    assert body[-1] == 0
    body[-1] = 2
    batch = batch_of(gzip.compress(bytes(body)), count, Compression.GZIP)

    async def hold(size: int) -> None:
        pass

    check_batch(batch)
    with pytest.raises(InvalidBatch):
        await BatchProofs().prove(read_header(batch), batch, "p", hold)


@given(st.integers(0, 2**32))
async def test_corrupted_batches_are_refused_or_whole(seed: int) -> None:
    """Count, length, packing and bytes changed at random: a verified batch is readable to its
    end."""
    rng = random.Random(seed)
    kind = rng.choice(list(Compression)[1:])
    count = rng.choice((1, 3, WINDOW_RECORDS, WINDOW_RECORDS + 1, 700))
    body = bytearray(many(count, kind)[HEADER_BYTES:])
    attributes: int = kind
    for _ in range(rng.randint(0, 2)):
        match rng.randrange(4):
            case 0:
                count = max(1, count + rng.choice((-1, 1, 1_000, BATCH_RECORDS_MAX - count)))
            case 1:
                attributes = rng.randint(1, 7)
            case 2:
                body[rng.randrange(len(body))] = rng.randrange(256)
            case 3:
                del body[rng.randrange(len(body)) + 1 :]
    batch = batch_of(bytes(body), count, attributes)

    async def hold(size: int) -> None:
        pass

    try:
        check_batch(batch)
        await BatchProofs().prove(read_header(batch), batch, "p", hold)
    except (InvalidBatch, UnsupportedCompression):
        return
    found = list(read_records(batch))
    assert [one.offset_delta for one in found] == list(range(count))
    cache = OpenBatches(MIB)
    async with cache.opened(stored(batch, 0)) as windows:
        assert [one for _, some in windows.following(0) for one in some] == found


async def test_a_record_of_many_headers_is_not_made_into_objects() -> None:
    """Also an unpacked record, which was not examined on arrival."""
    batch = build_batch([Record(None, None, [("", None)] * 1_500_000), Record(None, b"next")])
    with memory() as peak:
        windows = await open_batch(batch)
        with pytest.raises(InvalidBatch, match=f"the most is {RECORD_HEADERS_MAX}"):
            windows.window(0)
        async with OpenBatches(MIB).readable(stored(batch, 0)) as readable:
            await readable.turn_to(0)
            assert dict(readable[0].headers).keys() == {"octavo-error"}
            await readable.turn_to(1)
            assert readable[1].value == b"next"
    assert peak[0] < 32 * MIB


# A hundred large packed batches of a peer were verified before another peer's: 10 s, and 429. They
# are verified one at a time, and stood in one line, in the order of arrival.

LARGE = build_batch([Record(None, bytes(300 * 1024))], compression=Compression.ZSTD)
PEER_HEADER = read_header(LARGE)


class Door:
    """Verifies large batches, and notes the order of peers."""

    def __init__(self) -> None:
        self.turns: list[str] = []
        self.open = asyncio.Event()
        """No turn ends before it is set."""
        self._inside = 0
        self._proofs = BatchProofs()

    async def prove(self, peer: str) -> None:
        async def hold(size: int) -> None:
            self._inside += 1 if size else -1
            assert self._inside <= 1
            if size:
                self.turns.append(peer)
                await self.open.wait()

        await self._proofs.prove(PEER_HEADER, LARGE, peer, hold)

    def sends(self, peer: str, count: int = 1) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.prove(peer)) for _ in range(count)]


async def waiting() -> None:
    """Wait until every started task stands in line."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_they_are_large() -> None:
    assert unpacked_if_small(Compression.ZSTD, LARGE[HEADER_BYTES:]) is None


async def test_peers_take_turns() -> None:
    door = Door()
    sent = door.sends("greedy", 20)
    await waiting()
    sent += door.sends("modest", 2) + door.sends("other", 1)
    await waiting()
    door.open.set()
    await asyncio.gather(*sent)
    assert door.turns[:6] == ["greedy", "greedy", "modest", "other", "greedy", "modest"]
    assert door.turns[6:] == ["greedy"] * 17


async def test_who_has_too_many_waiting_is_told_so_at_once_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_proofs, "WAITING_MAX", 2)
    door = Door()
    sent = door.sends("greedy", 3)
    await waiting()
    with pytest.raises(Overloaded, match="2 large compressed batches from greedy"):
        await door.prove("greedy")
    sent += door.sends("modest", 2)
    await waiting()
    door.open.set()
    await asyncio.gather(*sent)
    assert door.turns.count("modest") == 2


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_proofs, "TURN_WAIT_S", 0.05)
    door = Door()
    first = door.sends("first")
    await waiting()
    with pytest.raises(Overloaded, match=r"waited 0\.05 s"):
        await door.prove("second")
    door.open.set()
    await asyncio.gather(*first)
    await door.prove("second")
    assert door.turns == ["first", "second"]


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_gives_up_when_the_turn_goes_on(seed: int) -> None:
    rng = random.Random(seed)
    door = Door()
    door.open.set()
    sent: list[asyncio.Task[None]] = []
    for _ in range(40):
        sent += door.sends(rng.choice("abc"))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            rng.choice(sent).cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(*sent, return_exceptions=True)
        await door.prove("d")
    assert all(one.cancelled() or one.exception() is None for one in sent)
    assert sum(not one.cancelled() for one in sent) < len(door.turns)
