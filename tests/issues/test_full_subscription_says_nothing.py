"""With 50,000 messages unacked every consumer got a bare 204, and nothing said why.

Messages given back with a delay counted among them, so a subscription could stand still with
nobody at work on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.cli.consume import _by_subscription, _Printer
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError
from tests.support.cluster import Cluster, running_cluster

SUB = "/v1/topics/public/orders/subscriptions/s"


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr("tests.support.cluster.LEASED_MAX", 5)
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


@pytest.mark.parametrize("partitions", [1, 2])
async def test_the_answer_and_the_figures_say_why(cluster: Cluster, partitions: int) -> None:
    api = cluster.api
    async with AsyncClient(api.url) as client:
        await client.create_topic("orders", partitions=partitions)
        for n in range(40):
            await client.publish("orders", n, partition=n % partitions)
        first = await client.subscribe("orders", "s", type="shared")
        assert len(await first.receive(100)) == 5 * partitions
        assert first.held_back is None

        for broker in cluster.apis.values():
            answer = await broker.post(f"{SUB}/receive?consumer=other&wait=0.1")
            assert answer.status == 200, answer
            assert answer.json()["messages"] == []
            assert "5 messages are out at 1 consumers" in answer.json()["held_back"]
            assert answer.headers["Octavo-Held-Back"] == answer.json()["held_back"]
            accept = {"Accept": "application/x-ndjson"}
            answer = await broker.post(f"{SUB}/receive?consumer=other", headers=accept)
            assert (answer.status, answer.body) == (204, b"")
            assert "no more than 5" in answer.headers["Octavo-Held-Back"]
        other = client.subscription("orders", "s")
        assert await other.receive(10) == []
        assert "no more than 5" in (other.held_back or "")
        assert [one async for one in other.deliveries(idle_s=0.1)] == []
        assert other.held_back is not None
        stats = await other.stats()
        assert stats["held_back"] == other.held_back
        assert stats["leased"] == 5 * partitions


async def test_what_is_delayed_counts_apart(cluster: Cluster) -> None:
    async with AsyncClient(cluster.api.url) as client:
        await client.create_topic("orders")
        await client.publish_many("orders", [(None, n) for n in range(40)])
        one = await client.subscribe("orders", "s", type="shared")
        first = await one.receive(100)
        await one.nack(first, delay_s=3600)
        second = await one.receive(100)
        assert [d.offset for d in second] == [5, 6, 7, 8, 9]
        stats = await one.stats()
        assert (stats["leased"], stats["delayed"], stats["redelivering"]) == (5, 5, 0)
        with pytest.raises(ApiError, match="not given back and stay leased") as refused:
            await one.nack(second, delay_s=3600)
        assert (refused.value.status, refused.value.code) == (429, "too-many-delayed")
        await one.nack(second[:2])
        await one.ack(second[2:])
        assert [d.offset for d in await one.receive(2)] == [5, 6]


async def test_the_command_says_why(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with AsyncClient(cluster.api.url) as client:
        await client.create_topic("orders")
        await client.publish_many("orders", [(None, n) for n in range(10)])
        one = await client.subscribe("orders", "s", type="shared")
        assert len(await one.receive(100)) == 5
        printer = _Printer(None, raw=False, as_json=False)
        await _by_subscription(client, "orders", "s", "earliest", False, printer)
    assert "held back: 5 messages are out" in capsys.readouterr().err
