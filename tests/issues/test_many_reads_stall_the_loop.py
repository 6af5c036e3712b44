"""Sixty clients that each asked for 4,000 messages, again and again, kept a broker's loop busy for
11.7 s: each read left the loop after 2,000 messages, and found 59 others in the next turn.

One receive of 10,000 tiny messages alone kept it for 0.14 s: its messages were taken out of their
batches and made into JSON in one go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.broker.http.api import deliveries as api_deliveries
from octavo.broker.http.api import read as api_read
from octavo.broker.log.open_batches import RECORDS_A_TURN, Turns
from octavo.broker.operations.kinds import Leases, Receive
from octavo.broker.subscriptions import subscription
from octavo.broker.types import Delivery, MessageId, PartitionName
from octavo.protocol.records import Record
from octavo.protocol.windows import WINDOW_RECORDS
from tests.support.cluster import running_cluster
from tests.support.fake_broker import Api

TOPIC = "/v1/topics/public/one"
BATCHES, MESSAGES = 4, 500
READERS = 20
JSON, NDJSON = "application/json", "application/x-ndjson"
MOST = RECORDS_A_TURN + WINDOW_RECORDS


class LoopTurns:
    """How many messages were worked on in each turn of the loop."""

    def __init__(self) -> None:
        self.found: Counter[int] = Counter()
        self._turn = 0

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*about: object) -> Any:
            self.found[self._turn] += 1
            return real(*about)

        return counting

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        async def turn() -> None:
            while True:
                self._turn += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(turn())
        try:
            yield
        finally:
            task.cancel()


async def publish(api: Api) -> None:
    lines = b"".join(b'{"value":%d}\n' % n for n in range(MESSAGES))
    for _ in range(BATCHES):
        answer = await api.post(f"{TOPIC}/messages", lines, NDJSON)
        assert answer.status == 200, answer


@pytest.mark.parametrize("kind", [JSON, NDJSON])
async def test_many_reads_do_not_share_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    turns = LoopTurns()
    for name in ("message_out", "encode"):
        monkeypatch.setattr(api_read, name, turns.counted(getattr(api_read, name)))
    async with running_cluster(tmp_path, brokers=1) as cluster:
        await cluster.api.put(TOPIC)
        await publish(cluster.api)
        path = f"{TOPIC}/messages?from=earliest&limit=10000"
        async with turns.counting():
            answers = await asyncio.gather(
                *(cluster.api.get(path, headers={"Accept": kind}) for _ in range(READERS))
            )
    for one in answers:
        assert one.body.count(b'"offset"') == BATCHES * MESSAGES
    if kind == JSON:
        assert all(len(one.json()["messages"]) == BATCHES * MESSAGES for one in answers)
    assert sum(turns.found.values()) == 2 * READERS * BATCHES * MESSAGES
    assert max(turns.found.values()) <= 2 * MOST, turns.found.most_common(3)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_nor_do_many_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    turns = LoopTurns()
    for module, name in ((api_deliveries, "message_out"), (subscription, "Delivery")):
        monkeypatch.setattr(module, name, turns.counted(getattr(module, name)))
    names = [f"s{number}" for number in range(READERS // 4)]
    async with running_cluster(tmp_path, brokers=1) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": partitions})
        for name in names:
            await cluster.api.put(f"{TOPIC}/subscriptions/{name}", json={"type": "shared"})
        await publish(cluster.api)
        path = f"{TOPIC}/subscriptions/{{}}/receive?max=10000"
        async with turns.counting():
            answers = await asyncio.gather(*(cluster.api.post(path.format(name)) for name in names))
    assert [len(one.json()["messages"]) for one in answers] == [BATCHES * MESSAGES] * len(names)
    assert sum(turns.found.values()) == 2 * len(names) * BATCHES * MESSAGES
    assert max(turns.found.values()) <= MOST, turns.found.most_common(3)


async def test_what_was_not_handed_over_in_its_turn_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receive from several partitions gives up those that are late."""
    given_back: list[str] = []
    deliveries = [
        Delivery(f"0-{n}-1-1", n, MessageId(1, n, 0), Record(None, b"x"), 1) for n in range(3)
    ]

    async def operate(*_: object, **__: object) -> Leases:
        return Leases(deliveries, None, [], None, 1)

    async def give_back(*_: object, unread: list[str]) -> None:
        given_back.extend(unread)

    monkeypatch.setattr(api_deliveries, "operate", operate)
    monkeypatch.setattr(api_deliveries, "give_back", give_back)
    turns = Turns()
    await turns.take(RECORDS_A_TURN)
    broker = SimpleNamespace(open_batches=SimpleNamespace(turns=turns))
    call = SimpleNamespace(services=SimpleNamespace(broker=broker), client_is_gone=False)
    asked = Receive(PartitionName("public", "t", 0), "s", "c", 10)

    async def receive() -> None:
        async with api_deliveries.Handover(cast(Any, call), asked) as handover:
            await handover.shown(await handover.leases())

    receiving = asyncio.create_task(receive())
    await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert given_back == [one.ack_id for one in deliveries]
