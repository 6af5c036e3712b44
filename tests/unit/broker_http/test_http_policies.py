"""Policies over HTTP: topics created automatically, too long messages, topics' rates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from octavo.broker.http.api.fast_publish import FastPublish
from octavo.client.client import AsyncClient
from octavo.client.errors import NotFound
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch
from tests.support.http_api import Answer
from tests.support.memory_cluster import Running, running
from tests.unit.broker_http.test_http_quotas import Frozen

LAB = "/v1/namespaces/lab"
TOPIC = "/v1/topics/lab/t"
BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
JSON = "application/json"


@pytest.fixture
async def two() -> AsyncIterator[Running]:
    async with running(2) as cluster:
        assert (await cluster.api.put(LAB)).status == 201
        yield cluster


# ---- topics that make themselves


async def test_a_topic_that_is_not_there_is_not_made_unless_its_namespace_says_so(
    two: Running,
) -> None:
    for path in (TOPIC, f"{TOPIC}/partitions/0"):
        answer = await two.api.post(f"{path}/messages", b"x", "text/plain")
        assert (answer.status, answer.json()["code"]) == (404, "topic-not-found")
        assert "policy auto_create of namespace lab, which is off" in answer.json()["detail"]
    answer = await two.api.put(f"{TOPIC}?auto=true")
    assert (answer.status, answer.json()["code"]) == (404, "topic-not-found")
    assert not await two.topics()
    body = {"auto_create": {"partitions": 3, "ensemble_size": 2, "write_quorum": 2}}
    await two.api.put(LAB, json=body)
    answer = await two.api.post(f"{TOPIC}/messages", b"x", "text/plain")
    assert answer.status == 200, answer
    settings = (await two.api.get(TOPIC)).json()["settings"]
    assert (settings["partitions"], settings["write_quorum"]) == (3, 2)
    assert (await two.api.put(f"{TOPIC}?auto=true")).status == 200, "it is there"
    answer = await two.api.post("/v1/topics/nowhere/t/messages", b"x", "text/plain")
    assert (answer.status, answer.json()["code"]) == (404, "topic-not-found")
    answer = await two.api.put(f"{TOPIC}?auto=true", json={"partitions": 5})
    assert (answer.status, answer.json()["code"]) == (422, "invalid-settings")
    for call in (two.api.get(f"{TOPIC}2/messages"), two.api.put(f"{TOPIC}2/subscriptions/s")):
        assert (await call).status == 404, "who reads makes nothing"


async def test_the_client_has_it_made_and_says_what_would(two: Running) -> None:
    async with AsyncClient([two.api.url]) as client:
        with pytest.raises(NotFound, match="auto_create of namespace lab, which is off"):
            await client.publish("lab/t", "x")
        await client.create_namespace("lab", auto_create={"partitions": 2})
        assert (await client.publish("lab/t", "x")).offset == 0
        assert (await client.topic("lab/t")).partitions == 2


async def test_a_call_for_a_topic_that_is_gone_makes_no_other(two: Running) -> None:
    await two.api.put(LAB, json={"auto_create": {}})
    answer = await two.api.post(
        f"{TOPIC}/messages", b"x", "text/plain", headers={"Octavo-Incarnation": "i7"}
    )
    assert answer.status in (404, 409)
    assert not await two.topics()


# ---- messages that are too long

LONG, SHORT = b"x" * 1001, b"x" * 900


def bodies(value: bytes) -> list[tuple[str, bytes]]:
    text = value.decode()
    record = Record(b"k", value, timestamp_ms=1)
    small = Record(b"k", b"y", timestamp_ms=1)
    return [
        ("text/plain", value),
        (JSON, json.dumps({"value_text": text}).encode()),
        (JSON, json.dumps({"messages": [{"value": 1}, {"value_text": text}]}).encode()),
        (NDJSON, json.dumps({"value_text": text}).encode()),
        (BATCH, build_batch([small, record, small])),
        (BATCH, build_batch([small, record, small], compression=Compression.GZIP)),
        (BATCH, build_batch([small, record]) + build_batch([record])),
    ]


@pytest.mark.parametrize("at", range(7))
async def test_a_message_that_is_too_long_for_its_topic(two: Running, at: int) -> None:
    await two.api.put(LAB, json={"message_bytes_max": 1000})
    await two.api.put(TOPIC)
    for api in two.apis:
        kind, body = bodies(LONG)[at]
        answer = await api.post(f"{TOPIC}/messages", body, kind)
        assert (answer.status, answer.json()["code"]) == (413, "message-too-long"), answer
        assert answer.json()["bytes_max"] == 1000
        assert "1000 bytes" in answer.json()["detail"]
        kind, body = bodies(SHORT)[at]
        assert (await api.post(f"{TOPIC}/messages", body, kind)).status == 200
    await two.api.call("PATCH", TOPIC, json={"message_bytes_max": "off"})
    kind, body = bodies(LONG)[at]
    assert (await two.api.post(f"{TOPIC}/messages", body, kind)).status == 200


async def test_many_small_messages_are_no_long_one(two: Running) -> None:
    await two.api.put(TOPIC, json={"message_bytes_max": 100})
    for compression in (Compression.NONE, Compression.GZIP):
        batch = build_batch(
            [Record(None, b"x" * 50, timestamp_ms=1)] * 3000, compression=compression
        )
        assert (await two.api.post(f"{TOPIC}/messages", batch, BATCH)).status == 200


@pytest.mark.parametrize("path", [LAB, TOPIC])
async def test_a_bound_beyond_the_brokers_own_is_refused_where_it_is_new(
    two: Running, path: str
) -> None:
    """At a broker with a lower bound than the broker that accepted the value."""
    wide, narrow = two.apis
    services = two.servers[1]._services
    services.config = replace(services.config, large_message_bytes_max=1000)
    large, beyond = {"message_bytes_max": "5MiB"}, {"message_bytes_max": 2**30}
    for api, said, figures in (
        (narrow, large, (5 * 2**20, 4 * 2**20, 1000)),
        (wide, beyond, (2**30, 4 * 2**20, 2**27)),
    ):
        answer = await api.put("/v1/topics/lab/other", json=said)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-settings")
        answer = await api.put(path, json=said)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-settings")
        for figure in figures:
            assert f" {figure}" in answer.json()["detail"]
    assert (await wide.put("/v1/namespaces/next", json=beyond)).status == 422
    assert (await wide.get("/v1/namespaces/next")).status == 404
    assert (await wide.put(path, json=large)).status in (200, 201)
    assert (await narrow.put(path, json=large)).status == 200
    await narrow.put(TOPIC)
    assert (await narrow.call("PATCH", TOPIC, json={"ttl": 60})).status == 200
    assert (await narrow.call("PATCH", TOPIC, json={"message_bytes_max": "6MiB"})).status == 422
    assert (await narrow.post(f"{TOPIC}/messages", b"x", "text/plain")).status == 200
    shown = await narrow.get(TOPIC)
    assert shown.json()["effective"]["message_bytes_max"]["value"] == 5 * 2**20


# ---- rates


def refused(answer: Answer, rate: str, limit: int) -> dict[str, Any]:
    assert answer.status == 429, answer
    said: dict[str, Any] = answer.json()
    assert (said["code"], said["retryable"]) == ("quota-exceeded", True)
    assert (said["subject"], said["quota"], said["limit"]) == ("topic:lab/t", rate, limit)
    assert f"over its rate of {limit}" in said["detail"]
    assert int(answer.headers["Retry-After"]) >= 1
    return said


@pytest.mark.parametrize("short", [False, True])
async def test_publishes_beyond_a_topics_rate(
    two: Running, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    take = FastPublish.take
    monkeypatch.setattr(FastPublish, "take", lambda *asked: short and take(*asked))
    clock = Frozen(two)
    await two.api.put(LAB, json={"rates": {"publish_messages": 5}})
    await two.api.put(TOPIC)
    await two.api.put("/v1/topics/lab/other")
    for api in two.apis:
        answers = [await api.post(f"{TOPIC}/messages", b"x", "text/plain") for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 6 + [429] * 2
        refused(answers[-1], "publish_messages", 5)
        assert (await api.post("/v1/topics/lab/other/messages", b"x", "text/plain")).status == 200
        assert (await api.get(f"{TOPIC}/messages")).status == 200, "reading is another rate"
        clock.now_s += 2.0
    await two.api.call("PATCH", TOPIC, json={"rates": {"publish_messages": "off"}})
    answers = [await two.api.post(f"{TOPIC}/messages", b"x", "text/plain") for _ in range(20)]
    assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, json.dumps({"messages": [{"value": "x"}] * 30}).encode()),
        (NDJSON, b'{"value":"x"}\n' * 30),
        (BATCH, build_batch([Record(None, b"x", timestamp_ms=1)] * 30)),
    ],
)
async def test_a_body_leaves_a_debt(two: Running, kind: str, body: bytes) -> None:
    clock = Frozen(two)
    await two.api.put(TOPIC, json={"rates": {"publish_messages": 10}})
    assert (await two.api.post(f"{TOPIC}/messages", body, kind)).status == 200
    said = refused(await two.api.post(f"{TOPIC}/messages", body, kind), "publish_messages", 10)
    assert said["wait_s"] == pytest.approx(2.0)
    clock.now_s += 2.1
    assert (await two.api.post(f"{TOPIC}/messages", body, kind)).status == 200


async def test_reads_and_receives_beyond_a_topics_rate(two: Running) -> None:
    clock = Frozen(two)
    await two.api.put(TOPIC, json={"rates": {"dispatch_bytes": 3000}})
    await two.api.put(f"{TOPIC}/subscriptions/s")
    for _ in range(4):
        await two.api.post(f"{TOPIC}/messages", b"x" * 2000, "text/plain")
    for api in two.apis:
        for read in ("/messages", "/subscriptions/s/receive"):
            call = api.get if read == "/messages" else api.post
            assert (await call(f"{TOPIC}{read}?max_bytes=9000" if call is api.get
                               else f"{TOPIC}{read}")).status == 200  # fmt: skip
            refused(await api.get(f"{TOPIC}/messages"), "dispatch_bytes", 3000)
            refused(await api.post(f"{TOPIC}/subscriptions/s/receive"), "dispatch_bytes", 3000)
            clock.now_s += 60.0
        await two.api.post(f"{TOPIC}/subscriptions/s/seek", b'{"to": "earliest"}', JSON)
    metrics = (await two.api.get("/metrics")).body.decode()
    assert "octavo_quota_exceeded_total" in metrics


async def test_more_copies_than_bookies_are_refused_or_warned_of(two: Running) -> None:
    body = {"ensemble_size": 9, "write_quorum": 9}
    answer = await two.api.put(TOPIC, json=body)
    assert (answer.status, answer.json()["code"]) == (422, "too-few-bookies")
    assert "force=true" in answer.json()["detail"]
    answer = await two.api.put(f"{TOPIC}?force=true", json=body)
    assert answer.status == 201
    assert "publishing would fail" in answer.json()["warning"]
    answer = await two.api.put("/v1/topics/lab/fits?force=true", json={"ensemble_size": 3})
    assert "warning" not in answer.json()
    assert (await two.api.put(f"{TOPIC}?force=yes")).status == 400
    async with AsyncClient([two.api.url]) as client:
        made = await client.create_topic("lab/wide", ensemble_size=9, write_quorum=9, force=True)
        assert "publishing would fail" in made.stats["warning"]


async def test_an_ack_quorum_of_one_is_told_of_topics_that_make_themselves(two: Running) -> None:
    """A namespace set it for future topics, without a warning."""
    path, risky = "/v1/namespaces/risky", {"auto_create": {"write_quorum": 3, "ack_quorum": 1}}
    for body in (risky, {"auto_create": {"ack_quorum": 2}}, risky, {"ttl": "1h"}):
        answer = await two.api.put(path, json=body)
        assert answer.status in (200, 201), answer.body
        told = answer.json().get("warning", "")
        assert ("auto_create: ack_quorum is 1" in told) == (body is risky)


async def test_an_ack_quorum_of_one_is_told(two: Running) -> None:
    """Both when the topic is created and when it is changed."""
    path, risky = "/v1/topics/lab/risky", {"write_quorum": 3, "ack_quorum": 1}
    for method, body in (("PUT", risky), ("PATCH", {"ack_quorum": 2}), ("PATCH", risky)):
        answer = await two.api.call(method, path, json=body)
        assert answer.status in (200, 201), answer.body
        told = answer.json().get("warning", "")
        assert ("a single bookie has it" in told) == (body is risky)
    async with AsyncClient([two.api.url]) as client:
        changed = await client.update_topic("lab/risky", ack_quorum=1)
        assert "a single bookie has it" in changed.stats["warning"]
