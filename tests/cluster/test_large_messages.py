"""A message of many megabytes: uploaded in pieces, seen whole or not at all, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tracemalloc
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession, ClientTimeout
from crc32c import crc32c
from typer.testing import CliRunner

from octavo.broker.log.orphan_ledgers import label_of, may_go, named_ledgers
from octavo.broker.operations.large import HELD_BYTES, HELD_BYTES_MIN
from octavo.broker.partition.large import PIECES_UNDER_WAY_MAX
from octavo.broker.types import TopicName
from octavo.cli.main import app
from octavo.cli.options import BadOption
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, InvalidCall, NotFound
from octavo.client.sync import Client
from octavo.client.transport import Transport
from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.topics import PartitionRecord, TopicStore
from octavo.protocol.batch import split_batches
from octavo.protocol.large import PIECE_BYTES
from octavo.protocol.records import read_records
from tests.cluster.test_forks import BATCH, forked
from tests.support.cluster import Cluster, owned, running_cluster, until
from tests.support.keys import key_file, key_of

ONE = "/v1/topics/public/one"
SUB = ONE + "/subscriptions/s"
BODY = random.Random(1).randbytes(3 * PIECE_BYTES + 12_345)
PIECES = 4


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


async def in_parts(body: bytes, size: int = 200_000) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def uploaded(
    cluster: Cluster, body: bytes = BODY, path: str = ONE, **headers: str
) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await cluster.api.call("POST", path + "/large", data=in_parts(body), headers=named)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


async def plain(cluster: Cluster, value: str, path: str = ONE) -> int:
    answer = await cluster.api.post(path + "/messages", json={"value": value})
    assert answer.status == 200, answer
    offset: int = answer.json()["first"]["offset"]
    return offset


async def body_at(cluster: Cluster, offset: Any, path: str = ONE) -> bytes:
    answer = await cluster.api.get(f"{path}/messages/{offset}/body")
    assert answer.status == 200, answer
    found: bytes = answer.body
    return found


async def shown(cluster: Cluster, path: str = ONE, start: int = 0) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    at = start
    while (answer := await cluster.api.get(f"{path}/messages?from={at}")).status == 200:
        found += [
            (one["offset"], one["large"]["size"] if "large" in one else one["value"])
            for one in answer.json()["messages"]
        ]
        at = answer.json()["next_offset"]
    assert answer.status == 204, answer
    offsets: list[int] = []
    at = start
    while (
        answer := await cluster.api.get(f"{path}/messages?from={at}", headers={"Accept": BATCH})
    ).status == 200:
        for header, data in split_batches(answer.body):
            offsets += [header.base_offset + n for n, _ in enumerate(read_records(bytes(data)))]
        at = int(answer.headers["Next-Offset"])
    assert offsets == [offset for offset, _ in found]
    return found


async def received(cluster: Cluster, sub: str = SUB, **how: Any) -> list[dict[str, Any]]:
    answer = await cluster.api.post(f"{sub}/receive?max=1000&wait=200ms", **how)
    assert answer.status in (200, 204), answer
    return list(answer.json()["messages"]) if answer.status == 200 else []


async def acked(cluster: Cluster, messages: list[dict[str, Any]], sub: str = SUB) -> None:
    ids = [one["ack_id"] for one in messages]
    assert (await cluster.api.post(sub + "/ack", json={"ack_ids": ids})).status == 200


def all_bytes_below(folder: Path) -> list[bytes]:
    return [one.read_bytes() for one in folder.rglob("*") if one.is_file()]


async def ledgers(cluster: Cluster) -> list[int]:
    return await next(iter(cluster.brokers.values())).ledgers.list()


async def test_it_is_one_message_for_readers_and_its_body_comes_back(cluster: Cluster) -> None:
    assert await plain(cluster, "before") == 0
    found = await uploaded(cluster, Octavo_Key="k", Octavo_Header_Kind="film")
    assert found["size"] == len(BODY)
    assert found["pieces"] == PIECES
    assert found["crc32c"] == f"{crc32c(BODY):08x}"
    assert found["offset"] == 1 + PIECES
    assert await plain(cluster, "after") == found["offset"] + 1
    assert await shown(cluster) == [
        (0, "before"), (found["offset"], len(BODY)), (found["offset"] + 1, "after")
    ]  # fmt: skip
    answer = await cluster.api.get(f"{ONE}/messages?from={found['offset']}&limit=1")
    (message,) = answer.json()["messages"]
    assert (message["key"], message["headers"]["kind"]) == ("k", "film")
    assert message["id"] == found["id"]
    for place in (found["offset"], found["id"]):
        assert await body_at(cluster, place) == BODY
    assert await body_at(cluster, 0) == b'"before"'


async def test_reading_from_amid_its_pieces_gives_the_message(cluster: Cluster) -> None:
    found = await uploaded(cluster)
    for start in range(found["offset"] + 1):
        assert await shown(cluster, start=start) == [(found["offset"], len(BODY))]
    answer = await cluster.api.get(f"{ONE}/messages/1/body")
    assert (answer.status, answer.json()["code"]) == (404, "message-not-found")
    assert f"the large message at {found['offset']}" in answer.json()["detail"]
    answer = await cluster.api.get(f"{ONE}/messages/{found['offset'] + 1}/body")
    assert answer.status == 404


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_subscription_is_given_one_message_and_acks_it_whole(
    cluster: Cluster, kind: str
) -> None:
    assert (await cluster.api.put(SUB, json={"type": kind, "start": "earliest"})).status == 201
    await plain(cluster, "before")
    found = await uploaded(cluster, Octavo_Key="k")
    await plain(cluster, "after")
    given = []
    while part := await received(cluster):
        given += part
    assert [one["offset"] for one in given] == [0, found["offset"], found["offset"] + 1]
    assert given[1]["large"] == {"size": len(BODY), "crc32c": found["crc32c"]}
    await acked(cluster, given)
    stats = (await cluster.api.get(SUB)).json()
    assert stats["backlog"] == 0, stats
    assert await received(cluster) == []


async def test_its_pieces_are_no_backlog_before_anybody_receives(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"type": "shared", "start": "earliest"})).status == 201
    assert await received(cluster) == []
    await uploaded(cluster)
    assert (await cluster.api.get(SUB)).json()["backlog"] == 1


async def test_of_an_upload_that_is_broken_off_nothing_is_left(cluster: Cluster) -> None:
    await plain(cluster, "before")
    before = await ledgers(cluster)

    async def broken() -> AsyncGenerator[bytes, None]:
        async for part in in_parts(BODY):
            yield part
        raise ConnectionError("the client is gone")

    with pytest.raises(aiohttp.ClientError, match="write request body"):
        await cluster.api.call("POST", ONE + "/large", data=broken())

    async def as_before() -> bool:
        return await ledgers(cluster) == before

    async with asyncio.timeout(15):
        while not await as_before():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await shown(cluster) == [(0, "before")]
    assert await plain(cluster, "after") == 1


async def test_when_the_owner_dies_amid_an_upload_nobody_ever_sees_anything_of_it(
    cluster: Cluster,
) -> None:
    assert (await cluster.api.put(SUB, json={"type": "shared", "start": "earliest"})).status == 201
    await plain(cluster, "before")
    owner = await cluster.owner_of(ONE + "/partitions/0")
    before = set(await ledgers(cluster))
    go_on = asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        yield BODY[: 2 * PIECE_BYTES]
        await go_on.wait()
        yield BODY[2 * PIECE_BYTES :]

    api = cluster.apis[owner]
    upload = asyncio.create_task(api.call("POST", ONE + "/large", data=slow()))

    async with asyncio.timeout(15):
        while not set(await ledgers(cluster)) - before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await cluster.stop_broker(owner)
    go_on.set()
    with pytest.raises(Exception):  # noqa: B017, PT011
        (await upload).json()["offset"]
    assert await plain(cluster, "after") == 1
    (survivor,) = cluster.brokers.values()
    records = TopicStore(survivor.store)
    topic, _ = await records.read_topic("public", "one")
    record, _ = await records.read_partition("public", "one", 0)
    for ledger_id in set(await ledgers(cluster)) - before - named_ledgers(record):
        label = label_of((await survivor.ledgers.metadata(ledger_id)).custom)
        assert label is not None
        assert may_go(ledger_id, label, topic, record)
    assert await shown(cluster) == [(0, "before"), (1, "after")]
    given = await received(cluster)
    assert [one["value"] for one in given] == ["before", "after"]
    found = await uploaded(cluster)
    assert await body_at(cluster, found["offset"]) == BODY


async def test_an_upload_with_a_name_is_stored_once(cluster: Cluster) -> None:
    first = await uploaded(cluster, Octavo_Upload="film-1")
    again = await uploaded(cluster, Octavo_Upload="film-1")
    assert again == {**first, "duplicate": True}
    two = await asyncio.gather(
        *(uploaded(cluster, Octavo_Upload="film-2") for _ in range(2)),
    )
    assert len({one["offset"] for one in two}) == 1
    assert sorted(one.get("duplicate", False) for one in two) == [False, True]
    assert len(await shown(cluster)) == 2


async def test_another_owner_knows_it_and_its_upload(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"type": "shared", "start": "earliest"})).status == 201
    first = await uploaded(cluster, Octavo_Upload="film-1")
    await plain(cluster, "after")
    await cluster.stop_broker(await cluster.owner_of(ONE + "/partitions/0"))
    again = await uploaded(cluster, Octavo_Upload="film-1")
    assert again == {**first, "duplicate": True}
    assert await body_at(cluster, first["offset"]) == BODY
    given = await received(cluster)
    assert [one["offset"] for one in given] == [first["offset"], first["offset"] + 1]
    await acked(cluster, given)
    assert (await cluster.api.get(SUB)).json()["backlog"] == 0


async def test_a_short_body_is_a_message_like_any_other(cluster: Cluster) -> None:
    assert (await uploaded(cluster, b'"short"'))["pieces"] == 0
    assert (await uploaded(cluster, b""))["offset"] == 1
    named = await uploaded(cluster, b'"named"', Octavo_Upload="n")
    assert await uploaded(cluster, b'"named"', Octavo_Upload="n") == {**named, "duplicate": True}
    assert [await body_at(cluster, n) for n in (0, 1, named["offset"])] == [
        b'"short"', b"", b'"named"'
    ]  # fmt: skip


async def test_forks_have_it_whole_or_see_nothing_of_it(cluster: Cluster) -> None:
    await plain(cluster, "before")
    found = await uploaded(cluster, Octavo_Upload="film-1")
    end = found["offset"]
    await forked(cluster, ONE, "whole")
    whole = "/v1/topics/public/whole"
    assert await shown(cluster, whole) == [(0, "before"), (end, len(BODY))]
    assert await body_at(cluster, end, whole) == BODY
    await forked(cluster, ONE, "amid", at=3)
    amid = "/v1/topics/public/amid"
    assert await shown(cluster, amid) == [(0, "before")]
    sub = amid + "/subscriptions/s"
    assert (await cluster.api.put(sub, json={"type": "shared", "start": "earliest"})).status == 201
    second = await uploaded(cluster, BODY[:-1], amid)
    assert second["offset"] == 3 + PIECES
    assert await shown(cluster, amid) == [(0, "before"), (second["offset"], len(BODY) - 1)]
    assert await body_at(cluster, second["offset"], amid) == BODY[:-1]
    given = await received(cluster, sub)
    assert [one["offset"] for one in given] == [0, second["offset"]]
    await acked(cluster, given, sub)
    assert (await cluster.api.get(sub)).json()["backlog"] == 0


async def test_a_topic_truncated_amid_its_pieces_still_has_it(cluster: Cluster) -> None:
    found = await uploaded(cluster)
    answer = await cluster.api.call("DELETE", f"{ONE}/messages?before=2")
    assert answer.status == 200, answer
    assert await shown(cluster, start=2) == [(found["offset"], len(BODY))]
    assert await body_at(cluster, found["offset"]) == BODY
    answer = await cluster.api.call("DELETE", f"{ONE}/messages?before={found['offset'] + 1}")
    assert answer.status == 200, answer
    answer = await cluster.api.get(f"{ONE}/messages/{found['offset']}/body")
    assert answer.status == 410, answer


async def test_seeks_go_to_the_message(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"type": "shared", "start": "earliest"})).status == 201
    found = await uploaded(cluster)
    for to in (0, 2, found["offset"], "earliest"):
        assert (await cluster.api.post(SUB + "/seek", json={"to": to})).status == 200
        assert (await cluster.api.get(SUB)).json()["backlog"] == 1
        (given,) = await received(cluster)
        assert given["offset"] == found["offset"]
        await acked(cluster, [given])
    peeked = (await cluster.api.get(SUB + "/peek")).status
    assert peeked in (200, 204)


async def test_it_waits_for_its_time(cluster: Cluster) -> None:
    assert (await cluster.api.put(SUB, json={"type": "shared", "start": "earliest"})).status == 201
    found = await uploaded(cluster, Octavo_Deliver_After="1s")
    assert await received(cluster) == []
    answer = await cluster.api.post(f"{SUB}/receive?wait=30s")
    assert [one["offset"] for one in answer.json()["messages"]] == [found["offset"]]


async def test_a_filter_looks_at_the_message_and_not_at_its_pieces(cluster: Cluster) -> None:
    body = {"type": "shared", "start": "earliest", "filter": {"headers": {"kind": "film"}}}
    answer = await cluster.api.put(SUB, json=body)
    assert answer.status == 201, answer
    await plain(cluster, "other")
    await uploaded(cluster)
    found = await uploaded(cluster, Octavo_Header_Kind="film")
    given = await received(cluster)
    assert [one["offset"] for one in given] == [found["offset"]]


async def test_compaction_that_comes_later_takes_no_body_away(cluster: Cluster) -> None:
    found = await uploaded(cluster, Octavo_Key="k")
    for number in range(3):
        await plain(cluster, f"later {number}")
    compaction = {"after_size": 1, "dirty_ratio": 0, "delete_raw": True}
    answer = await cluster.api.call("PATCH", ONE, json={"compaction": compaction})
    assert answer.status == 200, answer

    async def in_view() -> list[int]:
        answer = await cluster.api.get(f"{ONE}/partitions/0")
        if not answer.json().get("compacted"):
            return []
        answer = await cluster.api.get(f"{ONE}/messages?compacted=true")
        return [one["offset"] for one in answer.json()["messages"]]

    async with asyncio.timeout(60):
        while not (offsets := await in_view()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert offsets[0] == found["offset"]
    assert await body_at(cluster, found["offset"]) == BODY


async def test_of_an_encrypted_topic_bookies_hold_no_byte_of_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.keys = key_file(tmp_path, key_of(1, "secret"))
        await cluster.start_broker("broker-0")
        answer = await cluster.api.put("/v1/namespaces/secret", json={"encrypted": True})
        assert answer.status == 201, answer
        path = "/v1/topics/secret/one"
        assert (await cluster.api.put(path)).status == 201
        words = b"nobody reads this but who may. " * (2 * PIECE_BYTES // 31)
        found = await uploaded(cluster, words, path)
        assert await body_at(cluster, found["offset"], path) == words
        for name in tuple(cluster.nodes):
            await cluster.stop_bookie(name)
        stored = await asyncio.to_thread(all_bytes_below, tmp_path)
        assert sum(map(len, stored)) > len(words)
        assert not any(words[:31] in one for one in stored)


REFUSED = [
    ({"Producer-Id": "1", "Producer-Epoch": "0", "Producer-Seq": "0"}, 422, "large-not-taken"),
    ({"If-Match": '"0"'}, 422, "large-not-taken"),
    ({"Octavo-Upload": "a/b"}, 400, "invalid-name"),
    ({"Producer-Access-Epoch": "7"}, 403, "stale-producer-access"),
]


@pytest.mark.parametrize(("headers", "status", "code"), REFUSED)
async def test_what_does_not_go_with_it_is_refused_by_name(
    cluster: Cluster, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await cluster.api.call("POST", ONE + "/large", data=b"x" * 100, headers=headers)
    assert (answer.status, answer.json()["code"]) == (status, code), answer


async def test_who_is_fenced_meanwhile_publishes_nothing(cluster: Cluster) -> None:
    access = ONE + "/partitions/0/producer-access"
    first = (await cluster.api.call("POST", access, json={"producer": "a"})).json()["epoch"]
    fenced = asyncio.Event()

    async def slow() -> AsyncGenerator[bytes, None]:
        yield BODY[: 2 * PIECE_BYTES]
        await fenced.wait()
        yield BODY[2 * PIECE_BYTES :]

    before = set(await ledgers(cluster))
    headers = {"Producer-Access-Epoch": str(first)}
    upload = asyncio.create_task(
        cluster.api.call("POST", ONE + "/large", data=slow(), headers=headers)
    )
    async with asyncio.timeout(15):
        while not set(await ledgers(cluster)) - before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    answer = await cluster.api.call("POST", access, json={"producer": "b", "fencing": True})
    assert answer.status == 200, answer
    fenced.set()
    answer = await upload
    assert (answer.status, answer.json()["code"]) == (403, "stale-producer-access"), answer
    assert await shown(cluster) == []


async def test_topics_that_cannot_have_one_say_so(cluster: Cluster) -> None:
    path = "/v1/topics/public/compacted"
    assert (await cluster.api.put(path, json={"compaction": {}})).status == 201
    answer = await cluster.api.call("POST", path + "/large", data=BODY)
    assert (answer.status, answer.json()["code"]) == (422, "large-not-taken"), answer
    assert "compacted" in answer.json()["detail"]


async def test_a_durable_stream_takes_none(cluster: Cluster) -> None:
    answer = await cluster.api.call("PUT", "/v1/durable-streams/public/stream")
    assert answer.status == 201, answer
    answer = await cluster.api.call("POST", "/v1/topics/public/stream/large", data=BODY)
    assert (answer.status, answer.json()["code"]) == (409, "topic-is-stream"), answer


async def test_a_topics_own_bound_holds(cluster: Cluster) -> None:
    path = "/v1/topics/public/small"
    answer = await cluster.api.put(path, json={"message_bytes_max": "2MiB"})
    assert answer.status == 201, answer
    for body in (BODY, in_parts(BODY)):
        answer = await cluster.api.call("POST", path + "/large", data=body)
        assert answer.status == 413, answer
        assert answer.json()["bytes_max"] == 2 * PIECE_BYTES
    assert (await cluster.api.get(path + "/messages")).status == 204


Make = Callable[[PartitionRecord], PartitionRecord]


@pytest.fixture
async def copy_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


@pytest.mark.parametrize("applied", [False, True])
async def test_a_copy_that_is_given_up_amid_its_insertion_is_there(
    copy_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """A copy that was given up during its insertion had its ledger deleted, though the record
    named it: no reader got beyond it."""
    first = (await uploaded(copy_cluster))["offset"]
    (broker,) = copy_cluster.brokers.values()
    partition = await owned(broker.broker, TopicName("public", "one").partition(0))
    reached, released = asyncio.Event(), asyncio.Event()
    change = partition._record.change

    async def slow(make: Make) -> PartitionRecord:
        found = await change(make) if applied else None
        reached.set()
        await released.wait()
        return found or await change(make)

    monkeypatch.setattr(partition._record, "change", slow)
    reader = await partition.body(first)

    async def copies() -> None:
        async with aclosing(reader.pieces()) as pieces:
            await partition.copy_large("letter:1", reader.record, pieces)

    copying = asyncio.create_task(copies())
    async with asyncio.timeout(20):
        await reached.wait()
    copying.cancel()
    await asyncio.wait((copying,))
    await asyncio.sleep(0.2)
    released.set()
    last = await plain(copy_cluster, "behind it")
    copy = last - 1
    assert await shown(copy_cluster) == [(first, len(BODY)), (copy, len(BODY)), (last, "behind it")]
    assert await body_at(copy_cluster, copy) == BODY
    again = await partition.begin_large("letter:1")
    assert getattr(again, "first_offset", None) == copy


@pytest.fixture
async def repeated_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


async def test_an_insertion_without_an_answer_takes_nothing_away(
    repeated_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that repeated an upload during a reopening got `416 offset-beyond-end`, not
    retryable, for a stored message."""
    await plain(repeated_cluster, "before")
    owner = repeated_cluster.brokers[await repeated_cluster.owner_of(ONE + "/partitions/0")].broker
    partition = await owned(owner, TopicName("public", "one").partition(0))
    change = partition._record.change

    async def lost(make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        await change(make)
        monkeypatch.undo()
        raise MetadataUnavailable("the answer is lost")

    monkeypatch.setattr(partition._record, "change", lost)
    headers = {"Octavo-Upload": "film-1"}
    answer = await repeated_cluster.api.call(
        "POST", ONE + "/large", data=in_parts(BODY), headers=headers
    )
    assert answer.json()["code"] == "outcome-unknown", answer
    while answer.status in (503, 504):
        answer = await repeated_cluster.api.call("POST", ONE + "/large", data=BODY, headers=headers)
    found = answer.json()
    assert found.get("duplicate"), "whoever repeats it is told to, and where it is in the end"
    await asyncio.sleep(0.2)
    assert await body_at(repeated_cluster, found["offset"]) == BODY
    assert await shown(repeated_cluster) == [(0, "before"), (found["offset"], len(BODY))]


TOPIC = "public/one"
OCTAVO = str(Path(sys.executable).with_name("octavo"))


@pytest.fixture
async def cluster_client(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path / "cluster", brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


def urls(cluster: Cluster) -> list[str]:
    return [api.url for api in cluster.apis.values()]


@pytest.fixture
async def client(cluster_client: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(urls(cluster_client)) as found:
        yield found


async def body_at_client(client: AsyncClient, message: Any) -> bytes:
    return b"".join([piece async for piece in client.body(TOPIC, message)])


async def test_what_is_published_comes_back(client: AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "film"
    file.write_bytes(BODY)
    at = await client.publish_large(TOPIC, file, key="k", headers={"kind": "film"})
    (message,) = await client.read(TOPIC)
    assert (message.offset, message.key, message.value) == (at.offset, b"k", b"")
    assert ("kind", b"film") in message.headers
    assert message.large is not None
    assert (message.large.size, message.large.crc32c) == (len(BODY), f"{crc32c(BODY):08x}")
    assert await body_at_client(client, message) == BODY
    await client.publish(TOPIC, b"small")
    assert await body_at_client(client, at.offset + 1) == b"small"
    (last,) = await client.read(TOPIC, start=at.offset + 1)
    assert last.large is None
    with pytest.raises(NotFound):
        await body_at_client(client, at.offset + 2)


async def test_a_consumer_is_given_it_once_and_reads_its_body(client: AsyncClient) -> None:
    consumer = await client.subscribe(TOPIC, "s", type="shared", start="earliest")
    await client.publish_large(TOPIC, BODY)
    await client.publish(TOPIC, b"small")
    given = []
    async for delivery in consumer.deliveries(idle_s=3.0):
        given.append(delivery)
        if delivery.large is not None:
            assert await body_at_client(client, delivery) == BODY
        if len(given) == 2:
            break
    assert [one.value for one in given] == [b"", b"small"]


async def test_an_upload_whose_answer_is_lost_is_stored_once(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, lost = Transport._once, list[str]()

    async def forgetful(self: Transport, *how: Any) -> Any:
        answer = await once(self, *how)
        if how[2].endswith("/large") and not lost:
            lost.append(how[2])
            raise ConnectionResetError("the answer is lost")
        return answer

    monkeypatch.setattr(Transport, "_once", forgetful)
    at = await client.publish_large(TOPIC, BODY)
    assert lost
    assert at.duplicate
    assert [one.offset for one in await client.read(TOPIC)] == [at.offset]
    assert await body_at_client(client, at.offset) == BODY


REFUSED_CLIENT: list[dict[str, Any]] = [
    {"key": b"\xff"},
    {"key": " k"},
    {"headers": {"Kind": "film"}},
    {"headers": {"a b": "film"}},
    {"headers": {"kind": b"\xff"}},
    {"headers": {"kind": None}},
    {"headers": [("kind", "a"), ("kind", "b")]},
]


@pytest.mark.parametrize("how", REFUSED_CLIENT, ids=str)
async def test_what_http_cannot_carry_is_refused_before_anything_is_sent(
    client: AsyncClient, how: dict[str, Any]
) -> None:
    with pytest.raises(InvalidCall, match="large message"):
        await client.publish_large(TOPIC, b"x", **how)
    assert await client.read(TOPIC) == []


async def test_a_topic_that_takes_none_says_so(client: AsyncClient) -> None:
    await client.create_topic("public/compacted", compaction={})
    with pytest.raises(ApiError, match="is compacted"):
        await client.publish_large("public/compacted", BODY)


async def test_the_client_without_asyncio_does_the_same(
    cluster_client: Cluster, tmp_path: Path
) -> None:
    def use() -> bytes:
        with Client(urls(cluster_client)) as client:
            at = client.publish_large(TOPIC, BODY, upload="film-1")
            again = client.publish_large(TOPIC, BODY, upload="film-1")
            assert (again.offset, again.duplicate) == (at.offset, True)
            (message,) = client.messages(TOPIC)
            return b"".join(client.body(TOPIC, message))

    assert await asyncio.to_thread(use) == BODY


async def test_the_commands_write_what_they_were_given(
    cluster_client: Cluster, tmp_path: Path
) -> None:
    film, folder = tmp_path / "film", tmp_path / "films"
    film.write_bytes(BODY)
    folder.mkdir()

    async def run(*words: str) -> str:
        ran = await asyncio.create_subprocess_exec(
            OCTAVO, *words, "--url", urls(cluster_client)[0], stdout=PIPE, stderr=STDOUT
        )
        said, _ = await ran.communicate()
        assert ran.returncode == 0, said
        return said.decode()

    said = await run("publish", TOPIC, "--large", str(film), "--key", "k", "--json")
    offset = json.loads(said)["last"]["offset"]
    await run("publish", TOPIC, "small")
    shown = await run("consume", TOPIC, "-s", "copies", "--output-dir", str(folder))
    assert "small" in shown
    (saved,) = folder.iterdir()
    assert saved.name == f"0-{offset}"
    assert saved.read_bytes() == BODY


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "one", "x", "--large", "film"),
        ("publish", "one", "--large", "/no/such/file"),
        ("consume", "one", "--output-dir", "/no/such/folder"),
        ("consume", "a-*", "-s", "s", "--output-dir", "/tmp"),
    ],
)
def test_commands_say_what_does_not_go_together(words: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, BadOption), found


async def test_the_body_of_an_upload_is_what_the_file_was(cluster_client: Cluster) -> None:
    answer = await cluster_client.api.call("PUT", ONE + "/large", data=in_parts(BODY))
    async with AsyncClient(urls(cluster_client)) as client:
        assert await body_at_client(client, answer.json()["offset"]) == BODY


PART = bytes(range(256)) * 1024
SIZE = 100 * 1024 * 1024
MEMORY_MAX = 32 * 1024 * 1024
"""The most that is allocated while it passes; bookies, which keep unflushed data in memory, have
little room for that here."""


@pytest.fixture
async def cluster_memory(tmp_path: Path) -> AsyncIterator[Cluster]:
    small: dict[str, Any] = {
        "write_cache_bytes_max": 4 * PIECE_BYTES,
        "read_cache_bytes_max": PIECE_BYTES,
    }
    async with running_cluster(tmp_path, 1, brokers=1, **small) as found:
        body = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        assert (await found.api.put(ONE, json=body)).status == 201
        yield found


async def in_parts_memory() -> AsyncGenerator[bytes, None]:
    for _ in range(SIZE // len(PART)):
        yield PART


async def test_a_hundred_megabytes_pass_through_bounded_memory(cluster_memory: Cluster) -> None:
    whole = 0
    for _ in range(SIZE // len(PART)):
        whole = crc32c(PART, whole)
    timeout = ClientTimeout(total=280)
    async with ClientSession(timeout=timeout) as session:
        tracemalloc.start()
        try:
            async with session.put(
                cluster_memory.api.url + ONE + "/large", data=in_parts_memory()
            ) as answer:
                assert answer.status == 200, await answer.text()
                found = await answer.json()
            assert (found["size"], found["crc32c"]) == (SIZE, f"{whole:08x}")
            _, peak_in = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            crc = size = 0
            url = f"{cluster_memory.api.url}{ONE}/messages/{found['offset']}/body"
            async with session.get(url) as answer:
                assert answer.headers["Octavo-Crc32c"] == found["crc32c"]
                async for part in answer.content.iter_any():
                    crc, size = crc32c(part, crc), size + len(part)
            _, peak_out = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (size, crc) == (SIZE, whole)
    assert max(peak_in, peak_out) < MEMORY_MAX, (peak_in, peak_out)


async def test_uploads_count_as_what_has_arrived_and_slow_ones_make_room(tmp_path: Path) -> None:
    """Each upload of a byte a second counted as 8 MiB: 48 of them took all room for bodies."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("broker-0", bodies_bytes_max=2 * HELD_BYTES)
        assert (await cluster.api.put(ONE)).status == 201
        go_on = asyncio.Event()

        async def trickle(first: bytes = b"x") -> AsyncGenerator[bytes, None]:
            yield first
            while not go_on.is_set():
                await asyncio.sleep(0.2)
                yield b"x"

        server = cluster.brokers["broker-0"].server
        assert server is not None
        held = server._services.held
        slow = [
            asyncio.create_task(cluster.api.call("PUT", ONE + "/large", data=trickle()))
            for _ in range(24)
        ]
        await until(lambda: held.total >= 24 * HELD_BYTES_MIN, "all are under way")
        assert held.total < 24 * HELD_BYTES_MIN + 24 * 1024, "what has arrived, no more"
        answer = await cluster.api.call("PUT", ONE + "/large", data=PART * 8)
        assert answer.status == 200, answer
        # Uploads that have filled more than half of the room, and trickle on, lose their places.
        greedy = [
            asyncio.create_task(cluster.api.call("PUT", ONE + "/large", data=trickle(PART * 16)))
            for _ in range(2)
        ]
        await until(lambda: held.pressed, "more than half is taken")
        await until(lambda: not held.pressed, "the slowest have made room")
        await until(lambda: any(one.done() for one in greedy), "the client hears of it")
        answers = [await one for one in greedy if one.done()]
        assert [(one.status, one.json()["code"]) for one in answers] == [(408, "body-too-slow")]
        go_on.set()
        await asyncio.gather(*slow, *greedy)
        assert not held.total, "whatever became of them, all is given back"
        assert not held._by_peer


def test_what_an_upload_counts_as_is_what_it_takes() -> None:
    assert HELD_BYTES >= (PIECES_UNDER_WAY_MAX + 2) * PIECE_BYTES
