"""The HTTP API over real brokers, ledgers and bookies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.protocol.batch import split_batches
from octavo.protocol.records import Record, build_batch, partition_for, read_records
from tests.support.cluster import Cluster, running_cluster

BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
ONE = "/v1/topics/public/one"
FOUR = "/v1/topics/public/four"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        assert (await found.api.put(FOUR, json={"partitions": 4})).status == 201
        yield found


async def eventually(
    cluster: Cluster, method: str, path: str, *, meanwhile: tuple[int, ...] = (404,)
) -> Any:
    async with asyncio.timeout(20):
        while True:
            answer = await cluster.api.call(
                method, path, data=b"after" if method == "POST" else None
            )
            if answer.status == 200:
                return answer.json()
            assert answer.status in meanwhile, answer
            await asyncio.sleep(0.05)


async def read_all(cluster: Cluster, path: str) -> list[Any]:
    found: list[Any] = []
    at = 0
    while True:
        answer = await cluster.api.get(f"{path}/messages?from={at}&limit=10000&max_bytes=8000000")
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        assert answer.json()["messages"][0]["offset"] == at
        found += answer.json()["messages"]
        at = answer.json()["next_offset"]


async def test_published_in_every_form_and_read_back(cluster: Cluster) -> None:
    for n, api in enumerate(cluster.apis.values()):
        answer = await api.post(ONE + "/messages", b"raw", "text/plain")
        assert answer.status == 200, answer
        assert answer.json()["first"]["offset"] == n * 7
        answer = await api.post(ONE + "/messages", json={"key": "k", "value": {"a": [1, 2]}})
        assert answer.status == 200, answer
        answer = await api.post(ONE + "/messages", b'{"value":1}\n{"value":2}\n', NDJSON)
        assert answer.json()["count"] == 2
        batch = build_batch([Record(b"b", b"%d" % i) for i in range(3)])
        answer = await api.post(ONE + "/messages", batch, BATCH)
        assert answer.json()["last"]["offset"] == n * 7 + 6
    for api in cluster.apis.values():
        found = (await api.get(ONE + "/messages")).json()
        assert [m["offset"] for m in found["messages"]] == list(range(14))
        assert found["messages"][0]["value_text"] == "raw"
        assert [m["value"] for m in found["messages"][1:7]] == [{"a": [1, 2]}, 1, 2, 0, 1, 2]
        by_id = found["messages"][5]
        answer = await api.get(f"{ONE}/messages?from={by_id['id']}&limit=1")
        assert answer.json()["messages"] == [by_id]
        answer = await api.get(ONE + "/messages", headers={"Accept": BATCH})
        offsets = [
            header.base_offset + i
            for header, data in split_batches(answer.body)
            for i, _ in enumerate(read_records(bytes(data)))
        ]
        assert offsets == list(range(14))


async def test_ndjson_over_partitions_of_two_brokers(cluster: Cluster) -> None:
    owners = {await cluster.owner_of(f"{FOUR}/partitions/{n}") for n in range(4)}
    assert owners <= set(cluster.apis)
    lines = [json.dumps({"key": f"k{n % 50}", "value": n}).encode() for n in range(20_000)]
    answer = await cluster.api.post(FOUR + "/messages", b"\n".join(lines), NDJSON)
    assert answer.status == 200, answer
    assert answer.json()["count"] == 20_000
    seen: dict[str, list[int]] = {}
    for number in range(4):
        for message in await read_all(cluster, f"{FOUR}/partitions/{number}"):
            assert partition_for(message["key"].encode(), 4) == number
            seen.setdefault(message["key"], []).append(message["value"])
    assert seen == {f"k{k}": list(range(k, 20_000, 50)) for k in range(50)}


async def test_idempotence_survives_a_planned_take_over(cluster: Cluster) -> None:
    batch = build_batch(
        [Record(None, b"%d" % n) for n in range(10)],
        producer_id=5, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    path = ONE + "/partitions/0"
    assert (await cluster.api.post(path + "/messages", batch, BATCH)).status == 200
    assert (await cluster.api.post(path + "/messages", batch, BATCH)).status == 204
    owner = await cluster.owner_of(path)
    await cluster.stop_broker(owner)
    answer = await cluster.api.post(path + "/messages", batch, BATCH)
    assert answer.status == 204, answer
    assert answer.headers["Next-Offset"] == "10"
    gap = build_batch([Record(None, b"x")], producer_id=5, producer_epoch=0, base_sequence=12)
    answer = await cluster.api.post(path + "/messages", gap, BATCH)
    assert (answer.status, answer.json()["expected_sequence"]) == (409, 10)
    stale = build_batch([Record(None, b"x")], producer_id=5, producer_epoch=1, base_sequence=0)
    assert (await cluster.api.post(path + "/messages", stale, BATCH)).status == 200
    answer = await cluster.api.post(path + "/messages", gap, BATCH)
    assert answer.status == 403, answer


async def test_subscription_across_brokers_and_take_over(cluster: Cluster) -> None:
    sub = FOUR + "/subscriptions/work"
    assert (await cluster.api.put(sub, json={"type": "shared"})).status == 201
    body = b"\n".join(b'{"key":"k%d","value":%d}' % (n, n) for n in range(400))
    assert (await cluster.api.post(FOUR + "/messages", body, NDJSON)).status == 200
    seen: list[int] = []

    async def consume(until: int) -> None:
        while len(seen) < until:
            for api in tuple(cluster.apis.values()):
                answer = await api.post(sub + "/receive?max=50&wait=2s&consumer=me")
                assert answer.status in (200, 204), answer
                messages = answer.json()["messages"] if answer.status == 200 else []
                ids = [message["ack_id"] for message in messages]
                acked = await api.post(sub + "/ack", json={"ack_ids": ids})
                assert acked.status == 200, acked
                seen.extend(message["value"] for message in messages)

    async with asyncio.timeout(60):
        await consume(200)
        await cluster.stop_broker(await cluster.owner_of(FOUR + "/partitions/0"))
        await consume(400)
    assert sorted(seen) == list(range(400))
    found = (await cluster.api.get(sub)).json()
    assert found["backlog"] == 0, found


async def test_trimmed_beyond_unknown_by_real_parts(cluster: Cluster) -> None:
    await cluster.api.post(ONE + "/messages", b"x", "text/plain")
    for api in cluster.apis.values():
        answer = await api.get(ONE + "/messages?from=2")
        assert (answer.status, answer.json()["next_offset"]) == (416, 1), answer
        answer = await api.get(ONE + "/messages?from=1")
        assert (answer.status, answer.headers["Next-Offset"]) == (204, "1")
        answer = await api.get(ONE + "/messages?from=999:0:0")
        assert (answer.status, answer.json()["code"]) == (404, "message-not-found")
        answer = await api.get(ONE + "/partitions/1/messages")
        assert answer.status == 404
        answer = await api.post(ONE + "/partitions/1/messages", b"x", "text/plain")
        assert (answer.status, answer.json()["code"]) == (404, "partition-not-found")
        assert "0 to 0" in answer.json()["detail"]
        answer = await api.get("/v1/topics/public/nope/messages")
        assert (answer.status, answer.json()["code"]) == (404, "topic-not-found")


async def test_ledgers_nodes_and_page(cluster: Cluster) -> None:
    await cluster.api.post(ONE + "/messages", b"seen", "text/plain")
    topic = (await cluster.api.get(ONE)).json()
    ledger = topic["partitions"][0]["ledgers"][0]["id"]
    assert ledger in (await cluster.api.get("/v1/ledgers")).json()["ledgers"]
    found = (await cluster.api.get(f"/v1/ledgers/{ledger}")).json()
    assert found["state"] == "OPEN"
    assert len(found["fragments"][0]["bookies"]) == 3
    entry = await eventually(cluster, "GET", f"/v1/ledgers/{ledger}/entries/0")
    assert entry["batch"]["record_count"] == 1
    answer = await cluster.api.get(
        f"/v1/ledgers/{ledger}/entries/0", headers={"Accept": "application/octet-stream"}
    )
    assert b"seen" in answer.body
    assert (await cluster.api.get(f"/v1/ledgers/{ledger}/entries/77")).status == 404
    assert (await cluster.api.get("/v1/ledgers/123456")).status == 404
    bookies = (await cluster.api.get("/v1/bookies")).json()["bookies"]
    assert [one["id"] for one in bookies] == ["b1", "b2", "b3"]
    brokers = (await cluster.api.get("/v1/brokers")).json()["brokers"]
    assert {one["url"] for one in brokers} == {api.url for api in cluster.apis.values()}
    whole = (await cluster.api.get("/v1/cluster")).json()
    assert "public/one" in whole["topics"]
    assert whole["clock"]["doubt"] is None
    assert whole["clock"]["deletion_time"] > 1_700_000_000_000
    assert (await cluster.api.post("/v1/cluster/clock")).json()["late_ms"] == 0
    page = await cluster.api.get("/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"public/one/0" in page.body or b"public/four" in page.body
    assert b"b1" in page.body


async def test_forced_recovery_fences_the_owner_and_it_goes_on(cluster: Cluster) -> None:
    await cluster.api.post(ONE + "/messages", b"before", "text/plain")
    ledger = (await cluster.api.get(ONE)).json()["partitions"][0]["ledgers"][-1]["id"]
    answer = await cluster.api.post(f"/v1/ledgers/{ledger}/recover?force=true")
    assert answer.status == 200, answer
    assert answer.json()["state"] == "CLOSED"
    assert {step["step"] for step in answer.json()["steps"]} >= {1, 2, 3}

    await eventually(cluster, "POST", ONE + "/messages", meanwhile=(503, 504))
    values = [message["value_text"] for message in await read_all(cluster, ONE)]
    assert values[0] == "before"
    assert "after" in values


async def test_too_few_bookies_say_which_are_up(cluster: Cluster) -> None:
    await cluster.stop_bookie("b3")
    await cluster.api.put("/v1/topics/public/late")
    answer = await cluster.api.post("/v1/topics/public/late/messages", b"x", "text/plain")
    assert answer.status == 503, answer
    detail = answer.json()["detail"]
    assert "b1" in detail, detail
    assert "b2" in detail, detail
    assert "3" in detail, detail
    assert answer.json()["retryable"] is True
    await cluster.start_bookie("b3")

    await eventually(cluster, "POST", "/v1/topics/public/late/messages", meanwhile=(503,))


async def test_a_bookie_that_is_down_stays_on_the_page_with_a_warning(cluster: Cluster) -> None:
    whole = (await cluster.api.get("/v1/cluster")).json()
    assert whole["bookies_down"] == []
    assert b"Warning" not in (await cluster.api.get("/")).body
    port = cluster.nodes["b2"].port
    await cluster.stop_bookie("b2")
    async with asyncio.timeout(20):
        while not (found := (await cluster.api.get("/v1/bookies")).json())["bookies_down"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [one["id"] for one in found["bookies"]] == ["b1", "b3"]
    (down,) = found["bookies_down"]
    assert (down["id"], down["port"]) == ("b2", port)
    assert down["missing_since"] > 1_700_000_000_000
    page = (await cluster.api.get("/")).body.decode()
    assert "Warning. Down: b2." in page
    assert "down, missed for " in page
    assert f"127.0.0.1:{port}" in page
    await cluster.start_bookie("b2")
    async with asyncio.timeout(20):
        while (await cluster.api.get("/v1/bookies")).json()["bookies_down"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "Warning" not in (await cluster.api.get("/")).body.decode()


async def test_a_broker_that_dies_is_shown_as_gone(cluster: Cluster) -> None:
    assert (await cluster.api.get("/v1/brokers")).json()["brokers_gone"] == []
    dead, living = sorted(cluster.apis)
    url = cluster.apis[dead].url
    await cluster.brokers[dead].vanish()
    api = cluster.apis[living]
    async with asyncio.timeout(60):
        while len((found := (await api.get("/v1/brokers")).json())["brokers"]) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    (gone,) = found["brokers_gone"]
    assert (gone["id"], gone["url"]) == (dead, url)
    assert (await api.get("/v1/cluster")).json()["brokers_gone"][0]["id"] == dead
    assert f"No longer registered: broker {dead}." in (await api.get("/")).body.decode()
