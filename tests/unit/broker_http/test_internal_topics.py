"""No client can forge, mute or recreate a topic that brokers write: every route, every such topic.

A user with the right to produce took exclusive access to the audit partition with `fencing`, and
the brokers' own events were refused from then on: publishing was shut, but eight other ways were
not.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.broker.errors import AUDIT_TOPIC_CLOSED, ExclusiveProducer
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.broker.internal_topics import (
    AUDIT_PARTITION,
    INTERNAL_NAMESPACES,
    INTERNAL_TOPICS,
    Door,
    check_not_internal,
    door_of,
)
from octavo.broker.state.producers import BROKERS, Access, AccessState
from octavo.broker.types import TopicName
from octavo.protocol.records import Record, build_batch
from octavo.security.rules import Kind, Operation, Resource
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.http_api import Answer
from tests.support.kit.refusals import raises_code
from tests.support.memory_cluster import Running, running

ALL_ROUTES = FormerNames().routes(ROUTES)
RIGHTS_ON_ALL_OF_IT = [
    f"allow user:mallory all {what}"
    for what in ("topic:octavo/*", "subscription:octavo/*", "namespace:octavo")
]
PARTS = {
    "partition": "0", "subscription": "s", "group": "g", "member": "m", "version": "1",
    "message": "0",
}  # fmt: skip
BODIES: dict[str, Any] = {
    "acquire_access": {"producer": "me", "fencing": True},
    "seek": {"to": "earliest"}, "skip": {"messages": 1}, "expire": {"older_than": "1s"},
    "fork_topic": {"name": "elsewhere"}, "patch_topic": {"retention": {"time": "1s"}},
    "register_schema": {"type": "json", "schema": {}}, "check_schema": {"type": "json"},
    "put_schema_subject": {"compatibility": "NONE"}, "acknowledge": {"ack_ids": []},
    "beat": {"topics": ["audit"]}, "put_namespace": {"message_bytes_max": 1},
}  # fmt: skip
READS = {
    "get_topic", "get_partition", "explain_topic", "explain_partition", "get_access", "read",
    "read_body", "offsets", "issue_reader_token", "read_of_stream", "list_subscriptions",
    "put_subscription", "get_subscription", "delete_subscription", "receive", "stream",
    "acknowledge", "seek", "peek", "skip", "expire", "fork_topic", "get_schema_subject",
    "get_schema", "check_schema", "get_namespace", "list_topics", "list_schema_subjects",
    "beat", "leave_group", "get_group",
}  # fmt: skip
"""Calls that read an internal topic or its state: an allowing rule is enough."""
ADMINISTRATORS = {
    "patch_topic", "delete_topic", "truncate", "put_namespace", "delete_namespace",
    "put_schema_subject", "delete_schema_subject", "register_schema", "delete_stream",
    "unload_topic", "unload_partition",
}  # fmt: skip
"""Calls that end or change its content: they also need a right on the cluster."""
SHUT = {
    "put_topic", "publish", "publish_large", "put_large", "acquire_access", "release_access",
    "put_stream", "publish_of_stream",
}  # fmt: skip
"""Calls that create or write one: refused for every client."""


def kind_of(route: Route) -> str:
    return route.name.removesuffix("_of_partition")


def about_topics(route: Route) -> bool:
    return "{namespace}" in route.path and not (route.needs.is_inner or route.needs.is_open)


def shown(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@pytest.fixture
async def one(authority: FakeAuthority) -> AsyncIterator[Running]:
    async with running(1, authority=authority, authenticator=FakeAuthenticator()) as cluster:
        for topic in INTERNAL_TOPICS:
            await cluster.brokers["b0"].topics.create_namespace(topic.namespace)
            await make(cluster, topic)
        yield cluster


async def make(one: Running, topic: TopicName) -> None:
    """Create it as a broker does."""
    from octavo.broker.types import TopicSettings

    await one.brokers["b0"].topics.create(topic, TopicSettings(), own=True)
    partition = await one.partition(str(topic))
    await partition.publish(build_batch([Record(b"k", b"an event")]), own=True)


async def all_of(one: Running, topic: TopicName) -> tuple[Any, ...]:
    """Return what a forger would change."""
    partition = await one.partition(str(topic))
    return (
        await one.topics(topic.namespace), await one.brokers["b0"].topics.list_namespaces(),
        partition.incarnation, partition.next_offset, partition.access, partition.stream.state,
    )  # fmt: skip


async def call(one: Running, route: Route, topic: TopicName, who: str) -> Answer:
    parts = PARTS | {
        "namespace": topic.namespace, "topic": topic.topic, "schema_subject": topic.topic,
    }  # fmt: skip
    path = route.path.format(**parts)
    if route.name.startswith("release_access"):
        path += "?epoch=1"
    body = json.dumps(BODIES.get(kind_of(route), {})).encode()
    data = body if route.method in ("POST", "PUT", "PATCH") else None
    headers = {"Content-Type": "application/json", **as_user(who)}
    if "durable" in route.path or "large" in route.path:
        headers["Content-Type"] = "text/plain"
    return await one.api.call(route.method, path, data=data, headers=headers)


def test_every_route_about_a_topic_is_sorted() -> None:
    """A new route fails here until one of the three sets has it."""
    found = {kind_of(route) for route in ALL_ROUTES if about_topics(route)}
    assert found == READS | ADMINISTRATORS | SHUT
    assert not READS & ADMINISTRATORS
    assert not SHUT & (READS | ADMINISTRATORS)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS), ids=str)
@pytest.mark.parametrize("route", [one for one in ALL_ROUTES if about_topics(one)], ids=shown)
async def test_rights_on_an_internal_topic_are_rights_to_read_it(
    one: Running, authority: FakeAuthority, route: Route, topic: TopicName
) -> None:
    authority.secure(*RIGHTS_ON_ALL_OF_IT, "allow user:root all *")
    if kind_of(route) in READS:
        if not route.waits:
            answer = await call(one, route, topic, "mallory")
            assert answer.status not in (401, 403), answer
        return
    before = await all_of(one, topic)
    answer = await call(one, route, topic, "mallory")
    assert answer.status == 403, answer
    if kind_of(route) in SHUT:
        assert answer.json()["code"] == "audit-topic"
        assert str(topic) in answer.json()["detail"]
        answer = await call(one, route, topic, "root")
        assert answer.status == 403, "an administrator forges nothing either"
    else:
        assert answer.json()["code"] == "forbidden"
    assert await all_of(one, topic) == before
    partition = await one.partition(str(topic))
    await partition.publish(build_batch([Record(b"k", b"the next event")]), own=True)


@pytest.mark.parametrize("route", [one for one in ALL_ROUTES if about_topics(one)], ids=shown)
async def test_an_administrator_may_shorten_or_delete_it(
    one: Running, authority: FakeAuthority, route: Route
) -> None:
    if kind_of(route) not in ADMINISTRATORS:
        return
    authority.secure("allow user:root all *")
    answer = await call(one, route, AUDIT_PARTITION.topic_name, "root")
    assert answer.status not in (401, 403), answer


async def test_it_is_not_made_in_advance_either(one: Running, authority: FakeAuthority) -> None:
    """Before the first event there is no audit topic, and its first maker would set its rules."""
    authority.secure(*RIGHTS_ON_ALL_OF_IT)
    for topic in INTERNAL_TOPICS:
        await one.brokers["b0"].topics.delete(topic)
        for route in ALL_ROUTES:
            if about_topics(route) and kind_of(route) in SHUT:
                assert (await call(one, route, topic, "mallory")).status == 403, route.name
        assert topic.topic not in await one.topics(topic.namespace)


async def test_a_body_names_none_as_a_target(one: Running, authority: FakeAuthority) -> None:
    authority.secure(
        *RIGHTS_ON_ALL_OF_IT, "allow user:mallory produce transaction:t",
        "allow user:mallory all topic:public/*", "allow user:mallory all subscription:public/*",
    )  # fmt: skip
    await one.brokers["b0"].topics.create_namespace("public")
    me = as_user("mallory")
    for topic in sorted(INTERNAL_TOPICS):
        source = f"/v1/topics/{topic.namespace}/source"
        assert (await one.api.put(source, headers=me)).status == 201
        share = {"topic": str(topic), "partition": 0, "content": "x"}
        ledger = {"id": 7, "messages": 3, "bytes": 100, "first_ms": 1, "last_ms": 2}
        part = {"topic": str(topic), "partition": 0, "ledgers": [ledger]}
        subscription = f"{source}/subscriptions/s"
        for letters in (
            {"dead_letter_topic": str(topic), "max_deliveries": 3},
            {"retry_topic": str(topic), "retry_deliveries": 2},
        ):
            answer = await one.api.put(subscription, json=letters, headers=me)
            assert (answer.status, answer.json()["code"]) == (403, "audit-topic"), answer
        for path, body in (
            (f"{source}/fork", {"name": topic.topic}),
            ("/v1/bulk-loads/t/batches/0/begin", {"parts": [share]}),
            ("/v1/bulk-loads/t/batches/0/commit", {"parts": [part]}),
        ):
            answer = await one.api.post(path, json=body, headers=me)
            assert (answer.status, answer.json()["code"]) == (403, "audit-topic"), answer


async def test_a_cluster_that_is_not_secured_keeps_it_shut_as_well(one: Running) -> None:
    """A topic that was created in the open cluster would stay when the cluster is secured."""
    for topic in INTERNAL_TOPICS:
        for route in ALL_ROUTES:
            if about_topics(route) and kind_of(route) in SHUT:
                answer = await call(one, route, topic, "mallory")
                assert answer.status == 403, (route.name, answer)


def test_the_table_of_doors() -> None:
    (topic,) = INTERNAL_TOPICS
    name = Resource(Kind.TOPIC, str(topic))
    by_door = {door: {one for one in Operation if door_of(one, name) is door} for door in Door}
    assert by_door[Door.OPEN] == {Operation.CONSUME, Operation.DESCRIBE}
    assert by_door[Door.ADMINISTRATORS] == {Operation.ALTER, Operation.DELETE}
    for like in (f"{topic}s", f"{topic}/x", topic.namespace, str(topic).upper()):
        for operation in Operation:
            assert door_of(operation, Resource(Kind.TOPIC, like)) is Door.OPEN
    for namespace in INTERNAL_NAMESPACES:
        assert door_of(Operation.ALTER, Resource(Kind.NAMESPACE, namespace)) is Door.ADMINISTRATORS
        assert door_of(Operation.DESCRIBE, Resource(Kind.NAMESPACE, namespace)) is Door.OPEN
    check_not_internal(TopicName("public", topic.topic))
    with raises_code(AUDIT_TOPIC_CLOSED, match="brokers alone"):
        check_not_internal(topic)


def test_a_broker_writes_where_a_client_was_given_exclusive_access_before() -> None:
    access = Access(AccessState(3, "mallory", 1000))
    access.check(BROKERS, 0)
    for epoch in (None, 2):
        with pytest.raises(ExclusiveProducer if epoch is None else Exception):
            access.check(epoch, 0)
