"""The HTTP API's promises of order, repetition, retention and cursors, on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, running_cluster
from tests.support.http_api import until

NDJSON = "application/x-ndjson"
BATCH = "application/vnd.kafka.recordbatch.v2"
ONE = "/v1/topics/public/one"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


def producer(sequence: int, epoch: int = 0, name: str = "writer-1") -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence)}


async def test_trimmed_offsets_are_410_with_the_earliest(cluster: Cluster) -> None:
    topic = "/v1/topics/public/short"
    body = {"retention": {"size": "1KiB"}, "rollover": {"entries": 3}}
    assert (await cluster.api.put(topic, json=body)).status == 201
    for n in range(20):
        answer = await cluster.api.post(topic + "/messages", b"x" * 200, "text/plain")
        assert answer.status == 200, answer
        assert answer.json()["first"]["offset"] == n
    async with asyncio.timeout(20):
        while True:
            answer = await cluster.api.get(topic + "/messages?from=0")
            if answer.status == 410:
                break
            await asyncio.sleep(0.1)
    earliest = answer.json()["earliest_offset"]
    assert 0 < earliest < 20
    for api in cluster.apis.values():
        while (answer := await api.get(f"{topic}/messages?from={earliest}")).status == 410:
            assert answer.json()["earliest_offset"] > earliest, "it was trimmed meanwhile"
            earliest = answer.json()["earliest_offset"]
        assert answer.json()["messages"][0]["offset"] == earliest
        answer = await api.get(topic + "/messages?from=earliest&limit=1")
        assert answer.json()["messages"][0]["offset"] >= earliest
        answer = await api.get(topic + "/messages?from=0")
        assert (answer.status, answer.json()["code"]) == (410, "offset-trimmed")
        assert answer.headers["Earliest-Offset"] == str(answer.json()["earliest_offset"])


async def test_idempotence_and_compare_and_append(cluster: Cluster) -> None:
    path = ONE + "/messages"
    for api in cluster.apis.values():
        expected = 200 if api is cluster.api else 204
        answer = await api.post(path, b'{"value":1}\n' * 2500, NDJSON, headers=producer(0))
        assert answer.status == expected, answer
    answer = await cluster.api.post(
        path, b'{"value":2}', "application/json", headers=producer(9999)
    )
    assert (answer.status, answer.json()["expected_sequence"]) == (409, 2500), answer
    answer = await cluster.api.post(
        path, b'{"value":2}', "application/json", headers=producer(2500)
    )
    assert answer.status == 200
    answer = await cluster.api.post(path, b"x", "text/plain", headers=producer(0, epoch=1))
    assert answer.status == 200
    answer = await cluster.api.post(path, b"x", "text/plain", headers=producer(2501))
    assert (answer.status, answer.json()["code"]) == (403, "stale-producer-epoch")
    answer = await cluster.api.post(path, b"x", "text/plain", headers={"If-Match": '"2501"'})
    assert (answer.status, answer.json()["next_offset"]) == (412, 2502)
    answer = await cluster.api.post(path, b"x", "text/plain", headers={"If-Match": '"2502"'})
    assert answer.status == 200


async def test_only_one_of_many_wins_a_compare_and_append(cluster: Cluster) -> None:
    answers = await asyncio.gather(
        *(
            api.post(ONE + "/messages", b"%d" % n, "text/plain", headers={"If-Match": '"0"'})
            for n in range(10)
            for api in cluster.apis.values()
        )
    )
    assert sorted(answer.status for answer in answers) == [200] + [412] * 19
    assert (await cluster.api.get(ONE + "/offsets")).json()["offsets"][0]["offset"] == 1


async def test_a_half_stored_stream_is_completed_by_repeating_it(cluster: Cluster) -> None:
    lines = [b'{"value":%d}\n' % n for n in range(30_000)]

    async def dying() -> AsyncIterator[bytes]:
        for start in range(0, 20_000, 500):
            yield b"".join(lines[start : start + 500])
            await asyncio.sleep(0)
        raise RuntimeError("killed")

    with pytest.raises(aiohttp.ClientError, match="killed"):
        await cluster.api.post(ONE + "/messages", dying(), NDJSON, headers=producer(0))
    node = next(iter(cluster.brokers.values()))
    server = node.server
    assert server is not None
    await until(lambda: not server._services.in_hand.count, 10)
    answer = await cluster.api.post(ONE + "/messages", b"".join(lines), NDJSON, headers=producer(0))
    assert answer.status == 200, answer
    assert answer.json()["count"] == 30_000
    at, values = 0, []
    while True:
        found = await cluster.api.get(f"{ONE}/messages?from={at}&limit=10000&max_bytes=8000000")
        if found.status == 204:
            break
        at = found.json()["next_offset"]
        values += [message["value"] for message in found.json()["messages"]]
    assert values == list(range(30_000))


async def test_cursors_over_http(cluster: Cluster) -> None:
    sub = ONE + "/subscriptions/s"
    assert (await cluster.api.put(sub, json={"ack_timeout": "60s"})).status == 201
    batch = build_batch([Record(None, b"%d" % n) for n in range(10)])
    assert (await cluster.api.post(ONE + "/messages", batch, BATCH)).status == 200
    first, *others = cluster.apis.values()
    for api in (first, *others):
        answer = await api.post(sub + "/receive?max=3&consumer=me")
        messages = answer.json()["messages"]
        assert [m["offset"] for m in messages] == [0, 1, 2], answer
        nacked = await api.post(
            sub + "/ack", json={"nack": [{"ack_id": m["ack_id"]} for m in messages]}
        )
        assert nacked.json() == {"acked": 0}
    answer = await first.post(sub + "/receive?consumer=other")
    assert (answer.status, answer.json()["code"]) == (409, "subscription-busy")
    again = (await first.post(sub + "/receive?max=3&consumer=me")).json()["messages"]
    assert [m["delivery_count"] for m in again] == [3, 3, 3]
    assert (await first.post(sub + "/ack", json={"up_to": 4})).json() == {"acked": 5}
    found = (await others[0].get(sub)).json()
    assert found["backlog"] == 5
    assert (await first.post(sub + "/seek", json={"to": 2})).json()["partitions"][0]["offset"] == 2
    stale = await first.post(sub + "/ack", json={"ack_ids": [again[2]["ack_id"]]})
    assert (stale.status, stale.json()["stale"]) == (409, [again[2]["ack_id"]])
    answer = await others[0].post(sub + "/receive?max=100&wait=2s&consumer=me")
    assert [m["offset"] for m in answer.json()["messages"]] == list(range(2, 10))
    shared = ONE + "/subscriptions/shared"
    await first.put(shared, json={"type": "shared"})
    answer = await first.post(shared + "/ack", json={"up_to": 1})
    assert (answer.status, answer.json()["code"]) == (422, "cumulative-ack-not-allowed")
    assert (await first.call("DELETE", sub)).status == 204
    # A machine that stands still may tell the owner late, which says busy until then.
    async with asyncio.timeout(60):
        while (answer := await others[0].post(sub + "/receive")).status == 409:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert answer.status == 404


async def test_partitions_grow_and_a_topic_goes(cluster: Cluster) -> None:
    topic = "/v1/topics/public/grows"
    await cluster.api.put(topic, json={"partitions": 1})
    await cluster.api.post(topic + "/messages", b"x", "text/plain")
    answer = await cluster.api.call("PATCH", topic, json={"partitions": 3})
    assert answer.json()["settings"]["partitions"] == 3
    for api in cluster.apis.values():

        async def there(api=api) -> bool:
            return (await api.get(topic + "/partitions/2")).status == 200

        async with asyncio.timeout(10):
            while not await there():  # noqa: ASYNC110 - each look is a call
                await asyncio.sleep(0.05)
        answer = await api.post(topic + "/partitions/2/messages", b"y", "text/plain")
        assert answer.status == 200, answer
    assert (await cluster.api.call("DELETE", topic)).status == 204
    for api in cluster.apis.values():
        async with asyncio.timeout(10):
            while (await api.get(topic)).status != 404:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        answer = await api.post(topic + "/messages", b"x", "text/plain")
        assert answer.status == 404, answer


async def test_dead_letters_over_http_whoever_serves_their_topic(cluster: Cluster) -> None:
    """For some originals another broker serves the dead-letter topic."""
    apis = list(cluster.apis.values())
    for number in range(4):
        topic = f"/v1/topics/public/poison{number}"
        sub = f"{topic}/subscriptions/s"
        await cluster.api.put(topic, json={})
        settings = {"type": "shared", "max_deliveries": 2, "dead_letter_topic": "all-dead"}
        answer = await apis[number % len(apis)].put(sub, json=settings)
        assert answer.status == 201, answer
        await cluster.api.post(f"{topic}/messages", json={"key": "k", "value": {"n": number}})
        for _ in range(2):
            (message,) = (await cluster.api.post(f"{sub}/receive")).json()["messages"]
            await cluster.api.post(f"{sub}/ack", json={"nack": [message["ack_id"]]})
    letters: list[dict[str, object]] = []
    async with asyncio.timeout(20):
        while len(letters) < 4:
            answer = await apis[0].post(
                "/v1/topics/public/all-dead/subscriptions/s/receive?max=10&wait=1s"
            )
            letters += answer.json()["messages"] if answer.status == 200 else []
    assert sorted(one["value"]["n"] for one in letters) == [0, 1, 2, 3]  # type: ignore[index]
    figures = (await apis[0].get("/v1/topics/public/poison0/subscriptions/s")).json()
    assert figures["settings"]["max_deliveries"] == 2
    assert figures["dead_letters"] == {"waiting": 0, "sent": 1, "problem": None}
    assert figures["backlog"] == 0
    metrics = [(await api.get("/metrics")).body.decode() for api in apis]
    assert any("octavo_subscription_dead_letters_total{" in text for text in metrics)
