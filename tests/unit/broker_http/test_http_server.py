"""The server: names, problems, proxy and redirect, moving partitions, limits, stopping."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.http.connections import ConnectionServer
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.broker.http.server import BrokerServer, CannotListen
from octavo.broker.operations.upgrade import Upgrade, request_head
from octavo.metadata.store import MetadataUnavailable, SessionState
from octavo.protocol.records import Record, build_batch, partition_for
from octavo.standalone.ports import free_port
from tests.support.http_api import until
from tests.support.memory_cluster import CALL_KEY, NOW_MS, Running, running
from tests.support.vanished_host import vanished_host

ONE = "/v1/topics/public/one"
FOUR = "/v1/topics/public/four"


NDJSON = "application/x-ndjson"
BATCH = "application/vnd.kafka.recordbatch.v2"


async def send_raw(url: str, data: bytes, *, seconds: float = 5) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            return await reader.read(65536)
    finally:
        writer.close()


# ---- names and problems


def listening(server: BrokerServer) -> ConnectionServer:
    assert server._http is not None, "it is started"
    return server._http


@pytest.mark.parametrize(
    "name",
    ["a%2Fb", "..", "%2e%2e", ".", "%00", "a" * 250, "%ff", "a%20b", "%C3%BC", "a%0Ab", "", "a:b"],
)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_bad_topic_names(one: Running, name: str, method: str) -> None:
    for path in (f"/v1/topics/public/{name}", f"/v1/topics/{name}/t", f"/v1/namespaces/{name}"):
        answer = await one.api.call(method, path)
        assert answer.status == 400, (path, answer)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["code"] in ("invalid-name", "invalid-path")
    await one.api.put(ONE)
    answer = await one.api.call(method, f"{ONE}/subscriptions/{name}")
    assert answer.status == 400, answer
    assert await one.topics() == ["one"]


async def test_longest_name_works(one: Running) -> None:
    assert (await one.api.put(f"/v1/topics/public/{'a' * 249}")).status == 201


async def test_every_problem_has_its_members(one: Running) -> None:
    for method, path, status in (
        ("GET", "/nope", 404),
        ("GET", "/v1/topics/public/t/nope", 404),
        ("GET", "/v1/topics/public/nope", 404),
        ("PATCH", "/v1/namespaces/public", 405),
        ("OPTIONS", "/v1/cluster", 405),
        ("GET", f"/{'x' * 5000}", 400),
        ("GET", "/v1/topics/public/t/partitions/x/messages", 400),
        ("GET", "/v1/topics/public/t/partitions/-1/messages", 400),
        ("GET", "/v1/ledgers/x", 400),
        ("GET", "/v1/ledgers/99999999999999999999", 400),
    ):
        answer = await one.api.call(method, path)
        assert answer.status == status, answer
        problem = answer.json()
        assert problem["status"] == status
        assert problem["type"] == f"urn:octavo:problem:{problem['code']}"
        assert problem["title"]
        assert problem["detail"]
        assert problem["retryable"] is False
        assert problem["instance"].startswith("/")
        assert answer.headers["Octavo-Owner"] == one.api.url
    answer = await one.api.call("PATCH", "/v1/namespaces/public")
    assert answer.headers["Allow"] == "DELETE, GET, PUT"


async def test_an_unforeseen_error_is_a_500_without_a_trace(one: Running) -> None:
    await one.api.put(ONE)

    def fail() -> None:
        raise RuntimeError("secret detail")

    await one.before_publish("one", fail)
    with capture_logs() as logged:
        answer = await one.api.post(ONE + "/messages", build_batch([Record(None, b"x")]), BATCH)
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    assert answer.json()["code"] == "internal-error"
    assert "secret detail" in str(logged)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/topics/public/one/messages HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["tls", "version", "header", "long-header", "long-line", "length", "chunk"],
)
async def test_bytes_that_are_not_http(one: Running, data: bytes) -> None:
    answer = await send_raw(one.api.url, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer
    assert b"application/problem+json" in head
    assert json.loads(body)["code"]
    assert b"Traceback" not in answer
    assert (await one.api.get("/healthz")).status == 200


async def test_head_and_continue(one: Running) -> None:
    answer = await one.api.call("HEAD", "/v1/cluster")
    assert (answer.status, answer.body) == (200, b"")
    await one.api.put(ONE)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(one.api.url.rpartition(":")[2]))
    writer.write(
        b"POST /v1/topics/public/one/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        b"Expect: 100-continue\r\nContent-Type: text/plain\r\n\r\n"
    )
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


# ---- settings


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"partitions": 0}, 422, "partitions"),
        ({"partitions": "4"}, 422, "partitions"),
        ({"partitions": 100_000}, 422, "10000"),
        ({"ack_quorum": 4}, 422, "ack"),
        ({"ttl": "long"}, 422, "ttl is 'long'"),
        ({"ttl": 0}, 422, "ttl is 0 s; it must be between 0.001 and "),
        ({"backlog_quota": {"policy": "drop"}}, 422, "hold, reject, evict"),
        ({"backlog_quota": {"size": "10 floppies"}}, 422, "backlog_quota.size"),
        ({"rates": {"publish_messages": -1}}, 422, "rates.publish_messages"),
        ({"rates": {"publish_bytes": 0}}, 422, "publish_bytes is 0"),
        ({"message_time": "arrival"}, 422, "create, append"),
        ({"durability": "maybe"}, 422, "sync, deferred"),
        ({"message_bytes_max": 0}, 422, "message_bytes_max"),
        ({"delete_when_inactive": 0}, 422, "delete_when_inactive is 0 s"),
        ({"compaction": True}, 422, "compaction"),
        ({"compaction": {"after": "1d"}}, 422, "after"),
        ({"compaction": {"dirty_ratio": 1.5}}, 422, "compaction.dirty_ratio is 1.5"),
        ({"compaction": {"after_size": "10 floppies"}}, 422, "compaction.after_size"),
        ({"compaction": {"after_size": None}}, 422, "compaction.after_size cannot be null"),
        ({"compaction": {"tombstones": "long"}}, 422, "compaction.tombstones"),
        ({"retention": {"time": "long"}}, 422, "retention.time"),
        ({"retention": {"size": "10 floppies"}}, 422, "retention.size"),
        ({"retention": {"size": -1}}, 422, "retention.size"),
        ({"rollover": {"time": None}}, 422, "rollover.time"),
        ({"nope": 1}, 422, "nope"),
        ([], 422, "a list"),
    ],
)
async def test_topic_settings_that_are_refused(
    one: Running, body: object, status: int, says: str
) -> None:
    answer = await one.api.put(ONE, json=body)
    assert answer.status == status, answer
    assert says in answer.json()["detail"]
    assert not await one.topics()


async def test_a_topic_that_brokers_compact(one: Running) -> None:
    assert (await one.api.put(ONE, json={"compaction": {}})).status == 201
    shown = (await one.api.get(ONE)).json()["settings"]
    assert shown["compaction"] == {
        "after_size": 64 * 2**20, "dirty_ratio": 0.5, "tombstones": 86_400, "delete_raw": False,
    }  # fmt: skip
    assert (await one.api.put(ONE, json=shown)).status == 200
    change = {"compaction": {"tombstones": "7d", "delete_raw": True}}
    assert (await one.api.call("PATCH", ONE, json=change)).status == 200
    change = {"compaction": {"after_size": "1MiB", "dirty_ratio": 0}}
    shown = (await one.api.call("PATCH", ONE, json=change)).json()["settings"]
    assert shown["compaction"] == {
        "after_size": 2**20, "dirty_ratio": 0, "tombstones": 604_800, "delete_raw": True,
    }  # fmt: skip
    shown = (await one.api.call("PATCH", ONE, json={"compaction": None})).json()["settings"]
    assert shown["compaction"] is None


async def test_topic_life(one: Running) -> None:
    body = {"partitions": 2, "retention": {"time": "7d", "size": "10GB"}, "rollover": {"time": 60}}
    answer = await one.api.put(ONE, json=body)
    assert answer.status == 201
    settings = answer.json()["settings"]
    assert settings["retention"] == {"time": 604800, "size": 10**10}
    assert settings["rollover"]["time"] == 60
    assert (await one.api.put(ONE, json=settings)).status == 200
    assert (await one.api.put(ONE, json={"partitions": 3})).status == 409
    answer = await one.api.call("PATCH", ONE, json={"partitions": 3, "retention": None})
    assert answer.json()["settings"]["partitions"] == 3
    assert answer.json()["settings"]["retention"] == {"time": None, "size": None}
    assert (await one.api.call("PATCH", ONE, json={"partitions": 1})).status == 422
    assert (await one.api.get("/v1/topics/public")).json()["topics"] == ["one"]
    assert (await one.api.call("DELETE", ONE)).status == 204
    assert (await one.api.get(ONE)).status == 404
    assert (await one.api.call("PATCH", ONE, json={})).status == 404
    answer = await one.api.put(ONE, data=b"{nope", headers={"Content-Type": "application/json"})
    assert answer.status == 400
    answer = await one.api.put(ONE, data=b"<x/>", headers={"Content-Type": "text/xml"})
    assert answer.status == 415


async def test_namespaces(one: Running) -> None:
    assert (await one.api.put("/v1/namespaces/lab")).status == 201
    assert (await one.api.put("/v1/namespaces/lab", json={})).status == 200
    for wrong in ({"ttl": 0}, {"encrypted": "yes"}, {"partitions": 4}):
        answer = await one.api.put("/v1/namespaces/lab", json=wrong)
        assert answer.status == 422, answer
    answer = await one.api.put("/v1/namespaces/lab", json={"auto_create": {"ack_quorum": 4}})
    assert (answer.status, answer.json()["code"]) == (422, "invalid-settings")
    assert (await one.api.put("/v1/namespaces/lab", json={"encrypted": True})).status == 200
    found = (await one.api.get("/v1/namespaces/lab")).json()
    assert found["policies"] == {"encrypted": True, "auto_create": None}
    assert (await one.api.get("/v1/namespaces")).json() == {"namespaces": ["lab", "public"]}
    await one.api.put("/v1/topics/lab/t")
    assert (await one.api.get("/v1/namespaces/lab")).json()["topics"] == 1
    assert (await one.api.call("DELETE", "/v1/namespaces/lab")).status == 409
    assert (await one.api.put("/v1/topics/nope/t")).json()["code"] == "namespace-not-found"


POLICIES = {
    "ttl": 60,
    "backlog_quota": {"size": 10**6, "time": 3600, "policy": "evict"},
    "delete_when_inactive": 86400,
    "subscription_expiry": 86400,
    "message_bytes_max": 1000,
    "rates": {
        "publish_bytes": 10**6,
        "publish_messages": 100,
        "dispatch_bytes": 10**7,
        "dispatch_messages": 1000,
    },
    "message_time": "append",
    "durability": "deferred",
}


async def test_a_topic_inherits_what_it_does_not_say_itself(one: Running) -> None:
    lab, topic = "/v1/namespaces/lab", "/v1/topics/lab/t"
    body = {**POLICIES, "retention": {"time": "7d"}, "auto_create": {"partitions": 4}}
    assert (await one.api.put(lab, json=body)).status == 201
    shown = (await one.api.get(lab)).json()["policies"]
    auto_create = {"partitions": 4, "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
    retention = {"time": 604800, "size": None}
    assert shown == {
        **POLICIES, "retention": retention, "auto_create": auto_create, "encrypted": False,
    }  # fmt: skip
    assert (await one.api.put(lab, json=shown)).status == 200, "what is shown can be given"
    own = {"ttl": "off", "rates": {"publish_messages": 5}, "backlog_quota": {"policy": "reject"}}
    answer = await one.api.put(topic, json=own)
    assert answer.status == 201
    assert answer.json()["settings"]["ttl"] == "off"
    assert (await one.api.put(topic, json=answer.json()["settings"])).status == 200
    found = (await one.api.get(topic)).json()["effective"]
    assert found["ttl"] == {"value": None, "from": "topic"}
    assert found["rates.publish_messages"] == {"value": 5, "from": "topic"}
    assert found["rates.publish_bytes"] == {"value": 10**6, "from": "namespace"}
    assert found["backlog_quota.policy"] == {"value": "reject", "from": "topic"}
    assert found["backlog_quota.time"] == {"value": 3600, "from": "namespace"}
    assert found["retention.time"] == {"value": 604800, "from": "namespace"}
    assert found["retention.size"] == {"value": None, "from": "default"}
    assert found["message_time"] == {"value": "append", "from": "namespace"}
    answer = await one.api.call("PATCH", topic, json={"ttl": None, "rates": None})
    assert "ttl" not in answer.json()["settings"]
    assert (await one.api.get(topic)).json()["effective"]["ttl"] == {
        "value": 60, "from": "namespace",
    }  # fmt: skip
    emptied = dict.fromkeys(POLICIES) | {"auto_create": None, "retention": None}
    assert (await one.api.put(lab, json=emptied)).status == 200
    assert (await one.api.get(lab)).json()["policies"] == {"encrypted": False, "auto_create": None}
    found = (await one.api.get(topic)).json()["effective"]
    assert found["durability"] == {"value": "sync", "from": "default"}


# ---- any broker answers any call


async def made(two: Running) -> None:
    """Create the topic; b0 serves it."""
    await two.api.put(ONE)
    await two.move("one", "b0")


async def test_either_broker_publishes_everywhere(two: Running) -> None:
    await two.api.put(FOUR, json={"partitions": 4})
    for api in two.apis:
        body = b"\n".join(b'{"key":"k%d","value":%d}' % (n % 9, n) for n in range(4000))
        answer = await api.post(FOUR + "/messages?results=all", body, NDJSON)
        assert answer.status == 200, answer
        assert answer.json()["count"] == 4000
        records = [(await two.records("four", number)) for number in range(4)]
        for n, result in enumerate(answer.json()["results"]):
            assert records[result["partition"]][result["offset"]][1].value == b"%d" % n
    seen: dict[bytes, list[int]] = {}
    for number in range(4):
        for _, record in (await two.records("four", number)).values():
            assert record.key is not None
            assert record.value is not None
            assert partition_for(record.key, 4) == number
            seen.setdefault(record.key, []).append(int(record.value))
    for k in range(9):
        once = list(range(k, 4000, 9))
        assert seen[b"k%d" % k] == once + once


async def test_proxy_and_redirect(two: Running) -> None:
    await made(two)
    other = two.apis[1]
    answer = await other.post(ONE + "/messages", b"by proxy", "text/plain")
    assert answer.status == 200
    assert answer.headers["Octavo-Owner"] == two.apis[0].url
    answer = await other.post(
        ONE + "/messages?results=all", b"x", "text/plain", headers={"Prefer": "redirect"}
    )
    assert answer.status == 307
    assert answer.headers["Location"] == two.apis[0].url + ONE + "/messages?results=all"
    assert two.next_offset("one") == 1
    answer = await two.api.post(
        ONE + "/messages", b"x", "text/plain", headers={"Prefer": "redirect"}
    )
    assert answer.status == 200
    problem = await other.post(ONE + "/messages", b"x", "multipart/form-data")
    assert problem.status == 415


_CALLS = {
    "publish": (b"x", "text/plain", ""),
    "publish_large": (b"x", "text/plain", ""),
    "put_large": (b"x", "text/plain", ""),
    "truncate": (b"", "", "?before=latest"),
    "acquire_access": (b'{"producer":"p"}', "application/json", ""),
    "release_access": (b"", "", "?epoch=1"),
    "put_subscription": (b"{}", "application/json", ""),
    "receive": (b"{}", "application/json", ""),
    "acknowledge": (b'{"ack_ids":[]}', "application/json", ""),
    "seek": (b'{"to":"earliest"}', "application/json", ""),
    "skip": (b'{"messages":1}', "application/json", ""),
    "expire": (b'{"older_than":"1h"}', "application/json", ""),
}
"""Body, content type and query of calls that need more than their path."""
_OF_ONE_PARTITION = [
    route
    for route in ROUTES
    if "{partition}" in route.path
    and not route.needs.is_inner
    # A stream continues when its partition moves, so the broker that was asked serves it.
    and route.name != "stream_of_partition"
]


@pytest.mark.parametrize("route", _OF_ONE_PARTITION, ids=lambda route: route.name)
async def test_each_call_about_a_partition_is_redirected(two: Running, route: Route) -> None:
    """With `Prefer: redirect`, a broker that does not own the partition names the owner."""
    await two.api.put(ONE)  # served by b0
    await two.api.put(ONE + "/subscriptions/s")
    await two.api.post(ONE + "/messages", b"x", "text/plain")
    variables = {
        "namespace": "public", "topic": "one", "partition": "0", "subscription": "s",
        "message": "0",
    }  # fmt: skip
    path = route.path.format(**variables)
    body, kind, query = _CALLS.get(route.name.removesuffix("_of_partition"), (b"", "", ""))
    headers = {"Prefer": "redirect"} | ({"Content-Type": kind} if kind else {})
    answer = await two.apis[1].call(route.method, path + query, data=body or None, headers=headers)
    assert answer.status == 307, answer
    assert answer.headers["Location"] == two.apis[0].url + path + query
    assert answer.headers["Preference-Applied"] == "redirect"


def test_a_call_that_documents_the_redirect_documents_its_answer() -> None:
    for route in ROUTES:
        prefers = any(one.name == "Prefer" for one in route.parameters)
        assert prefers == (307 in {answer.status for answer in route.answers}), route.name


@pytest.mark.parametrize("size", [3_000, 300_000])
async def test_proxy_streams(two: Running, size: int) -> None:
    await made(two)

    async def lines():
        for start in range(0, size, 1000):
            yield b"".join(b'{"value":%d}\n' % n for n in range(start, start + 1000))

    answer = await two.apis[1].post(ONE + "/messages", lines(), NDJSON)
    assert answer.json()["count"] == size, answer
    answer = await two.apis[1].get(ONE + "/messages?max_bytes=8000000", headers={"Accept": BATCH})
    assert (
        len(answer.body)
        == min(8_000_000, sum(len(batch.data) for batch in (await two.batches("one"))[:1000]))
        or len(answer.body) > 1000
    )


async def test_proxy_names_the_bad_line_of_a_stream(two: Running) -> None:
    await made(two)

    async def lines():
        yield b'{"value":1}\n' * 200_000
        yield b"bad\n"
        yield b'{"value":1}\n' * 1000

    answer = await two.apis[1].post(ONE + "/messages", lines(), NDJSON)
    assert answer.status == 400, answer
    assert answer.json()["line"] == 200_001
    assert answer.json()["stored"]["count"] == 200_000 == two.next_offset("one")


async def test_waits_for_a_partition_that_moves(two: Running) -> None:
    await made(two)
    two.hold()
    sent = asyncio.ensure_future(two.api.post(ONE + "/messages", json={"value": 0}))
    await until(lambda: two.servers[0]._services.in_hand.count)
    moving = asyncio.ensure_future(two.move("one", "b1"))  # it waits for the message under way
    await until(lambda: two.open_partition("one") is None)
    waiting = [
        asyncio.ensure_future(api.post(ONE + "/messages", json={"value": 1})) for api in two.apis
    ]
    await asyncio.sleep(0.1)
    assert not any(one.done() for one in waiting)
    two.go_on()
    await moving
    assert (await sent).status == 200
    for answer in await asyncio.gather(*waiting):
        assert answer.status == 200, answer
        assert answer.headers["Octavo-Owner"] == two.apis[1].url


async def test_stream_goes_on_at_the_new_owner(two: Running) -> None:
    """The partition moves in the middle of a stream: no message is lost or doubled."""
    await made(two)

    async def lines():
        for n in range(20_000):
            if n == 10_000:
                await until(lambda: two.next_offset("one") >= 5_000)
                await two.move("one", "b1")
            yield b'{"value":%d}\n' % n

    answer = await two.api.post(ONE + "/messages", lines(), NDJSON)
    assert answer.status == 200, answer
    values = [int(record.value or b"") for _, record in (await two.records("one")).values()]
    assert values == list(range(20_000))


async def test_503_when_nobody_owns_it(two: Running) -> None:
    await made(two)
    assert (await two.api.post(ONE + "/messages", json={"value": 1})).status == 200
    two.hold()  # the next owner cannot recover the ledger
    await two.die("b0")
    answer = await two.apis[1].post(ONE + "/messages", json={"value": 1})
    two.go_on()
    assert answer.status == 503
    assert answer.json()["retryable"] is True
    assert answer.headers["Retry-After"] == "1"


async def test_503_when_the_owner_is_unreachable(two: Running) -> None:
    await made(two)
    await two.vanish("b0")
    for kind, body in (("application/json", b'{"value":1}'), (NDJSON, b'{"value":1}\n')):
        answer = await two.apis[1].post(ONE + "/messages", body, kind)
        assert answer.status == 503, answer
        assert answer.json()["code"] == "owner-unreachable"
        assert "cannot be reached" in answer.json()["detail"]


async def test_503_when_the_owners_host_has_vanished() -> None:
    """Not 504: nothing was sent, so the outcome is known."""
    with vanished_host() as url:
        async with running(2, registered={"b0": url}, peer_connect_timeout_ms=50) as two:
            await made(two)
            answer = await two.apis[1].post(ONE + "/messages", b"x", "text/plain")
            assert answer.status == 503, answer
            assert answer.json()["code"] == "owner-unreachable"


async def test_takes_over_a_call_meant_for_an_owner_that_vanished() -> None:
    with vanished_host() as url:
        async with running(
            2, registered={"b0": url}, peer_connect_timeout_ms=50, moving_wait_ms=60_000
        ) as two:
            await made(two)
            sent = asyncio.ensure_future(two.apis[1].post(ONE + "/messages", b"y", "text/plain"))
            await asyncio.sleep(0.2)
            await two.die("b0")
            answer = await sent
            assert answer.status == 200, answer


@pytest.mark.parametrize("kind", [NDJSON, "application/json", "text/plain"])
async def test_takes_over_a_call_meant_for_an_owner_that_died(two: Running, kind: str) -> None:
    """Its body was read to be forwarded, and is now used here."""
    await made(two)
    await two.vanish("b0")
    sent = asyncio.ensure_future(two.apis[1].post(ONE + "/messages", b'{"value":1}\n', kind))
    await asyncio.sleep(0.1)
    await two.die("b0")
    answer = await sent
    assert answer.status == 200, answer
    assert answer.json()["count"] == 1 == two.next_offset("one")


async def test_brokers_that_disagree_do_not_loop(two: Running) -> None:
    await made(two)
    name = two.name("one")
    first = two.brokers["b1"].ownership
    real = first.owner_of

    async def wrong(asked: object, *, forwarded: bool = False, incarnation: str | None = None):
        return (await real(name))._replace(local=False, url=two.apis[1].url)

    first.owner_of = wrong  # type: ignore[method-assign, assignment]
    answer = await two.apis[1].post(ONE + "/messages", b"x", "text/plain")
    assert answer.status == 503, answer
    assert answer.json()["retryable"] is True


# ---- limits


async def test_bodies_that_are_too_long() -> None:
    async with running(1, body_bytes_max=10_000, line_bytes_max=2_000) as one:
        await one.api.put(ONE)
        for kind in ("text/plain", "application/json", BATCH):
            answer = await one.api.post(ONE + "/messages", b"x" * 20_000, kind)
            assert answer.status == 413, answer
            assert answer.json()["bytes_max"] == (2_000 if kind == "text/plain" else 10_000)

            async def stream():
                for _ in range(20):
                    yield b"x" * 1000

            answer = await one.api.post(ONE + "/messages", stream(), kind)
            assert answer.status == 413, answer
        answer = await one.api.post(
            ONE + "/messages", b"x" * 2_000, "text/plain", headers={"Octavo-Key": "k"}
        )
        assert (answer.status, answer.json()["code"]) == (413, "message-too-long")
        body = b'{"value":1}\n{"value":"' + b"x" * 2_500 + b'"}\n'
        answer = await one.api.post(ONE + "/messages", body, NDJSON)
        assert answer.status == 413, answer
        assert answer.json()["line"] == 2
        assert answer.json()["stored"]["count"] == 1
        body = b'{"value":1}\n{"value":"' + b"x" * 1_000_000
        answer = await one.api.post(ONE + "/messages", body, NDJSON)
        assert answer.status == 413, answer
        assert answer.json()["line"] == 2


async def test_too_many_bodies_at_once_are_429() -> None:
    async with running(1, bodies_bytes_max=100_000) as one:
        await one.api.put(ONE)
        host, _, port = one.api.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/topics/public/one/messages HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 90000\r\nContent-Type: text/plain\r\n\r\n" + b"h" * 60_000
        )
        server = one.servers[0]
        await until(lambda: server._services.held._held >= 60_000)
        asking = asyncio.ensure_future(one.api.post(ONE + "/messages", b"x" * 50_000, "text/plain"))
        while not asking.done():  # it comes slowly, but keeps its place
            writer.write(b"h")
            await asyncio.wait({asking}, timeout=0.2)
        answer = await asking
        assert answer.status == 429, answer
        assert answer.headers["Retry-After"]
        writer.close()
        await until(lambda: not server._services.held._held)
        answer = await one.api.post(ONE + "/messages", b"x" * 50_000, "text/plain")
        assert answer.status == 200


async def test_slow_bodies_are_cut_off() -> None:
    async with running(1, body_timeout_ms=200, stall_timeout_ms=200) as one:
        await one.api.put(ONE)
        for kind in (b"text/plain", b"application/x-ndjson"):
            answer = await send_raw(
                one.api.url,
                b"POST /v1/topics/public/one/messages HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: 9000\r\nContent-Type: " + kind + b'\r\n\r\n{"value":1}\n',
            )
            assert b" 408 " in answer.partition(b"\r\n")[0], answer
            assert b"body-too-slow" in answer
        assert one.next_offset("one") == 1  # the whole line of the stream


async def test_a_client_that_breaks_off_leaves_nothing_running(one: Running) -> None:
    await one.api.put(ONE)

    async def lines():
        for _ in range(50):
            yield b'{"value":1}\n' * 1000
            await asyncio.sleep(0)
        raise RuntimeError("the client dies here")

    with suppress(Exception):
        await one.api.post(ONE + "/messages", lines(), NDJSON)
    await until(lambda: not one.servers[0]._services.in_hand.count)
    assert one.next_offset("one") % 1000 == 0


async def test_a_stream_is_not_kept_in_memory(one: Running) -> None:
    """The body is many times a request's maximum; the waiting part stays below the bound."""
    await one.api.put(ONE)
    partition = await one.partition("one")
    most = 0
    blocks = 0
    line = b'{"value":"' + b"x" * 988 + b'"}\n'

    async def lines():
        nonlocal most, blocks
        for blocks in range(40):
            most = max(most, blocks * 1_000_000 - partition.next_offset * 1000)
            yield line * 1000

    publish = partition.publish

    async def slow(*args, **kwargs):
        await asyncio.sleep(0.002)
        return await publish(*args, **kwargs)

    partition.publish = slow  # type: ignore[method-assign]
    answer = await one.api.post(ONE + "/messages", lines(), NDJSON)
    assert answer.json()["count"] == 40_000
    assert most < 20_000_000, most  # 4 MiB in flight here, the rest in the sockets between


# ---- life


async def test_port_in_use() -> None:
    port = free_port()
    async with running(0) as cluster:
        servers = [
            await cluster.new_server(f"b{n}", lambda: NOW_MS, {"port": port}) for n in range(2)
        ]
        await servers[0].start()
        with pytest.raises(CannotListen, match=f"port {port} on 127.0.0.1 is in use"):
            await servers[1].start()
        await servers[1].stop()
        await servers[0].stop()


async def test_a_start_that_fails_leaves_the_port_free() -> None:
    port = free_port()
    async with running(0) as cluster:
        server = await cluster.new_server("b0", lambda: NOW_MS, {"port": port})
        cluster.metadata.is_away = True
        with pytest.raises(MetadataUnavailable, match="does not answer"):
            await server.start()
        cluster.metadata.is_away = False
        server = await cluster.new_server("b0", lambda: NOW_MS, {"port": port})
        await server.start()
        assert server.url.endswith(f":{port}")
        await server.stop()
        await server.stop()


async def test_stop_lets_requests_end_and_hands_over() -> None:
    async with running(1) as one:
        await one.api.put(ONE)
        partition = await one.partition("one")
        one.hold()
        sent = asyncio.ensure_future(one.api.post(ONE + "/messages", b"x", "text/plain"))
        polling = asyncio.ensure_future(one.api.get(ONE + "/messages?from=latest&wait=60"))
        await until(lambda: one.servers[0]._services.in_hand.count == 2)
        await until(lambda: one.waiting("one"))
        stopping = asyncio.ensure_future(one.servers[0].stop())
        answer = await polling
        assert (answer.status, answer.json()["code"]) == (503, "stopping")
        assert one.open_partition("one") is partition
        one.go_on()
        assert (await sent).status == 200
        await stopping
        assert one.open_partition("one") is None
        with pytest.raises(Exception, match="connect"):
            await one.api.get("/healthz")


async def test_health_metrics_and_page(one: Running) -> None:
    await one.api.put(ONE)
    await one.api.post(ONE + "/messages", b"x", "text/plain")
    assert (await one.api.get("/healthz")).json()["status"] == "ok"
    assert (await one.api.get("/readyz")).status == 200
    text = (await one.api.get("/metrics")).body.decode()
    assert "octavo_messages_published_total 1.0" in text
    assert 'octavo_http_requests_total{call="publish",status="200"} 1.0' in text
    assert 'octavo_partition_next_offset{partition="0",topic="public/one"} 1.0' in text
    one.stores["b0"].session_state = SessionState.SUSPENDED
    answer = await one.api.get("/readyz")
    assert answer.status == 503
    assert "metadata store" in answer.json()["detail"]
    assert (await one.api.get("/healthz")).status == 200


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    async with running(1, stall_timeout_ms=300) as one:
        await one.api.put(ONE)
        batch = build_batch([Record(None, b"x" * 1_000_000)] * 4)
        for _ in range(2):
            assert (await one.api.post(ONE + "/messages", batch, BATCH)).status == 200
        _, writer = await asyncio.open_connection(
            "127.0.0.1", int(one.api.url.rpartition(":")[2]), limit=1000
        )
        reading: Any = writer.transport
        reading.pause_reading()
        for _ in range(4):  # more than the sockets' buffers hold
            writer.write(
                b"GET /v1/topics/public/one/messages?max_bytes=8000000 HTTP/1.1\r\nHost: x\r\n"
                b"Accept: application/vnd.kafka.recordbatch.v2\r\n\r\n"
            )
        server = one.servers[0]
        await until(lambda: len(listening(server).connections) == 2)
        await until(lambda: len(listening(server).connections) == 1, 10)  # the other is `one.api`'s
        writer.close()
        assert (await one.api.get("/healthz")).status == 200


ASK = b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n"


async def connections_of(one: Running, count: int) -> list[asyncio.StreamWriter]:
    port = int(one.api.url.rpartition(":")[2])
    kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    await until(lambda: len(listening(one.servers[0]).connections) >= min(count, 3))
    return [writer for _, writer in kept]


async def test_too_many_connections() -> None:
    async with running(1, connections_max=3, connections_reserved=2) as one:
        kept = await connections_of(one, 3)
        answer = await send_raw(one.api.url, ASK % (b"/v1/topics/public", b""))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too-many-connections" in answer
        assert b"connection: close" in answer.lower()
        for writer in kept:
            writer.close()
        await until(lambda: not listening(one.servers[0]).connections)
        assert (await one.api.get("/v1/topics/public")).status == 200


async def test_the_last_places_are_for_health_and_for_other_brokers() -> None:
    async with running(1, connections_max=3, connections_reserved=2) as one:
        await one.api.put(ONE)
        await one.api.session.close()
        kept = await connections_of(one, 3)
        health = ASK % (b"/healthz", b"Connection: close\r\n")
        assert (await send_raw(one.api.url, health)).startswith(b"HTTP/1.1 200 ")
        peers = request_head("x", Upgrade("b7", "b0", "7" * 32), CALL_KEY)
        assert (await send_raw(one.api.url, peers)).startswith(b"HTTP/1.1 101 ")
        for writer in kept:
            writer.close()


async def test_a_flood_of_connections_leaves_nothing_behind() -> None:
    async with running(1, connections_max=3, connections_reserved=2) as one:
        server = one.servers[0]
        kept = await connections_of(one, 300)
        await until(lambda: len(listening(server).connections) == 5)
        health = ASK % (b"/healthz", b"Connection: close\r\n")
        assert (await send_raw(one.api.url, health)).startswith(b"HTTP/1.1 200 ")
        refused = server._services.metrics.connections_refused._value.get()
        assert refused >= 295
        for writer in kept:
            writer.close()
        await until(lambda: not listening(server).connections)
        assert not listening(server)._reserved
        assert (await one.api.get("/v1/topics/public")).status == 200


@pytest.mark.long
async def test_a_topic_with_many_partitions(two: Running) -> None:
    many = "/v1/topics/public/many"
    await two.api.put(many, json={"partitions": 300})
    await two.api.put(many + "/subscriptions/s", json={"type": "shared"})
    body = b"\n".join(b'{"key":"k%d","value":%d}' % (n, n) for n in range(3000))
    answer = await two.api.post(many + "/messages", body, NDJSON)
    assert answer.json()["count"] == 3000, answer.json().get("errors")
    assert (await two.api.get(many)).json()["messages"] == 3000
    assert len((await two.api.get(many + "/offsets")).json()["offsets"]) == 300
    seen: list[int] = []
    for _ in range(300):
        answer = await two.api.post(many + "/subscriptions/s/receive?max=500")
        if answer.status == 200:
            seen += [message["value"] for message in answer.json()["messages"]]
        if len(seen) == 3000:
            break
    assert sorted(seen) == list(range(3000))
