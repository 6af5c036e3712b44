"""The client's messages to a newcomer: a wrong address, wrong values, the log."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import AsyncClient, Client, InvalidCall, MessageTooLong, Unreachable
from octavo.broker.http.problems import Problem
from octavo.broker.http.request_body import in_words
from octavo.broker.http.router import Router
from octavo.broker.http.routes import ROUTES
from octavo.cli import standalone
from octavo.client import client as client_module
from octavo.client import transport
from octavo.client.wire import DefaultUrl
from tests.support.fake_service import FakeBroker

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    one = FakeBroker(partitions=1)
    await one.start()
    yield one
    await one.stop()


@pytest.mark.parametrize("urls", [8080, 8080.0, [8080], [None], b"http://a:1", object(), {1: 2}])
def test_an_address_is_text(urls: Any) -> None:
    for kind in (AsyncClient, Client):
        with pytest.raises(InvalidCall, match=r"names no broker: write http://host:port"):
            kind(urls)


async def test_nothing_at_the_default_address_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command waited a minute for a broker at :8080, where none was ever started."""
    monkeypatch.delenv("OCTAVO_URL", raising=False)
    monkeypatch.setattr(client_module, "DEFAULT_URL", DefaultUrl(NOWHERE))
    monkeypatch.setattr(transport, "HOPELESS_RETRY_S", 0.05)
    async with AsyncClient(retry_s=100_000) as client:
        with pytest.raises(Unreachable, match=r"default address, and nothing listens.*OCTAVO_URL"):
            await client.topics()


async def test_an_address_that_was_named_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker may be about to start."""
    monkeypatch.setattr(transport, "HOPELESS_RETRY_S", 0.0)
    monkeypatch.setattr(transport, "PAUSE_S", 0.001)
    monkeypatch.setattr(transport, "PAUSE_S_MAX", 0.001)
    tries = 0

    def count(_: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 5:
            raise asyncio.CancelledError

    monkeypatch.setenv("OCTAVO_URL", NOWHERE)
    for client in (AsyncClient(NOWHERE, on_retry=count), AsyncClient(on_retry=count)):
        tries = 0
        async with client:
            with pytest.raises(asyncio.CancelledError):
                await client.topics()
        assert tries == 5


async def test_the_environment_names_the_broker(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_URL", broker.url)
    async with AsyncClient() as client:
        assert (await client.topic("t")).partitions == 1


async def test_reprs_say_where_and_what(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url, token="secret") as client:
        assert repr(client) == f"AsyncClient({broker.url})"
        producer = await client.producer("t", linger_ms=60_000)
        await producer.send("x")
        assert repr(producer) == "Producer(public/t, 1 unanswered)"
        assert repr(client.stream("s")) == "AsyncStream(public/s)"
        subscription = client.subscription("t", "s", consumer="c")
        assert repr(subscription) == "Subscription(public/t, s, consumer c)"
        consumer = client.consume(["t", "u-*"], "s", consumer="c")
        assert repr(consumer) == "TopicsConsumer(public/t, public/u-*, s, consumer c)"

    def work() -> None:
        with Client(broker.url, token="secret") as client:
            assert repr(client) == f"Client({broker.url})"
            assert repr(client.stream("s")) == "Stream(public/s)"
            subscription = client.subscription("t", "s", consumer="c")
            assert repr(subscription) == "Subscription(public/t, s, consumer c)"
        assert repr(client) == f"Client({broker.url}, closed)"

    await asyncio.to_thread(work)


async def test_values_of_the_wrong_kind_are_told_in_words(broker: FakeBroker) -> None:
    """Instead of Python's `'NoneType' object has no attribute 'split'`."""
    wrong: Any
    async with AsyncClient(broker.url) as client:
        subscription = client.subscription("t", "s")
        for wrong in (None, 5, b"t"):
            with pytest.raises(InvalidCall, match=r"a topic's name must be text"):
                await client.publish(wrong, "x")
        for wrong in ("0", 1.5, True, -1):
            with pytest.raises(InvalidCall, match=r"a partition must be a number from 0 on"):
                await client.publish("t", "x", partition=wrong)
        for wrong in (5, None, b"id", {"a": 1}):
            for call in (subscription.ack, subscription.nack):
                with pytest.raises(InvalidCall, match=r"a delivery, an ack id or a list"):
                    await call(wrong)
    with pytest.raises(InvalidCall, match=r"a token must be text, not int"):
        AsyncClient(broker.url, token=5)  # type: ignore[arg-type]


async def test_none_of_it_is_pickled_or_copied(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        producer = await client.producer("t")
        for one in (client, producer, client.stream("s"), client.subscription("t", "s")):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(InvalidCall, match=r"cannot be pickled or copied: pass the URL"):
                    attempt(one)
    synchronous = Client(broker.url)
    with pytest.raises(InvalidCall, match=r"cannot be pickled"):
        pickle.dumps(synchronous)
    await asyncio.to_thread(synchronous.close)


async def test_repeated_calls_are_logged(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PAUSE_S", 0.001)
    faults = iter(["503"])
    broker.fault = lambda: next(faults, None)
    with caplog.at_level(logging.DEBUG, logger="octavo"):
        async with AsyncClient(broker.url, token="t0ken") as client:
            await client.publish("t", "a value", key="a key")
    told = [(one.name, one.levelname) for one in caplog.records]
    assert ("octavo.client", "INFO") in told, "that a call is repeated"
    assert ("octavo.client", "DEBUG") in told, "each answer"
    assert not any(word in caplog.text for word in ("t0ken", "a value", "a key"))


async def test_a_long_message_is_told_of_the_large_call(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url) as client:
        with pytest.raises(MessageTooLong, match=r"publish_large \(octavo publish --large FILE\)"):
            await client.publish("t", b"x" * 5_000_000)


# ---- what a broker says, in words


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/v1/topics/hello/messages", "POST /v1/topics/public/hello/messages"),
        ("PUT", "/v1/topics/hello", "PUT /v1/topics/public/hello"),
        ("DELETE", "/v1/topics/hello", "DELETE /v1/topics/public/hello"),
        (
            "POST",
            "/v1/topics/hello/subscriptions/me/receive",
            "POST /v1/topics/public/hello/subscriptions/me/receive",
        ),
        ("PUT", "/v1/durable-streams/story", "PUT /v1/durable-streams/public/story"),
        ("GET", "/v1/explain/hello", "GET /v1/explain/public/hello"),
    ],
)
def test_a_namespace_that_was_forgotten_is_told(method: str, path: str, meant: str) -> None:
    with pytest.raises(Problem) as told:
        Router(ROUTES).find(method, path)
    assert told.value.status in (404, 405)
    assert f"was the namespace forgotten? {meant} is possible" in str(told.value)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/nothing"), ("BREW", "/v1/topics/hello/messages"), ("PUT", "/v1/topics/public")],
)
def test_no_namespace_is_told_where_none_would_help(method: str, path: str) -> None:
    with pytest.raises(Problem) as told:
        Router(ROUTES).find(method, path)
    assert "forgotten" not in str(told.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Expected `object | null`, got `str` - at `$.retention`",
            "retention must be an object or null, not text",
        ),
        ("Expected `int` >= 1 - at `$.partitions`", "partitions must be a whole number >= 1"),
        ("Expected `object`, got `array`", "the body must be an object, not a list"),
        ("Object missing required field `name` - at `$[0].x`", "[0].x lacks `name`"),
        ("Object contains unknown field `a`", "the body has a field `a`, which is not known"),
        ("something else", "something else"),
    ],
)
def test_a_body_that_does_not_fit_is_told_in_words(said: str, words: str) -> None:
    assert in_words(said) == words


def _cluster(url: str, token_file: str = "") -> Any:
    return SimpleNamespace(urls=[url], folder="/data/here", token_file=token_file, shown=())


def test_the_banner_says_how_commands_find_the_cluster() -> None:
    told = standalone._how_commands_find_it
    assert told(_cluster("http://127.0.0.1:8080")) == ""
    assert "export OCTAVO_URL=http://127.0.0.1:18080" in told(_cluster("http://127.0.0.1:18080"))
    assert "export OCTAVO_DATA=/data/here" in told(_cluster("https://a:1", "/data/here/t"))
