"""Streams of messages: events, lines and WebSockets, of partitions and subscriptions, while
brokers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo.broker.errors import OwnerUnreachable, PartitionMoving, TopicChanged
from octavo.broker.http.api import deliveries, push, read
from octavo.broker.http.api.push import Feed
from octavo.broker.http.forwarding import with_owner
from octavo.broker.partition.partition import Partition
from octavo.client.client import AsyncClient
from octavo.client.types import decode_deliveries
from octavo.protocol.batch import split_batches
from octavo.protocol.records import Record, build_batch, read_records
from tests.support.cluster import Cluster, running_cluster
from tests.support.http_api import Api, until

MESSAGES = "/v1/topics/public/t/partitions/0/messages"
EVENTS = {"Accept": "text/event-stream"}
LINES = {"Accept": "application/x-ndjson"}
BATCHES = {"Accept": "application/vnd.kafka.recordbatch.v2"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        async with AsyncClient(found.api.url) as client:
            await client.create_topic("t", partitions=2)
        yield found


async def publish(cluster: Cluster, first: int, count: int) -> None:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
        for number in range(first, first + count):
            await client.publish("t", {"n": number}, partition=0)


class Reader:
    def __init__(self, api: Api, query: str = "", **headers: str) -> None:
        self.session = aiohttp.ClientSession()
        self.url = f"{api.url}{MESSAGES}{query}"
        self.headers = headers
        self.status = 0
        self.body = b""
        self.answer_headers: Any = {}
        self.ended: BaseException | None = None
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reader:
        self.task = asyncio.create_task(self._read())
        await until(lambda: self.status or self.ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.session.close()

    async def _read(self) -> None:
        try:
            async with self.session.get(self.url, headers=self.headers) as response:
                self.answer_headers = response.headers
                self.status = response.status
                async for piece in response.content.iter_any():
                    self.body += piece
        except BaseException as error:
            self.ended = error
            raise

    @property
    def events(self) -> list[dict[str, str]]:
        return [
            dict(line.split(": ", 1) for line in block.split("\n"))
            for block in self.body.decode().split("\n\n")[:-1]
            if not block.startswith(":")
        ]

    @property
    def offsets(self) -> list[int]:
        return [int(one["id"]) for one in self.events if "id" in one]

    @property
    def values(self) -> list[Any]:
        """Return the values of record batches, in order; check that offsets are dense."""
        found: list[Any] = []
        for header, batch in split_batches(self.body):
            assert header.base_offset == len(found)
            found += [json.loads(bytes(record.value or b"")) for record in read_records(batch)]
        return found

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.split(b"\n")[:-1]]


async def owner_and_other(cluster: Cluster) -> tuple[str, str]:
    owner = await cluster.owner_of("/v1/topics/public/t/partitions/0")
    name = next(one for one, api in cluster.apis.items() if one == owner or api.url == owner)
    return name, next(one for one in cluster.apis if one != name)


@pytest.mark.parametrize("at_owner", [True, False])
async def test_what_is_there_and_what_comes(cluster: Cluster, at_owner: bool) -> None:
    await publish(cluster, 0, 5)
    owner, other = await owner_and_other(cluster)
    api = cluster.apis[owner if at_owner else other]
    async with Reader(api, **EVENTS) as events, Reader(api, "?follow=true", **LINES) as lines:
        assert events.status == lines.status == 200
        assert events.answer_headers["Content-Type"] == "text/event-stream"
        assert events.answer_headers["Cache-Control"] == "no-store"
        assert events.answer_headers["Octavo-Owner"] == cluster.apis[owner].url
        await until(lambda: len(events.events) == 5 and len(lines.lines) == 5)
        await publish(cluster, 5, 3)
        await until(lambda: len(events.events) == 8 and len(lines.lines) == 8)
        assert events.offsets == [*range(8)]
        assert [json.loads(one["data"]) for one in events.events] == lines.lines
        assert [one["value"]["n"] for one in lines.lines] == [*range(8)]
        read = await cluster.api.get(MESSAGES)
        assert read.json()["messages"] == lines.lines


@pytest.mark.parametrize("at_owner", [True, False])
async def test_batches_as_stored(cluster: Cluster, at_owner: bool) -> None:
    await publish(cluster, 0, 5)
    owner, other = await owner_and_other(cluster)
    api = cluster.apis[owner if at_owner else other]
    async with Reader(api, "?follow=true", **BATCHES) as reader:
        assert reader.status == 200
        assert reader.answer_headers["Content-Type"] == BATCHES["Accept"]
        assert reader.answer_headers["Octavo-Owner"] == cluster.apis[owner].url
        await until(lambda: len(reader.values) == 5)
        await publish(cluster, 5, 3)
        await until(lambda: len(reader.values) == 8)
        assert reader.values == [{"n": n} for n in range(8)]
        assert (await cluster.api.get(MESSAGES, headers=BATCHES)).body == reader.body


async def test_a_stream_of_batches_ends_where_nothing_comes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "LIVES_S", 0.2)
    await publish(cluster, 0, 1)
    async with Reader(cluster.api, "?follow=true&from=latest", **BATCHES) as reader:
        assert reader.task is not None
        await reader.task
        assert (reader.status, reader.body, reader.ended) == (200, b"", None)
    monkeypatch.setattr(read, "LIVES_S", 20.0)
    async with Reader(cluster.api, "?follow=true", **BATCHES) as reader:
        await until(lambda: reader.values == [{"n": 0}])
        async with AsyncClient(cluster.api.url) as client:
            await client.delete_topic("t")
        assert reader.task is not None
        await asyncio.wait_for(reader.task, 20)
        assert reader.values == [{"n": 0}]
    answer = await cluster.api.get(f"{MESSAGES}?follow=true&from=1", headers=BATCHES)
    assert (answer.status, answer.json()["code"]) == (404, "topic-not-found")


async def test_a_stream_of_batches_ends_where_its_partition_went(cluster: Cluster) -> None:
    await publish(cluster, 0, 2)
    owner, other = await owner_and_other(cluster)
    async with Reader(cluster.apis[other], "?follow=true", **BATCHES) as reader:
        await until(lambda: len(reader.values) == 2)
        await cluster.stop_broker(owner)
        await publish(cluster, 2, 1)
        assert reader.task is not None
        await asyncio.wait_for(reader.task, 20)
        assert reader.ended is None
        assert reader.values == [{"n": n} for n in range(len(reader.values))]


async def test_an_event_id_resumes(cluster: Cluster) -> None:
    await publish(cluster, 0, 6)
    async with Reader(cluster.api, "?from=1", **EVENTS, **{"Last-Event-ID": "3"}) as reader:
        await until(lambda: reader.offsets == [4, 5])
    async with Reader(cluster.api, **EVENTS, **{"Last-Event-ID": "5"}) as reader:
        await publish(cluster, 6, 1)
        await until(lambda: reader.offsets == [6])
    async with Reader(cluster.api, "?from=latest", **EVENTS) as reader:
        await publish(cluster, 7, 1)
        await until(lambda: reader.offsets == [7])


@pytest.mark.parametrize(
    ("query", "headers", "status", "code"),
    [
        ("", {"Last-Event-ID": "99"}, 416, "offset-beyond-end"),
        ("", {"Last-Event-ID": "-1"}, 400, "invalid-header"),
        ("", {"Last-Event-ID": "é"}, 400, "invalid-header"),
        ("", {"Last-Event-ID": "9" * 30}, 400, "invalid-header"),
        ("?compacted=true", {}, 400, "invalid-parameter"),
        ("?from=nowhere", {}, 400, "invalid-parameter"),
    ],
)
async def test_refused_before_it_begins(
    cluster: Cluster, query: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await cluster.api.get(MESSAGES + query, headers={**EVENTS, **headers})
    assert (answer.status, answer.json()["code"]) == (status, code)


async def test_an_answer_with_an_end_is_not_followed(cluster: Cluster) -> None:
    answer = await cluster.api.get(f"{MESSAGES}?follow=true", headers={"Accept": "*/*"})
    assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")
    answer = await cluster.api.get("/v1/topics/public/t/messages", headers=EVENTS)
    assert answer.json()["code"] == "partition-required"


@pytest.mark.long
async def test_it_goes_on_through_a_killed_owner(cluster: Cluster) -> None:
    await publish(cluster, 0, 3)
    owner, other = await owner_and_other(cluster)
    async with Reader(cluster.apis[other], **EVENTS) as reader:
        await until(lambda: len(reader.events) == 3)
        running = cluster.brokers[owner]
        server = running.server
        assert server is not None
        await running.vanish()
        await server._cut_off()
        cluster.apis.pop(owner)
        await publish(cluster, 3, 5)
        await until(lambda: len(reader.events) == 8, 20)
        assert reader.offsets == [*range(8)]
        assert [json.loads(one["data"])["value"]["n"] for one in reader.events] == [*range(8)]
        assert reader.ended is None


async def test_a_deleted_topic_is_the_last_word(cluster: Cluster) -> None:
    await publish(cluster, 0, 2)
    async with (
        Reader(cluster.api, **EVENTS) as events,
        Reader(cluster.api, "?follow=true", **LINES) as lines,
    ):
        await until(lambda: len(events.events) == 2 and len(lines.lines) == 2)
        async with AsyncClient(cluster.api.url) as client:
            await client.delete_topic("t")
            await client.create_topic("t", partitions=2)
            await client.publish("t", "of another topic", partition=0)
        await until(lambda: len(events.events) == 3 and len(lines.lines) == 3, 20)
        assert events.events[2]["event"] == "problem"
        for problem in (json.loads(events.events[2]["data"]), lines.lines[2]["problem"]):
            assert problem["status"] in (404, 409)
            assert not problem["retryable"]
        assert events.task is not None
        await events.task


@pytest.mark.parametrize("looked", [True, False])
async def test_another_topic_of_the_name(
    cluster: Cluster, looked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(cluster, 0, 1)
    async with Reader(cluster.api, **EVENTS) as reader:
        await until(lambda: len(reader.events) == 1)
        faults = iter([TopicChanged("another topic of the name", looked=looked)])

        async def changed(*given: Any, **how: Any) -> Any:
            if (fault := next(faults, None)) is not None:
                raise fault
            return await with_owner(*given, **how)

        monkeypatch.setattr("octavo.broker.http.api.read.with_owner", changed)
        await publish(cluster, 1, 2)
        if looked:
            await until(lambda: "event" in reader.events[-1])
            assert json.loads(reader.events[-1]["data"])["code"] == "topic-replaced"
        else:
            await until(lambda: reader.offsets == [0, 1, 2])


async def test_a_broker_that_stops_ends_its_streams_at_once(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    _, other = await owner_and_other(cluster)
    async with Reader(cluster.apis[other], **EVENTS) as reader:
        await until(lambda: len(reader.events) == 1)
        began = time.monotonic()
        await cluster.stop_broker(other)
        assert reader.task is not None
        await reader.task
        assert time.monotonic() - began < 2
        last = json.loads(reader.events[-1]["data"])
        assert (reader.events[-1]["event"], last["code"], last["retryable"]) == (
            "problem", "stopping", True,
        )  # fmt: skip
    async with Reader(cluster.api, **EVENTS, **{"Last-Event-ID": "0"}) as reader:
        await publish(cluster, 1, 1)
        await until(lambda: reader.offsets == [1])


async def test_readers_at_the_end_share_what_comes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(cluster, 0, 1)
    owner, _ = await owner_and_other(cluster)
    reads: list[int] = []
    read = Partition.read

    async def counted(self: Partition, offset: int, **how: Any) -> Any:
        reads.append(offset)
        return await read(self, offset, **how)

    monkeypatch.setattr(Partition, "read", counted)
    readers = [Reader(cluster.apis[owner], **EVENTS) for _ in range(20)]
    await asyncio.gather(*(reader.__aenter__() for reader in readers))
    await until(lambda: all(reader.offsets == [0] for reader in readers))
    await asyncio.sleep(0.1)
    assert reads.count(1) == 1, "all wait for one page"
    await publish(cluster, 1, 1)
    await until(lambda: all(reader.offsets == [0, 1] for reader in readers))
    assert reads.count(2) == 1
    await asyncio.gather(*(reader.__aexit__() for reader in readers))


async def test_a_quiet_partition_says_that_it_lives(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "LIVES_S", 0.05)
    async with Reader(cluster.api, **EVENTS) as reader:
        await until(lambda: reader.body.count(b": nothing new\n\n") > 3)
        assert reader.events == []


async def test_a_reader_who_takes_nothing_is_cut_off(cluster: Cluster) -> None:
    await cluster.start_broker("impatient", stall_timeout_ms=300)
    async with AsyncClient(cluster.api.url) as client:
        await client.publish_many("t", [("k0", b"x" * 500_000) for _ in range(40)])
        partition = (await client.publish("t", b"x", key="k0")).partition
    path = f"/v1/topics/public/t/partitions/{partition}/messages"
    host, port = cluster.apis["impatient"].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())
    server = cluster.brokers["impatient"].server
    assert server is not None
    await until(lambda: server._services.streams.taken == 1)
    await until(lambda: server._services.streams.taken == 0, 20)
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass
    writer.close()


async def test_no_more_streams_than_there_may_be(cluster: Cluster) -> None:
    api = await cluster.start_broker("small", streams_max=1)
    async with Reader(api, **EVENTS) as reader:
        assert reader.status == 200
        assert b"octavo_http_streams 1.0" in (await api.get("/metrics")).body
        answer = await api.get(MESSAGES, headers=EVENTS)
        assert (answer.status, answer.json()["code"]) == (503, "too-many-streams")
        assert (await api.get(MESSAGES)).status == 204
    await until(lambda: cluster.brokers["small"].server._services.streams.taken == 0)  # type: ignore[union-attr]
    ended = b'octavo_http_requests_total{call="follow",status="499"} 1.0'
    figures = (await api.get("/metrics")).body
    assert ended in figures, "its life is no time that a read took"
    assert b"octavo_http_streams 0.0" in figures
    async with Reader(api, **EVENTS) as reader:
        assert reader.status == 200


TOPIC = "/v1/topics/public/t"
SUB = f"{TOPIC}/subscriptions/s"
STREAM = f"{SUB}/stream"
BATCHES_PUSH = "application/vnd.kafka.recordbatch.v2"


@pytest.fixture
async def cluster_push(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        async with AsyncClient(found.api.url) as client:
            await client.create_topic("t", partitions=2)
            await client.subscribe("t", "s", type="shared", ack_timeout_s=60)
        yield found


async def publish_push(cluster: Cluster, first: int, count: int, partition: int | None = 0) -> None:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as client:
        for number in range(first, first + count):
            await client.publish("t", {"n": number}, partition=partition)


async def ack(cluster: Cluster, *ack_ids: str, **body: Any) -> Any:
    data = json.dumps({"ack_ids": ack_ids, **body}).encode()
    return await cluster.api.post(f"{SUB}/ack", data, "application/json")


async def figures(cluster: Cluster) -> Any:
    return (await cluster.api.get(SUB)).json()


async def owner_and_other_push(cluster: Cluster) -> tuple[str, str]:
    owner = await cluster.owner_of(f"{TOPIC}/partitions/0")
    name = next(one for one, api in cluster.apis.items() if one == owner or api.url == owner)
    return name, next(one for one in cluster.apis if one != name)


async def kill(cluster: Cluster, name: str) -> None:
    running = cluster.brokers[name]
    server = running.server
    assert server is not None
    await running.vanish()
    await server._cut_off()
    cluster.apis.pop(name)


class ReaderPush:
    def __init__(self, api: Api, path: str = STREAM, **headers: str) -> None:
        self.url = api.url + path
        self.headers = headers
        self.status = 0
        self.body = b""
        self.kind = ""
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ReaderPush:
        self.task = asyncio.create_task(self._read())
        await until(lambda: self.status or self.task.done())  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _read(self) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url, headers=self.headers) as response,
        ):
            self.kind = response.headers["Content-Type"]
            self.status = response.status
            async for piece in response.content.iter_any():
                self.body += piece

    @property
    def found(self) -> list[Any]:
        if self.kind == "application/x-ndjson":
            return [json.loads(line) for line in self.body.split(b"\n")[:-1]]
        blocks = self.body.decode().split("\n\n")[:-1]
        return [json.loads(one.rpartition("data: ")[2]) for one in blocks if one[0] != ":"]

    @property
    def offsets(self) -> list[int]:
        return [one["offset"] for one in self.found]


@asynccontextmanager
async def connected(
    api: Api, query: str = "", path: str = STREAM, **how: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(api.url + path + query, max_msg_size=0, **how) as found,
    ):
        yield found


async def messages(ws: aiohttp.ClientWebSocketResponse, count: int) -> list[Any]:
    """Return this many messages, in any number of frames; no other frame comes between."""
    found: list[Any] = []
    while len(found) < count:
        found += (await ws.receive_json(timeout=20))["messages"]
    return found


@pytest.mark.parametrize("at_owner", [True, False])
@pytest.mark.parametrize("kind", [EVENTS, LINES])
async def test_what_is_there_and_what_comes_of_a_subscription(
    cluster_push: Cluster, at_owner: bool, kind: dict[str, str]
) -> None:
    await publish_push(cluster_push, 0, 5)
    owner, other = await owner_and_other_push(cluster_push)
    async with ReaderPush(cluster_push.apis[owner if at_owner else other], **kind) as reader:
        await until(lambda: len(reader.found) == 5)
        await publish_push(cluster_push, 5, 3)
        await until(lambda: len(reader.found) == 8)
        assert [one["value"]["n"] for one in reader.found] == [*range(8)]
        assert {one["delivery_count"] for one in reader.found} == {1}
        answer = await ack(cluster_push, *(one["ack_id"] for one in reader.found))
        assert answer.json() == {"acked": 8}
        await publish_push(cluster_push, 8, 4, partition=1)
        await until(lambda: len(reader.found) == 12)
        assert (await figures(cluster_push))["leased"] == 4


async def test_no_more_is_out_than_there_are_credits(cluster_push: Cluster) -> None:
    await publish_push(cluster_push, 0, 10)
    async with ReaderPush(cluster_push.api, f"{STREAM}?credits=3", **LINES) as reader:
        await until(lambda: len(reader.found) == 3)
        await asyncio.sleep(0.2)
        assert reader.offsets == [0, 1, 2]
        await ack(cluster_push, reader.found[1]["ack_id"])
        await until(lambda: reader.offsets == [0, 1, 2, 3])
        await ack(cluster_push, nack=[reader.found[0]["ack_id"]])
        await until(lambda: len(reader.found) == 5)
        assert (reader.found[4]["offset"], reader.found[4]["delivery_count"]) == (0, 2)


async def test_two_streams_share(cluster_push: Cluster) -> None:
    async with (
        ReaderPush(cluster_push.api, **LINES) as one,
        ReaderPush(cluster_push.api, **LINES) as other,
    ):
        await publish_push(cluster_push, 0, 40)
        await until(lambda: len(one.found) + len(other.found) == 40)
        assert sorted(one.offsets + other.offsets) == [*range(40)]
        consumers = (await figures(cluster_push))["partitions"][0]["consumers"]
        assert len({one["name"] for one in consumers}) == 2


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        (f"{TOPIC}/subscriptions/none/stream", {}, 404, "subscription-not-found"),
        ("/v1/topics/public/none/subscriptions/s/stream", {}, 404, "topic-not-found"),
        (f"{TOPIC}/partitions/7/subscriptions/s/stream", {}, 404, "partition-not-found"),
        (f"{STREAM}?credits=0", {}, 400, "invalid-parameter"),
        (f"{STREAM}?credits=10001", {}, 400, "invalid-parameter"),
        (f"{STREAM}?form=batches", {}, 400, "invalid-parameter"),
        (STREAM, {"Accept": "image/png"}, 406, "not-acceptable"),
        (STREAM, {"Origin": "http://elsewhere.example"}, 403, "foreign-origin"),
        (STREAM, {"Accept": "image/webp,*/*;q=0.8"}, 403, "foreign-origin"),
        (STREAM, {"User-Agent": "Mozilla/5.0 (X11)"}, 403, "foreign-origin"),
        (STREAM, {"Upgrade": "websocket", "Connection": "Upgrade"}, 400, "invalid-upgrade"),
        (
            STREAM,
            {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-Fetch-Site": "cross-site"},
            403,
            "foreign-origin",
        ),
    ],
)
async def test_refused_before_it_begins_of_a_subscription(
    cluster_push: Cluster, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    await publish_push(cluster_push, 0, 1)
    answer = await cluster_push.api.get(path, headers=headers)
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert (await figures(cluster_push))["leased"] == 0


async def test_an_exclusive_subscription_has_one_consumer(cluster_push: Cluster) -> None:
    path = f"{TOPIC}/partitions/0/subscriptions/mine/stream"
    async with AsyncClient(cluster_push.api.url) as client:
        await client.subscribe("t", "mine", type="exclusive")
    await publish_push(cluster_push, 0, 2)
    async with ReaderPush(cluster_push.api, path, **LINES) as reader:
        await until(lambda: reader.offsets == [0, 1])
        answer = await cluster_push.api.get(f"{path}?consumer=another", headers=LINES)
        assert (answer.status, answer.json()["code"]) == (409, "subscription-busy")
        async with ReaderPush(cluster_push.api, path, **LINES) as again:
            await publish_push(cluster_push, 2, 1)
            await until(lambda: sorted(reader.offsets + again.offsets) == [0, 1, 2])


@pytest.mark.parametrize("at_owner", [True, False])
async def test_a_socket(cluster_push: Cluster, at_owner: bool) -> None:
    await publish_push(cluster_push, 0, 5)
    owner, other = await owner_and_other_push(cluster_push)
    async with connected(cluster_push.apis[owner if at_owner else other], "?credits=4") as ws:
        found = await messages(ws, 4)
        assert [one["value"]["n"] for one in found] == [0, 1, 2, 3]
        lease = found[0]["ack_id"].split("-", 2)[2]
        await ws.send_json({"ack_ids": [f"0-0:2-{lease}"], "request": [1]})
        told = [await ws.receive_json(timeout=20) for _ in range(2)]
        assert {"acked": 2, "request": [1]} in told
        (last,) = next(one["messages"] for one in told if "messages" in one)
        assert last["offset"] == 4
        nack = {"nack": [found[2]["ack_id"]], "extend": [found[3]["ack_id"]]}
        await ws.send_json(nack)
        told = [await ws.receive_json(timeout=20) for _ in range(2)]
        assert {"acked": 0} in told
        (again,) = next(one["messages"] for one in told if "messages" in one)
        assert (again["offset"], again["delivery_count"]) == (2, 2)
        await ws.send_json({"ack_ids": [found[2]["ack_id"]], "request": 2})
        refused = await ws.receive_json(timeout=20)
        assert (refused["request"], refused["problem"]["code"]) == (2, "stale-lease")
        assert refused["problem"]["stale"] == [found[2]["ack_id"]]
    await until_acked(cluster_push, 2)


async def test_acks_that_came_before_the_end_take_effect(cluster_push: Cluster) -> None:
    await publish_push(cluster_push, 0, 100)
    async with connected(cluster_push.api) as ws:
        for one in await messages(ws, 100):
            await ws.send_json({"ack_ids": [one["ack_id"]]})
    await until_acked(cluster_push, 100)


async def until_acked(cluster: Cluster, count: int) -> None:
    """Check that this many are acked, and all others given back, long before their leases end."""
    for _ in range(100):
        found = (await figures(cluster))["partitions"][0]
        if (found["committed_offset"], found["leased"]) == (count, 0):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(found)


@pytest.mark.parametrize("at_owner", [True, False])
async def test_batches_as_stored_of_a_subscription(cluster_push: Cluster, at_owner: bool) -> None:
    odd = [Record(b"k", b"\xff", [("h", None)], 5), Record(None, None, (), 6)]
    path = f"{TOPIC}/partitions/0/messages"
    for _ in range(2):
        await cluster_push.api.post(path, build_batch(odd), BATCHES_PUSH)
    owner, other = await owner_and_other_push(cluster_push)
    api = cluster_push.apis[owner if at_owner else other]
    async with connected(api, "?form=batches") as ws:
        frame = await ws.receive_bytes(timeout=20)
        length = int.from_bytes(frame[:4], "big")
        head = json.loads(frame[4 : 4 + length])
        found, _ = decode_deliveries(head, frame[4 + length :])
        assert [(one.offset, one.key, one.value) for one in found] == [
            (0, b"k", b"\xff"), (1, None, None), (2, b"k", b"\xff"), (3, None, None),
        ]  # fmt: skip
        await ws.send_json({"ack_ids": [f"0-0:4-{head['Octavo-Lease']}"]})
        assert await ws.receive_json(timeout=20) == {"acked": 4}


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x00\x01", aiohttp.WSCloseCode.UNSUPPORTED_DATA),
        ("{", aiohttp.WSCloseCode.INVALID_TEXT),
        ("[]", aiohttp.WSCloseCode.INVALID_TEXT),
        ('{"acks": []}', aiohttp.WSCloseCode.INVALID_TEXT),
        ("[" * 100_000, aiohttp.WSCloseCode.INVALID_TEXT),
        ('"' + "x" * 2_000_000 + '"', aiohttp.WSCloseCode.MESSAGE_TOO_BIG),
    ],
)
async def test_rubbish_ends_a_socket(cluster_push: Cluster, frame: Any, code: int) -> None:
    await publish_push(cluster_push, 0, 3)
    async with connected(cluster_push.api) as ws:
        await messages(ws, 3)
        await (ws.send_bytes(frame) if isinstance(frame, bytes) else ws.send_str(frame))
        end = await ws.receive(timeout=20)
        assert end.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), end
        assert ws.close_code == code
    await until_acked(cluster_push, 0)


async def test_what_makes_no_sense_is_said_and_ends_nothing(cluster_push: Cluster) -> None:
    async with connected(cluster_push.api) as ws:
        for body, code in (
            ({"ack_ids": ["x"]}, "invalid-ack-id"),
            ({"ack_ids": ["9-0-1-1"]}, "invalid-ack-id"),
            ({"ack_ids": ["0-0-1-1"]}, "stale-lease"),
            ({"up_to": 3}, "invalid-body"),
        ):
            await ws.send_json({**body, "request": code})
            said = await ws.receive_json(timeout=20)
            assert (said["request"], said["problem"]["code"]) == (code, code)


@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "batches"])
async def test_a_socket_goes_on_through_a_killed_owner(cluster_push: Cluster, form: str) -> None:
    await publish_push(cluster_push, 0, 3)
    owner, other = await owner_and_other_push(cluster_push)
    seen: list[int] = []
    async with connected(cluster_push.apis[other], f"?form={form}&credits=5") as ws:

        async def work() -> None:
            async for frame in ws:
                if frame.type is aiohttp.WSMsgType.BINARY:
                    at = 4 + int.from_bytes(frame.data[:4], "big")
                    found, _ = decode_deliveries(json.loads(frame.data[4:at]), frame.data[at:])
                    told = [(one.offset, one.ack_id) for one in found]
                else:
                    given = json.loads(frame.data).get("messages", ())
                    told = [(one["offset"], one["ack_id"]) for one in given]
                for offset, ack_id in told:
                    seen.append(offset)
                    await ws.send_json({"ack_ids": [ack_id]})

        task = asyncio.create_task(work())
        await until(lambda: len(seen) == 3)
        await until_acked(cluster_push, 3)
        await kill(cluster_push, owner)
        await publish_push(cluster_push, 3, 20)
        await until(lambda: set(seen) == set(range(23)), 20)
        assert seen == [*range(23)], "what was acked came once, in order"
        task.cancel()


async def test_an_answer_that_was_lost_is_asked_for_again(
    cluster_push: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_push(cluster_push, 0, 3)
    lost: list[Any] = []

    async def ask(self: Feed, *given: Any) -> Any:
        found = await _ask(self, *given)
        if found is not None and not lost:
            lost.append(found)
            raise OwnerUnreachable("its answer was lost")
        return found

    _ask = Feed._ask
    monkeypatch.setattr(Feed, "_ask", ask)
    async with ReaderPush(cluster_push.api, **LINES) as reader:
        await until(lambda: len(reader.found) == 3)
        assert len(lost) == 1
        assert {one["delivery_count"] for one in reader.found} == {1}


async def test_acks_over_a_socket_wait_for_a_partition_that_moves(
    cluster_push: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_push(cluster_push, 0, 3)
    faults = iter([OwnerUnreachable("gone"), PartitionMoving("not yet")])

    async def apply_all(*given: Any) -> int:
        if (fault := next(faults, None)) is not None:
            raise fault
        return await deliveries.apply_all(*given)

    monkeypatch.setattr(push, "apply_all", apply_all)
    async with connected(cluster_push.api) as ws:
        ack_ids = [one["ack_id"] for one in await messages(ws, 3)]
        await ws.send_json({"ack_ids": ack_ids})
        assert await ws.receive_json(timeout=20) == {"acked": 3}


async def test_events_go_on_through_a_killed_owner(cluster_push: Cluster) -> None:
    await publish_push(cluster_push, 0, 3)
    owner, other = await owner_and_other_push(cluster_push)
    async with ReaderPush(cluster_push.apis[other], **EVENTS) as reader:
        await until(lambda: len(reader.found) == 3)
        await ack(cluster_push, *(one["ack_id"] for one in reader.found))
        await kill(cluster_push, owner)
        await publish_push(cluster_push, 3, 5)
        await until(lambda: len(reader.found) == 8, 20)
        assert [one["value"]["n"] for one in reader.found] == [*range(8)]


async def test_a_deleted_topic_is_the_last_word_of_a_subscription(cluster_push: Cluster) -> None:
    await publish_push(cluster_push, 0, 1)
    async with (
        ReaderPush(cluster_push.api, **EVENTS) as events,
        connected(cluster_push.api) as ws,
    ):
        await until(lambda: len(events.found) == 1)
        async with AsyncClient(cluster_push.api.url) as client:
            await client.delete_topic("t")
        assert events.task is not None
        await events.task
        assert events.found[1]["status"] in (404, 409)
        problem = (await ws.receive_json(timeout=20))["problem"]
        assert problem["status"] in (404, 409)
        await ws.receive(timeout=20)
        assert ws.close_code == 4000


async def test_a_broker_that_stops_says_so_and_gives_back(cluster_push: Cluster) -> None:
    await publish_push(cluster_push, 0, 4)
    _, other = await owner_and_other_push(cluster_push)
    async with (
        ReaderPush(cluster_push.apis[other], f"{STREAM}?credits=2", **EVENTS) as events,
        connected(cluster_push.apis[other]) as ws,
    ):
        await until(lambda: len(events.found) == 2)
        await messages(ws, 2)
        await cluster_push.stop_broker(other)
        assert (await ws.receive_json(timeout=5))["problem"]["code"] == "stopping"
        end = await ws.receive(timeout=5)
        assert (end.data, end.extra) == (aiohttp.WSCloseCode.GOING_AWAY, "this broker stops")
        assert events.task is not None
        await events.task
        assert events.found[-1]["code"] == "stopping"
    found = (await figures(cluster_push))["partitions"][0]
    assert found["leased"] == 2, "those of the events may still be acked"


async def test_leases_end_also_in_a_stream(cluster_push: Cluster) -> None:
    async with AsyncClient(cluster_push.api.url) as client:
        await client.subscribe("t", "short", type="shared", ack_timeout_s=1)
    await publish_push(cluster_push, 0, 1)
    path = f"{TOPIC}/subscriptions/short/stream?credits=1"
    async with ReaderPush(cluster_push.api, path, **LINES) as reader:
        await until(lambda: len(reader.found) == 2, 20)
        assert [one["delivery_count"] for one in reader.found] == [1, 2]


@pytest.mark.parametrize("upgraded", [True, False])
async def test_who_takes_nothing_is_cut_off(cluster_push: Cluster, upgraded: bool) -> None:
    await cluster_push.start_broker("impatient", stall_timeout_ms=300)
    async with AsyncClient(cluster_push.api.url) as client:
        await client.publish_many("t", [(None, b"x" * 500_000) for _ in range(60)])
    host, port = cluster_push.apis["impatient"].url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    _, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    head = f"GET {STREAM} HTTP/1.1\r\nHost: x\r\n{upgrade if upgraded else ''}\r\n"
    writer.write(head.encode())
    server = cluster_push.brokers["impatient"].server
    assert server is not None
    places = server._services.streams
    await until(lambda: places.taken == 1)
    await until(lambda: places.taken == 0, 20)
    assert server._services.held._held == 0
    found = await figures(cluster_push)
    assert found["redelivering"] > 0, "what was not sent"
    assert found["leased"] == 0 or not upgraded
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_no_more_streams_than_there_may_be_of_a_subscription(cluster_push: Cluster) -> None:
    api = await cluster_push.start_broker("small", streams_max=1)
    async with connected(api):
        assert b"octavo_http_streams 1.0" in (await api.get("/metrics")).body
        answer = await api.get(STREAM)
        assert (answer.status, answer.json()["code"]) == (503, "too-many-streams")
    await until(lambda: cluster_push.brokers["small"].server._services.streams.taken == 0)  # type: ignore[union-attr]
    ended = b'octavo_http_requests_total{call="stream",status="101"} 1.0'
    assert ended in (await api.get("/metrics")).body


async def test_a_client_that_does_not_mask_is_hung_up_on(cluster_push: Cluster) -> None:
    """RFC 6455, 5.1; earlier masked frames have taken effect, and no later frames."""
    await publish_push(cluster_push, 0, 3)
    host, port = cluster_push.api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET {STREAM} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    head = await reader.readexactly(2)
    size = head[1]
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    told = json.loads(await reader.readexactly(size))["messages"]
    command = json.dumps({"ack_ids": [told[0]["ack_id"]]}).encode()
    masked = bytes((0x81, 0x80 | len(command), 0, 0, 0, 0)) + command
    writer.write(masked + bytes((0x81, len(command))) + command.replace(b"0-0-", b"0-1-"))
    rest = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert rest.endswith(b"\x88\x02" + (1002).to_bytes(2, "big"))
    for _ in range(100):
        found = await figures(cluster_push)
        if not found["leased"]:
            break
        await asyncio.sleep(0.05)
    assert (found["leased"], found["backlog"]) == (0, 2)
