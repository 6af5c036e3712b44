"""Streams of a partition's messages: server-sent events and NDJSON, while brokers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo.broker.errors import TopicChanged
from octavo.broker.http.api import read
from octavo.broker.http.forwarding import with_owner
from octavo.broker.partition.partition import Partition
from octavo.client.client import AsyncClient
from octavo.protocol.batch import split_batches
from octavo.protocol.records import read_records
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
