"""Every bound of the HTTP side meets a value above it: docs/limits.md names these tests.

Each answer names the bound, and a value just within it is served.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from octavo import AsyncClient
from octavo.broker.http.api import deliveries as api_deliveries
from octavo.broker.http.api import topics as api_topics
from octavo.broker.http.api.cluster import LEDGERS_SHOWN_MAX
from octavo.broker.http.api.deliveries import (
    ACK_IDS_MAX,
    CONSUMER_CHARS_MAX,
    NACK_DELAY_MS_MAX,
    REQUEST_CHARS_MAX,
)
from octavo.broker.http.api.publish import BLANK_LINES_MAX
from octavo.broker.http.api.topics import TOPICS_SHOWN_MAX
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.router import PATH_BYTES_MAX
from octavo.broker.types import ACK_TIMEOUT_MS_MAX, BOOKIES_MAX, PARTITIONS_MAX
from octavo.protocol.batch import read_header
from octavo.protocol.limits import JSON_HEADERS_MAX, LONG_POLL_MS_MAX, TIMESTAMP_MS_MAX
from octavo.protocol.names import NAME_CHARS_MAX
from octavo.protocol.records import read_records
from tests.support.http_api import until
from tests.support.memory_cluster import Running, running

ONE = "/v1/topics/public/one"
SUB = f"{ONE}/subscriptions/s"
NDJSON = "application/x-ndjson"
JSON = "application/json"
CONFIG = HttpConfig()


def test_the_long_poll_of_http_is_the_protocols() -> None:
    assert CONFIG.wait_ms_max == LONG_POLL_MS_MAX


@pytest.mark.parametrize(
    ("path", "most"),
    [
        (f"{ONE}/messages?max_bytes=%d", CONFIG.read_bytes_max),
        (f"{ONE}/messages?limit=%d", CONFIG.read_messages_max),
        (f"{ONE}/messages?wait=%d", CONFIG.wait_ms_max // 1000),
        ("/v1/topics/public?limit=%d", TOPICS_SHOWN_MAX),
    ],
)
async def test_numbers_of_a_query(one: Running, path: str, most: int) -> None:
    await one.api.put(ONE)
    await one.api.post(f"{ONE}/messages", b"x", "text/plain")
    assert (await one.api.get(path % most)).status == 200
    answer = await one.api.get(path % (most + 1))
    assert answer.status == 400, answer
    shown = answer.json()["detail"]
    assert str(most) in shown or f"{most} s" in shown or f"{most}s" in shown, shown


async def test_ledgers_listed_at_once(one: Running) -> None:
    answer = await one.api.get(f"/v1/ledgers?limit={LEDGERS_SHOWN_MAX + 1}")
    assert answer.status == 400
    assert str(LEDGERS_SHOWN_MAX) in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("max=%d", CONFIG.read_messages_max),
        ("consumer=%s", CONSUMER_CHARS_MAX),
        ("request=%s", REQUEST_CHARS_MAX),
    ],
)
async def test_what_a_receive_may_ask_for(one: Running, query: str, most: int) -> None:
    await one.api.put(ONE)
    await one.api.put(SUB)

    def asked(size: int) -> str:
        return query % (size if "%d" in query else "c" * size)

    assert (await one.api.post(f"{SUB}/receive?{asked(most)}")).status in (200, 204)
    answer = await one.api.post(f"{SUB}/receive?{asked(most + 1)}")
    assert answer.status == 400, answer
    assert str(most) in answer.json()["detail"]


async def test_partitions_that_one_receive_looks_at(
    one: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_deliveries, "RECEIVE_PARTITIONS_MAX", 2)
    await one.api.put(ONE, json={"partitions": 4})
    for number in range(4):
        await one.api.post(f"{ONE}/partitions/{number}/messages", b"x", "text/plain")
    await one.api.put(SUB, json={"type": "shared", "start": "earliest"})
    found: list[int] = []
    for _ in range(4):
        answer = await one.api.post(f"{SUB}/receive?max=100")
        some = [each["partition"] for each in answer.json()["messages"]] if answer.body else []
        assert len(some) <= 2
        found += some
    assert sorted(found) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "ack_ids", [["0-1-2-3"] * (ACK_IDS_MAX + 1), [f"0-0:{ACK_IDS_MAX}-2-3", "0-7-2-3"]]
)
async def test_ack_ids_of_one_call(one: Running, ack_ids: list[str]) -> None:
    await one.api.put(ONE)
    await one.api.put(SUB)
    body = {"ack_ids": ack_ids}
    answer = await one.api.post(f"{SUB}/ack", json.dumps(body).encode(), JSON)
    assert (answer.status, answer.json()["code"]) == (422, "too-many-ack-ids")


async def test_a_nack_that_waits_too_long(one: Running) -> None:
    await one.api.put(ONE)
    await one.api.put(SUB)
    for delay_s, refused in ((NACK_DELAY_MS_MAX // 1000, False), (NACK_DELAY_MS_MAX, True)):
        body = {"nack": [{"ack_id": "0-1-0-1", "delay": delay_s}]}
        answer = await one.api.post(f"{SUB}/ack", json.dumps(body).encode(), JSON)
        named = "24 hours" in answer.body.decode()
        assert (answer.status == 422 and named) == refused, answer


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"value": 1, "headers": [["h", "v"]] * JSON_HEADERS_MAX}, 200),
        ({"value": 1, "headers": [["h", "v"]] * (JSON_HEADERS_MAX + 1)}, 422),
        ({"value": 1, "timestamp": TIMESTAMP_MS_MAX}, 200),
        ({"value": 1, "timestamp": TIMESTAMP_MS_MAX + 1}, 422),
    ],
)
async def test_one_message(one: Running, message: dict[str, Any], status: int) -> None:
    await one.api.put(ONE)
    answer = await one.api.post(f"{ONE}/messages", json.dumps(message).encode(), JSON)
    assert answer.status == status, answer


async def test_blank_lines(one: Running) -> None:
    await one.api.put(ONE)
    line = b'{"value":1}\n'
    body = b"\n" * BLANK_LINES_MAX + line
    assert (await one.api.post(f"{ONE}/messages", body, NDJSON)).status == 200
    answer = await one.api.post(f"{ONE}/messages", b"\n" * (BLANK_LINES_MAX + 1) + line, NDJSON)
    assert (answer.status, answer.json()["code"]) == (422, "too-many-blank-lines"), answer


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"partitions": PARTITIONS_MAX + 1}, 422),
        ({"ensemble_size": BOOKIES_MAX + 1}, 422),
        ({"ack_timeout": ACK_TIMEOUT_MS_MAX // 1000 + 1}, 422),
    ],
)
async def test_settings(one: Running, settings: dict[str, int], status: int) -> None:
    path = ONE
    if "ack_timeout" in settings:
        await one.api.put(ONE)
        path = SUB
    answer = await one.api.put(
        path, data=json.dumps(settings).encode(), headers={"Content-Type": JSON}
    )
    assert answer.status == status, answer
    most = ACK_TIMEOUT_MS_MAX // 1000 if path == SUB else next(iter(settings.values())) - 1
    assert f" {most}" in answer.json()["detail"]


async def test_names_and_paths(one: Running) -> None:
    assert (await one.api.put(f"/v1/topics/public/{'a' * NAME_CHARS_MAX}")).status == 201
    answer = await one.api.put(f"/v1/topics/public/{'a' * (NAME_CHARS_MAX + 1)}")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-name")
    answer = await one.api.get("/" + "x" * PATH_BYTES_MAX)
    assert (answer.status, answer.json()["code"]) == (400, "path-too-long")
    for size in (PATH_BYTES_MAX - 1, PATH_BYTES_MAX):
        answer = await one.api.get("/" + "x" * (size - 1))
        assert answer.status == 404, "as long as a path may be: there is nothing at it"


@pytest.mark.parametrize(
    ("fields", "served"), [({"headers_max": 20}, 10), ({"header_bytes_max": 1_000}, 900)]
)
async def test_heads(fields: dict[str, Any], served: int) -> None:
    async with running(1, **fields) as one:

        def headers(size: int) -> dict[str, str]:
            if "headers_max" in fields:
                return {f"X-{number}": "1" for number in range(size)}
            return {"X-Long": "x" * size}

        assert (await one.api.get("/healthz", headers=headers(served))).status == 200
        answer = await one.api.get("/healthz", headers=headers(served * 3))
        assert answer.status in (400, 431), answer


async def test_results_that_are_kept() -> None:
    async with running(1, results_max=10) as few:
        await few.api.put(ONE)
        lines = b'{"value":1}\n'
        answer = await few.api.post(f"{ONE}/messages?results=all", lines * 10, NDJSON)
        assert len(answer.json()["results"]) == 10
        answer = await few.api.post(f"{ONE}/messages?results=all", lines * 11, NDJSON)
        assert answer.status in (413, 422), answer
        assert "10" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"batch_messages_max": 3}, lambda batch: read_header(batch).record_count <= 3),
        ({"batch_target_bytes": 100}, lambda batch: len(batch) < 100 + 200),
    ],
)
async def test_batches_that_are_built(
    fields: dict[str, Any], most: Callable[[bytes], bool]
) -> None:
    async with running(1, **fields) as one:
        await one.api.put(ONE)
        body = b"".join(b'{"value":"%s"}\n' % (b"x" * 40) for _ in range(10))
        answer = await one.api.post(f"{ONE}/messages", body, NDJSON)
        assert answer.json()["count"] == 10
        stored = [batch.data for batch in await one.batches("one")]
        assert len(stored) > 2
        assert all(most(batch) for batch in stored)
        assert sum(len([*read_records(batch)]) for batch in stored) == 10


async def test_batches_of_one_request_under_way() -> None:
    async with running(1, batch_messages_max=1, inflight_batches_max=2) as one:
        await one.api.put(ONE)
        partition = await one.partition("one")
        going, most = 0, 0
        go_on = asyncio.Event()
        publish = partition.publish

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            nonlocal going, most
            going += 1
            most = max(most, going)
            await go_on.wait()
            going -= 1
            return await publish(*args, **kwargs)

        partition.publish = slowly  # type: ignore[method-assign]
        asking = asyncio.ensure_future(
            one.api.post(f"{ONE}/messages", b'{"value":1}\n' * 8, NDJSON)
        )
        await until(lambda: going == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        assert (await asking).json()["count"] == 8
        assert most == 2


async def test_an_idle_connection_is_closed() -> None:
    async with running(1, keepalive_timeout_ms=100) as one:
        host, _, port = one.api.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(5):
            assert b"200" in await reader.readuntil(b"\r\n")
            await reader.read()
        writer.close()


# `GET` of a namespace with 10,000 topics returned all of them at once, with no way to ask for
# fewer.

TOPICS = "/v1/topics/public"
COUNT = 25


@pytest.fixture
async def list_one() -> AsyncIterator[Running]:
    async with running(1) as one:
        for number in range(COUNT):
            assert (await one.api.put(f"{TOPICS}/t{number:02}")).status == 201
        yield one


async def test_a_page_says_where_to_go_on(list_one: Running) -> None:
    seen, path = [], f"{TOPICS}?limit=10"
    for wanted in (10, 10, 5):
        answer = await list_one.api.get(path)
        page = answer.json()
        assert len(page["topics"]) == wanted
        seen += page["topics"]
        if page["next"] is None:
            assert "Link" not in answer.headers
        else:
            assert page["next"] == seen[-1]
            link, rel = answer.headers["Link"].split("; ")
            assert rel == 'rel="next"'
            path = link.strip("<>")
    assert seen == [f"t{number:02}" for number in range(COUNT)]
    assert page["next"] is None


async def test_a_place_to_go_on_need_not_exist_any_more(list_one: Running) -> None:
    answer = await list_one.api.get(f"{TOPICS}?after=t225&limit=1")
    assert answer.json()["topics"] == ["t23"]
    answer = await list_one.api.get(f"{TOPICS}?after=z")
    assert answer.json() == {"namespace": "public", "topics": [], "next": None}
    assert (await list_one.api.get(f"{TOPICS}?limit=0")).status in (400, 422)


async def test_without_a_limit_there_is_one(
    list_one: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_topics, "TOPICS_SHOWN", 7)
    assert len((await list_one.api.get(TOPICS)).json()["topics"]) == 7


async def test_the_client_asks_for_all_pages(
    list_one: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.client.topic_list.TOPICS_AT_ONCE", 10)
    async with AsyncClient(list_one.api.url) as client:
        assert await client.topics() == [f"t{number:02}" for number in range(COUNT)]


# Times, sizes and ids beyond what a record can hold were answered with 500.

TOPIC = "/v1/topics/public/one"
LEDGER = {"id": 7, "messages": 3, "bytes": 90, "first_ms": 1, "last_ms": 2}
BULK_LOAD = "/v1/bulk-loads/t/batches/0"


def part(**changes: Any) -> dict[str, Any]:
    return {"parts": [{"topic": "one", "partition": 0, "ledgers": [LEDGER], **changes}]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", TOPIC, {"retention": {"time": "999999999999d"}}),
        ("PUT", TOPIC, {"retention": {"size": "999999999999TB"}}),
        ("PUT", TOPIC, {"rollover": {"time": "999999999999d"}}),
        ("PUT", TOPIC, {"rollover": {"size": "999999999999TiB"}}),
        ("PUT", TOPIC, {"rollover": {"entries": 2**63}}),
        ("POST", f"{BULK_LOAD}/abort", {"ledgers": [-1]}),
        ("POST", f"{BULK_LOAD}/abort", {"ledgers": [10**23]}),
        ("POST", f"{BULK_LOAD}/abort", {"ledgers": [7] * 100_000}),
        ("POST", f"{BULK_LOAD}/commit", part(partition=-1)),
        ("POST", f"{BULK_LOAD}/commit", part(partition=10**12)),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[{**LEDGER, "id": -1}])),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[{**LEDGER, "messages": 10**23}])),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[{**LEDGER, "last_ms": 10**23}])),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[LEDGER] * 4_001)),
        ("POST", f"{BULK_LOAD}/begin",
         {"parts": [{"topic": "one", "partition": -1, "content": "x"}]}),
        ("POST", f"{TOPIC}/subscriptions/s/ack", {"up_to": "9" * 5_000}),
        ("POST", f"{TOPIC}/subscriptions/s/ack", {"up_to": 10**30}),
    ],
)  # fmt: skip
async def test_refused_with_what_was_wrong(method: str, path: str, body: dict[str, Any]) -> None:
    async with running(1) as one:
        if path != TOPIC:
            assert (await one.api.put(TOPIC)).status == 201
            assert (await one.api.put(f"{TOPIC}/subscriptions/s")).status == 201
        answer = await one.api.call(method, path, json=body)
        assert answer.status in (400, 422), answer
        assert answer.json()["detail"]


async def test_millions_of_blank_lines_are_not_read_to_their_end() -> None:
    async with running(1) as one:
        assert (await one.api.put(TOPIC)).status == 201
        answer = await one.api.post(
            f"{TOPIC}/messages",
            gzip.compress(b'{"value":1}\n' + b"\n" * 130_000_000, compresslevel=1),
            headers={"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"},
        )
        assert answer.status in (413, 422), answer
        assert answer.json()["stored"]["count"] == 1


# A body that broke off in the middle of its encoding was stored as a whole message, with 200.

GZIP_TOPIC = "/v1/topics/public/one"
TEXT = random.Random(1).randbytes(40_000)
LINES = b"".join(b'{"value":%d}\n' % number for number in range(40_000))


async def publish(one: Running, broker: int, body: bytes, kind: str, encoding: str):
    headers = {"Content-Encoding": encoding, "Content-Type": kind}
    return await one.apis[broker].call("POST", GZIP_TOPIC + "/messages", data=body, headers=headers)


@pytest.mark.parametrize("broker", [0, 1], ids=["at the owner", "elsewhere"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/x-ndjson"])
async def test_every_encoding_must_end(kind: str, encoding: str, broker: int) -> None:
    content = {"text/plain": TEXT, "application/json": b'{"value":"' + b"x" * 900 + b'"}'}
    plain = content.get(kind, LINES)
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    async with running(2) as two:
        assert (await two.api.put(GZIP_TOPIC)).status == 201
        partition = await two.partition("public/one")
        for length in (len(packed) // 2, len(packed) - 1, 3):
            answer = await publish(two, broker, packed[:length], kind, encoding)
            assert answer.status == 400, answer
            assert answer.json()["code"] == "broken-content-encoding"
            if kind != "application/x-ndjson":
                assert partition.next_offset == 0, "nothing of a body that is not whole is stored"
        stored = partition.next_offset
        answer = await publish(two, broker, packed, kind, encoding)
        assert answer.status == 200, answer
        assert partition.next_offset - stored == answer.json()["count"]


async def test_large_stream_that_breaks_off_elsewhere_is_named() -> None:
    """It is longer than a broker holds before it forwards: the owner gets a part of it."""
    packed = gzip.compress(random.Random(2).randbytes(30_000_000).hex().encode()[:20_000_000])
    async with running(2) as two:
        assert (await two.api.put(GZIP_TOPIC)).status == 201
        answer = await publish(two, 1, packed[:3_000_000], "application/x-ndjson", "gzip")
        assert answer.status in (400, 413), answer
        assert answer.json()["code"] in ("broken-content-encoding", "message-too-long")


# Heads that announced 8 MiB each, without any body, took all room for bodies for a minute.

ANNOUNCED_TOPIC = "/v1/topics/public/one"
MESSAGES = f"{ANNOUNCED_TOPIC}/messages"


@asynccontextmanager
async def senders(one: Running, count: int, announced: int, sent: int) -> AsyncIterator[None]:
    """Start publishes that announce `announced` bytes, send `sent` of them, and then stop."""
    host, _, port = one.api.url.removeprefix("http://").partition(":")
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nContent-Length: {announced}\r\n\r\n"
        writer.write(head.encode() + bytes(sent))
        writers.append(writer)
    server = one.servers[0]
    await until(lambda: server._services.in_hand.count >= count)
    await until(lambda: server._services.held._held >= sent * count * 9 // 10)
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


async def announced_publish(one: Running) -> int:
    async with asyncio.timeout(10):
        return (await one.api.post(MESSAGES, b"x" * 1000, "text/plain")).status


async def test_what_is_announced_takes_no_room() -> None:
    async with running(1, bodies_bytes_max=1_000_000, body_bytes_max=100_000) as one:
        assert (await one.api.put(ANNOUNCED_TOPIC)).status == 201
        async with senders(one, 32, announced=100_000, sent=0):
            assert one.servers[0]._services.held._held == 0
            assert await announced_publish(one) == 200


async def test_who_stands_still_loses_its_place() -> None:
    async with running(1, bodies_bytes_max=1_000_000, body_bytes_max=100_000) as one:
        assert (await one.api.put(ANNOUNCED_TOPIC)).status == 201
        held = one.servers[0]._services.held
        # Their peer may take 750,000 bytes: the next one has to wait until the first is cut off.
        async with senders(one, 10, announced=100_000, sent=74_900):
            assert held.pressed
            # The broker looks every two seconds, and a refused client comes back.
            while await announced_publish(one) != 200:
                pass
            await until(lambda: not held.pressed, 20)


async def test_another_peer_has_room_while_one_takes_all_it_can() -> None:
    from octavo.broker.errors import Overloaded
    from octavo.broker.http.held_bytes import HeldBytes

    held = HeldBytes(1_000)
    await held.take("a", 750)
    taking = asyncio.ensure_future(held.take("a", 1))
    await held.take("b", 250)
    held.give_back("b", 250)
    assert not taking.done()
    held.give_back("a", 750)
    await taking
    held.give_back("a", 1)
    assert not held._by_peer
    await held.take("a", 700)
    refused = await asyncio.gather(held.take("a", 100), return_exceptions=True)
    assert isinstance(refused[0], Overloaded)
