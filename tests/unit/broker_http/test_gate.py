"""No call takes effect without a rule that allows its route."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.errors import SchemaMismatch
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.needs import Right
from octavo.broker.http.router import Route, path_names
from octavo.broker.http.routes import ROUTES
from octavo.broker.types import TopicName, TopicSettings, checked_name
from octavo.metadata.store import SessionState
from octavo.security.principal import ANONYMOUS
from octavo.security.rules import Kind, Operation
from octavo.security.settings import SecurityConfig
from tests.support.bulk_load_stub import stub_bulk_loads
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.memory_cluster import Running, running

ALL_ROUTES = FormerNames().routes(ROUTES)
PARTS = {
    "namespace": "public", "topic": "one", "partition": "0", "subscription": "s",
    "bulk_load": "t", "batch": "0", "ledger": "7", "entry": "0", "subject": "anonymous",
    "broker": "b0", "group": "g", "member": "m", "schema_subject": "flights", "version": "1",
    "message": "0", "user": "bob",
}  # fmt: skip
STEPS = {
    Kind.CLUSTER: 0, Kind.NAMESPACE: 1, Kind.TOPIC: 2, Kind.SUBSCRIPTION: 3, Kind.TRANSACTION: 1,
}  # fmt: skip
TOPIC = "/v1/topics/public/one"
OPEN_CALLS = {"healthz", "readyz", "openapi"}


def shown(route: Route) -> str:
    return f"{route.method} {route.path}"


def with_instead(right: Right | None) -> list[Right]:
    return [] if right is None else [right, *with_instead(right.instead)]


@pytest.mark.parametrize("route", ALL_ROUTES, ids=shown)
def test_every_route_says_what_it_needs(route: Route) -> None:
    needs = route.needs
    kinds = [bool(needs.rights), needs.is_open, needs.is_inner]
    assert sum(kinds) == 1, "rights, or open, or between brokers"
    variables = path_names(route.path)
    for right in [one for first in needs.rights for one in with_instead(first)]:
        assert set(right.names) <= set(variables), right
        # A consumer group is a subscription of several topics: its name contains none of them.
        steps = 2 if "group" in right.names else STEPS[right.kind]
        assert len(right.names) == steps - right.some or right.some, right
        resource = right.resource(PARTS)
        assert resource.name == "/".join([*(PARTS[one] for one in right.names)]) + (
            "/" if right.some and right.names else ""
        )
    assert needs.is_open == (route.name in OPEN_CALLS)


@pytest.mark.parametrize("route", ALL_ROUTES, ids=shown)
def test_what_a_path_names_is_asked_for(route: Route) -> None:
    """A route about a topic, subscription or bulk load needs a right to it."""
    needs = route.needs
    if needs.is_open or needs.is_inner:
        return
    kinds = {right.kind for right in needs.rights}
    variables = set(path_names(route.path))
    if variables & {"subscription", "group"}:
        assert Kind.SUBSCRIPTION in kinds
    # a subject needs a right to the topic of its name
    elif variables & {"topic", "schema_subject"}:
        assert Kind.TOPIC in kinds
    elif "namespace" in variables:
        assert Kind.NAMESPACE in kinds
    elif "bulk_load" in variables:
        assert Kind.TRANSACTION in kinds
    if route.method not in ("GET", "HEAD") and route.name != "check_schema":  # it changes nothing
        assert {right.operation for right in needs.rights} - {Operation.DESCRIBE}


def test_a_route_without_needs_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="needs"):
        Route(  # type: ignore[call-arg]
            method="GET", path="/", handler=ROUTES[0].handler, name="x", tag="x", summary="x"
        )


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@pytest.fixture
def authenticator() -> FakeAuthenticator:
    return FakeAuthenticator()


@pytest.fixture
async def one(authority: FakeAuthority, authenticator: FakeAuthenticator) -> AsyncIterator[Running]:
    async with running(1, authority=authority, authenticator=authenticator) as cluster:
        stub_bulk_loads(cluster.brokers["b0"])
        await cluster.api.put(TOPIC)
        await cluster.api.put(TOPIC + "/subscriptions/s", json={"start": "earliest"})
        await cluster.api.post(TOPIC + "/messages", b"first", "text/plain")
        yield cluster


def state_of(one: Running) -> Any:
    """Return all state that a call could have changed."""
    partition = one.open_partition("public/one")
    assert partition is not None
    loads = stub_bulk_loads(one.brokers["b0"])
    return (
        (len(loads.asked), len(loads.begun), len(loads.callers)),
        one.metadata.tree.records(), partition.next_offset, partition.access,
        partition.stream.state,
        {name: found.stats() for name, found in partition._subscriptions._open.items()},
    )  # fmt: skip


BODIES: dict[str, Any] = {
    "commit_bulk_load": {"parts": []},
    "begin_bulk_load": {"parts": [{"topic": "public/one", "partition": 0, "content": "x"}]},
    "abort_bulk_load": {"ledgers": [7]},
    "acknowledge": {"ack_ids": []},
    "seek": {"to": "earliest"},
    "patch_topic": {"partitions": 2},
}
SHOWN: list[tuple[str, dict[str, str], int]] = [
    ("nothing", {}, 401),
    ("a bad token", as_user("bad"), 401),
    ("another scheme", {"Authorization": "Digest x"}, 401),
    ("somebody without any right", as_user("mallory+staff"), 403),
]


@pytest.mark.parametrize("route", ALL_ROUTES, ids=shown)
async def test_nobody_gets_in_without_a_rule(
    one: Running, authority: FakeAuthority, route: Route
) -> None:
    authority.secure(
        "allow user:alice all *", "allow user:mallory produce transaction:elsewhere",
        "deny user:mallory all cluster",
    )  # fmt: skip
    before = state_of(one)
    path = route.path.format(**PARTS)
    body = json.dumps(BODIES.get(route.name.removesuffix("_of_partition"), {})).encode()
    data = body if route.method in ("POST", "PUT", "PATCH") else None
    for what, headers, status in SHOWN:
        answer = await one.api.call(
            route.method, path, data=data, headers={"Content-Type": "application/json", **headers}
        )
        if route.needs.is_open:
            assert answer.status == 200, (what, answer)
            continue
        assert answer.status == (403 if route.inner else status), (what, answer)
        problem = answer.json()
        if route.inner:
            assert problem["code"] == "brokers-only"
        elif status == 401:
            assert problem["code"] == "unauthenticated"
            assert "Bearer" in answer.headers["WWW-Authenticate"]
        else:
            assert problem["code"] == "forbidden"
            assert "user:mallory may not" in problem["detail"]
            assert "`octavo acl " in problem["detail"]
        assert state_of(one) == before, what


@pytest.mark.parametrize("route", ALL_ROUTES, ids=shown)
async def test_who_may_do_all_gets_in(one: Running, authority: FakeAuthority, route: Route) -> None:
    """So the gate refuses above, and nothing else does."""
    if route.inner or route.name.startswith("stream"):
        return
    authority.secure("allow user:alice all *")
    if route.tag == "cluster" and "ledger" in route.path:
        return  # there are no ledgers here
    body = json.dumps(BODIES.get(route.name.removesuffix("_of_partition"), {})).encode()
    data = body if route.method in ("POST", "PUT", "PATCH") else None
    headers = {"Content-Type": "application/json", **as_user("alice")}
    answer = await one.api.call(
        route.method, route.path.format(**PARTS), data=data, headers=headers
    )
    assert answer.status not in (401, 403, 500), answer


async def test_a_cluster_that_is_not_secured_asks_nobody(
    one: Running, authenticator: FakeAuthenticator
) -> None:
    for headers in ({}, as_user("bad")):
        answer = await one.api.post(TOPIC + "/messages", b"x", "text/plain", headers=headers)
        assert answer.status == 200
    assert not authenticator.asked


async def test_a_call_needs_all_that_it_needs(one: Running, authority: FakeAuthority) -> None:
    """Consume on the topic alone moves no cursor, and consume on the subscription gives no
    topic."""
    receive = f"{TOPIC}/subscriptions/s/receive"
    topic, subscription = "consume topic:public/one", "consume subscription:public/one/s"
    for rules, status in (([topic], 403), ([subscription], 403), ([topic, subscription], 200)):
        authority.secure(*(f"allow user:bob {rule}" for rule in rules))
        assert (await one.api.post(receive, headers=as_user("bob"))).status == status, rules


async def test_a_topic_may_be_made_by_its_namespace(one: Running, authority: FakeAuthority) -> None:
    path = "/v1/topics/public/two"
    authority.secure("allow user:bob create namespace:public")
    assert (await one.api.put(path, headers=as_user("bob"))).status == 201
    assert (await one.api.call("DELETE", path, headers=as_user("bob"))).status == 403
    authority.secure("allow user:bob create topic:public/three")
    assert (await one.api.put("/v1/topics/public/three", headers=as_user("bob"))).status == 201
    assert (await one.api.put("/v1/topics/public/four", headers=as_user("bob"))).status == 403


async def test_lists_show_what_their_reader_may_see(one: Running, authority: FakeAuthority) -> None:
    await one.api.put("/v1/namespaces/secret")
    for topic in ("public/alpha", "public/beta", "secret/plan"):
        await one.api.put(f"/v1/topics/{topic}")
    await one.api.put(f"{TOPIC}/subscriptions/other")
    authority.secure(
        "allow user:bob consume topic:public/alpha", "allow user:bob describe topic:public/one",
        "allow user:bob consume subscription:public/one/s", "allow user:bob describe cluster",
        "allow user:eve describe namespace:*",
    )  # fmt: skip

    async def seen(path: str, who: str = "bob") -> Any:
        answer = await one.api.get(path, headers=as_user(who))
        assert answer.status == 200, answer
        return answer.json()

    assert (await seen("/v1/namespaces"))["namespaces"] == ["public"]
    assert (await seen("/v1/namespaces", "eve"))["namespaces"] == ["public", "secret"]
    assert (await seen("/v1/topics/public"))["topics"] == ["alpha", "one"]
    assert (await seen("/v1/topics/public", "eve"))["topics"] == []
    page = await seen("/v1/topics/public?limit=1")
    assert (page["topics"], page["next"]) == (["alpha"], "alpha")
    page = await seen("/v1/topics/public?limit=1&after=alpha")
    assert (page["topics"], page["next"]) == (["one"], None)
    names = [one["name"] for one in (await seen(f"{TOPIC}/subscriptions"))["subscriptions"]]
    assert names == ["s"]
    assert set((await seen(TOPIC))["backlog"]) == {"s"}
    assert set((await seen(f"{TOPIC}/partitions/0"))["subscriptions"]) == {"s"}
    cluster = await seen("/v1/cluster")
    assert {one.split("/")[1] for one in cluster["partitions_here"]} <= {
        "alpha", "one"
    }  # fmt: skip
    page_text = (await one.api.get("/", headers=as_user("bob"))).body.decode()
    assert "public/one" in page_text
    assert "beta" not in page_text
    assert "secret" not in page_text


@pytest.mark.parametrize(
    "path",
    ["/v1/topics/public/{}", "/v1/topics/public/{}/messages", "/v1/topics/{}",
     "/v1/namespaces/{}", "/v1/topics/public/one/subscriptions/{}", "/v1/bulk-loads/{}"],
)  # fmt: skip
async def test_what_is_there_and_what_is_not_are_refused_alike(
    one: Running, authority: FakeAuthority, path: str
) -> None:
    there = {"topics": "one", "namespaces": "public"}.get(path.split("/")[2], "load")
    there = {"/v1/topics/{}": "public", "/v1/topics/public/one/subscriptions/{}": "s"}.get(
        path, there
    )
    authority.secure("allow user:bob describe topic:elsewhere/x")
    told = []
    for name in (there, "zzz"):
        answer = await one.api.get(path.format(name), headers=as_user("bob"))
        kept = {k: v for k, v in answer.headers.items() if k not in ("Date", "Content-Length")}
        body = re.sub(rf"\b{name}\b", "*", answer.body.decode())
        told.append((answer.status, body, kept))
    assert told[0] == told[1]
    assert told[0][0] == 403


async def test_topics_named_in_a_body_are_asked_for(one: Running, authority: FakeAuthority) -> None:
    await one.api.put("/v1/topics/public/two")
    rules = ["allow user:bob produce transaction:t", "allow user:bob produce topic:public/one"]
    authority.secure(*rules)
    shares = [
        {"topic": f"public/{name}", "partition": 0, "content": "x"} for name in ("one", "two")
    ]
    ledger = {"id": 7, "messages": 3, "bytes": 100, "first_ms": 1, "last_ms": 2}
    parts = [{**share, "ledgers": [ledger | {"id": n}]} for n, share in enumerate(shares)]
    for part in parts:
        del part["content"]
    for call, body in (("begin", {"parts": shares}), ("commit", {"parts": parts})):
        for old in ("bulk-loads", "transactions"):
            path = f"/v1/{old}/t/batches/0/{call}"
            answer = await one.api.post(path, json=body, headers=as_user("bob"))
            assert answer.status == 403, answer
            assert "topic:public/two" in answer.json()["detail"]
    assert not stub_bulk_loads(one.brokers["b0"]).callers
    authority.secure(*rules, "allow user:bob produce topic:public/two")
    for call, body in (("begin", {"parts": shares}), ("commit", {"parts": parts})):
        path = f"/v1/bulk-loads/t/batches/0/{call}"
        assert (await one.api.post(path, json=body, headers=as_user("bob"))).status == 200


@pytest.mark.parametrize("name", ["a%2Fb", "one%2F..%2Ftwo", "..", "%00", "one*", "o%20ne"])
async def test_tricks_in_names_get_nowhere(
    one: Running, authority: FakeAuthority, name: str
) -> None:
    authority.secure("allow user:bob all topic:public/*", "deny user:bob all topic:public/one")
    path = f"/v1/topics/public/{name}/messages"
    answer = await one.api.post(path, b"x", "text/plain", headers=as_user("bob"))
    assert answer.status in (400, 404), answer


async def test_several_authorization_headers_are_none(
    one: Running, authority: FakeAuthority
) -> None:
    from multidict import CIMultiDict

    authority.secure("allow user:alice all *")
    several = CIMultiDict([("Authorization", "Bearer alice"), ("Authorization", "Bearer bob")])
    assert (await one.api.get(TOPIC, headers=several)).status == 401
    assert (await one.api.get(TOPIC, headers=as_user("alice"))).status == 200


async def test_denials_are_logged_once_a_minute_and_counted(
    one: Running, authority: FakeAuthority
) -> None:
    authority.secure("allow user:bob describe cluster")
    told: list[Any] = []
    one.servers[0]._services.gate.on_decision = told.append
    with capture_logs() as lines:
        for number in range(5):
            path = f"/v1/topics/public/t{number}/messages"
            await one.api.post(path, b"x", "text/plain", headers=as_user("bob"))
            await one.api.post(path, b"x", "text/plain")
            await one.api.post(path, b"x", "text/plain", headers=as_user("bad-secret"))
    denied = [line for line in lines if line["event"] in ("access_denied",)]
    assert [(line["event"], line.get("principal")) for line in denied] == [
        ("access_denied", "user:bob"), ("access_denied", "anonymous"),
    ]  # fmt: skip
    assert "bad-secret" not in str(lines)
    assert len([what for what in told if what[0].name == "user:bob" and not what[3]]) == 5
    assert {what[0] for what in told if what[0].name != "user:bob"} == {ANONYMOUS}
    text = (await one.api.get("/metrics", headers=as_user("bob"))).body.decode()
    assert 'octavo_http_denied_total{reason="forbidden"} 5.0' in text
    assert 'octavo_http_denied_total{reason="unauthenticated"} 10.0' in text


async def test_a_broker_that_requires_security_serves_nothing_without() -> None:
    authority = FakeAuthority()
    required = SecurityConfig(required=True)
    async with running(1, authority=authority, security=required) as one:
        answer = await one.api.put(TOPIC)
        assert (answer.status, answer.json()["code"]) == (503, "not-secured")
        assert (await one.api.get("/healthz")).status == 200
        authority.secure("allow * all *")
        assert (await one.api.put(TOPIC)).status == 201


async def test_strangers_are_not_told_where_the_metadata_is(
    one: Running, authority: FakeAuthority
) -> None:
    one.stores["b0"].session_state = SessionState.SUSPENDED
    url = one.store.url
    for secured in (False, True):
        if secured:
            authority.secure()
        answer = await one.api.get("/readyz")
        assert answer.status == 503
        assert "out of reach" in answer.json()["detail"]
        assert (url in answer.json()["detail"]) is not secured


STREAMS = "/v1/durable-streams/public/"


async def test_what_making_a_durable_stream_needs(one: Running, authority: FakeAuthority) -> None:
    """`create` makes an empty one; data, another stream's data and another topic need more."""
    authority.secure(
        "allow user:alice all *", "allow user:maker create topic:public/*",
        "allow user:writer create,produce topic:public/*",
        "allow user:reader create,consume topic:public/*",
    )  # fmt: skip

    async def put(name: str, who: str, body: bytes = b"", **more: str) -> int:
        headers = {"Content-Type": "text/plain", **as_user(who)}
        headers.update({word.replace("_", "-"): value for word, value in more.items()})
        return (await one.api.call("PUT", STREAMS + name, data=body, headers=headers)).status

    assert await put("a", "maker", b"x") == 403
    assert await put("a", "maker") == 201
    assert await put("b", "writer", b"x") == 201
    forked: dict[str, Any] = {"Stream_Forked_From": STREAMS + "b"}
    for who in ("maker", "writer"):
        assert await put("c", who, b"", **forked) == 403
    assert await put("c", "reader", b"", **forked) == 201
    assert await put("d", "reader", b"x", **forked) == 403
    assert await put("d", "reader", Stream_Forked_From=STREAMS + "secret") == 404
    for who in ("maker", "writer", "reader"):
        assert await put("one", who) == 403, "it has messages, and publishers"
    assert await put("one", "alice") == 201


async def test_a_topic_that_is_not_used_yet_is_no_empty_stream(
    one: Running, authority: FakeAuthority
) -> None:
    """A PUT with a time to live made a stream of another user's new topic, and so deleted it."""
    authority.secure(
        "allow user:alice all *", "allow user:maker create topic:public/*",
        "allow user:changer create,alter topic:public/*",
    )  # fmt: skip
    assert (await one.api.put("/v1/topics/public/new", headers=as_user("alice"))).status == 201

    async def put(name: str, who: str, **more: str) -> int:
        headers = {"Content-Type": "text/plain", "Stream-TTL": "1", **as_user(who)}
        return (await one.api.call("PUT", STREAMS + name, headers=headers)).status

    for who in ("maker", "changer"):
        assert await put("new", who) == 403, "what expires is deleted"
    assert (await one.partition("public/new")).stream.state is None
    answer = await one.api.post(
        "/v1/topics/public/new/messages", b"x", "text/plain", headers=as_user("alice")
    )
    assert answer.status == 200, answer
    assert await put("mine", "maker") == 201
    assert await put("mine", "maker") == 200
    # Only the stream's topic was created: its maker may continue.
    broker = one.brokers["b0"]
    await broker.topics.create(TopicName("public", "half"), TopicSettings(), for_stream=True)
    assert await put("half", "maker") == 201


async def test_a_schema_that_may_not_be_seen_is_told_by_no_errors(
    one: Running, authority: FakeAuthority
) -> None:
    """Checking one's own topic against another user's schema revealed it, error by error."""
    await one.api.put("/v1/topics/public/own")
    authority.secure(
        "allow user:bob all topic:public/own*", "allow user:eve all topic:public/own",
        "allow user:bob describe topic:public/secret",
    )  # fmt: skip
    for who, status in (("eve", 403), ("bob", 200)):
        for subject in ("secret", "own-2"):
            answer = await one.api.call(
                "PATCH", "/v1/topics/public/own", json={"schema": {"subject": subject}},
                headers=as_user(who),
            )  # fmt: skip
            assert answer.status == status, answer
    body = {"schema": {"subject": "secret"}}
    answer = await one.api.put("/v1/topics/public/own", json=body, headers=as_user("eve"))
    assert answer.status == 403, answer


def test_names_of_tests_are_names() -> None:
    for name, value in PARTS.items():
        checked_name(name, value)


@pytest.mark.parametrize("passed_on", [False, True])
async def test_a_producer_hears_of_a_schema_only_that_the_message_does_not_fit(
    *, passed_on: bool
) -> None:
    """The errors would reveal a schema that the producer may not see."""
    authority = FakeAuthority()
    rules = ["allow user:ann all *", "allow user:bob produce topic:public/one"]
    authority.secure(*rules)
    async with running(2, authority=authority, authenticator=FakeAuthenticator()) as one:
        assert (await one.api.put("/v1/topics/public/one", headers=as_user("ann"))).status == 201

        def refuse() -> None:
            raise SchemaMismatch("the message was not stored: it lacks `salary`", 0)

        await one.before_publish("public/one", refuse)
        owner = await one.owner("public/one")
        asked = next(
            api for api, server in zip(one.apis, one.servers, strict=True)
            if (server._services.broker.broker_id == owner) is not passed_on
        )  # fmt: skip
        bodies = {"text/plain": b"1", "application/x-ndjson": b'{"value":1}\n'}
        for name, hears in (("bob", False), ("ann", True)):
            for server in one.servers:
                server._services.broker.topics.settings_of = (  # type: ignore[method-assign]
                    lambda *_: TopicSettings(schema_subject="s")
                )
            for kind, body in bodies.items():
                answer = await asked.post(
                    "/v1/topics/public/one/messages", body,
                    headers={**as_user(name), "Content-Type": kind},
                )  # fmt: skip
                assert answer.status == 422, answer
                assert answer.json()["code"] == "schema-mismatch"
                assert (b"salary" in answer.body) is hears, answer
                assert answer.json()["message_in_batch"] == 0
