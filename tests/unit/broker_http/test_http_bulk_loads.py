"""Bulk loads over HTTP: what reaches the driver, and what is refused before that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.broker.bulkload.driver import Offer
from octavo.broker.errors import BULK_LOAD_ABORTED, BULK_LOAD_UNFINISHED
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import PrivateLedger
from tests.support.bulk_load_stub import BulkLoadStub, stub_bulk_loads
from tests.support.memory_cluster import Running, running

LEDGER = {"id": 7, "messages": 3, "bytes": 100, "first_ms": 1, "last_ms": 2}
COMMIT = "/v1/bulk-loads/q-1/batches/4/commit"

BEGIN = "/v1/bulk-loads/q-1/batches/4/begin"
SHARE = {"topic": "flights", "partition": 1, "content": "3-9-ff"}


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running() as cluster:
        stub_bulk_loads(cluster.brokers["b0"])
        yield cluster


def driver(one: Running) -> BulkLoadStub:
    return stub_bulk_loads(one.brokers["b0"])


def body(**changes: Any) -> dict[str, Any]:
    return {"parts": [{"topic": "flights", "partition": 1, "ledgers": [LEDGER], **changes}]}


async def test_a_commit_reaches_every_owner_and_is_shown(one: Running) -> None:
    await one.api.call("PUT", "/v1/topics/public/flights", json={"partitions": 2})
    answer = await one.api.call("POST", COMMIT, json=body())
    assert answer.status == 200
    part = {
        "topic": "public/flights", "partition": 1, "messages": 3, "offset": 0, "ledgers": [7],
    }  # fmt: skip
    shown = {"bulk_load": "q-1", "batch": 4, "complete": True}
    shown |= {"published": False, "parts": [part]}
    assert answer.json() == {**shown, "repeated": False}
    name = PartitionName("public", "flights", 1)
    asked = driver(one).asked
    assert asked == [("q-1", 4, [Offer(name, (PrivateLedger(7, 3, 100, 1, 2),))])]
    again = (await one.api.call("POST", COMMIT, json=body())).json()
    assert again["repeated"] is True
    found = (await one.api.get("/v1/bulk-loads/q-1")).json()
    assert found == {**shown, "parts": [{**part, "offset": None}]}


async def test_what_a_writer_publishes_is_begun_and_committed_without_ledgers(
    one: Running,
) -> None:
    await one.api.call("PUT", "/v1/topics/public/flights", json={"partitions": 2})
    turn = {"bulk_load": "q-1", "batch": 4, "repeated": False}
    answer = await one.api.call("POST", BEGIN, json={"parts": [SHARE]})
    assert (answer.status, answer.json()) == (200, turn)
    assert driver(one).begun == [("q-1", 4, {"public/flights/1": "3-9-ff"})]
    answer = await one.api.call("POST", COMMIT, json={"parts": [], "published": True})
    assert (answer.json()["published"], answer.json()["repeated"]) == (True, False)
    answer = await one.api.call("POST", BEGIN, json={"parts": []})
    assert answer.json() == {**turn, "repeated": True}


@pytest.mark.parametrize(
    ("path", "sent", "status", "code"),
    [
        (COMMIT, {"parts": [{"topic": "flights"}]}, 422, "invalid-body"),
        (COMMIT, body(partitions=2), 422, "invalid-body"),
        (COMMIT, body(topic="a/b/c"), 400, "invalid-name"),
        (COMMIT, body(ledgers=[{**LEDGER, "messages": 0}]), 422, "invalid-body"),
        (COMMIT.replace("/4/", "/-1/"), body(), 400, "invalid-parameter"),
        (COMMIT.replace("q-1", "q%2F1"), body(), 400, "invalid-name"),
        (COMMIT, {**body(), "published": True}, 422, "invalid-body"),
        (BEGIN, {"parts": [SHARE, SHARE]}, 422, "invalid-body"),
        (BEGIN, {"parts": [{**SHARE, "content": "x" * 101}]}, 422, "invalid-body"),
        (BEGIN, {"parts": [{**SHARE, "topic": "a/b/c"}]}, 400, "invalid-name"),
        (COMMIT.replace("commit", "abort"), {"ledgers": ["x"]}, 422, "invalid-body"),
    ],
)
async def test_what_is_malformed_is_refused(
    one: Running, path: str, sent: dict[str, Any], status: int, code: str
) -> None:
    answer = await one.api.call("POST", path, json=sent)
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert not driver(one).asked
    assert not driver(one).begun


async def test_the_drivers_refusals_are_problems(
    one: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, retryable in (
        (BULK_LOAD_ABORTED("given up"), 409, False),
        (BULK_LOAD_UNFINISHED("one is missing"), 503, True),
    ):

        async def fails(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(driver(one), "commit", fails)
        answer = await one.api.call("POST", COMMIT, json=body())
        assert (answer.status, answer.json()["retryable"]) == (status, retryable)


async def test_an_id_that_was_never_committed_is_not_found(one: Running) -> None:
    answer = await one.api.get("/v1/bulk-loads/never")
    assert (answer.status, answer.json()["code"]) == (404, "bulk-load-not-found")
