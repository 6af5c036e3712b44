"""Every bound of the HTTP side meets one that is above it: docs/limits.md names these tests.

Each answer says which bound it was, and what is just within it is served.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo.broker.http.api import deliveries as api_deliveries
from octavo.broker.http.api.acks import ACK_IDS_MAX, NACK_DELAY_MS_MAX
from octavo.broker.http.api.cluster import LEDGERS_SHOWN_MAX
from octavo.broker.http.api.deliveries import CONSUMER_CHARS_MAX, REQUEST_CHARS_MAX
from octavo.broker.http.api.publish import BLANK_LINES_MAX
from octavo.broker.http.api.topics import TOPICS_SHOWN_MAX
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.router import PATH_BYTES_MAX
from octavo.broker.types import ACK_TIMEOUT_MS_MAX, BOOKIES_MAX, PARTITIONS_MAX
from octavo.protocol.batch import read_header
from octavo.protocol.limits import JSON_HEADERS_MAX, LONG_POLL_MS_MAX, TIMESTAMP_MS_MAX
from octavo.protocol.names import NAME_CHARS_MAX
from octavo.protocol.records import read_records
from tests.support.fake_broker import Running, running, until

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
async def test_heads(fields: dict[str, int], served: int) -> None:
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
    fields: dict[str, int], most: Callable[[bytes], bool]
) -> None:
    async with running(1, **fields) as one:
        await one.api.put(ONE)
        body = b"".join(b'{"value":"%s"}\n' % (b"x" * 40) for _ in range(10))
        answer = await one.api.post(f"{ONE}/messages", body, NDJSON)
        assert answer.json()["count"] == 10
        stored = [batch.data for batch in one.partition("one").batches]
        assert len(stored) > 2
        assert all(most(batch) for batch in stored)
        assert sum(len([*read_records(batch)]) for batch in stored) == 10


async def test_batches_of_one_request_under_way() -> None:
    async with running(1, batch_messages_max=1, inflight_batches_max=2) as one:
        await one.api.put(ONE)
        partition = one.partition("one")
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
