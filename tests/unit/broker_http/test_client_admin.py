"""Administrators' calls in the Python clients: quotas, policies, rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, NotFound
from octavo.client.sync import Client
from octavo.security.authority import Authority
from tests.support.fake_security import FakeAuthenticator
from tests.support.memory_cluster import Running, running
from tests.unit.broker_http.test_http_policy import secure


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Either:
    """Calls of one of the two clients, awaited in either case."""

    def __init__(self, kind: str, url: str, token: str = "") -> None:
        self._inner = (
            AsyncClient([url], token=token) if kind == "async" else Client([url], token=token)
        )

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if isinstance(self._inner, AsyncClient):
            return call

        async def run(*arguments: Any, **named: Any) -> Any:
            return await asyncio.to_thread(call, *arguments, **named)

        return run


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running(1) as cluster:
        yield cluster


@pytest.fixture
async def client(one: Running, kind: str) -> AsyncIterator[Any]:
    made = Either(kind, one.api.url)
    yield made
    await made.close()


async def test_a_quota_is_set_looked_at_and_taken_back(client: Any) -> None:
    assert await client.quotas() == {}
    assert await client.quota("user:alice") == {}
    await client.set_quota("user:*", requests=50, streams=5)
    assert await client.set_quota("user:alice", publish_bytes=10_000_000, streams=-1) == {
        "publish_bytes": 10_000_000, "requests": 50,
    }, "without a bound is not in it"  # fmt: skip
    assert await client.quotas() == {
        "user:*": {"requests": 50, "streams": 5},
        "user:alice": {"publish_bytes": 10_000_000, "streams": -1},
    }
    assert await client.set_quota("user:alice", requests=7, publish_bytes=None) == {
        "requests": 7, "streams": 5,
    }, "in place of what was set"  # fmt: skip
    await client.delete_quota("user:alice")
    assert await client.quota("user:alice") == {"requests": 50, "streams": 5}
    await client.set_quota("namespace:lab", topics=3)
    assert await client.quota("namespace:lab") == {"topics": 3}
    await client.set_quota("user:spiffe://a/b%2F?x", requests=3)
    assert (await client.quota("user:spiffe://a/b%2F?x"))["requests"] == 3


async def test_a_quota_that_makes_no_sense_is_refused(client: Any) -> None:
    for subject, amounts in (
        ("alice", {"requests": 1}),
        ("user:alice", {"requests": -2}),
        ("user:alice", {"topics": 1}),
        ("user:alice", {"requets": 1}),
    ):
        with pytest.raises(ApiError) as refused:
            await client.set_quota(subject, **amounts)
        assert refused.value.status in (400, 422), amounts
    assert await client.quotas() == {}


async def test_policies_of_a_namespace_and_of_a_topic(client: Any) -> None:
    with pytest.raises(NotFound):
        await client.update_namespace("lab", ttl="1d")
    assert await client.namespaces() == ["public"], "it made none"
    await client.create_namespace("lab")
    assert await client.namespace_policies("lab") == {"encrypted": False}
    found = await client.update_namespace("lab", ttl="1d", retention={"size": "1GiB"})
    assert found["policies"]["ttl"] == 86_400
    said = await client.namespace_policies("lab")
    assert (said["ttl"], said["retention"]["size"]) == (86_400, 2**30)
    await client.create_topic("lab/t", message_bytes_max="1KiB")
    holds = await client.topic_policies("lab/t")
    assert holds["ttl"] == {"value": 86_400, "from": "namespace"}
    assert holds["message_bytes_max"] == {"value": 1024, "from": "topic"}
    holds = await client.set_topic_policies("lab/t", ttl="off", message_bytes_max=None)
    assert holds["ttl"] == {"value": None, "from": "topic"}
    assert holds["message_bytes_max"] == {"value": None, "from": "default"}
    await client.update_namespace("lab", ttl=None)
    assert "ttl" not in await client.namespace_policies("lab")
    with pytest.raises(NotFound):
        await client.topic_policies("lab/gone")
    with pytest.raises(ApiError, match="ttl"):
        await client.set_topic_policies("lab/t", ttl="soon")


async def test_who_may_do_what_is_read_and_replaced(kind: str) -> None:
    async with running(1, authenticator=FakeAuthenticator()) as cluster:
        cluster.servers[0]._gate._authority = Authority(cluster.store)
        client = Either(kind, cluster.api.url, "ann")
        found = await client.policy()
        assert (found["secured"], found["rules"]) == (False, [])
        with pytest.raises(ApiError, match="not secured"):
            await client.set_policy([], [], version=found["version"])
        await secure(cluster)
        found = await client.policy()
        rule = {"effect": "allow", "principal": "user:bob", "operations": "consume",
                "resource": "topic:public/*"}  # fmt: skip
        made = await client.set_policy(
            [*found["rules"], rule], found["roles"], version=found["version"]
        )
        assert made["rules"][-1] == rule
        assert made == await client.policy()
        with pytest.raises(ApiError) as refused:
            await client.set_policy([], [], version=found["version"])
        assert refused.value.code == "policy-changed"
        await client.close()
