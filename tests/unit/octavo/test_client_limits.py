"""Bounds of the Python client (docs/limits.md), each at its edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.client import partition_queue, sync
from octavo.client.client import AsyncClient
from octavo.client.deliveries import WAIT_S_MAX
from octavo.client.errors import ApiError, ProducerFailed
from octavo.client.subscription import Subscription
from octavo.client.types import TopicName
from octavo.protocol.records import Record
from tests.support.fake_service import FakeBroker


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=1)
    await one.start()
    yield one
    await one.stop()


async def test_messages_of_one_batch(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_queue, "MESSAGES_PER_BATCH_MAX", 3)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", linger_ms=60_000)
        for number in range(7):
            await producer.send(f"{number}", partition=0)
        await producer.flush()
    assert [method for method, _ in broker.requests].count("POST") == 3
    assert [one.value for one in broker.log.partitions[0]] == [b"%d" % n for n in range(7)]


@pytest.mark.parametrize(
    ("bytes_max", "messages_max", "lengths"),
    [(2**18, 100, [1, 8]), (400, 100, [1, 3, 3, 2]), (2**18, 5, [1, 5, 3])],
)
async def test_what_goes_out_as_one_batch_when_a_producer_catches_up(
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    bytes_max: int,
    messages_max: int,
    lengths: list[int],
) -> None:
    monkeypatch.setattr(partition_queue, "MERGED_BYTES_MAX", bytes_max)
    monkeypatch.setattr(partition_queue, "MESSAGES_PER_BATCH_MAX", messages_max)
    found: list[int] = []
    store = broker.log.store

    def noting(partition: int, who: tuple[int, int, int], records: list[Record]) -> int | str:
        found.append(len(records))
        return store(partition, who, records)

    monkeypatch.setattr(broker.log, "store", noting)
    faults = iter(["503"])
    broker.fault = lambda: next(faults, None)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t", batch_bytes=1, window=1)
        receipts = [await producer.send(bytes([number]) * 100) for number in range(9)]
        await producer.flush()
        assert [(await receipt).offset for receipt in receipts] == list(range(9))
        assert found == lengths
        await producer.send("a"), await producer.send("b")
        await producer.close()
    assert found[len(lengths) :] == [1, 1], "it has caught up"


async def test_a_producer_that_has_used_its_last_epoch_ends(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_queue, "EPOCH_MAX", 1)
    faults = iter(["422", None, "422"])
    broker.fault = lambda: next(faults)
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t")
        for stored in (False, True, False):
            receipt = await producer.send("a", partition=0)
            if stored:
                assert (await receipt).offset == 0
            else:
                with pytest.raises(ApiError, match="invalid-batch"):
                    await receipt
        with pytest.raises(ProducerFailed, match="last epoch, 1: go on under another"):
            await (await producer.send("b", partition=0))
    assert len(broker.log.partitions[0]) == 1


async def test_one_receives_wait() -> None:
    waited: list[tuple[float, float]] = []

    async def call(*_: object, query: dict[str, Any], wait_s: float, **__: object) -> Any:
        waited.append((query["wait"], wait_s))
        return SimpleNamespace(body=b"", headers={})

    transport = SimpleNamespace(call=call)
    subscription = Subscription(
        cast(Any, transport), TopicName("public", "t"), "s", "c", 1, {}, cast(Any, None)
    )
    for wait_s in (1.0, WAIT_S_MAX, WAIT_S_MAX + 1, 3600.0):
        assert await subscription.receive(wait_s=wait_s) == []
    assert waited == [(s, s) for s in (1.0, WAIT_S_MAX, WAIT_S_MAX, WAIT_S_MAX)]


def test_messages_that_threads_have_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "HANDED_OVER_MAX", 2)
    soon: list[Callable[[], None]] = []
    taken: list[int] = []
    waits: list[str] = []

    class Inner:
        options = SimpleNamespace(pending_bytes_max=100)
        pending_bytes = 0

        def check(self, partition: int | None) -> None: ...

        def item(self, value: str, *_: object) -> tuple[str, int]:
            return value, len(value)

        def take(self, item: str, size: int, *_: object) -> tuple[None, int]:
            taken.append(size)
            return None, 0

        def until_room(self) -> str:
            return "until there is room"

    def call(what: str) -> None:
        waits.append(what)
        while soon:
            soon.pop(0)()

    thread = SimpleNamespace(check=lambda: None, soon=soon.append, call=call)
    producer = sync.Producer(cast(Any, Inner()), cast(Any, thread))
    for _ in range(2):
        producer.send("a")
    assert (len(soon), taken, waits) == (1, [], [])
    producer.send("b" * 99)
    assert (len(soon), taken, len(waits)) == (1, [1, 1], 1)
    producer.send("c")
    assert len(waits) == 1
    producer.send("d")
    assert (taken, len(waits)) == ([1, 1, 99, 1], 2)
