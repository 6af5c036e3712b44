"""Calls beyond a quota are refused, streams wait, and all other callers notice nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.broker.errors import PartitionUnavailable
from octavo.broker.http import held_bytes
from octavo.broker.http.api.fast_publish import FastPublish
from octavo.protocol.records import Record, build_batch
from octavo.security.quotas import quota_store, with_quota, without_quota
from tests.support.bulk_load_stub import stub_bulk_loads
from tests.support.http_api import Answer, until
from tests.support.kit.quiescence import in_use
from tests.support.memory_cluster import Running, running
from tests.unit.broker_http.test_short_way import Wire, post

TOPIC = "/v1/topics/public/one"
WIDE = "/v1/topics/public/wide"
BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running(1) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        yield cluster


@pytest.fixture
async def two() -> AsyncIterator[Running]:
    async with running(2) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        assert (await cluster.api.put(WIDE, json={"partitions": 4})).status == 201
        yield cluster


class Frozen:
    """A clock that moves only when told: a busy machine refuses no fewer calls than an idle one."""

    def __init__(self, cluster: Any) -> None:
        self.now_s = 100.0
        for server in cluster.servers:
            server._services.quotas.now_s = lambda: self.now_s


async def set_quota(cluster: Any, subject: str, **amounts: int) -> None:
    store = quota_store(cluster.store)
    record, _ = await store.change(lambda record: with_quota(record, subject, amounts))
    for server in cluster.servers:
        quotas = server._services.quotas
        await until(lambda q=quotas: q._limits.quotas._set.keys() == {
            one.subject for one in record.quotas})  # fmt: skip
        found = quotas._limits.quotas.of(subject)
        await until(lambda q=found: all(getattr(q, name) == n for name, n in amounts.items()))


def refused(answer: Answer, subject: str, quota: str, limit: int) -> dict[str, Any]:
    assert answer.status == 429, answer
    said: dict[str, Any] = answer.json()
    assert said["code"] == "quota-exceeded"
    assert said["retryable"]
    assert (said["subject"], said["quota"], said["limit"]) == (subject, quota, limit)
    assert subject in said["detail"]
    assert str(limit) in said["detail"]
    assert int(answer.headers["Retry-After"]) >= 1
    return said


async def test_calls_beyond_a_rate_are_refused_and_later_they_are_not(one: Running) -> None:
    clock = Frozen(one)
    await set_quota(one, "anonymous", requests=5)
    answers = [await one.api.get(TOPIC) for _ in range(8)]
    assert [answer.status for answer in answers] == [200] * 5 + [429] * 3
    refused(answers[-1], "anonymous", "requests", 5)
    assert (await one.api.get("/healthz")).status != 429, "who asks for health is never refused"
    clock.now_s += 0.2
    assert (await one.api.get(TOPIC)).status == 200
    assert (await one.api.get(TOPIC)).status == 429
    metrics = (await one.api.get("/metrics")).body.decode()
    assert 'octavo_quota_exceeded_total{quota="requests"}' in metrics


async def test_a_body_is_refused_by_what_it_announces_before_it_came(one: Running) -> None:
    Frozen(one)
    await set_quota(one, "anonymous", publish_bytes=1000)
    assert (await one.api.post(f"{TOPIC}/messages", b"x" * 1000, "text/plain")).status == 200
    host, port = one.servers[0].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {TOPIC}/messages HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
        "Content-Length: 900\r\n\r\n".encode()
    )
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert head.startswith(b"HTTP/1.1 429")
    writer.close()
    assert (await one.api.get(f"{TOPIC}/messages")).status == 200, "reading is another quota"


@pytest.mark.parametrize("short", [False, True])
async def test_single_messages_go_by_the_same_quota_on_both_ways(
    monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    took: list[bool] = []
    take = FastPublish.take

    def noted(self: FastPublish, *request: Any) -> bool:
        took.append(short and take(self, *request))
        return took[-1]

    monkeypatch.setattr(FastPublish, "take", noted)
    async with running(1) as one:
        path = f"{TOPIC}/messages"
        assert (await one.api.put(TOPIC)).status == 201
        Frozen(one)
        await set_quota(one, "anonymous", publish_bytes=2000, publish_messages=15)
        answers = [await one.api.post(path, b"x" * 100, "text/plain") for _ in range(30)]
        accepted = sum(answer.status == 200 for answer in answers)
        assert accepted == 15
        assert (sum(took) >= 25) == short
        refused(answers[-1], "anonymous", "publish_messages", 15)
        assert "publish messages a second" in answers[-1].json()["detail"]


@pytest.mark.parametrize("subject", ["anonymous", "namespace:public"])
async def test_both_ways_refuse_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    found: list[list[bytes]] = []
    take = FastPublish.take
    for short in (False, True):
        if not short:
            monkeypatch.setattr(FastPublish, "take", lambda *_: False)
        else:
            monkeypatch.setattr(FastPublish, "take", take)
        async with running(1) as one:
            assert (await one.api.put(TOPIC)).status == 201
            Frozen(one)
            await set_quota(one, subject, publish_messages=2)
            wire = await Wire.to(one)
            found.append([await wire.ask(post(b"hello")) for _ in range(6)])
            wire.writer.close()
    assert found[0] == found[1]
    assert [one[9:12] for one in found[0]].count(b"429") >= 3


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [
        ("application/json", json.dumps({"messages": [{"value": "x"}] * 30}).encode(), 30),
        (NDJSON, b'{"value":"x"}\n' * 30, 30),
        (BATCH, build_batch([Record(None, b"x", timestamp_ms=1)] * 30), 30),
    ],
)
@pytest.mark.parametrize("path", [TOPIC, WIDE])
async def test_messages_of_a_body_leave_a_debt_whoever_stores_them(
    two: Running, kind: str, body: bytes, count: int, path: str
) -> None:
    """The asked broker owns no partition, or some: it counts what the owners stored."""
    if kind == BATCH:
        path += "/partitions/0"
    Frozen(two)
    await set_quota(two, "anonymous", publish_messages=10)
    for api in two.apis:
        assert (await api.post(f"{path}/messages", body, kind)).status == 200
        refused(await api.post(f"{path}/messages", body, kind), "anonymous", "publish_messages", 10)


async def test_a_body_without_a_length_is_read_no_faster_than_the_quota(one: Running) -> None:
    await set_quota(one, "anonymous", publish_bytes=10_000)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(25):
            yield b'{"value":"' + b"x" * 980 + b'"}\n'
            await asyncio.sleep(0.001)

    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await one.api.post(f"{TOPIC}/messages", body(), NDJSON)).status == 200
    assert 1.0 < loop.time() - began < 4.0, "24.8 KB, of which 10 KB at once"


async def test_what_is_read_is_paid_for_by_the_next_read(two: Running) -> None:
    await two.api.post(f"{TOPIC}/messages", b"x" * 5000, "text/plain")
    Frozen(two)
    await set_quota(two, "anonymous", read_bytes=3000)
    for api in two.apis:
        assert (await api.get(f"{TOPIC}/messages")).status == 200
        said = refused(await api.get(f"{TOPIC}/messages"), "anonymous", "read_bytes", 3000)
        assert "read bytes a second" in said["detail"]
        assert (await api.post(f"{TOPIC}/messages", b"x" * 10, "text/plain")).status == 200


async def test_received_messages_are_counted_through_any_broker(two: Running) -> None:
    path = f"{TOPIC}/subscriptions/s"
    assert (await two.api.put(path)).status == 201
    body = json.dumps({"messages": [{"value": "x"}] * 40}).encode()
    assert (await two.api.post(f"{TOPIC}/messages", body, "application/json")).status == 200
    Frozen(two)
    await set_quota(two, "anonymous", read_messages=10)
    for api in two.apis:
        answer = await api.post(f"{path}/receive?max=15")
        assert len(answer.json()["messages"]) == 15
        refused(await api.post(f"{path}/receive"), "anonymous", "read_messages", 10)


async def test_a_namespace_is_charged_by_its_owner_for_whoever_asks(two: Running) -> None:
    Frozen(two)
    await set_quota(two, "namespace:public", publish_bytes=500)
    first, second = two.apis
    assert (await first.post(f"{TOPIC}/messages", b"x" * 900, "text/plain")).status == 200
    refused(
        await second.post(f"{TOPIC}/messages", b"x", "text/plain"),
        "namespace:public", "publish_bytes", 500,
    )  # fmt: skip
    assert (await first.get(f"{TOPIC}/messages")).status == 200


def bodies(value: bytes) -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return a producer's message of this value, in each form that several messages have."""
    batch = build_batch([Record(None, value)], producer_id=7, producer_epoch=0, base_sequence=0)
    producer = {"Producer-Id": "7", "Producer-Epoch": "0", "Producer-Seq": "0"}
    line = json.dumps({"value": value.decode()}).encode()
    return {
        "a batch": (batch, {"Content-Type": BATCH}),
        "a batch, with results": (batch, {"Content-Type": BATCH}),
        "JSON": (line, {"Content-Type": "application/json", **producer}),
        "NDJSON": (line + b"\n", {"Content-Type": NDJSON, **producer}),
    }


FORMS = list(bodies(b""))


def path_of(form: str) -> str:
    return f"{TOPIC}/messages" + ("?results=all" if "results" in form else "")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("asked", [0, 1])
async def test_publishes_that_come_together_are_charged_when_they_begin(
    two: Running, asked: int, form: str
) -> None:
    """Otherwise any number of them is let in before the first is stored."""
    Frozen(two)
    await set_quota(two, "namespace:public", publish_bytes=500)
    await two.partition("public/one")
    two.hold()
    body, headers = bodies(b"x" * 900)[form]
    asking = [
        asyncio.ensure_future(two.apis[asked].post(path_of(form), body, headers=headers))
        for _ in range(6)
    ]
    await until(lambda: sum(one.done() for one in asking) == 5)
    two.go_on()
    found = await asyncio.gather(*asking)
    assert sorted(one.status for one in found) == [200, 429, 429, 429, 429, 429]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("asked", [0, 1])
async def test_a_message_that_is_not_stored_costs_its_namespace_nothing(
    two: Running, asked: int, form: str
) -> None:
    """A repeat is stored already, and a refused message never is."""
    Frozen(two)
    await set_quota(two, "namespace:public", publish_bytes=1500)
    body, headers = bodies(b"x" * 900)[form]
    for _ in range(5):
        answer = await two.apis[asked].post(path_of(form), body, headers=headers)
        assert answer.status in (200, 204), answer
    assert two.next_offset("public/one") == 1
    is_down = True

    def refuse() -> None:
        if is_down:
            raise PartitionUnavailable("1 bookie is up, 2 are needed")

    await two.before_publish("public/one", refuse)
    for _ in range(3):
        other = build_batch([Record(None, b"y" * 900)])
        answer = await two.apis[asked].post(f"{TOPIC}/messages", other, BATCH)
        assert answer.status == 503, answer
    is_down = False
    answer = await two.apis[asked].post(f"{TOPIC}/messages", b"x" * 900, "text/plain")
    assert answer.status == 200, "1,800 bytes were stored, and the last began with some left"
    refused(
        await two.apis[asked].post(f"{TOPIC}/messages", b"x", "text/plain"),
        "namespace:public", "publish_bytes", 1500,
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
async def test_messages_are_counted_where_they_are_stored(two: Running, form: str) -> None:
    """Once in the cluster, whichever broker was asked."""
    owner = await two.owner("public/one")
    body, headers = bodies(b"x")[form]
    for api in two.apis:
        assert (await api.post(path_of(form), body, headers=headers)).status in (200, 204)
    counted = {
        server._services.broker.broker_id: server._services.metrics.messages_published._value.get()
        for server in two.servers
    }
    assert counted == {name: float(name == owner) for name in counted}


async def test_a_stream_over_its_quota_is_slower_and_goes_on(one: Running) -> None:
    body = json.dumps({"messages": [{"value": "x" * 500}] * 30}).encode()
    assert (await one.api.post(f"{TOPIC}/messages", body, "application/json")).status == 200
    await set_quota(one, "anonymous", read_messages=20)
    loop = asyncio.get_running_loop()
    async with one.api.session.get(
        f"{one.api.url}{TOPIC}/messages?follow=true&from=0", headers={"Accept": NDJSON}
    ) as response:
        for _ in range(30):
            await response.content.readline()
        await one.api.post(f"{TOPIC}/messages", b"later", "text/plain")
        began = loop.time()
        assert b"later" in await asyncio.wait_for(response.content.readline(), 5)
        assert loop.time() - began > 0.3, "ten more than a burst were sent: half a second is owed"


async def test_streams_of_a_principal_are_counted(one: Running) -> None:
    await one.api.post(f"{TOPIC}/messages", b"x", "text/plain")
    await set_quota(one, "anonymous", streams=1)
    path, headers = f"{TOPIC}/messages?follow=true", {"Accept": NDJSON}
    async with one.api.session.get(one.api.url + path, headers=headers) as response:
        assert response.status == 200
        answer = await one.api.get(path, headers=headers)
        said = refused(answer, "anonymous", "streams", 1)
        assert "1 streams open" in said["detail"]
    services = one.servers[0]._services
    await until(lambda: services.streams.taken == 0)
    async with one.api.session.get(one.api.url + path, headers=headers) as response:
        assert response.status == 200


async def test_connections_of_a_principal_are_counted_until_they_end(one: Running) -> None:
    await set_quota(one, "anonymous", connections=2)
    host, port = one.servers[0].url.removeprefix("http://").split(":")
    request = f"GET {TOPIC} HTTP/1.1\r\nHost: x\r\n\r\n".encode()

    async def opened() -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5), reader, writer

    found = [await opened() for _ in range(3)]
    assert [head[:12] for head, _, _ in found] == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 429"]
    head, reader, _ = found[2]
    assert b"connection: close" in head.lower()
    await asyncio.wait_for(reader.read(), 5)  # it is closed
    found[0][2].close()
    quotas = one.servers[0]._services.quotas
    await until(lambda: quotas._limits._held.get(("anonymous", "connections")) == 1)
    head, _, _ = await opened()
    assert head.startswith(b"HTTP/1.1 200")
    for _, _, writer in found:
        writer.close()


async def test_topics_of_a_namespace_are_counted(one: Running) -> None:
    await set_quota(one, "namespace:*", topics=2)
    assert (await one.api.put("/v1/topics/public/two")).status == 201
    answer = await one.api.put("/v1/topics/public/three")
    said = answer.json()
    assert (answer.status, said["code"], said["quota"]) == (422, "quota-exceeded", "topics")
    assert "has 2 topics" in said["detail"]
    assert not said["retryable"]
    assert (await one.api.put("/v1/topics/public/two")).status == 200, "it is there already"


async def test_topics_for_letters_are_topics_of_their_namespace(one: Running) -> None:
    """They were created beyond the quota, two with each subscription."""
    sub = "/v1/topics/public/one/subscriptions/letters"
    made = {"type": "shared", "max_deliveries": 3, "retry_deliveries": 1}
    await set_quota(one, "namespace:*", topics=2)
    answer = await one.api.put(sub, json=made)
    assert (answer.status, answer.json()["code"]) == (422, "quota-exceeded"), answer
    assert "has 1 topics, and its quota is 2" in answer.json()["detail"]
    await set_quota(one, "namespace:public", topics=3)
    assert (await one.api.put(sub, json=made)).status == 201


async def test_a_quota_that_is_removed_holds_no_longer(one: Running) -> None:
    Frozen(one)
    await set_quota(one, "anonymous", requests=1)
    for _ in range(3):
        answer = await one.api.get(TOPIC)
    assert answer.status == 429
    store = quota_store(one.store)
    await store.change(lambda record: without_quota(record, "anonymous"))
    await until(lambda: not one.servers[0]._services.quotas.on)
    assert (await one.api.get(TOPIC)).status == 200


@pytest.mark.parametrize("asked", [0, 1])
async def test_a_publish_that_has_begun_is_slowed_by_the_namespaces_quota(
    two: Running, asked: int
) -> None:
    """At the owner, and at a broker that forwards the batches."""
    line = b'{"value":"' + b"x" * 980 + b'"}\n'
    await set_quota(two, "namespace:public", publish_bytes=100_000)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):  # each is a batch of 70 KB
            yield line * 70
            await asyncio.sleep(0.1)

    answer = await two.apis[asked].post(f"{TOPIC}/messages", body(), NDJSON)
    assert answer.status == 200, answer
    assert answer.json()["count"] == 210
    assert loop.time() - began > 0.3, "140 KB went before the last 70, of which 100 were free"
    assert two.next_offset("public/one") == 210


async def test_what_was_read_is_acked_whatever_is_owed(two: Running) -> None:
    path = f"{TOPIC}/subscriptions/s"
    assert (await two.api.put(path)).status == 201
    body = json.dumps({"messages": [{"value": "x"}] * 40}).encode()
    assert (await two.api.post(f"{TOPIC}/messages", body, "application/json")).status == 200
    Frozen(two)
    await set_quota(two, "namespace:public", read_messages=10)
    answer = await two.api.post(f"{path}/receive?max=15")
    ids = [one["ack_id"] for one in answer.json()["messages"]]
    for api in two.apis:
        refused(await api.post(f"{path}/receive"), "namespace:public", "read_messages", 10)
    for api in two.apis:
        acked, ids = ids[:5], ids[5:]
        assert (await api.post(f"{path}/ack", json={"ack_ids": acked})).status == 200


async def test_quotas_are_set_and_removed_by_calls(two: Running) -> None:
    first, second = two.apis
    path = "/v1/quotas/anonymous"
    put = await first.put(path, json={"requests": 1000, "streams": -1})
    assert put.status == 200, put
    shown = {"subject": "anonymous", "set": {"requests": 1000, "streams": -1}}
    assert put.json() == {**shown, "holds": shown["set"]}
    await second.put("/v1/quotas/user:*", json={"read_bytes": 5})
    found = (await second.get("/v1/quotas/user:bob")).json()
    assert (found["set"], found["holds"]) == ({}, {"read_bytes": 5})
    assert (await second.get("/v1/quotas")).json()["quotas"] == [
        {"subject": "anonymous", "requests": 1000, "streams": -1},
        {"subject": "user:*", "read_bytes": 5},
    ]
    assert (await first.put(path, json={"read_bytes": 7})).json()["set"] == {"read_bytes": 7}
    assert (await first.call("DELETE", path)).status == 204
    assert (await first.call("DELETE", path)).status == 204, "it may be said twice"
    assert (await first.put("/v1/quotas/user:*", json={})).status == 200
    assert (await second.get("/v1/quotas")).json() == {"quotas": []}


@pytest.mark.parametrize(
    ("subject", "body", "code"),
    [
        ("alice", {"requests": 1}, "invalid-quota"),
        ("group:staff", {"requests": 1}, "invalid-quota"),
        ("user:alice", {"topics": 1}, "invalid-quota"),
        ("user:alice", {"requests": 0}, "invalid-quota"),
        ("user:alice", {"requests": -2}, "invalid-body"),
        ("user:alice", {"speed": 1}, "invalid-body"),
        ("user:alice", {"requests": "fast"}, "invalid-body"),
    ],
)
async def test_quotas_that_make_no_sense(
    one: Running, subject: str, body: dict[str, Any], code: str
) -> None:
    answer = await one.api.put(f"/v1/quotas/{subject}", json=body)
    assert (answer.status, answer.json()["code"]) == (422, code), answer
    assert (await one.api.get("/v1/quotas")).json() == {"quotas": []}


async def test_what_a_durable_put_begins_with_is_published(one: Running) -> None:
    """11 MB/s went in by PUT at a quota of 20 kB/s."""
    clock = Frozen(one)
    await set_quota(one, "anonymous", publish_bytes=1000)
    path = "/v1/durable-streams/public/s"
    answers = [
        await one.api.call("PUT", f"{path}{n}", data=b"x" * 900, headers=TEXT) for n in range(3)
    ]
    assert [answer.status for answer in answers] == [201, 429, 429]
    refused(answers[1], "anonymous", "publish_bytes", 1000)
    clock.now_s += 10
    await set_quota(one, "namespace:public", publish_bytes=100)
    answers = [
        await one.api.call("PUT", f"{path}n{n}", data=b"x" * 900, headers=TEXT) for n in range(2)
    ]
    assert [answer.status for answer in answers] == [201, 429], "by the owner, for the namespace"


async def test_peeking_is_reading(one: Running) -> None:
    """5 MB/s went out by peek at a quota of 20 kB/s."""
    clock = Frozen(one)
    await one.api.put(f"{TOPIC}/subscriptions/s", json={"start": "earliest"})
    await one.api.post(f"{TOPIC}/messages", b"x" * 5000, "text/plain")
    await set_quota(one, "anonymous", read_bytes=1000)
    peek = f"{TOPIC}/subscriptions/s/peek"
    assert (await one.api.get(peek)).status == 200
    refused(await one.api.get(peek), "anonymous", "read_bytes", 1000)
    clock.now_s += 60
    assert (await one.api.get(peek)).status == 200


async def test_reader_tokens_are_counted_among_what_is_read(one: Running) -> None:
    Frozen(one)
    await set_quota(one, "anonymous", read_bytes=100)
    path = f"{TOPIC}/reader-token"
    assert (await one.api.post(path)).status == 200
    refused(await one.api.post(path), "anonymous", "read_bytes", 100)


class Stepping:
    """Processor time that advances by a fixed step between two looks."""

    def __init__(self, cluster: Running, step_s: float) -> None:
        self.step_s, self.at_s = step_s, 0.0
        for server in cluster.servers:
            server._services.quotas.processor_s = self._look

    def _look(self) -> float:
        self.at_s += self.step_s
        return self.at_s


async def test_processor_time_of_calls_is_paid_by_the_next_call(one: Running) -> None:
    clock = Frozen(one)
    Stepping(one, 0.3)
    await set_quota(one, "anonymous", processor_ms=100)
    assert (await one.api.get(TOPIC)).status == 200
    answer = await one.api.get(TOPIC)
    refused(answer, "anonymous", "processor_ms", 100)
    refused(await one.api.post(f"{TOPIC}/messages", b"x", "text/plain"), "anonymous",
            "processor_ms", 100)  # fmt: skip
    assert (await one.api.get("/healthz")).status == 200
    clock.now_s += 60
    assert (await one.api.get(TOPIC)).status == 200


@pytest.mark.parametrize("subject", ["anonymous", "namespace:public"])
async def test_processor_time_is_paid_where_the_work_is_done(two: Running, subject: str) -> None:
    """Also for a forwarded call; and by its namespace."""
    Frozen(two)
    Stepping(two, 0.3)
    await set_quota(two, subject, processor_ms=100)
    path = f"{WIDE}/partitions/1/messages"
    assert (await two.apis[0].post(path, b"x", "text/plain")).status == 200
    answer = await two.apis[1].post(path, b"x", "text/plain")
    refused(answer, subject, "processor_ms", 100)


@pytest.mark.parametrize("broker", [0, 1])
async def test_memory_of_a_namespace_is_bounded(
    two: Running, monkeypatch: pytest.MonkeyPatch, broker: int
) -> None:
    """At the called broker and at the owner; on the fast path, and in pieces."""
    monkeypatch.setattr(held_bytes, "ROOM_WAIT_S", 0.01)
    assert (await two.api.put("/v1/namespaces/other")).status in (200, 201)
    assert (await two.api.put("/v1/topics/other/one")).status == 201
    await set_quota(two, "namespace:public", memory=1_000)
    api, path = two.apis[broker], f"{WIDE}/partitions/1/messages"

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 100):
            yield b"x" * 100

    for body, status in ((b"x" * 1_000, 200), (b"x" * 1_001, 429), (b"x" * 1_000, 200)):
        answer = await api.post(path, body, "text/plain")
        assert answer.status == status, answer
        if status == 429:
            said = answer.json()
            assert said["code"] == "overloaded"
            assert "namespace:public, whose quota of memory is 1000" in said["detail"]
    assert (await api.call("POST", path, data=pieces(1_000), headers=TEXT)).status == 200
    assert (await api.call("POST", path, data=pieces(1_100), headers=TEXT)).status == 429
    answer = await api.post("/v1/topics/other/one/messages", b"x" * 2_000, "text/plain")
    assert answer.status == 200, "another namespace"
    for server in two.servers:
        await until(lambda s=server: in_use(s._services.held) == {})


async def test_subscriptions_of_a_namespace_are_counted(one: Running) -> None:
    await one.api.put("/v1/topics/public/two")
    await set_quota(one, "namespace:public", subscriptions=2)
    other = "/v1/topics/public/two"
    for name, topic, status in (
        ("a", TOPIC, 201), ("b", other, 201), ("c", TOPIC, 422), ("a", TOPIC, 200),
    ):  # fmt: skip
        answer = await one.api.put(f"{topic}/subscriptions/{name}")
        assert answer.status == status, answer
        if status == 422:
            assert answer.json()["quota"] == "subscriptions"


@pytest.mark.parametrize("subject", ["anonymous", "namespace:public"])
async def test_groups_are_counted(one: Running, subject: str) -> None:
    await set_quota(one, subject, groups=1)
    statuses = []
    for group in ("g", "g", "h"):
        path = f"/v1/groups/public/{group}/members/m"
        answer = await one.api.call("POST", path, json={"topics": ["one"]})
        statuses.append(answer.status)
    assert statuses == [200, 200, 422]


@pytest.mark.parametrize("subject", ["anonymous", "namespace:public"])
async def test_ledgers_of_a_bulk_load_are_published(one: Running, subject: str) -> None:
    clock = Frozen(one)
    await set_quota(one, subject, publish_bytes=1_000)
    stub_bulk_loads(one.brokers["b0"])
    ledger = {"id": 9, "messages": 5, "bytes": 100_000, "first_ms": 0, "last_ms": 0}
    parts = [{"topic": "public/one", "partition": 0, "ledgers": [ledger]}]
    path = "/v1/bulk-loads/load/batches"
    first = await one.api.call("POST", f"{path}/0/commit", json={"parts": parts})
    assert first.status == 200, first
    answer = await one.api.call("POST", f"{path}/1/commit", json={"parts": parts})
    refused(answer, subject, "publish_bytes", 1_000)
    clock.now_s += 100
    again = await one.api.call("POST", f"{path}/0/commit", json={"parts": parts})
    assert again.status == 200, "what was loaded before is not charged again"
    assert (await one.api.post(f"{TOPIC}/messages", b"x", "text/plain")).status == 200


@pytest.mark.parametrize("size", [5_000, 600_000])
async def test_the_body_of_a_message_is_paid_for_at_every_broker(two: Running, size: int) -> None:
    """At the owner, and at the other broker if it was long, nothing was charged to the client."""
    await two.api.post(f"{TOPIC}/messages", b"x" * size, "text/plain")
    Frozen(two)
    await set_quota(two, "anonymous", read_bytes=3000)
    for api in two.apis:
        found = await api.get(f"{TOPIC}/messages/0/body")
        assert (found.status, len(found.body)) == (200, size)
        refused(await api.get(f"{TOPIC}/messages/0/body"), "anonymous", "read_bytes", 3000)


@pytest.mark.parametrize("subject", ["anonymous", "namespace:public"])
async def test_a_body_that_breaks_off_is_paid_for_as_far_as_it_came(
    one: Running, subject: str
) -> None:
    """A client that broke off before the last byte paid nothing."""
    await one.api.post(f"{TOPIC}/messages", b"x" * 4_000_000, "text/plain")
    clock = Frozen(one)
    await set_quota(one, subject, read_bytes=3000)
    host, port = one.servers[0].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    writer.write(f"GET {TOPIC}/messages/0/body HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readexactly(100_000)
    writer.transport.abort()
    clock.now_s += 30
    refused(await one.api.get(f"{TOPIC}/messages/0/body"), subject, "read_bytes", 3000)


async def test_events_of_a_durable_stream_keep_to_the_namespaces_quota(two: Running) -> None:
    """They came as fast as the broker could read: only the first read asked for the quota."""
    path = "/v1/durable-streams/public/told"
    assert (await two.api.put(path, headers=TEXT)).status == 201
    for _ in range(3):
        assert (await two.api.post(path, b"x" * 700_000, "text/plain")).status == 204
    clock = Frozen(two)
    await set_quota(two, "namespace:public", read_bytes=400_000)
    url = f"{two.api.url}{path}?offset=-1&live=sse"
    async with two.api.session.get(url) as response:
        assert response.status == 200
        came = bytearray()

        async def read(until_bytes: int) -> None:
            while len(came) < until_bytes:
                came.extend(await response.content.readany())

        await asyncio.wait_for(read(700_000), 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(800_000), 1)
        clock.now_s += 60  # the longest debt is paid
        async with asyncio.timeout(20):
            await read(1_400_000)
