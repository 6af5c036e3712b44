"""Calls to a secured cluster in the audit log: each once, with caller, operation, address and
reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.security.quotas import quota_store, with_quota
from tests.support.cluster import Cluster, running_cluster
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.http_api import Answer, until

ADMIN, ALICE, BOB = as_user("admin"), as_user("alice"), as_user("bob")
ORDERS = "/v1/topics/public/orders"
AUDIT = "/v1/topics/octavo/audit"
RULES = (
    "allow user:admin all *",
    "allow user:alice produce topic:public/orders",
    "allow user:alice consume topic:public/orders",
    "allow user:bob describe topic:public/orders",
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        authority = FakeAuthority()
        authority.secure(*RULES)
        for running in found.brokers.values():
            assert running.server is not None
            running.server._gate._authority = authority
            running.server._gate._authenticator = FakeAuthenticator()
        yield found


async def told(cluster: Cluster) -> list[dict[str, Any]]:
    for running in cluster.brokers.values():
        assert running.server is not None
        audit = running.server._audit
        audit._tell_due(all_of_it=True)
        await until(lambda audit=audit: not audit.waiting, 30)  # type: ignore[misc]
    found: list[dict[str, Any]] = []
    while True:
        path = f"{AUDIT}/messages?limit=10000&from={len(found)}"
        answer = await cluster.api.get(path, headers=ADMIN)
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        found += [one["value"] for one in answer.json()["messages"]]


def of(events: list[dict[str, Any]], principal: str, operation: str) -> list[dict[str, Any]]:
    return [one for one in events if (one["principal"], one["operation"]) == (principal, operation)]


async def test_each_call_is_told_once_with_who_what_and_why(cluster: Cluster) -> None:
    apis = list(cluster.apis.values())
    assert (await apis[0].put(ORDERS, headers=ADMIN)).status == 201
    path = f"{ORDERS}/messages"
    for api in apis:
        assert (await api.post(path, b"x", "text/plain", headers={**ALICE})).status == 200
        assert (await api.post(path, b"x", "text/plain", headers={**BOB})).status == 403
    assert (await apis[0].get(path)).status == 401
    assert (await apis[0].get(path, headers=as_user("bad-secret"))).status == 401
    assert (await apis[0].get(path, headers=ALICE)).status == 200
    assert (await apis[0].get(ORDERS, headers=BOB)).status == 200
    assert (await apis[0].call("DELETE", ORDERS, headers=BOB)).status == 403
    assert (await apis[0].call("DELETE", ORDERS, headers=ADMIN)).status == 204
    events = await told(cluster)
    [made] = of(events, "user:admin", "create")
    assert made["resource"] == "topic:public/orders"
    assert (made["call"], made["allowed"], made["source"]) == ("put_topic", True, "token")
    assert made["peer"] == "127.0.0.1"
    assert "allow user:admin all *" in made["reason"]
    produced = of(events, "user:alice", "produce")
    assert sum(one["count"] for one in produced) == 2
    assert {one["broker"] for one in produced} == set(cluster.brokers), "each by who was asked"
    refused = of(events, "user:bob", "produce")
    assert [one["allowed"] for one in refused] == [False, False]
    assert "no rule allows user:bob to produce topic:public/orders" in refused[0]["reason"]
    [consumed] = of(events, "user:alice", "consume")
    assert consumed["allowed"]
    assert [one["allowed"] for one in of(events, "anonymous", "consume")] == [False]
    [stranger] = of(events, "anonymous", "authenticate")
    assert not stranger["allowed"]
    assert "bad-secret" not in json.dumps(events)
    assert not of(events, "user:bob", "describe"), "what may be seen is not told"
    assert [one["allowed"] for one in of(events, "user:bob", "delete")] == [False]
    assert [one["allowed"] for one in of(events, "user:admin", "delete")] == [True]
    assert not any(one["principal"].startswith("node:") for one in events)


async def test_what_goes_the_short_way_is_counted(cluster: Cluster) -> None:
    assert (await cluster.api.put(ORDERS, headers=ADMIN)).status == 201
    for _ in range(20):
        answer = await cluster.api.post(f"{ORDERS}/messages", b"x", "text/plain", headers={**ALICE})
        assert answer.status == 200
    produced = of(await told(cluster), "user:alice", "produce")
    assert [one["count"] for one in produced] == [1, 19]


async def test_only_who_may_reads_the_audit_log_and_nobody_writes_it(cluster: Cluster) -> None:
    assert (await cluster.api.put(ORDERS, headers=ADMIN)).status == 201
    await told(cluster)
    path = f"{AUDIT}/messages"
    for headers in (ALICE, BOB, {}):
        assert (await cluster.api.get(path, headers=headers)).status in (401, 403)
    answer = await cluster.api.post(path, b"forged", "text/plain", headers={**ADMIN})
    assert (answer.status, answer.json()["code"]) == (403, "audit-topic")
    answer = await cluster.api.post("/v1/audit", b"x", headers=ADMIN)
    assert (answer.status, answer.json()["code"]) == (404, "no-such-call")


async def test_a_quota_is_of_who_asks_and_counted_by_whom_they_ask(cluster: Cluster) -> None:
    assert (await cluster.api.put(ORDERS, headers=ADMIN)).status == 201
    quotas = quota_store(cluster.store)
    await quotas.change(lambda record: with_quota(record, "user:*", {"publish_messages": 3}))
    await quotas.change(lambda record: with_quota(record, "user:admin", {"publish_messages": -1}))
    for running in cluster.brokers.values():
        assert running.server is not None
        found = running.server._services.quotas
        await until(lambda found=found: len(found._limits.quotas._set) == 2)  # type: ignore[misc]
        found.now_s = lambda: 100.0

    async def publish(headers: dict[str, str], api: Any) -> Answer:
        answer: Answer = await api.post(
            f"{ORDERS}/messages", b"x", "text/plain", headers={**headers}
        )
        return answer

    for api in cluster.apis.values():
        answers = [await publish(ALICE, api) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 3 + [429] * 3
        assert answers[-1].json()["subject"] == "user:alice"
        assert [(await publish(ADMIN, api)).status for _ in range(6)] == [200] * 6
