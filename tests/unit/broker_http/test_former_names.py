"""Calls by the names of 0.1 do the same as today's names, and are marked as outdated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker import errors
from octavo.broker.bulkload.rules import digest_of
from octavo.broker.http import former_names
from octavo.broker.http.api.bulk_loads import TOKEN_HEADER
from octavo.protocol import log_limiter
from tests.support.bulk_load_stub import BulkLoadStub, stub_bulk_loads
from tests.support.memory_cluster import Running, running

FORMER_TOKEN = former_names.HEADERS[TOKEN_HEADER]
NOW, FORMER = "/v1/bulk-loads/q-1", "/v1/transactions/q-1"
LEDGER = {"id": 7, "messages": 3, "bytes": 100, "first_ms": 1, "last_ms": 2}
PARTS = {"parts": [{"topic": "t", "partition": 0, "ledgers": [LEDGER]}]}
SHARES = {"parts": [{"topic": "t", "partition": 1, "content": "3-9-ff"}]}
CALLS: dict[str, tuple[str, str, Any]] = {
    "commit": ("POST", "/batches/4/commit", PARTS),
    "commit what is published": ("POST", "/batches/4/commit", {"parts": [], "published": True}),
    "begin": ("POST", "/batches/4/begin", SHARES),
    "abort": ("POST", "/batches/4/abort", {"ledgers": [7, 8]}),
    "get": ("GET", "", None),
    "a body that does not fit": ("POST", "/batches/4/commit", {"parts": 3}),
    "a body that is no object": ("POST", "/batches/4/commit", [1]),
    "no body": ("POST", "/batches/4/commit", None),
    "a bad number": ("POST", "/batches/x/commit", PARTS),
    "no such topic": (
        "POST",
        "/batches/4/commit",
        {"parts": [{**PARTS["parts"][0], "topic": "u"}]},
    ),
}


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running() as cluster:
        stub_bulk_loads(cluster.brokers["b0"])
        yield cluster


def driver(one: Running) -> BulkLoadStub:
    return stub_bulk_loads(one.brokers["b0"])


def in_former_words(found: Any) -> Any:
    if "bulk_load" in found:
        found["transaction"] = found.pop("bulk_load")
    for was in ("instance",):
        if was in found:
            found[was] = found[was].replace(NOW, FORMER)
    return found


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Running, Running]]:
    """Two independent clusters: one gets today's calls, one the former calls."""
    async with running(1) as one, running(1) as other:
        for each in (one, other):
            driver(each)
            await each.api.call("PUT", "/v1/topics/public/t", json={"partitions": 2})
        yield one, other


@pytest.mark.parametrize("name", CALLS)
async def test_both_spellings_do_the_same(pair: tuple[Running, Running], name: str) -> None:
    one, other = pair
    method, path, sent = CALLS[name]
    for committed in (False, True):
        if committed:
            for each in pair:
                await each.api.call("POST", NOW + "/batches/5/commit", json=PARTS)
        body = {} if sent is None else {"json": sent}
        now = await one.api.call(method, NOW + path, headers={TOKEN_HEADER: "mine"}, **body)
        was = await other.api.call(method, FORMER + path, headers={FORMER_TOKEN: "mine"}, **body)
        assert was.status == now.status, (was, now)
        expected = in_former_words(now.json())
        if "code" in expected and expected["code"] in former_names.CODES:
            expected["code"] = former_names.CODES[expected["code"]]
            expected["type"] = f"urn:octavo:problem:{expected['code']}"
            expected["title"] = expected["code"].replace("-", " ").capitalize()
        assert was.json() == expected
        assert was.headers["Deprecation"] == "true"
        assert "Deprecation" not in now.headers
    of, too = driver(one), driver(other)
    assert (too.asked, too.begun, too.callers) == (of.asked, of.begun, of.callers)
    if now.status == 200 and method == "POST":
        assert digest_of(b"mine") in [caller.digest for caller in too.callers]


async def test_either_token_is_understood_at_either_path(one: Running) -> None:
    for path in (NOW, FORMER):
        for header in (TOKEN_HEADER, FORMER_TOKEN):
            answer = await one.api.call(
                "POST", path + "/batches/4/abort", json={"ledgers": []}, headers={header: "mine"}
            )
            assert answer.status == 200
            is_old = path == FORMER or header == FORMER_TOKEN
            assert ("Deprecation" in answer.headers) is is_old
    assert {caller.digest for caller in driver(one).callers} == {digest_of(b"mine")}
    both = {TOKEN_HEADER: "mine", FORMER_TOKEN: "other"}
    await one.api.call("POST", NOW + "/batches/4/abort", json={"ledgers": []}, headers=both)
    assert driver(one).callers[-1].digest == digest_of(b"mine"), "today's counts"


REFUSALS = (
    errors.INVALID_BULK_LOAD("x"), errors.BULK_LOAD_ABORTED("x"), errors.FOREIGN_BULK_LOAD("x"),
    errors.BULK_LOAD_UNFINISHED("x"), errors.BULK_LOAD_NOT_FOUND("x"), errors.TooManyLedgers("x"),
    errors.BatchOutOfOrder("x", 3),
)  # fmt: skip


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.name)
async def test_refusals_are_said_in_the_words_of_the_call(
    one: Running, monkeypatch: pytest.MonkeyPatch, error: errors.BrokerError
) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(driver(one), "commit", fails)
    now = await one.api.call("POST", NOW + "/batches/4/commit", json=PARTS)
    was = await one.api.call("POST", FORMER + "/batches/4/commit", json=PARTS)
    assert (now.json()["code"], "Deprecation" in now.headers) == (error.name, False)
    assert was.json()["code"] == former_names.CODES.get(error.name, error.name)
    assert "bulk-load" not in was.json()["code"]
    assert (was.status, was.json()["retryable"]) == (now.status, now.json()["retryable"])
    assert was.headers["Deprecation"] == "true"
    assert was.headers.get("Retry-After") == now.headers.get("Retry-After")
    token = {FORMER_TOKEN: "mine"}
    mixed = await one.api.call("POST", NOW + "/batches/4/commit", json=PARTS, headers=token)
    assert (mixed.json()["code"], mixed.headers["Deprecation"]) == (error.name, "true")


async def test_the_log_says_so_once_a_minute(one: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(lines: list[Any]) -> list[tuple[str, int]]:
        return [(x["call"], x["count"]) for x in lines if x["event"] == "former_name_used"]

    with capture_logs() as lines:
        await one.api.get(NOW)
        for _ in range(3):
            await one.api.get(FORMER)
    get = "GET /v1/transactions/{bulk_load}"
    assert told(lines) == [(get, 1)]
    monkeypatch.setattr(log_limiter, "TOLD_EVERY_S", 0.0)
    with capture_logs() as lines:
        await one.api.get(FORMER)
    assert told(lines) == [(get, 3)], "the two that it did not tell of, and this one"


async def test_they_stand_in_no_document(one: Running) -> None:
    text = json.dumps((await one.api.get("/openapi.json")).json())
    text = text.replace(" transaction:{bulk_load}", "")  # the resource's kind, as Kafka has it
    for word in (*former_names.PATHS.values(), *former_names.HEADERS.values(), "ransaction"):
        assert word not in text


def test_every_problem_of_a_bulk_load_has_its_former_code() -> None:
    names = {
        kind.name
        for kind in vars(errors).values()
        if isinstance(kind, errors.ErrorCode)
        or (isinstance(kind, type) and issubclass(kind, errors.BrokerError))
    }
    assert set(former_names.CODES) == {name for name in names if "bulk-load" in name}
