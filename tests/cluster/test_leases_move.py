"""The next owner keeps leases after an unload, a drain and a stop; a crash ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.errors import StaleLease
from octavo.broker.types import PartitionName
from tests.support.cluster import Cluster, owned, running_cluster, until
from tests.support.http_api import Api

TOPIC = "/v1/topics/public/orders"
SUB = TOPIC + "/subscriptions/s"
WAYS = ("unload", "unload to itself", "drain", "long state")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(TOPIC, json={})).status == 201
        yield found


async def publish(api: Api, *keys: str | None) -> None:
    messages = [{"key": key, "value": number} for number, key in enumerate(keys)]
    assert (await api.post(TOPIC + "/messages", json={"messages": messages})).status == 200


async def receive(api: Api, consumer: str, **query: Any) -> list[dict[str, Any]]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    answer = await api.post(f"{SUB}/receive?consumer={consumer}&{asked}")
    assert answer.status in (200, 204), answer
    found: list[dict[str, Any]] = answer.json()["messages"] if answer.status == 200 else []
    return found


async def move(cluster: Cluster, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = cluster.api
    before = await cluster.owner_of(TOPIC + "/partitions/0")
    other = next(name for name in cluster.apis if name != before)
    if way == "long state":
        monkeypatch.setattr("octavo.broker.partition.partition.STATE_BYTES_MAX", 10)
    if way == "drain":
        assert (await api.post(f"/v1/brokers/{before}/drain")).status in (200, 202)
    else:
        to = before if way == "unload to itself" else other
        answer = await api.post(f"{TOPIC}/unload?to={to}")
        assert answer.status == 200, answer
    moved = before if way == "unload to itself" else other
    async with asyncio.timeout(15):
        while await cluster.owner_of(TOPIC + "/partitions/0") != moved:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("type_", ["shared", "key_shared", "failover", "exclusive"])
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_leased_stays_so_and_its_ack_is_good_at_any_broker(
    cluster: Cluster, way: str, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apis = list(cluster.apis.values())
    settings = {"type": type_, "ack_timeout": "10m", "consumer_timeout": "1ms"}
    assert (await cluster.api.put(SUB, json=settings)).status == 201
    await publish(cluster.api, "k", "k", "k", "other")
    held = await receive(apis[0], "a", max=2)
    assert [one["offset"] for one in held] == [0, 1]
    await move(cluster, way, monkeypatch)
    if type_ == "exclusive":
        answer = await apis[1].post(f"{SUB}/receive?consumer=b")
        assert (answer.status, answer.json()["code"]) == (409, "subscription-busy")
    else:
        wanted = {"shared": [2, 3], "key_shared": [3], "failover": []}[type_]
        assert [one["offset"] for one in await receive(apis[1], "b")] == wanted
    for api, one in zip(apis, held, strict=True):
        answer = await api.post(SUB + "/ack", json={"ack_ids": [one["ack_id"]]})
        assert (answer.status, answer.json()) == (200, {"acked": 1}), "whichever broker is asked"
    figures = (await cluster.api.get(SUB)).json()
    assert figures["partitions"][0]["committed_offset"] == 2
    if type_ in ("failover", "key_shared"):
        name = "b" if type_ == "failover" else "c"
        assert (await receive(apis[0], name, wait="5s"))[0]["offset"] == 2


async def test_delays_counts_and_nacks_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster.api, None, None, None)
    held = await receive(cluster.api, "a")
    body = {"nack": [{"ack_id": held[0]["ack_id"], "delay": "10m"}, held[1]["ack_id"]]}
    assert (await cluster.api.post(SUB + "/ack", json=body)).status == 200
    await move(cluster, "unload", monkeypatch)
    again = await receive(cluster.api, "b")
    assert [(one["offset"], one["delivery_count"]) for one in again] == [(1, 2)]
    figures = (await cluster.api.get(SUB)).json()
    assert (figures["delayed"], figures["leased"]) == (1, 2)
    answer = await cluster.api.post(SUB + "/ack", json={"nack": [held[2]["ack_id"]]})
    assert answer.status == 200, "what was leased before the move can be given back after it"
    again = await receive(cluster.api, "b")
    assert [(one["offset"], one["delivery_count"]) for one in again] == [(2, 2)]


async def test_a_call_whose_answer_was_lost_in_the_move_gets_the_same_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster.api, None, None, None)
    first = await receive(cluster.api, "a", max=2, request="r-1")
    await move(cluster, "unload", monkeypatch)
    assert await receive(cluster.api, "a", max=2, request="r-1") == first


async def test_several_moves_one_after_the_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster.api, None, None, None)
    held = await receive(cluster.api, "a", max=1)
    for way in ("unload", "unload", "unload to itself"):
        await move(cluster, way, monkeypatch)
    held += await receive(cluster.api, "b", max=1)
    await move(cluster, "unload", monkeypatch)
    held += await receive(cluster.api, "c")
    assert [one["offset"] for one in held] == [0, 1, 2]
    answer = await cluster.api.post(SUB + "/ack", json={"ack_ids": [m["ack_id"] for m in held]})
    assert answer.json() == {"acked": 3}


async def test_a_broker_that_is_stopped_leaves_its_leases(cluster: Cluster) -> None:
    await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster.api, None, None)
    held = await receive(cluster.api, "a", max=1)
    await cluster.stop_broker(before := await cluster.owner_of(TOPIC + "/partitions/0"))
    api = next(api for name, api in cluster.apis.items() if name != before)
    assert [one["offset"] for one in await receive(api, "b", wait="10s")] == [1]
    answer = await api.post(SUB + "/ack", json={"ack_ids": [held[0]["ack_id"]]})
    assert answer.json() == {"acked": 1}


async def test_a_crash_ends_leases_as_docs_say(cluster: Cluster) -> None:
    await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster.api, None, None)
    held = await receive(cluster.api, "a", max=1)
    before = await cluster.owner_of(TOPIC + "/partitions/0")
    crashed = cluster.brokers[before]
    other = next(one for name, one in cluster.brokers.items() if name != before)
    await crashed.vanish()
    await until(lambda: len(other.broker.registry.live) == 1, "it is missed")
    other.broker.ownership.doubt_owner(PartitionName("public", "orders", 0))
    partition = await owned(other.broker, PartitionName("public", "orders", 0))
    subscription = await partition.subscription("s")
    given = await subscription.receive("b", messages_max=10)
    assert [one.offset for one in given] == [0, 1]
    with pytest.raises(StaleLease):
        await subscription.acknowledge([held[0]["ack_id"]])
    await crashed.bury()


async def test_nothing_is_written_while_a_broker_of_before_is_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.cluster.registry.reads_leases", lambda value: False)
    await cluster.api.put(SUB, json={"type": "shared", "ack_timeout": "10m"})
    await publish(cluster.api, None)
    held = await receive(cluster.api, "a")
    await move(cluster, "unload", monkeypatch)
    assert [one["offset"] for one in await receive(cluster.api, "b")] == [0]
    answer = await cluster.api.post(SUB + "/ack", json={"ack_ids": [held[0]["ack_id"]]})
    assert answer.status == 409
