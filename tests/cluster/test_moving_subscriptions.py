"""Peek, skip, expire, seek, lag: over HTTP at any broker, in Python, and by the command line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, Trimmed
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import running_cluster
from tests.support.http_api import Api

BATCH = "application/vnd.kafka.recordbatch.v2"
TWO = "/v1/topics/public/two"
ONE = "/v1/topics/public/one"


@pytest.fixture
async def apis(tmp_path: Path) -> AsyncIterator[list[Api]]:
    async with running_cluster(tmp_path) as cluster:
        yield [await cluster.start_broker(name) for name in ("A", "B")]


async def fill(api: Api, path: str, count: int, time_ms: int = 1_000) -> None:
    batch = build_batch([Record(None, b"%d" % n, timestamp_ms=time_ms + n) for n in range(count)])
    assert (await api.post(path + "/messages", batch, BATCH)).status == 200


async def test_each_way_of_moving_at_any_broker(apis: list[Api]) -> None:
    one, other = apis
    await one.put(ONE, json={})
    await fill(one, ONE, 10)
    sub = ONE + "/subscriptions/s"
    await one.put(sub, json={"type": "shared"})
    for api in apis:
        answer = await api.get(sub + "/peek?max=3")
        messages = answer.json()["messages"]
        assert [m["offset"] for m in messages] == [0, 1, 2], answer
        assert "ack_id" not in messages[0]
        assert "delivery_count" not in messages[0]
    got = (await one.post(sub + "/receive?max=4")).json()["messages"]
    assert [m["delivery_count"] for m in got] == [1, 1, 1, 1], "a look is no delivery"
    await one.post(sub + "/ack", json={"ack_ids": [got[1]["ack_id"]], "nack": [got[3]["ack_id"]]})
    messages = (await other.get(sub + "/peek?max=3")).json()["messages"]
    assert [(m["offset"], m.get("delivery_count")) for m in messages] == [
        (0, None), (2, None), (3, 1),
    ]  # fmt: skip
    answer = await other.post(sub + "/skip", json={"messages": 2})
    part = {"partition": 0, "acked": 2, "committed_offset": 3}
    assert answer.json() == {"acked": 2, "partitions": [part]}
    stale = await one.post(sub + "/ack", json={"ack_ids": [got[3]["ack_id"]]})
    assert stale.status == 409
    done = await one.post(sub + "/ack", json={"ack_ids": [got[2]["ack_id"]]})
    assert done.json() == {"acked": 0}, "skipped is acked: saying so again is no error"
    answer = await one.post(sub + "/skip", json={"messages": 100})
    assert answer.json()["acked"] == 7
    assert (await one.get(sub)).json()["backlog"] == 0
    assert (await one.get(sub + "/peek")).json() == {"messages": []}
    assert (await one.post(sub + "/seek", json={"to": 4})).json()["partitions"][0]["offset"] == 4
    beyond = await other.post(sub + "/seek", json={"to": 11})
    assert (beyond.status, beyond.json()["next_offset"]) == (416, 10)
    assert (await one.get(sub)).json()["backlog"] == 6, "nothing has moved"


async def test_what_is_too_old_is_acked_in_all_partitions(apis: list[Api]) -> None:
    one, other = apis
    await one.put(TWO, json={"partitions": 2})
    sub = TWO + "/subscriptions/s"
    await one.put(sub, json={})
    now_ms = int(time.time() * 1000)
    for number in (0, 1):
        await fill(one, f"{TWO}/partitions/{number}", 5, now_ms - 3_600_000)
        await fill(one, f"{TWO}/partitions/{number}", 3, now_ms)
    answer = await other.post(sub + "/expire", json={"older_than": "30m"})
    assert answer.json()["acked"] == 10, answer
    assert [one["committed_offset"] for one in answer.json()["partitions"]] == [5, 5]
    answer = await one.post(f"{TWO}/partitions/1/subscriptions/s/expire", json={"older_than": 0})
    assert answer.json()["partitions"][0]["partition"] == 1
    peeked = (await other.get(sub + "/peek?max=100")).json()["messages"]
    assert len(peeked) in (3, 4, 5, 6)
    assert all(m["offset"] >= 5 for m in peeked)


@pytest.mark.parametrize(
    ("word", "body", "status", "code"),
    [
        ("skip", {"messages": 0}, 422, "invalid-settings"),
        ("skip", {"messages": -1}, 422, "invalid-settings"),
        ("skip", {}, 422, None),
        ("expire", {"older_than": "soon"}, 422, "invalid-settings"),
        ("expire", {}, 422, None),
        ("seek", {"to": 5}, 422, "partition-required"),
    ],
)
async def test_bad_calls_say_what_would_be_right(
    apis: list[Api], word: str, body: dict[str, Any], status: int, code: str | None
) -> None:
    await apis[0].put(TWO, json={"partitions": 2})
    sub = TWO + "/subscriptions/s"
    await apis[0].put(sub, json={})
    answer = await apis[1].post(f"{sub}/{word}", json=body)
    assert answer.status == status, answer
    assert code in (None, answer.json()["code"])
    unknown = await apis[0].post(f"{TWO}/partitions/0/subscriptions/x/{word}", json=body)
    if answer.json()["code"] == "partition-required":
        assert (unknown.status, unknown.json()["code"]) == (404, "subscription-not-found")
    assert (await apis[1].get(f"{TWO}/subscriptions/x/peek")).status == 404


async def test_a_seek_before_what_retention_has_left(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        api = await cluster.start_broker("A")
        settings = {"rollover": {"entries": 1}, "retention": {"size": 0}}
        await api.put(ONE, json=settings)
        for _ in range(4):
            await fill(api, ONE, 5)
        sub = ONE + "/subscriptions/s"
        async with asyncio.timeout(20):
            while not await _earliest(api):  # noqa: ASYNC110 (another process's chore)
                await asyncio.sleep(0.1)
        earliest = await _earliest(api)
        await api.put(sub, json={})
        answer = await api.post(sub + "/seek", json={"to": 0})
        assert (answer.status, answer.json()["code"]) == (410, "offset-trimmed"), answer
        assert answer.json()["earliest_offset"] >= earliest
        async with AsyncClient(api.url) as client:
            with pytest.raises(Trimmed):
                await client.subscription("one", "s").seek(0)


async def _earliest(api: Api) -> int:
    found: int = (await api.get(ONE + "/offsets?at=earliest")).json()["offsets"][0]["offset"]
    return found


async def test_in_python(apis: list[Api]) -> None:
    await apis[0].put(TWO, json={"partitions": 2})
    async with AsyncClient([api.url for api in apis]) as client:
        consumer = await client.subscribe("two", "s", type="shared", max_deliveries=3)
        await fill(apis[0], TWO + "/partitions/0", 4)
        await fill(apis[0], TWO + "/partitions/1", 6)
        assert await consumer.lag() == {0: 4, 1: 6}
        assert [one.offset for one in await consumer.peek(2, partition=1)] == [0, 1]
        assert await consumer.skip(3, partition=1) == 3
        assert await consumer.expire(60) == 7
        assert await consumer.seek("earliest") == {0: 0, 1: 0}
        assert await consumer.seek(2, partition=0) == {0: 2}
        assert await consumer.lag() == {0: 2, 1: 6}
        assert await consumer.skip(1) == 2, "of each partition"
        with pytest.raises(ApiError) as refused:
            await consumer.seek(1)
        assert refused.value.code == "partition-required"
        (made,) = await client.subscriptions("two")
        assert made["settings"]["dead_letter_topic"] == "public/two-s-dlq"


async def test_by_the_command_line(apis: list[Api], capsys: pytest.CaptureFixture[str]) -> None:
    await apis[0].put(ONE, json={})
    await fill(apis[0], ONE, 8)

    async def said(*words: str) -> Any:
        line = ["subscription", *words, "--url", apis[1].url]
        assert await asyncio.to_thread(run, line) == 0, capsys.readouterr()
        out = capsys.readouterr().out
        return [json.loads(one) for one in out.splitlines()] if "--json" in words else out

    await said(
        "create", "one", "s", "--type", "shared", "--max-deliveries", "4", "--backoff", "1s,5m,3",
        "--ack-timeout", "1m",
    )  # fmt: skip
    [[listed]] = await said("list", "one", "--json")
    settings = listed["settings"]
    assert (settings["max_deliveries"], settings["ack_timeout"]) == (4, 60)
    assert settings["retry_backoff"] == {"first": 1, "most": 300, "factor": 3.0}
    assert "one-s-dlq" in await said("list", "one")
    assert (await said("lag", "one", "s", "--json"))[0]["backlog"] == 8
    assert "dead letters" in await said("lag", "one", "s")
    peeked = await said("peek", "one", "s", "-n", "2", "--json")
    assert [(one["offset"], one["value"]) for one in peeked] == [(0, 0), (1, 1)]
    assert await said("skip", "one", "s", "-n", "3", "--json") == [{"acked": 3}]
    assert await said("seek", "one", "s", "--to", "1", "--json") == [{"partitions": {"0": 1}}]
    assert await said("expire", "one", "s", "--older-than", "1h", "--json") == [{"acked": 7}]
    await said("delete", "one", "s", "--yes")
    assert await said("list", "one", "--json") == [[]]


@pytest.mark.parametrize("text", ["", "1s,", "1s,2s,3,4", "1s,2s,often"])
def test_a_back_off_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["subscription", "create", "one", "s", "--backoff", text]) == 2
    assert "--backoff" in capsys.readouterr().err
