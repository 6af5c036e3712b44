"""Each audit event is stored once, also when the write of a batch is interrupted and repeated.

A stop cancels the writer's task in the middle of a batch and writes the waiting events itself. That
batch had more events under the same sequence, so all events of the first were stored twice.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from octavo.broker.audit import BATCH_EVENTS_MAX, AuditWriter
from octavo.broker.config import BrokerConfig
from octavo.broker.state.producers import ProducerTable
from octavo.protocol.batch import read_header
from octavo.protocol.records import read_records


class Topic:
    """The audit partition at another broker, with the rules of idempotent producers."""

    def __init__(self) -> None:
        self.producers = ProducerTable(10)
        self.stored: list[int] = []
        self.answers_lost = 0
        self.hangs: asyncio.Event | None = None
        """Store, and never answer; set when it has stored."""
        self.refuses = False

    async def store(self, _: Any, batch: bytes) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise OSError("no owner")
        head = read_header(batch)
        of = head.producer_id, head.producer_epoch, head.base_sequence, head.record_count
        if self.producers.check(*of) is None:
            self.producers.accept(*of, len(self.stored))
            self.stored += [
                msgspec.json.decode(record.value or b"")["number"] for record in read_records(batch)
            ]
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.Event().wait()
        if self.answers_lost:
            self.answers_lost -= 1
            raise TimeoutError("the answer was lost")


class Ownership:
    async def owner_of(self, _: Any) -> Any:
        await asyncio.sleep(0)
        return type("Owner", (), {"local": False})


class Bench:
    def __init__(self, most: int = 10_000) -> None:
        self.topic = Topic()
        self.lost = self.written = 0
        broker: Any = type(
            "Broker",
            (),
            {"config": BrokerConfig(audit_queue_max=most), "ownership": Ownership()},
        )
        self.writer = AuditWriter(
            broker,
            self.topic.store,
            rng=random.Random(1),
            count_lost=self._count_lost,
            count_written=self._count_written,
        )
        self.added = 0

    def _count_lost(self) -> None:
        self.lost += 1

    def _count_written(self, count: int) -> None:
        self.written += count

    def add(self, count: int) -> None:
        for _ in range(count):
            self.writer.add({"number": self.added}, 0)
            self.added += 1


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.broker.audit.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("octavo.broker.audit.LONGEST_PAUSE_S", 0.001)


@pytest.mark.parametrize("more", [0, 1, 3, BATCH_EVENTS_MAX])
async def test_a_batch_that_was_broken_off_goes_on_as_it_was(more: int) -> None:
    bench = Bench()
    bench.add(2)
    bench.topic.hangs = asyncio.Event()
    writing = asyncio.create_task(bench.writer.write_all())
    await bench.topic.hangs.wait()
    bench.add(more)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    bench.topic.hangs = None
    await bench.writer.write_all()
    assert bench.topic.stored == [*range(2 + more)]
    assert bench.writer.describe() == {"waiting": 0}
    assert bench.written == 2 + more


@pytest.mark.parametrize("steps", range(12))
async def test_broken_off_at_each_step(steps: int) -> None:
    bench = Bench()
    for _ in range(3):
        bench.add(2)
        bench.topic.answers_lost = 1
        writing = asyncio.create_task(bench.writer.write_all())
        for _ in range(steps):
            await asyncio.sleep(0)
        bench.add(1)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    bench.topic.answers_lost = 0
    await bench.writer.write_all()
    assert bench.topic.stored == [*range(9)]
    assert (bench.writer.waiting, bench.written, bench.lost) == (0, 9, 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_line_holds_as_many_as_it_may_and_tells_what_was_lost(more: int) -> None:
    bench = Bench(most=5)
    bench.topic.refuses = True
    bench.add(5 + more)
    assert (bench.writer.waiting, bench.lost) == (min(5, 5 + more), max(0, more))
    writing = asyncio.create_task(bench.writer.write_all())
    await asyncio.sleep(0.01)
    bench.topic.refuses = False
    await writing
    bench.add(1)
    assert ("lost" in msgspec.json.decode(bench.writer._waiting[-1].value or b"")) is (more > 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_batch_has_as_many_events_as_it_may(more: int) -> None:
    bench = Bench()
    bench.add(BATCH_EVENTS_MAX + more)
    await bench.writer.write_all()
    assert bench.topic.stored == [*range(BATCH_EVENTS_MAX + more)]
    assert bench.writer._sequence == BATCH_EVENTS_MAX + more
