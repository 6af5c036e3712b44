"""Single messages share batches while others are in flight, and each gets its own place."""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.broker.errors import NotOwner
from octavo.broker.partition import message_batcher
from octavo.broker.partition.message_batcher import MessageBatcher, Placed
from octavo.broker.types import Published
from octavo.protocol.batch import check_batch
from octavo.protocol.records import Record, read_records


@pytest.fixture(autouse=True)
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
