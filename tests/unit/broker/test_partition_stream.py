"""A partition as a durable stream: what readers see, and when, also while a write's outcome is
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import (
    STREAM_CONFLICT,
    AckOutcomeUnknown,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import State, encode
from octavo.broker.state.stream import Append, StreamConfig
from octavo.broker.types import TopicName, TopicSettings
from octavo.protocol.records import Record
from tests.support.kit.refusals import raises_code
from tests.support.memory_cluster import NOW_MS, running

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
