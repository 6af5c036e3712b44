"""Types of subscriptions over HTTP: any broker, several partitions, a change of owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo import AsyncClient
from tests.support.cluster import Cluster, running_cluster

TOPIC = "/v1/topics/public/orders"
SUB = TOPIC + "/subscriptions/s"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(TOPIC, json={"partitions": 2})).status == 201
        yield found


async def publish(cluster: Cluster, messages: list[dict[str, Any]]) -> None:
    assert (await cluster.api.post(TOPIC + "/messages", json={"messages": messages})).status == 200


async def test_a_key_shared_group_over_two_brokers(cluster: Cluster) -> None:
    # When an answer is lost, its messages come again after their leases end, and their keys wait
    # for that.
    settings = {"type": "key_shared", "consumer_timeout": "30s", "ack_timeout": 2}
    assert (await cluster.api.put(SUB, json=settings)).status == 201
    assert (await cluster.api.put(SUB, json=settings)).status == 200
    assert (await cluster.api.put(SUB, json={"type": "shared"})).status == 409
    apis = list(cluster.apis.values())

    done: list[list[tuple[str, int, int]]] = [[], [], []]

    async def work(number: int) -> None:
        """Return a consumer's messages, at its own broker; it gives every fifth back once."""
        got = done[number]
        api = apis[number % 2]
        while sum(map(len, done)) < 200:
            answer = await api.post(f"{SUB}/receive?max=7&wait=200ms&consumer=c{number}")
            for one in answer.json()["messages"] if answer.status == 200 else []:
                refused = one["offset"] % 5 == 0 and one["delivery_count"] == 1
                what = "nack" if refused else "ack_ids"
                answer = await api.post(SUB + "/ack", json={what: [one["ack_id"]]})
                if answer.status == 409:
                    continue
                assert answer.status == 200, answer
                if not refused:
                    got.append((one["key"], one["partition"], one["offset"]))

    workers = [asyncio.ensure_future(work(number)) for number in range(3)]
    for turn in range(10):
        await publish(cluster, [{"key": f"k{n}", "value": turn} for n in range(20)])
    async with asyncio.timeout(60):
        await asyncio.gather(*workers)
    every = sorted(one for mine in done for one in mine)
    assert len(every) == len(set(every)) == 200
    for mine in done:
        for number in range(20):
            offsets = [offset for key, _, offset in mine if key == f"k{number}"]
            assert offsets == sorted(offsets), "in order"
    figures = (await cluster.api.get(SUB)).json()
    assert figures["settings"]["type"] == "key_shared"
    assert figures["backlog"] == 0
    for part in figures["partitions"]:
        assert sum(one["slots"] for one in part["consumers"]) == 65_536


async def test_failover_stands_by_with_a_reason(cluster: Cluster) -> None:
    path = TOPIC + "/partitions/0/subscriptions/s"
    await cluster.api.put(SUB, json={"type": "failover", "consumer_timeout": 0.2})
    await publish(cluster, [{"key": f"k{n}", "value": n} for n in range(20)])
    first = (await cluster.api.post(path + "/receive?consumer=a&max=2")).json()["messages"]
    answer = await cluster.api.post(path + "/receive?consumer=b&max=2")
    assert answer.json()["messages"] == []
    assert "'a' is the active one; 'b' stands by" in answer.json()["held_back"]
    assert answer.headers["Octavo-Held-Back"] == answer.json()["held_back"]
    await cluster.api.post(path + "/ack", json={"ack_ids": [one["ack_id"] for one in first]})
    answer = await cluster.api.post(path + "/receive?consumer=b&max=2&wait=5")
    assert [one["offset"] for one in answer.json()["messages"]] == [2, 3]
    answer = await cluster.api.post(path + "/receive?consumer=b&priority=101")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")


async def test_filters_limits_and_what_is_not_durable(cluster: Cluster) -> None:
    refused: list[dict[str, Any]] = [
        {"filter": {"headers": {"a": []}}},
        {"filter": {"headers": {"a": 5}}},
        {"filter": {"key_prefix": "x" * 300}},
        {"filter": {"query": "a = 1"}},
        {"max_unacked": 0},
        {"consumer_timeout": None},
        {"durable": "no"},
    ]
    for settings in refused:
        answer = await cluster.api.put(SUB, json=settings)
        assert answer.status == 422, (settings, answer)
    settings = {
        "type": "shared",
        "filter": {"headers": {"kind": ["order", "refund"], "to": "*"}, "key_prefix": "eu-"},
        "max_unacked_per_consumer": 2,
        "durable": False,
    }
    answer = await cluster.api.put(SUB, json=settings)
    assert answer.status == 201
    shown = answer.json()["settings"]
    assert shown["filter"] == {
        "headers": {"kind": ["order", "refund"], "to": ["*"]}, "key_prefix": "eu-",
    }  # fmt: skip
    assert (shown["durable"], shown["max_unacked_per_consumer"]) == (False, 2)
    await publish(
        cluster,
        [
            {"key": "eu-1", "value": 0, "headers": {"kind": "order", "to": "me"}},
            {"key": "us-1", "value": 1, "headers": {"kind": "order", "to": "me"}},
            {"key": "eu-1", "value": 2, "headers": {"kind": "other", "to": "me"}},
            {"key": "eu-1", "value": 3, "headers": {"kind": "refund", "to": ""}},
            {"key": "eu-1", "value": 4, "headers": {"kind": "refund"}},
            {"key": "eu-1", "value": 5, "headers": {"kind": "order", "to": "me"}},
        ],
    )
    got = (await cluster.api.post(SUB + "/receive?max=10&wait=2")).json()["messages"]
    assert [one["value"] for one in got] == [0, 3]
    answer = await cluster.api.post(SUB + "/receive?max=10")
    assert "one consumer has at most 2 out" in answer.json()["held_back"]
    await cluster.api.post(SUB + "/ack", json={"ack_ids": [one["ack_id"] for one in got]})
    got = (await cluster.api.post(SUB + "/receive?max=10&wait=2")).json()["messages"]
    assert [one["value"] for one in got] == [5]


async def test_the_client_has_all_of_it(cluster: Cluster) -> None:
    async with AsyncClient(cluster.api.url) as client:
        first = await client.subscribe(
            "orders",
            "s",
            type="key_shared",
            consumer="a",
            consumer_timeout="30s",
            max_unacked=100,
            max_unacked_per_consumer=50,
            filter={"headers": {"kind": "order", "to": ["me", "you"]}, "key_prefix": "eu-"},
            durable=False,
        )
        second = client.subscription("orders", "s", consumer="b", priority=1)
        settings = (await first.stats())["settings"]
        assert {name: one for name, one in settings.items() if one is not None} == {
            "type": "key_shared",
            "start": "earliest",
            "ack_timeout": 30,
            "consumer_timeout": 30,
            "max_unacked": 100,
            "max_unacked_per_consumer": 50,
            "filter": {
                "headers": {"kind": ["order"], "to": ["me", "you"]}, "key_prefix": "eu-",
            },
            "durable": False,
        }  # fmt: skip
        assert await first.receive(9) == [], "now both partitions know it"
        for number in range(6):
            headers = {"kind": "order", "to": "me" if number % 2 else "them"}
            await client.publish("orders", number, key=f"eu-{number}", headers=headers)
        assert await first.receive(1) != []
        assert await second.receive(9) == []
        assert "shared by consumers of priority 0" in (second.held_back or "")
        got = [delivery.value async for delivery in first.deliveries(idle_s=0.2)]
        assert len(got) == 2


async def test_the_streams_of_a_key_shared_subscription(cluster: Cluster) -> None:
    settings = {"type": "key_shared", "consumer_timeout": 0.3, "ack_timeout": 2}
    await cluster.api.put(SUB, json=settings)
    url = cluster.api.url + SUB + "/stream?credits=2&priority=0"
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def take(name: str, count: int) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as ws:
            while len(seen["a"]) + len(seen["b"]) < count:
                try:
                    said = (await ws.receive(timeout=0.3)).json()
                except TimeoutError:
                    continue
                for one in said.get("messages", []):
                    seen[name].append(one["value"])
                    await ws.send_json({"ack_ids": [one["ack_id"]]})

    first, second = asyncio.ensure_future(take("a", 60)), asyncio.ensure_future(take("b", 30))
    await asyncio.sleep(0.3)
    await publish(cluster, [{"key": f"k{n % 10}", "value": n} for n in range(30)])
    async with asyncio.timeout(20):
        await second
        await publish(cluster, [{"key": f"k{n % 10}", "value": n} for n in range(30, 60)])
        await first
    assert sorted(seen["a"] + seen["b"]) == list(range(60))
    for name in "ab":
        for key in range(10):
            mine = [one for one in seen[name] if one % 10 == key]
            assert mine == sorted(mine)
