"""Any broker's answer equals the owner's answer, byte for byte, for every call of the API.

Two worlds with two brokers each get the same requests, with any headers and bodies: one at the
owner, the other at the broker that forwards. Answers and stored messages must be the same.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import struct

import pytest

from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.protocol.records import Record, build_batch
from tests.support.memory_cluster import Running, running

TOPIC = "/v1/topics/public/one"
STREAM = "/durable-streams/public/story"
PARTS = {
    "namespace": "public", "topic": "one", "partition": "0", "subscription": "s",
    "bulk_load": "t", "batch": "0", "subject": "anonymous", "message": "0",
}  # fmt: skip
ABOUT_THE_TOPIC = [
    route
    for route in ROUTES
    if "{topic}" in route.path
    and route.method != "DELETE"
    and not route.path.endswith("/stream")  # without an end: cluster/test_streams has both brokers
]
VALUES = [
    b"prod\xe9", b"prod\xe8", b"k\xe9\xff", b"", b"\xff\xfe", "ключ".encode(), b"100%", b"%e9",
    b"a, b", b"\xed\xa0\x80", b"1", b"plain", b'"quoted"', b"tab\there", b"\xc3\x28",
]  # fmt: skip
TYPES = [
    b"application/json", b"application/x-ndjson", b"application/vnd.kafka.recordbatch.v2",
    b"text/plain", b"application/octet-stream", b"text/pl\xe9in",
    b"application/json; charset=utf-8",
]  # fmt: skip
QUERIES = {
    "from": ["earliest", "latest", "0", "1", "7:0:0", "2020-01-01T00:00:00Z", "junk", "1#2",
             "caf\xe9", "a|\"b", "%23", "%2", "1&from=2", "+1"],
    "at": ["earliest", "latest", "2020-01-01T00:00:00Z", "caf%C3%A9"],
    "limit": ["1", "3", "0", "x"], "max": ["1", "3", "x"], "max_bytes": ["1", "1000"],
    "wait": ["0", "1ms", "-1"], "results": ["all", "batches", "summary", "odd"],
    "consumer": ["c", "%ff", "a%20b"],
}  # fmt: skip
VARYING = [
    # What a broker knows of another is as old as its last word; the work it counts is its own.
    (rb'"(age|idle|load|served)":(null|[0-9.]+)', rb'"\1":0'),
    (rb'("draining":(?:true|false),"partitions":)(null|[0-9]+)', rb"\1 0"),
    (rb"[0-9a-f]{16}-[0-9]+", b"an incarnation"),
    (rb"for another [0-9]+ ms", b"for another 0 ms"),
]
"""Parts of answers that depend on the moment, or on the world."""


def bodies(rng: random.Random, kind: bytes) -> bytes:
    batch = build_batch([Record(b"k\xff", b"v\x00", [("h", b"\xe9")], 5)])
    some = {
        b"application/json": [
            b'{"value": 1}', b'{"messages":[{"value":null},{"key":"k","value":"\\u00e9"}]}', b"{",
            b'{"to":"earliest"}', b'{"ack_ids":["x"]}', b'{"type":"shared"}', b"",
        ],
        b"application/x-ndjson": [b'{"value":1}\n{"value":2}\n', b"\n\n", b'{"value":1}\nnope\n'],
        b"application/vnd.kafka.recordbatch.v2": [batch, batch + batch, batch[:-1], b""],
    }.get(kind, [b"raw \xff bytes", b"", bytes(range(256))])  # fmt: skip
    return rng.choice(some)


def request_of(rng: random.Random, route: Route) -> bytes:
    # A durable stream's topic takes no other calls, so it needs its own topic.
    path = route.path.replace("/durable-streams/{namespace}/{topic}", STREAM)
    for name, value in PARTS.items():
        path = path.replace("{" + name + "}", value)
    asked = [
        f"{name}={rng.choice(QUERIES[name])}"
        for name in sorted(route.query_names)
        if name in QUERIES and rng.random() < 0.5
    ]
    kind = rng.choice(TYPES)
    body = bodies(rng, kind) if route.method in ("POST", "PUT", "PATCH") else b""
    headers = [(b"Host", b"x"), (b"Connection", b"close")]
    if route.method in ("POST", "PUT", "PATCH"):
        headers.append((b"Content-Type", kind))
        if body and rng.random() < 0.2:
            body = gzip.compress(body, mtime=0)
            headers.append((b"Content-Encoding", b"gzip"))
        headers.append((b"Content-Length", b"%d" % len(body)))
    if rng.random() < 0.4:
        number = b"%d" % rng.randrange(3)
        headers += [
            (b"Producer-Id", rng.choice(VALUES)), (b"Producer-Epoch", b"0"),
            (b"Producer-Seq", number),
        ]  # fmt: skip
    headers += [
        (name, rng.choice(VALUES))
        for name in (b"Octavo-Key", b"Octavo-Header-B", b"Octavo-Header-a", b"Accept", b"If-Match",
                     b"octavo-header-B", b"X-Other", b"Octavo-Timestamp")
        if rng.random() < 0.25
    ]  # fmt: skip
    target = path + ("?" + "&".join(asked) if asked else "")
    head = b"%s %s HTTP/1.1\r\n" % (route.method.encode(), target.encode("latin-1"))
    return head + b"".join(b"%s: %s\r\n" % pair for pair in headers) + b"\r\n" + body


async def answered(url: str, request: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def comparable(answer: bytes, one: Running, request: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return status, headers and body, without values that depend on the world or the moment."""
    for number, server in enumerate(one.servers):
        answer = answer.replace(server.url.encode(), b"http://b%d" % number)
    for varies, same in VARYING:
        answer = re.sub(varies, same, answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    # Any broker answers a call on a whole topic, or refuses a call.
    with_owner = status.split(b" ")[1] < b"400" and b"/partitions/" in request
    varying = rb"(?i)(date|transfer-encoding|content-length)"
    if not with_owner:
        varying = rb"(?i)(date|transfer-encoding|content-length|octavo-owner)"
    kept = [line for line in headers if not re.match(varying, line)]
    return status, sorted(kept), body


async def stored(one: Running) -> list[bytes]:
    return [
        struct.pack(">q", batch.base_offset) + batch.data
        for batch in await one.batches("public/one")
    ]


@pytest.mark.parametrize("seed", range(8))
async def test_any_broker_answers_as_the_owner_does(seed: int) -> None:
    rng = random.Random(seed)
    requests = [request_of(rng, rng.choice(ABOUT_THE_TOPIC)) for _ in range(120)]
    async with running(2) as at_owner, running(2) as elsewhere:
        for one in (at_owner, elsewhere):
            assert (await one.api.put(TOPIC)).status == 201
            await one.move("public/one", "b0")
            assert (await one.api.put(f"{TOPIC}/subscriptions/s")).status == 201
        owner, other = at_owner.servers[0].url, elsewhere.servers[1].url
        for request in requests:
            told = [
                comparable(await answered(owner, request), at_owner, request),
                comparable(await answered(other, request), elsewhere, request),
            ]
            assert told[0] == told[1], request
            assert await stored(at_owner) == await stored(elsewhere), request
