"""No call at the size of its limits holds up a broker's loop: processor time of the longest turn.

The first cases took seconds each, because their work was bounded in bytes and not in steps. Every
route has a case here or a reason; `test_every_route_has_a_case_or_a_reason` fails for a new route
without one.

Brokers in memory answer, but a fake answers what needs thousands of partitions: to open those of a
broker takes many seconds for each case.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import http.client
import itertools
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import pytest

from octavo.broker.http.api.bulk_loads import (
    ABORTED_LEDGERS_MAX,
    LEDGERS_MAX,
    PARTS_MAX,
    SHARES_MAX,
)
from octavo.broker.http.api.deliveries import ACK_IDS_MAX, ACK_PARTS_MAX
from octavo.broker.http.api.groups import HOLDS_MAX, TOPICS_MAX
from octavo.broker.http.api.publish import BATCHES_MAX
from octavo.broker.http.call import JSON_BYTES_MAX
from octavo.broker.http.request_body import Decompressor
from octavo.broker.http.routes import ROUTES
from octavo.broker.types import SubscriptionSettings, TopicName, TopicSettings
from octavo.ledger.read.open_batch import SMALL_BYTES
from octavo.protocol.batch import InvalidBatch
from octavo.protocol.compression import Compression, unpack
from octavo.protocol.json_message import BODY_PARTS_MAX, MESSAGE_PARTS_MAX, has_more_parts
from octavo.protocol.records import Record, build_batch
from tests.support import fake_broker
from tests.support.http_api import Answer, Api
from tests.support.loop_time import LoopTime, slowness
from tests.support.memory_cluster import Running, running

TURN_S_MAX = 0.05
T = "/v1/topics/public/t"
WIDE = "/v1/topics/public/wide"
J = "/v1/durable-streams/public/j"
PARTITIONS = 2_000
SUBSCRIPTIONS = 4_000
MIB = 1024 * 1024


class Case(NamedTuple):
    """A call at the size of its limits. Only `call` is measured."""

    prepare: Callable[[Any], Awaitable[None]]
    call: Callable[[Any], Awaitable[Answer]]
    check: Callable[[Answer], bool]
    wide: bool = False
    """Needs a topic with `PARTITIONS` partitions."""


class Sent(NamedTuple):
    """A request that another thread sends and reads, so that the client's work is no turn of the
    loop."""

    method: str
    path: str
    body: bytes = b""
    kind: str = "application/json"
    statuses: tuple[int, ...] = (200,)
    wide: bool = False
    """Needs a topic with `PARTITIONS` partitions and a subscription `s`."""
    stored: bytes = b""
    """Stored before, unchanged, as one message of the topic `t`."""
    stream: bool = False
    """Needs a durable stream `j` of JSON."""


def _send(url: str, sent: Sent) -> Answer:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        headers = {"Content-Type": sent.kind} if sent.body else {}
        connection.request(sent.method, sent.path, body=sent.body or None, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _filled(unit: bytes, begin: bytes, end: bytes, size: int) -> bytes:
    """Repeat `unit` as often as fits between the two."""
    return begin + b",".join([unit] * ((size - len(begin) - len(end)) // (len(unit) + 1))) + end


async def _long_names(one: Running) -> None:
    for n in range(100):
        name = TopicName("public", "a" * 240 + f"c{n:03}")
        await one.brokers["b0"].topics.create(name, TopicSettings())


async def _join_by_patterns(one: Running) -> Answer:
    patterns = ["*" + "a" * (100 + n) + "b*" + "?a" * 10 + "*" for n in range(TOPICS_MAX)]
    return await one.api.call("POST", "/v1/groups/public/g/members/m", json={"topics": patterns})


async def _send_empty_members(one: Running) -> Answer:
    return await one.api.call(
        "POST", f"{T}/messages", data=EMPTY_MEMBERS,
        headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"},
    )  # fmt: skip


async def _subscriptions(one: Running) -> None:
    for n in range(SUBSCRIPTIONS):
        await one.brokers["b0"].topics.create_subscription(
            TopicName("public", "t"), f"s{n:04}", SubscriptionSettings()
        )


async def _wide_topic(one: fake_broker.Running) -> None:
    assert (await one.api.put("/v1/topics/public/wide", json={"partitions": 2_000})).status == 201


async def _nothing(one: Running) -> None:
    pass


async def _twenty_documents(one: Running) -> Answer:
    answers = await asyncio.gather(*(one.api.get("/openapi.json") for _ in range(20)))
    return answers[0]


EMPTY_MEMBERS = gzip.compress(b"") * 200_000
CASES = {
    # 20 names of 248 characters took 20 s, and the broker ended.
    "beat: patterns": Case(
        _long_names, _join_by_patterns, lambda said: said.json()["partitions"] == []
    ),
    # 4 MB of them took 11 s.
    "publish: gzip": Case(_nothing, _send_empty_members, lambda said: b"members" in said.body),
    # A list of 4,000 took 1.5 s.
    "list_subscriptions": Case(
        _subscriptions,
        lambda one: one.api.get(f"{T}/subscriptions"),
        lambda said: len(said.json()["subscriptions"]) == SUBSCRIPTIONS,
    ),
    # A topic of 2,000 took 2.8 s to show.
    "get_topic": Case(
        _wide_topic,
        lambda one: one.api.get("/v1/topics/public/wide"),
        lambda said: len(said.json()["partitions"]) == 2_000,
        wide=True,
    ),
    "openapi": Case(_nothing, _twenty_documents, lambda said: said.status == 200),
    "metrics": Case(
        _wide_topic,
        lambda one: one.api.get("/metrics"),
        lambda said: said.body.count(b"octavo_partition_next_offset{") >= 2_000,
        wide=True,
    ),
}


_HOLDS = [f"public/wide/{n}" for n in range(PARTITIONS)]
_HOLDS += [f"public/other{n}/0" for n in range(HOLDS_MAX - PARTITIONS)]
_LEDGER = {"id": 1, "messages": 1, "bytes": 1, "first_ms": 0, "last_ms": 0}
_SMALL = build_batch([Record(None, b"")])
_LISTS = b'{"value":[' + b"[]," * ((MESSAGE_PARTS_MAX - 4) // 2) + b"1]}"
_ACKS = [f"0-{n}-1-1" for n in range(ACK_IDS_MAX)]


def _part(**how: Any) -> dict[str, Any]:
    return {"topic": "public/wide", "partition": 0, **how}


def _loads(call: str, parts: list[dict[str, Any]]) -> Sent:
    path = f"/v1/bulk-loads/x/batches/1/{call}"
    return Sent("POST", path, _json({"parts": parts}), wide=True, statuses=(200, 409, 422))


SENT: dict[str, Sent] = {
    "publish: messages": Sent(
        "POST", f"{T}/messages",
        _filled(b'{"value":1}', b'{"messages":[', b"]}", 6 * BODY_PARTS_MAX - 1_000),
    ),
    "publish: a body of lists": Sent(
        "POST", f"{T}/messages", _filled(b"[]", b'{"messages":[', b"]}", 8 * MIB), statuses=(413,)
    ),
    "publish: a value of lists": Sent("POST", f"{T}/messages", _LISTS),
    "publish: a value of more": Sent(
        "POST", f"{T}/messages", _filled(b"[]", b'{"value":[', b"]}", 4 * MIB), statuses=(422,)
    ),
    "publish: lines": Sent(
        "POST", f"{T}/messages", b'{"value":1}\n' * (4 * MIB // 12), "application/x-ndjson"
    ),
    "publish: a line of lists": Sent(
        "POST", f"{T}/messages", _LISTS + b"\n", "application/x-ndjson"
    ),
    "publish: batches": Sent(
        "POST", f"{T}/messages", _SMALL * BATCHES_MAX, "application/vnd.kafka.recordbatch.v2"
    ),
    "publish: a batch": Sent(
        "POST", f"{T}/messages", build_batch([Record(None, b"")] * 200_000),
        "application/vnd.kafka.recordbatch.v2",
    ),
    "publish: to many partitions": Sent(
        "POST", f"{WIDE}/messages", _filled(b'{"value":1}', b'{"messages":[', b"]}", MIB), wide=True
    ),
    "acknowledge": Sent(
        "POST", f"{T}/subscriptions/s/ack", _json({"ack_ids": _ACKS}), statuses=(409,)
    ),
    "acknowledge: nacks": Sent(
        "POST", f"{T}/subscriptions/s/ack", _json({"nack": _ACKS}), statuses=(409,)
    ),
    "acknowledge: ranges": Sent(
        "POST", f"{T}/subscriptions/s/ack", _json({"extend": [f"0-0:{ACK_IDS_MAX}-1-1"]}),
        statuses=(409,),
    ),
    "acknowledge: too many": Sent(
        "POST", f"{T}/subscriptions/s/ack", _filled(b'"0-1-1-1"', b'{"ack_ids":[', b"]}", 8 * MIB),
        statuses=(422,),
    ),
    "acknowledge: many partitions": Sent(
        "POST", f"{WIDE}/subscriptions/s/ack",
        _json({"ack_ids": [f"{n % PARTITIONS}-{n}-1-1" for n in range(ACK_IDS_MAX)]}),
        statuses=(409,), wide=True,
    ),
    "offsets": Sent("GET", f"{WIDE}/offsets?at=2020-01-01T00:00:00Z", wide=True),
    "truncate": Sent("DELETE", f"{WIDE}/messages?before=latest", wide=True),
    "put_subscription": Sent("PUT", f"{WIDE}/subscriptions/q", wide=True, statuses=(201,)),
    "get_subscription": Sent("GET", f"{WIDE}/subscriptions/s", wide=True),
    "delete_subscription": Sent("DELETE", f"{WIDE}/subscriptions/s", wide=True, statuses=(204,)),
    "seek": Sent("POST", f"{WIDE}/subscriptions/s/seek", b'{"to":"latest"}', wide=True),
    "skip": Sent("POST", f"{WIDE}/subscriptions/s/skip", b'{"messages":1}', wide=True),
    "expire": Sent("POST", f"{WIDE}/subscriptions/s/expire", b'{"older_than":"1h"}', wide=True),
    "receive": Sent(
        "POST", f"{WIDE}/subscriptions/s/receive?max=1000", wide=True, statuses=(200, 204)
    ),
    "peek": Sent("GET", f"{WIDE}/subscriptions/s/peek?max=1000", wide=True),
    "explain_topic": Sent("GET", "/v1/explain/public/wide", wide=True),
    "unload_topic": Sent("POST", f"{WIDE}/unload", wide=True),
    "issue_reader_token": Sent("POST", f"{WIDE}/reader-token", wide=True),
    "list_topics": Sent("GET", "/v1/topics/public?limit=10000", wide=True),
    "status_page": Sent("GET", "/", wide=True),
    "get_cluster": Sent("GET", "/v1/cluster", wide=True),
    "beat: holds": Sent(
        "POST", "/v1/groups/public/g/members/m", _json({"topics": ["wide"], "holds": _HOLDS}),
        wide=True,
    ),
    "get_group": Sent("GET", "/v1/groups/public/g", wide=True),
    "commit_bulk_load": _loads("commit", [_part(ledgers=[_LEDGER] * LEDGERS_MAX)]),
    "commit_bulk_load: parts": _loads(
        "commit", [_part(partition=n % PARTITIONS, ledgers=[_LEDGER]) for n in range(PARTS_MAX)]
    ),
    "begin_bulk_load": _loads(
        "begin", [_part(partition=n, content="x" * 100) for n in range(SHARES_MAX)]
    ),
    "abort_bulk_load": Sent(
        "POST", "/v1/bulk-loads/x/batches/1/abort",
        _json({"ledgers": [2**60 + n for n in range(ABORTED_LEDGERS_MAX)]}),
    ),
}  # fmt: skip

_OPEN = 4 * MIB - 100
"""Message bytes that are passed through, so they were never examined."""
_VALUES = {
    "lists": _filled(b"[]", b"[", b"]", _OPEN),
    "numbers": _filled(b"1", b"[", b"]", _OPEN),
    "fractions": _filled(b"0.5", b"[", b"]", _OPEN),
    "members": b"{" + b",".join(b'"%d":0' % n for n in range(380_000)) + b"}",
    "objects": _filled(b'{"":0}', b"[", b"]", _OPEN),
    "controls": bytes(_OPEN),
    "quotes": b'"' * _OPEN,
    "letters": "é".encode() * (_OPEN // 2),
    "no text": b"\xff" * _OPEN,
    "a long text": b'"' + b"x" * (_OPEN - 2) + b'"',
    "open brackets": b"[" * _OPEN,
}
for _name, _value in _VALUES.items():
    SENT |= {
        f"read: {_name}": Sent("GET", f"{T}/messages?from=earliest", stored=_value),
        f"receive: {_name}": Sent(
            "POST", f"{T}/subscriptions/s/receive", stored=_value, statuses=(200, 204)
        ),
        f"peek: {_name}": Sent("GET", f"{T}/subscriptions/s/peek", stored=_value),
        f"publish_of_stream: {_name}": Sent(
            "POST", J, _value, stream=True, statuses=(200, 204, 400, 413, 422)
        ),
    }

_STEP = "one partition, and a body of at most 64 KiB"
_BROKERS = "between brokers, which made what it says"
_RECORD = "one record of the metadata, at most 1 MB"
_STREAM = "bytes as they come, in pieces"
_NODES = "as many as there are nodes, whose number no client decides"
_WHY: Mapping[str, str] = {
    "publish_large put_large read_body put_stream": _STREAM,
    "read_of_stream stream": "at most read_bytes_max, made in turns",
    """acquire_access get_access release_access get_partition explain_partition unload_partition
    delete_stream""": _STEP,
    "operations": _BROKERS,
    """put_namespace get_namespace delete_namespace put_topic patch_topic delete_topic
    get_bulk_load list_quotas get_quota put_quota delete_quota get_user_groups list_namespaces
    list_schema_subjects register_schema check_schema get_schema_subject put_schema_subject
    get_schema delete_schema_subject""": _RECORD,
    "list_bookies list_brokers drain_broker undrain_broker confirm_clock": _NODES,
    "get_ledger get_entry recover_ledger list_ledgers": "one ledger, or a page of ids",
    "fork_topic": "a record for each partition, written some at a time",
    "leave_group healthz readyz": "a word",
    "get_policy put_policy": "of administrators; see unit/broker_http/test_http_policy",
}
REASONS = {name: why for names, why in _WHY.items() for name in names.split()}


def _names() -> set[str]:
    return {route.name.removesuffix("_of_partition") for route in ROUTES}


def test_every_route_has_a_case_or_a_reason() -> None:
    """Also fails for a case or a reason without a route."""
    cases = {name.partition(":")[0] for name in (*CASES, *SENT)}
    assert not cases & set(REASONS)
    assert cases | set(REASONS) == _names()


BODIES = [
    route
    for route in ROUTES
    if any(content.media_type == "application/json" for content in route.body)
    and not (route.inner or route.name.startswith("publish"))
]


def _path_of(path: str) -> str:
    for name, text in {
        "namespace": "public", "topic": "t", "partition": "0", "subscription": "s",
        "bulk_load": "x", "batch": "1",
        "subject": "anonymous", "schema_subject": "s", "group": "g", "member": "m",
    }.items():  # fmt: skip
        path = path.replace(f"{{{name}}}", text)
    return path


@pytest.mark.parametrize("route", BODIES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_body_of_lists_is_read_in_a_turn_or_refused(one: Running, route: Any) -> None:
    """The longest that the call accepts: a parser makes an object of each."""
    await _prepared(one.api, wide=False)
    size = 8 * MIB
    while True:
        body = _filled(b"[]", b'{"x":[', b"]}", size)
        answer, longest_s = await _measured(one.api, Sent(route.method, _path_of(route.path), body))
        assert longest_s < TURN_S_MAX, answer
        if answer.status != 413:
            break
        size = min(size - 1, answer.json().get("bytes_max", size // 2))
    assert answer.status in (400, 409, 412, 422), answer


async def test_a_call_that_says_nothing_takes_a_short_body(one: Running) -> None:
    await _prepared(one.api, wide=False)
    for more, status in ((0, 422), (1, 413)):
        body = b'{"x":"' + b"x" * (JSON_BYTES_MAX - 8 + more) + b'"}'
        assert len(body) == JSON_BYTES_MAX + more
        answer, _ = await _measured(one.api, Sent("PATCH", T, body))
        assert answer.status == status, answer


@pytest.mark.parametrize("most", [MESSAGE_PARTS_MAX, BODY_PARTS_MAX, ACK_PARTS_MAX])
def test_parts_are_counted_exactly(most: int) -> None:
    whole = b'{"a":[' + b"1," * (most - 2) + b"1]}"
    assert not has_more_parts(whole, most)
    assert has_more_parts(whole[:-2] + b",1]}", most)


async def test_a_batch_too_many_in_a_body_is_refused(one: Running) -> None:
    await _prepared(one.api, wide=False)
    sent = SENT["publish: batches"]
    answer, _ = await _measured(one.api, sent._replace(body=sent.body + _SMALL))
    assert answer.status == 422
    assert answer.json()["code"] == "too-many-batches"


def _started(*, wide: bool) -> Any:
    if wide:
        return fake_broker.running()
    return running(core={"subscriptions_max": SUBSCRIPTIONS})


async def _prepared(api: Api, *, wide: bool) -> None:
    assert (await api.put(T)).status == 201
    assert (await api.put(f"{T}/subscriptions/s")).status == 201
    if wide:
        assert (await api.put(WIDE, json={"partitions": PARTITIONS})).status == 201
        assert (await api.put(f"{WIDE}/subscriptions/s")).status == 201


async def _measured(api: Api, sent: Sent) -> tuple[Answer, float]:
    await asyncio.sleep(0)
    # A collection would visit the objects of the brokers and of other tests.
    gc.collect()
    gc.disable()
    try:
        async with LoopTime() as loop:
            answer = await asyncio.to_thread(_send, api.url, sent)
    finally:
        gc.enable()
    return answer, loop.longest_s


@pytest.mark.parametrize("name", SENT)
async def test_no_request_holds_the_loop_up(name: str) -> None:
    sent = SENT[name]
    async with _started(wide=sent.wide) as one:
        await _prepared(one.api, wide=sent.wide)
        if sent.stream:
            headers = {"Content-Type": "application/json"}
            assert (await one.api.call("PUT", J, headers=headers)).status == 201
        if sent.stored:
            headers = {"Content-Type": "text/plain"}
            said = await one.api.call("POST", f"{T}/messages", data=sent.stored, headers=headers)
            assert said.status == 200, said
        for _ in range(3):  # a disturbance makes a measurement longer, never shorter
            answer, longest_s = await _measured(one.api, sent)
            assert answer.status in sent.statuses, answer
            if longest_s < TURN_S_MAX * slowness():
                return
        assert longest_s < TURN_S_MAX


@pytest.mark.parametrize("name", CASES)
async def test_no_call_holds_the_loop_up(name: str) -> None:
    case = CASES[name]
    async with _started(wide=case.wide) as one:
        assert (await one.api.put(T)).status == 201
        await one.api.get("/openapi.json")  # made once
        await case.prepare(one)
        await asyncio.sleep(0)
        gc.collect()
        async with LoopTime() as loop:
            answer = await case.call(one)
        assert case.check(answer), answer
        assert loop.longest_s < TURN_S_MAX * slowness()


def test_blocks_of_nothing_are_not_unpacked_one_by_one() -> None:
    """Packed by snappy in xerial's form: 50,000 blocks in a body that is unpacked on the loop."""
    block = b"\x00\x00\x00\x01\x00"
    packed = b"\x82SNAPPY\x00" + bytes(8) + block * ((SMALL_BYTES - 16) // len(block))
    with pytest.raises(InvalidBatch, match="more than 4096 blocks"):
        unpack(Compression.SNAPPY, packed)


def test_many_members_of_an_ordinary_size_are_a_body() -> None:
    member = gzip.compress(bytes(range(256)) * 8, 0)
    inflater = Decompressor("gzip")
    pieces = itertools.chain(*(inflater.feed(member) for _ in range(1_000)))
    assert sum(map(len, pieces)) == 1_000 * 2_048
    assert zlib.decompress(member, 31) == bytes(range(256)) * 8
