"""Calls at a broker that does not own the partition go to the owner as operations, not as HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.http.server import BrokerServer
from octavo.broker.operations.serving import Serving
from octavo.protocol.large import PIECE_BYTES
from tests.support.http_api import Answer, until
from tests.support.memory_cluster import Running, running

ROOT = Path(__file__).parents[3]
TOPIC = "/v1/topics/public/one"
PART = f"{TOPIC}/partitions/0"
ACCESS = f"{PART}/producer-access"
LEDGER = {"id": 7, "messages": 3, "bytes": 100, "first_ms": 1, "last_ms": 2}
BULK_LOAD = {"parts": [{"topic": "public/one", "partition": 0, "ledgers": [LEDGER]}]}


async def asked_elsewhere(two: Running, method: str, path: str, **how: Any) -> Answer:
    await two.move("public/one", "b0")
    return await two.apis[1].call(method, path, **how)


def test_brokers_have_no_http_client() -> None:
    """So no call can be sent to another broker as a second HTTP request."""
    sources = {path: path.read_text() for path in (ROOT / "broker").rglob("*.py")}
    assert len(sources) > 100
    for path, text in sources.items():
        assert not any(name in text for name in ("ClientSession", "TCPConnector")), path


async def test_calls_at_another_broker_are_answered_by_operations() -> None:
    async with running(2) as two:
        await two.api.put(TOPIC)
        await two.api.put(f"{TOPIC}/subscriptions/s")
        await two.api.post(f"{TOPIC}/messages", b"x", "text/plain")
        got = await asked_elsewhere(two, "POST", ACCESS, json={"producer": "loader"})
        assert (got.status, got.json()["producer"]) == (200, "loader"), got
        epoch = got.json()["epoch"]
        shown = await asked_elsewhere(two, "GET", ACCESS)
        assert (shown.status, shown.json()) == (200, got.json())
        freed = await asked_elsewhere(two, "DELETE", f"{ACCESS}?epoch={epoch}")
        assert freed.status == 204
        for path in (f"{PART}/explain?subscription=s", "/v1/explain/public/one?subscription=s"):
            told = await asked_elsewhere(two, "GET", path)
            assert told.status == 200, told
            found = told.json()
            assert found.get("partitions", [found])[0]["owner"] == "b0"
        loaded = await asked_elsewhere(
            two, "POST", "/v1/bulk-loads/q/batches/0/commit", json=BULK_LOAD
        )
        assert loaded.status == 422, loaded
        assert loaded.json()["detail"].startswith("no ledger 7: ")
        for path in (f"{PART}/unload?to=b1", f"{TOPIC}/unload?to=b1"):
            moved = await asked_elsewhere(two, "POST", path)
            assert moved.status == 200, moved
            found = moved.json()
            assert found.get("partitions", [found])[0]["from_broker"] == "b0"


async def test_a_durable_stream_is_used_through_another_broker() -> None:
    """Made, of a topic with messages as well, appended to, read, followed, closed and deleted."""

    stream, text = "/v1/durable-streams/public/one", {"Content-Type": "text/plain"}
    async with running(2) as two:
        await two.api.put(TOPIC)
        await two.api.post(f"{TOPIC}/messages", b"x", "text/plain")
        got = await asked_elsewhere(two, "PUT", stream, data=b"y", headers=text)
        assert (got.status, got.headers["Stream-Next-Offset"][-1]) == (201, "2"), got
        assert (await two.apis[1].call("PUT", stream, headers=text)).status == 200
        wrong = await two.apis[1].post(stream, b"1", "application/json")
        assert (wrong.status, wrong.json()["code"]) == (409, "stream-conflict")
        head = await two.apis[1].call("HEAD", stream)
        assert (head.status, head.headers["Content-Type"]) == (200, "text/plain")
        end = head.headers["Stream-Next-Offset"]
        waiting = asyncio.create_task(two.apis[1].get(f"{stream}?offset={end}&live=long-poll"))
        events = asyncio.create_task(two.apis[1].get(f"{stream}?offset=-1&live=sse"))
        await asyncio.sleep(0.1)
        named = {**text, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
        for status in (200, 204):
            got = await two.apis[1].call("POST", stream, data=b"z", headers=named)
            assert (got.status, got.headers["Producer-Seq"]) == (status, "0"), got
        assert (await waiting).body == b"z"
        closed = await two.apis[1].call("POST", stream, headers={"Stream-Closed": "true"})
        assert (closed.status, closed.headers["Stream-Closed"]) == (204, "true")
        told = [one for one in (await events).body.split(b"\n") if b"data:{" not in one]
        assert b"".join(one[5:] for one in told if one.startswith(b"data:")) == b"xyz"
        whole = await two.apis[1].get(stream)
        assert (whole.body, whole.headers["Stream-Closed"]) == (b"xyz", "true")
        beyond = await two.apis[1].get(stream + "?offset=" + "0" * 16 + "_" + "9" * 16)
        assert (beyond.status, beyond.json()["code"]) == (400, "offset-beyond-end")
        assert beyond.headers["Stream-Next-Offset"][-1] == "3"
        late = await two.apis[1].post(stream, b"z", "text/plain")
        assert (late.status, late.headers["Stream-Closed"]) == (409, "true")
        assert late.headers["Stream-Next-Offset"][-1] == "3"
        assert (await two.apis[1].call("DELETE", stream)).status == 204
        assert (await two.apis[1].get(stream)).status == 404


async def test_a_large_message_is_stored_and_read_through_another_broker() -> None:
    """The owner stores it whole, once under its name, and refuses it when it is too long."""

    body = bytes(range(256)) * (PIECE_BYTES * 5 // 512)
    named = {"Octavo-Upload": "film", "Octavo-Key": "k"}

    async with running(2, large_message_bytes_max=len(body)) as two:
        await two.api.put(TOPIC)
        got = await asked_elsewhere(
            two, "PUT", f"{TOPIC}/large", data=chunks(body)(), headers=named
        )
        assert (got.status, got.json()["size"], got.json()["pieces"]) == (200, len(body), 3), got
        assert got.headers["Octavo-Owner"] == two.apis[0].url
        again = await asked_elsewhere(two, "PUT", f"{TOPIC}/large", data=b"other", headers=named)
        assert again.json() == {**got.json(), "duplicate": True}
        read = await asked_elsewhere(two, "GET", f"{TOPIC}/messages/{got.json()['offset']}/body")
        assert (read.status, read.body) == (200, body)
        assert read.headers["Octavo-Crc32c"] == got.json()["crc32c"]
        head = await asked_elsewhere(two, "HEAD", f"{TOPIC}/messages/{got.json()['offset']}/body")
        assert (head.status, int(head.headers["Content-Length"])) == (200, len(body))
        small = await asked_elsewhere(two, "POST", f"{TOPIC}/large", data=b"small")
        assert (small.status, small.json()["size"], small.json()["pieces"]) == (200, 5, 0)
        read = await asked_elsewhere(two, "GET", f"{TOPIC}/messages/{small.json()['offset']}/body")
        assert read.body == b"small"
        missing = await asked_elsewhere(two, "GET", f"{TOPIC}/messages/99/body")
        assert (missing.status, missing.json()["code"]) == (416, "offset-beyond-end")
        sizes = [(len(body) + 1, 413), (len(body), 200)]
        for size, status in sizes:
            long = chunks(b"x" * size)
            for api in two.apis:
                got = await api.call("POST", f"{TOPIC}/large", data=long())
                assert got.status == status, got
                if status == 413:
                    told = got.json()
                    assert (told["code"], told["bytes_max"]) == ("body-too-long", len(body))
        # Three large messages of three pieces each, and a small one; nothing of the refused ones.
        assert two.next_offset("public/one") == 3 * (3 + 1) + 1


@pytest.mark.parametrize("pieces", [0, 1, 2])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("broker", [0, 1])
async def test_a_body_around_the_end_of_a_piece_comes_back(
    pieces: int, more: int, broker: int
) -> None:
    """A body of exactly a mebibyte, without a name, was stored as an empty message."""
    body = random.Random(1).randbytes(max(0, pieces * PIECE_BYTES + more))
    async with running(2) as two:
        await two.api.put(TOPIC)
        await two.move("public/one", "b0")
        api = two.apis[broker]
        for named in ({}, {"Octavo-Upload": "film"}):
            stored = (await api.call("PUT", f"{TOPIC}/large", data=body, headers=named)).json()
            assert stored["size"] == len(body)
            found = await api.get(f"{TOPIC}/messages/{stored['offset']}/body")
            assert found.body == body


async def test_a_broken_off_upload_is_given_up_at_the_owner() -> None:
    async with running(2) as two:
        await two.api.put(TOPIC)
        await two.move("public/one", "b0")
        host, _, port = two.apis[1].url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {TOPIC}/large HTTP/1.1\r\nHost: x\r\n".encode()
            + b"Content-Length: 3000000\r\n\r\n"
            + b"x" * 2_000_000
        )
        await writer.drain()
        owner = two.servers[0]
        await until(lambda: owner._services.held.total > 0)
        assert serving(owner).describe()["bodies"] == 1
        writer.close()
        await until(lambda: not serving(owner).describe()["bodies"])
        await until(lambda: not owner._services.held.total)
        assert two.next_offset("public/one") == 0
        del reader


def serving(server: BrokerServer) -> Serving:
    door: Any = server._services.door
    found: Serving = door._serving
    return found


def chunks(body: bytes) -> Callable[[], AsyncGenerator[bytes, None]]:
    async def parts() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    return parts


async def test_bytes_that_are_no_utf_8_in_a_content_type_are_a_refusal() -> None:
    """They cannot be sent to the owner as text."""
    stream = "/v1/durable-streams/public/one"
    async with running(2) as two:
        await two.api.call("PUT", stream, headers={"Content-Type": "text/plain"})
        await two.move("public/one", "b0")
        for api in two.apis:
            host, _, port = api.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {stream} HTTP/1.1\r\nHost: x\r\nContent-Type: a/\xff\r\n"
                "Content-Length: 1\r\nConnection: close\r\n\r\nx".encode("latin-1")
            )
            got = await reader.read()
            writer.close()
            assert got.startswith(b"HTTP/1.1 409 "), got
            assert b"not a/" in got
