"""Calls that pretend to come from another broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.cluster.registry import encode_broker
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.routes import ROUTES
from octavo.broker.operations.upgrade import KEY_USE, Upgrade, headers_of
from octavo.broker.types import BrokerInfo, TopicName
from octavo.metadata.secret import cluster_secret
from octavo.metadata.topics import owner_path
from tests.support.cluster import Cluster, running_cluster
from tests.support.former_proofs import BY, ESCAPED, PROOF, SEAL, TO, former_headers

# `Octavo-Forwarded-By: anything` made a broker claim another broker's partition.

TOPIC = "/v1/topics/public/flights"
PARTITION = f"{TOPIC}/partitions/0"
NAME = TopicName("public", "flights").partition(0)
KEY = b"k" * 32


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as brokers:
        for number in range(2):
            await brokers.start_broker(f"broker-{number}", moving_wait_ms=1_000)
        await brokers.api.put(TOPIC)
        yield brokers


def preferred(brokers: Cluster) -> tuple[str, str]:
    any_broker = next(iter(brokers.brokers.values())).broker
    (first,) = any_broker.registry.preferred(NAME.topic_name, 1)
    return first.broker_id, next(one for one in brokers.brokers if one != first.broker_id)


async def key_of(brokers: Cluster) -> bytes:
    store = next(iter(brokers.brokers.values())).store
    return (await cluster_secret(store)).key(KEY_USE)


async def test_no_call_over_http_makes_a_broker_take_a_partition(brokers: Cluster) -> None:
    """Brokers ask each other on a connection that they have proved; neither a former proof of a
    call nor the proof of a connection counts over HTTP."""
    first, other = preferred(brokers)
    key = await key_of(brokers)
    former = former_headers(key, first, other, "GET", PARTITION)
    for claimed in (
        {BY: first},
        former,
        {**former, SEAL: "0" * 64, PROOF: "\udcff"},
        headers_of(Upgrade(first, other, "0" * 32), key),
        {**former, **headers_of(Upgrade(first, other, "0" * 32), key), "Connection": "Upgrade"},
    ):
        answer = await brokers.apis[other].get(PARTITION, headers=claimed)
        assert answer.status == 200, (claimed, answer)
        assert answer.json()["owner"] == first, claimed


INNER = [route for route in FormerNames().routes(ROUTES) if route.inner]


def test_calls_from_broker_to_broker_say_that_they_are() -> None:
    assert {route.name for route in INNER} == {
        route.name for route in ROUTES if route.summary.startswith("From broker to broker")
    }
    assert INNER


@pytest.mark.parametrize("route", INNER, ids=lambda route: f"{route.method} {route.path}")
async def test_nobody_else_may_make_them(brokers: Cluster, route: Any) -> None:
    path = route.path.format(namespace="public", topic="flights", partition=0)
    first, other = preferred(brokers)
    key = await key_of(brokers)
    for headers in (
        {},
        {BY: other},
        former_headers(key, other, first, route.method, path),
        headers_of(Upgrade(other, first, "0" * 32), KEY),
    ):
        answer = await brokers.apis[first].call(route.method, path, headers=headers)
        assert (answer.status, answer.json()["code"]) == (403, "brokers-only")
        assert not answer.json()["retryable"]


async def test_former_headers_between_brokers_change_no_message(brokers: Cluster) -> None:
    first, other = preferred(brokers)
    sent = {
        ESCAPED: "octavo-key", "Octavo-Key": "%41", TO: first, BY: other, PROOF: "x",
        "Content-Type": "text/plain",
    }  # fmt: skip
    for broker in (first, other):
        for path in (f"{PARTITION}/messages", f"{TOPIC}/large"):
            answer = await brokers.apis[broker].post(path, b"x", headers=sent)
            assert answer.status == 200, answer
    found = (await brokers.api.get(f"{PARTITION}/messages?from=earliest")).json()["messages"]
    assert [one["key"] for one in found] == ["%41"] * 4


@pytest.mark.parametrize("known", [True, False], ids=["a broker's name", "a foreign name"])
async def test_a_forged_owner_is_sent_nothing(brokers: Cluster, known: bool) -> None:
    first, other = preferred(brokers)
    visits: list[bytes] = []

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(await reader.read(4096))
        writer.close()

    trap = await asyncio.start_server(visited, "127.0.0.1", 0)
    port = trap.sockets[0].getsockname()[1]
    forged = BrokerInfo(first if known else "../evil", f"http://127.0.0.1:{port}")
    store = brokers.brokers[other].store
    await store.create(owner_path(*NAME), encode_broker(forged, "run"))
    with capture_logs() as lines:
        for headers in ({}, {"Prefer": "redirect"}):
            answer = await brokers.apis[other].post(
                f"{PARTITION}/messages", b"x", headers={"Content-Type": "text/plain", **headers}
            )
            assert (answer.status, answer.json()["code"]) == (503, "owner-not-registered"), answer
            assert answer.json()["retryable"]
            assert str(port) not in answer.headers["Octavo-Owner"]
    assert not visits
    assert [line["event"] for line in lines].count("owner_not_registered") == 1
    record = await store.get(owner_path(*NAME))
    await store.delete(owner_path(*NAME), record.version)
    answer = await brokers.apis[other].get(PARTITION)
    assert (answer.status, answer.json()["owner"]) == (200, first), "served as before"
    trap.close()


async def test_a_broker_of_which_nothing_was_heard_yet_is_registered(brokers: Cluster) -> None:
    first, other = preferred(brokers)
    assert (await brokers.apis[first].get(PARTITION)).status == 200
    del brokers.brokers[other].broker.registry.live[first]
    assert (await brokers.apis[other].get(PARTITION)).json()["owner"] == first
