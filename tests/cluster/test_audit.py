"""The audit log on real brokers: each event and each call is in it once, whatever dies
meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from octavo.broker.audit import BATCH_EVENTS_MAX, AuditLog
from octavo.broker.errors import AUDIT_TOPIC_CLOSED, OwnerUnreachable
from octavo.broker.internal_topics import AUDIT_PARTITION
from octavo.protocol.records import Record, build_batch
from octavo.security.audit import REASON_CHARS, Decided
from octavo.security.principal import Identity
from octavo.security.quotas import quota_store, with_quota
from octavo.security.rules import CLUSTER, Kind, Operation, Resource
from tests.support.cluster import Cluster, running_cluster
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.http_api import Answer, until
from tests.support.kit.refusals import raises_code

AUDIT = "/v1/topics/octavo/audit"
ALICE = Identity("user:alice", source="token")
ORDERS = Resource(Kind.TOPIC, "payments/orders")


def log_of(cluster: Cluster, name: str) -> AuditLog:
    server = cluster.brokers[name].server
    assert server is not None
    return server._audit


def administers(log: AuditLog, number: int, **more: str) -> None:
    resource = Resource(Kind.TOPIC, f"payments/t{number}")
    log.on_decision(Decided(ALICE, Operation.CREATE, resource, True, "10.0.0.7", **more))


async def events(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        path = f"{AUDIT}/messages?limit=10000&max_bytes=8000000&from={len(found)}"
        answer = await cluster.api.get(path)
        if answer.status in (204, 404):
            return found
        assert answer.status == 200, answer
        found += [one["value"] for one in answer.json()["messages"]]


async def written(cluster: Cluster, *logs: AuditLog) -> list[dict[str, Any]]:
    await until(lambda: not any(log.waiting for log in logs), 30)
    return await events(cluster)


async def test_events_of_all_brokers_come_into_one_topic(two: Cluster) -> None:
    logs = [log_of(two, name) for name in two.brokers]
    for number, log in enumerate(logs):
        administers(log, number, call="put_topic", reason="x" * 1000)
        for _ in range(5):
            log.on_decision(Decided(ALICE, Operation.PRODUCE, ORDERS, True, "10.0.0.7"))
        log.on_decision(
            Decided(ALICE, Operation.ADMIN, CLUSTER, False, "10.0.0.8", reason="no rule")
        )
        log.on_decision(Decided(ALICE, Operation.DESCRIBE, CLUSTER, True, "10.0.0.8"))
        log.on_unauthenticated("10.0.0.9", "publish", "the token has ended")
    found = await written(two, *logs)
    assert len(found) == 8
    assert {one["broker"] for one in found} == set(two.brokers)
    created = (one for one in found if one["operation"] == "create")
    first = min(created, key=lambda one: one["resource"])  # each broker has its own writer
    assert first["time"].endswith("+00:00")
    assert len(first["reason"]) == REASON_CHARS
    assert (first["principal"], first["source"], first["peer"]) == (ALICE[0], "token", "10.0.0.7")
    assert (first["resource"], first["allowed"], first["count"]) == ("topic:payments/t0", True, 1)
    assert first["call"] == "put_topic"
    assert sorted(one["operation"] for one in found if not one["allowed"]) == [
        "admin", "admin", "authenticate", "authenticate",
    ]  # fmt: skip
    settings = (await two.api.get(AUDIT)).json()["settings"]
    assert settings["ensemble_size"] == 3
    assert settings["retention"]["time"] == 30 * 24 * 3600


async def test_what_is_counted_is_told_when_a_broker_stops(two: Cluster) -> None:
    log = log_of(two, "broker-1")
    for _ in range(7):
        log.on_decision(Decided(ALICE, Operation.PRODUCE, ORDERS, True, "10.0.0.7"))
    await two.stop_broker("broker-1")
    assert sorted(one["count"] for one in await events(two)) == [1, 6]


async def test_more_than_a_batch_is_stored_in_order_and_once(two: Cluster) -> None:
    log = log_of(two, "broker-0")
    count = 2 * BATCH_EVENTS_MAX + 7
    for number in range(count):
        administers(log, number)
    found = await written(two, log)
    assert [one["resource"] for one in found] == [f"topic:payments/t{n}" for n in range(count)]


async def test_nothing_is_lost_or_twice_when_answers_are_and_owners_go(two: Cluster) -> None:
    """Every second answer of the owner is lost, and then the owner dies."""
    owner = await _make_and_find_owner(two)
    other = next(name for name in two.brokers if name != owner)
    log = log_of(two, other)
    pass_on, tries = log._writer._pass_on, 0

    async def unheard(owner: Any, batch: bytes) -> None:
        nonlocal tries
        tries += 1
        await pass_on(owner, batch)
        if tries % 2:
            raise OwnerUnreachable("the answer is lost")

    log._writer._pass_on = unheard
    for number in range(30):
        administers(log, number)
        if number == 15:
            await until(lambda: not log.waiting, 30)
            assert tries >= 2
            await two.stop_broker(owner)
    found = await written(two, log)
    told = [one["resource"] for one in found if "t-" not in one["resource"]]
    assert told == [f"topic:payments/t{n}" for n in range(30)]


async def test_nobody_mutes_it_by_exclusive_access_a_schema_or_a_backlog(two: Cluster) -> None:
    """A client with `produce` took exclusive access with `fencing`, and no event was stored
    again."""
    owner = await _make_and_find_owner(two)
    answer = await two.api.post(
        f"{AUDIT}/partitions/0/producer-access", json={"producer": "me", "fencing": True}
    )
    assert (answer.status, answer.json()["code"]) == (403, "audit-topic"), answer
    partition = await two.brokers[owner].broker.ownership.partition(AUDIT_PARTITION)
    for attempt in (
        partition.publish(build_batch([Record(None, b"forged")])),
        partition.publish_single(Record(None, b"forged")),
        partition.acquire_access("me", session_ms=10_000, fencing=True),
        partition.begin_large(""),
    ):
        with raises_code(AUDIT_TOPIC_CLOSED):
            await attempt
    partition._access.acquire("me", 0, session_ms=10**9, fencing=True)
    answer = await two.api.put(f"{AUDIT}/subscriptions/lazy", json={"start": "earliest"})
    assert answer.status == 201, answer
    body = {"backlog_quota": {"size": 1, "policy": "reject"}}
    answer = await two.api.call("PATCH", AUDIT, json=body)
    assert answer.status == 200, answer
    before = len(await events(two))
    logs = [log_of(two, name) for name in two.brokers]
    for number, log in enumerate(logs):
        administers(log, 100 + number)
    assert len(await written(two, *logs)) == before + len(logs)


@pytest.mark.long
async def test_an_owner_that_vanishes_loses_nothing_of_others(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2, session_timeout_ms=1_000) as cluster:
        owner = await _make_and_find_owner(cluster)
        other = next(name for name in cluster.brokers if name != owner)
        log = log_of(cluster, other)
        await cluster.brokers[owner].vanish()
        cluster.apis.pop(owner)
        for number in range(5):
            administers(log, number)
        await until(lambda: not log.waiting, 40)
        found = [one["resource"] for one in await events(cluster)]
        assert found[-5:] == [f"topic:payments/t{n}" for n in range(5)]


@pytest.mark.parametrize("through", ["broker-0", "broker-1"])
async def test_a_topic_that_was_deleted_is_made_anew(two: Cluster, through: str) -> None:
    await _make_and_find_owner(two)
    log = log_of(two, through)
    administers(log, 1)
    await written(two, log)
    assert (await two.api.call("DELETE", AUDIT)).status == 204
    administers(log, 2)
    found = await written(two, log)
    assert [one["resource"] for one in found] == ["topic:payments/t2"]


async def _make_and_find_owner(cluster: Cluster) -> str:
    log = log_of(cluster, "broker-0")
    log.on_decision(
        Decided(ALICE, Operation.CREATE, Resource(Kind.TOPIC, "payments/t-0"), True, "p")
    )
    await written(cluster, log)
    return await cluster.owner_of(f"{AUDIT}/partitions/0")


async def test_what_finds_no_room_is_counted_and_told_and_no_call_waits(two: Cluster) -> None:
    log = log_of(two, "broker-0")
    log._writer._most = 10
    released = asyncio.Event()
    store = log._writer._store

    async def stuck(batch: bytes) -> None:
        await released.wait()
        await store(batch)

    log._writer._store = stuck  # type: ignore[method-assign]
    for number in range(25):
        administers(log, number)
    assert log.waiting == 10
    released.set()
    await until(lambda: not log.waiting, 30)
    administers(log, 99)
    found = await written(two, log)
    assert [one["resource"] for one in found][-1] == "topic:payments/t99"
    assert [one.get("lost", 0) for one in found] == [0] * 10 + [15]
    metrics = (await two.apis["broker-0"].get("/metrics")).body.decode()
    assert "octavo_audit_events_lost_total 15.0" in metrics
    assert "octavo_audit_events_total 11.0" in metrics


async def test_no_client_writes_into_it(two: Cluster) -> None:
    await _make_and_find_owner(two)
    refused = []
    for api in two.apis.values():
        for path in (f"{AUDIT}/messages", f"{AUDIT}/partitions/0/messages"):
            refused.append(await api.post(path, b"forged", "text/plain"))
            refused.append(await api.post(path, b'{"value":1}\n', "application/x-ndjson"))
        part = {"topic": "octavo/audit", "partition": 0, "ledgers": []}
        share = {"topic": "octavo/audit", "partition": 0, "content": "x"}
        path = "/v1/bulk-loads/forged/batches/0"
        token = {"Bulk-Load-Token": "t"}
        refused.append(await api.post(f"{path}/commit", json={"parts": [part]}, headers=token))
        refused.append(await api.post(f"{path}/begin", json={"parts": [share]}, headers=token))
    assert [(one.status, one.json()["code"]) for one in refused] == [(403, "audit-topic")] * 12
    answer = await two.api.post("/v1/audit", b"x")
    assert (answer.status, answer.json()["code"]) == (404, "no-such-call")
    assert len(await events(two)) == 1


async def test_the_log_has_each_event_with_the_level_that_was_set(two: Cluster) -> None:
    log = log_of(two, "broker-0")
    with structlog.testing.capture_logs() as lines:
        administers(log, 1)
        log.on_decision(
            Decided(ALICE, Operation.ADMIN, CLUSTER, False, "10.0.0.8", reason="no rule")
        )
    told = [one for one in lines if one["event"] == "audit"]
    assert [one["allowed"] for one in told] == [True, False]
    assert {one["log_level"] for one in told} == {"info"}
    assert told[1]["reason"] == "no rule"
    json.dumps(told)


ADMIN, ALICE_CALLS, BOB = as_user("admin"), as_user("alice"), as_user("bob")
ORDERS_CALLS = "/v1/topics/public/orders"
RULES = (
    "allow user:admin all *",
    "allow user:alice produce topic:public/orders",
    "allow user:alice consume topic:public/orders",
    "allow user:bob describe topic:public/orders",
)


@pytest.fixture
async def cluster_calls(tmp_path: Path) -> AsyncIterator[Cluster]:
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


async def test_each_call_is_told_once_with_who_what_and_why(
    cluster_calls: Cluster,
) -> None:
    apis = list(cluster_calls.apis.values())
    assert (await apis[0].put(ORDERS_CALLS, headers=ADMIN)).status == 201
    path = f"{ORDERS_CALLS}/messages"
    for api in apis:
        assert (await api.post(path, b"x", "text/plain", headers={**ALICE_CALLS})).status == 200
        assert (await api.post(path, b"x", "text/plain", headers={**BOB})).status == 403
    assert (await apis[0].get(path)).status == 401
    assert (await apis[0].get(path, headers=as_user("bad-secret"))).status == 401
    assert (await apis[0].get(path, headers=ALICE_CALLS)).status == 200
    assert (await apis[0].get(ORDERS_CALLS, headers=BOB)).status == 200
    assert (await apis[0].call("DELETE", ORDERS_CALLS, headers=BOB)).status == 403
    assert (await apis[0].call("DELETE", ORDERS_CALLS, headers=ADMIN)).status == 204
    events = await told(cluster_calls)
    [made] = of(events, "user:admin", "create")
    assert made["resource"] == "topic:public/orders"
    assert (made["call"], made["allowed"], made["source"]) == ("put_topic", True, "token")
    assert made["peer"] == "127.0.0.1"
    assert "allow user:admin all *" in made["reason"]
    produced = of(events, "user:alice", "produce")
    assert sum(one["count"] for one in produced) == 2
    assert {one["broker"] for one in produced} == set(cluster_calls.brokers), (
        "each by who was asked"
    )
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


async def test_what_goes_the_short_way_is_counted(cluster_calls: Cluster) -> None:
    assert (await cluster_calls.api.put(ORDERS_CALLS, headers=ADMIN)).status == 201
    for _ in range(20):
        answer = await cluster_calls.api.post(
            f"{ORDERS_CALLS}/messages",
            b"x",
            "text/plain",
            headers={**ALICE_CALLS},
        )
        assert answer.status == 200
    produced = of(await told(cluster_calls), "user:alice", "produce")
    assert [one["count"] for one in produced] == [1, 19]


async def test_only_who_may_reads_the_audit_log_and_nobody_writes_it(
    cluster_calls: Cluster,
) -> None:
    assert (await cluster_calls.api.put(ORDERS_CALLS, headers=ADMIN)).status == 201
    await told(cluster_calls)
    path = f"{AUDIT}/messages"
    for headers in (ALICE_CALLS, BOB, {}):
        assert (await cluster_calls.api.get(path, headers=headers)).status in (401, 403)
    answer = await cluster_calls.api.post(path, b"forged", "text/plain", headers={**ADMIN})
    assert (answer.status, answer.json()["code"]) == (403, "audit-topic")
    answer = await cluster_calls.api.post("/v1/audit", b"x", headers=ADMIN)
    assert (answer.status, answer.json()["code"]) == (404, "no-such-call")


async def test_a_quota_is_of_who_asks_and_counted_by_whom_they_ask(
    cluster_calls: Cluster,
) -> None:
    assert (await cluster_calls.api.put(ORDERS_CALLS, headers=ADMIN)).status == 201
    quotas = quota_store(cluster_calls.store)
    await quotas.change(lambda record: with_quota(record, "user:*", {"publish_messages": 3}))
    await quotas.change(lambda record: with_quota(record, "user:admin", {"publish_messages": -1}))
    for running in cluster_calls.brokers.values():
        assert running.server is not None
        found = running.server._services.quotas
        await until(lambda found=found: len(found._limits.quotas._set) == 2)  # type: ignore[misc]
        found.now_s = lambda: 100.0

    async def publish(headers: dict[str, str], api: Any) -> Answer:
        answer: Answer = await api.post(
            f"{ORDERS_CALLS}/messages", b"x", "text/plain", headers={**headers}
        )
        return answer

    for api in cluster_calls.apis.values():
        answers = [await publish(ALICE_CALLS, api) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 3 + [429] * 3
        assert answers[-1].json()["subject"] == "user:alice"
        assert [(await publish(ADMIN, api)).status for _ in range(6)] == [200] * 6
