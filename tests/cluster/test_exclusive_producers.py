"""Exclusive producers over real brokers: fenced, through take-overs, by HTTP and by the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, Conflict, InvalidCall, ProducerFailed
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, running_cluster

T = "/v1/topics/public/t"
ACCESS = T + "/partitions/0/producer-access"
MESSAGES = T + "/messages"
BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(T)).status == 201
        yield found


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        yield found


async def acquire(cluster: Cluster, who: str, query: str = "", **how: Any) -> Any:
    return await cluster.api.call("POST", ACCESS + query, json={"producer": who, **how})


async def publish(cluster: Cluster, epoch: int | None, value: bytes = b"x", kind: str = "") -> Any:
    headers = {} if epoch is None else {"Producer-Access-Epoch": str(epoch)}
    headers["Content-Type"] = kind or "text/plain"
    return await cluster.api.call("POST", MESSAGES, data=value, headers=headers)


BODIES = [
    (b"x", "text/plain"),
    (b'{"value": 1}', "application/json"),
    (b'{"messages": [{"value": 1}, {"value": 2}]}', "application/json"),
    (b'{"value": 1}\n', NDJSON),
    (build_batch([Record(None, b"x", [], 0)]), BATCH),
    (build_batch([Record(None, b"x", [], 0)]) * 2, BATCH),
]


async def test_whoever_has_no_epoch_or_an_old_one_is_refused(cluster: Cluster) -> None:
    assert (await publish(cluster, None)).status == 200
    first = (await acquire(cluster, "a")).json()
    assert (first["producer"], first["next_offset"]) == ("a", 1)
    busy = await acquire(cluster, "b")
    assert (busy.status, busy.json()["code"]) == (409, "producer-busy")
    for body, kind in BODIES:
        assert (await publish(cluster, first["epoch"], body, kind)).status == 200
        none = await publish(cluster, None, body, kind)
        assert (none.status, none.json()["code"]) == (409, "exclusive-producer"), none
    second = (await acquire(cluster, "b", fencing=True)).json()
    for body, kind in BODIES:
        old = await publish(cluster, first["epoch"], body, kind)
        assert (old.status, old.json()["code"]) == (403, "stale-producer-access"), old
        assert (await publish(cluster, second["epoch"], body, kind)).status == 200
    shown = (await cluster.api.get(ACCESS)).json()
    assert (shown["producer"], shown["epoch"]) == ("b", second["epoch"])
    stale = await cluster.api.call("DELETE", f"{ACCESS}?epoch={first['epoch']}")
    assert (stale.status, stale.json()["code"]) == (403, "stale-producer-access")
    for _ in range(2):
        gone = await cluster.api.call("DELETE", f"{ACCESS}?epoch={second['epoch']}")
        assert gone.status == 204
    assert (await publish(cluster, None)).status == 200
    assert (await cluster.api.get(ACCESS)).json()["producer"] is None


async def test_who_waits_gets_it_when_it_is_let_go(cluster: Cluster) -> None:
    first = (await acquire(cluster, "a")).json()
    waiting = asyncio.ensure_future(acquire(cluster, "b", "?wait=20s"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await cluster.api.call("DELETE", f"{ACCESS}?epoch={first['epoch']}")
    async with asyncio.timeout(5):
        assert (await waiting).json()["producer"] == "b"
    short = (await acquire(cluster, "c", fencing=True, session_timeout=1)).json()
    async with asyncio.timeout(10):
        assert (await acquire(cluster, "d", "?wait=20s")).json()["epoch"] > short["epoch"]


async def test_it_survives_take_overs(cluster: Cluster) -> None:
    first = (await acquire(cluster, "a")).json()
    second = (await acquire(cluster, "b", fencing=True)).json()
    owner = await cluster.owner_of(T + "/partitions/0")
    assert (await publish(cluster, second["epoch"], b"before")).status == 200
    await cluster.stop_broker(owner)
    assert (await publish(cluster, first["epoch"])).status == 403
    assert (await publish(cluster, None)).status == 409
    assert (await acquire(cluster, "c")).status == 409
    assert (await publish(cluster, second["epoch"], b"after")).status == 200
    third = (await acquire(cluster, "b")).json()
    assert third["epoch"] > second["epoch"]
    assert (await publish(cluster, second["epoch"])).status == 403


async def test_bad_input(cluster: Cluster) -> None:
    many = "/v1/topics/public/many"
    await cluster.api.put(many, json={"partitions": 2})
    one = many + "/partitions/1/producer-access"
    epoch = (await cluster.api.call("POST", one, json={"producer": "a"})).json()["epoch"]
    headers = {"Producer-Access-Epoch": str(epoch), "Content-Type": NDJSON}
    answer = await cluster.api.call(
        "POST", many + "/messages", data=b'{"value": 1}\n', headers=headers
    )
    assert (answer.status, answer.json()["code"]) == (422, "partition-required")
    for body, status in (
        ({}, 422),
        ({"producer": ".."}, 400),
        ({"producer": "a", "session_timeout": 0.1}, 422),
        ({"producer": "a", "mode": "wait"}, 422),
    ):
        answer = await cluster.api.call("POST", one, json=body)
        assert answer.status == status, answer
    assert (await cluster.api.call("DELETE", one)).status == 400
    headers = {"Producer-Access-Epoch": "x"}
    answer = await cluster.api.call("POST", MESSAGES, data=b"x", headers=headers)
    assert (answer.status, answer.json()["code"]) == (400, "invalid-header")


async def test_the_clients_producer(client: AsyncClient) -> None:
    await client.create_topic("p", partitions=3)
    with pytest.raises(InvalidCall, match="needs a name"):
        client.producer("p", exclusive=True)
    one = await client.producer("p", producer_id="one", exclusive=True)
    await (await one.send("a", key="k"))
    with pytest.raises(ApiError, match="'one' alone"):
        await client.publish("p", "b", key="k")
    with pytest.raises(Conflict, match="'one' alone"):
        await client.producer("p", producer_id="two", exclusive=True)
    async with client.producer("p", producer_id="two", exclusive="fencing") as two:
        with pytest.raises((ApiError, ProducerFailed), match="has ended"):
            await (await one.send("c", key="k"))
        await (await two.send("d", key="k"))
    await one.close(flush=False)
    await client.publish("p", "e", key="k")
    found = [one.text() for number in range(3) for one in await client.read("p", partition=number)]
    assert found == ["a", "d", "e"]
