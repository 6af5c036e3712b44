"""Explanations show a caller its own objects, at whichever broker it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from octavo.broker.partition.partition import Partition
from octavo.broker.types import Publishing
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.memory_cluster import Running, running

EXPLAIN = "/v1/explain/public/one"
TOPIC = "/v1/topics/public/one"


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@pytest.fixture
async def two(authority: FakeAuthority) -> AsyncIterator[Running]:
    async with running(2, authority=authority, authenticator=FakeAuthenticator()) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": 2})
        await cluster.api.put(TOPIC + "/subscriptions/s", json={"type": "shared"})
        await cluster.api.post(TOPIC + "/messages", b"first", "text/plain")
        yield cluster


async def test_every_broker_says_the_same_of_each_partition(two: Running) -> None:
    told = [(await api.get(EXPLAIN + "?subscription=s")).json() for api in two.apis]
    for said in told:
        for part in said["partitions"]:
            assert part.pop("served") >= 0  # seconds
    assert told[0]["partitions"] == told[1]["partitions"]
    assert [one["id"] for one in told[0]["brokers"]] == ["b0", "b1"]
    part = told[0]["partitions"][0]
    assert "the even spread of the topic's partitions" in part["why"]
    assert part["subscription"]["figures"]["next_offset"] >= 0
    assert "unacked_of_consumer_max" not in part["subscription"]


async def test_what_is_not_there_is_said(two: Running) -> None:
    for path, code in (
        ("/v1/explain/public/nothing", "topic-not-found"),
        (EXPLAIN + "?subscription=nobody", "subscription-not-found"),
        (TOPIC + "/partitions/7/explain", "partition-not-found"),
    ):
        answer = await two.api.get(path)
        assert (answer.status, answer.json()["code"]) == (404, code), path
    answer = await two.api.get(EXPLAIN + "?subscription=a/b")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-name")


async def test_rights_are_those_on_the_topic_and_on_the_subscription(
    two: Running, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Publishing(0, 1000, None, (), ("s", "subscription 's' is far behind"))
    monkeypatch.setattr(Partition, "publishing", lambda _: over)
    authority.secure(
        "allow user:alice all *",
        "allow user:bob describe topic:public/one",
    )
    bob, alice = as_user("bob"), as_user("alice")
    for api in two.apis:
        assert (await api.get(EXPLAIN, headers=as_user("mallory"))).status == 403
        assert (await api.get(EXPLAIN)).status == 401
        seen = (await api.get(EXPLAIN, headers=bob)).json()
        assert seen["brokers"] == [], "of the cluster he may know nothing"
        for part in seen["partitions"]:
            assert part["publishing"]["held_back"] == [
                "the backlog_quota of a subscription is exceeded"
            ]
        assert (await api.get(EXPLAIN + "?subscription=s", headers=bob)).status == 403
        seen = (await api.get(EXPLAIN + "?subscription=s", headers=alice)).json()
        assert len(seen["brokers"]) == 2
        for part in seen["partitions"]:
            assert part["publishing"]["held_back"] == ["subscription 's' is far behind"]
