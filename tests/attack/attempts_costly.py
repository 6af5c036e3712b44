"""What costs a broker more than it costs its client: floods, calls at the size of their limits,
hidden costs."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

from octavo.broker.http.api.deliveries import ACK_IDS_MAX
from octavo.protocol.compression import Compression
from octavo.protocol.due import due_header
from octavo.protocol.frames import read_request
from octavo.protocol.json_message import BODY_PARTS_MAX, MESSAGE_PARTS_MAX
from octavo.protocol.records import Record, build_batch
from tests.attack.attempts_requests import BATCH, SOCKET, T, request
from tests.attack.world import TURN_S_MAX, Said, World, attempt, exchange, open_to, refused
from tests.support.raw_bookie import add_of
from tests.support.schemas import decimal_of, entangled, fanned_out

BATCHES = 6


async def store(world: World, name: str, batch: bytes) -> str:
    path = await world.topic(name)
    body = {"start": "earliest"}
    said = await world.ask("PUT", f"{path}/subscriptions/s", body)
    assert said.status in (200, 201), said
    sent = await asyncio.gather(
        *(
            world.ask(
                "POST", f"{path}/messages", batch, broker=n % len(world.brokers), Content_Type=BATCH
            )
            for n in range(BATCHES)
        )
    )
    assert all(said.status in (200, 429) for said in sent), sent
    assert any(said.status == 200 for said in sent), sent
    return path


async def received(world: World, path: str, broker: int = 0) -> int:
    said = await world.ask(
        "POST", f"{path}/subscriptions/s/receive?max=10000&wait=20", broker=broker
    )
    assert said.status == 200, said
    return len(json.loads(said.body)["messages"])


@attempt("batches of 300,000 messages in kilobytes, received and read here and there")
async def very_many_messages(world: World) -> None:
    count = 300_000
    batch = build_batch([Record(None, b"x")] * count, compression=Compression.ZSTD)
    path = await store(world, "many-in-few", batch)
    for at in range(0, count, count // 5):
        said = await world.ask("GET", f"{path}/messages?from={at}&limit=1000")
        assert len(json.loads(said.body)["messages"]) == 1000, said
        assert await received(world, path) == 10_000


@attempt("batches of 60 MB in kilobytes, received and read by many at once", long=True)
async def very_long_messages(world: World) -> None:
    long = Record(None, bytes(4 << 20))
    batch = build_batch([long] * 15, compression=Compression.ZSTD)
    path = await store(world, "much-in-little", batch)
    for _ in range(1):
        counts = await asyncio.gather(*(received(world, path, n % 2) for n in range(4)))
        assert counts == [1] * 4
        reads = (world.ask("GET", f"{path}/messages?from={n}&limit=1000") for n in range(4))
        for said in await asyncio.gather(*reads):
            assert len(json.loads(said.body)["messages"]) == 1, said.status


SUBJECTS = "/v1/schemas/subjects/public"
NULLS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "b", "type": "boolean"},
            *({"name": f"n{n}", "type": "null"} for n in range(900)),
        ],
    },
}


async def _each(world: World, path: str, body: dict[str, Any], *statuses: int) -> None:
    for broker in range(len(world.brokers)):
        refused(await world.ask("POST", path, body, broker=broker), *statuses)


@attempt("a JSON Schema whose references fan out", turn_s_max=TURN_S_MAX)
async def fan_out(world: World) -> None:
    """4 KB of it, and the message `1`, stopped a broker and each next owner."""
    for call in ("versions", "check"):
        await _each(world, f"{SUBJECTS}/fan/{call}", {"schema": fanned_out(60)}, 422, 503)


@attempt("an Avro schema of 900 nulls for each byte", turn_s_max=TURN_S_MAX)
async def avro_nulls(world: World) -> None:
    await _each(world, f"{SUBJECTS}/nulls/check", {"type": "avro", "schema": NULLS}, 422, 503)


@attempt("a schema that may be, and messages that take long by it", turn_s_max=TURN_S_MAX)
async def slow_messages(world: World) -> None:
    said = await world.ask("POST", f"{SUBJECTS}/slow/versions", {"schema": fanned_out(12)})
    assert said.status in (200, 201), said
    path = await world.topic("slow", schema={"subject": "slow"})
    lines = b'{"value": 1}\n' * 2_000
    for broker in range(len(world.brokers)):
        found = await asyncio.gather(
            *(
                world.ask(
                    "POST",
                    f"{path}/messages",
                    lines,
                    broker=broker,
                    Content_Type="application/x-ndjson",
                )
                for _ in range(5)
            )
        )
        assert {one.status for one in found} <= {200, 422, 503}, found


@attempt("a body of gzip members of nothing", turn_s_max=TURN_S_MAX)
async def empty_members(world: World) -> None:
    """4 MB of them took 11 s."""
    said = await world.ask(
        "POST",
        "/v1/topics/public/attacked/messages",
        gzip.compress(b"") * 200_000,
        Content_Type="text/plain",
        Content_Encoding="gzip",
    )
    refused(said, 0, 400)


@attempt("patterns of a group beside long names", turn_s_max=TURN_S_MAX)
async def long_patterns(world: World) -> None:
    """20 of each took 20 s, and the broker ended."""
    for number in range(20):
        await world.topic("a" * 240 + f"c{number:03}")
    patterns = ["*" + "a" * (100 + n) + "b*" + "?a" * 10 + "*" for n in range(100)]
    for broker in range(len(world.brokers)):
        said = await world.ask(
            "POST", "/v1/groups/public/costly/members/m", {"topics": patterns}, broker=broker
        )
        assert said.status == 200, said
        assert json.loads(said.body)["partitions"] == []


@attempt("the API's document and all figures, again and again", turn_s_max=TURN_S_MAX)
async def documents(world: World) -> None:
    for path in ("/openapi.json", "/metrics"):
        found = await asyncio.gather(*(world.ask("GET", path) for _ in range(100)))
        assert {one.status for one in found} <= {200, 429}, path


HELD_S = 4.0


async def serves(world: World, broker: int = 0) -> None:
    began = time.monotonic()
    said = await world.ask("GET", "/healthz", broker=broker)
    assert said.status == 200, said
    assert time.monotonic() - began < 5, "the broker answers late"


@attempt("connections that say nothing")
async def silent_connections(world: World) -> None:
    async with world.connections(1_000):
        await serves(world)


@attempt("more connections than there may be", long=True)
async def too_many_connections(world: World) -> None:
    async with world.connections(11_000):
        await serves(world)
        await serves(world)
    await serves(world)


@attempt("half a head each")
async def half_heads(world: World) -> None:
    async with world.connections(500, b"GET /healthz HTTP/1.1\r\nHost: loc"):
        await serves(world)


@attempt("heads that announce 8 MiB, and no body")
async def announced_bodies(world: World) -> None:
    await world.topic("attacked")
    head = f"POST {T}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n"
    async with world.connections(64, head.encode()):
        await asyncio.sleep(HELD_S)
        said = await world.ask("POST", f"{T}/messages", b"x", Content_Type="text/plain")
        assert said.status == 200, said


@attempt("bodies that stand still when all but a byte is there", long=True)
async def unfinished_bodies(world: World) -> None:
    await world.topic("attacked")
    head = f"POST {T}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"
    async with world.connections(40, head.encode() + bytes(7_999_999)):
        await asyncio.sleep(HELD_S)
        await serves(world)


@attempt("lines of messages that never end")
async def endless_lines(world: World) -> None:
    await world.topic("attacked")
    head = (
        f"POST {T}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b'{"value":"' + b"x" * 3_000_000
    body = b"%x\r\n" % len(chunk) + chunk + b"\r\n"
    async with world.connections(20, head.encode() + body):
        await asyncio.sleep(HELD_S)
        await serves(world)


@attempt("long polls at a broker that passes them on")
async def forwarded_polls(world: World) -> None:
    path = await world.topic("polled")
    owner = await world.owner(path)
    other = (owner + 1) % len(world.brokers)
    poll = request("GET", f"{path}/messages?from=latest&wait=30s")
    async with world.connections(600, poll, broker=other):
        await asyncio.sleep(1)
        for _ in range(20):
            said = await world.ask(
                "POST", f"{path}/messages", b"x", broker=other, Content_Type="text/plain"
            )
            assert said.status == 200, said


@attempt("answers that nobody reads")
async def unread_answers(world: World) -> None:
    path = await world.topic("unread")
    lines = b"".join(b'{"value":"%s"}\n' % (b"x" * 1000) for _ in range(4_000))
    said = await world.ask("POST", f"{path}/messages", lines, Content_Type="application/x-ndjson")
    assert said.status == 200, said
    query = "from=earliest&limit=4000&max_bytes=4000000"
    ask = f"GET {path}/messages?{query} HTTP/1.1\r\nHost: a\r\n\r\n"
    async with world.connections(60, ask.encode() * 20) as made:
        for _, writer in made:
            reading: Any = writer.transport
            reading.pause_reading()
        await asyncio.sleep(HELD_S)
        await serves(world)


@attempt("requests one behind the other without reading")
async def pipelined(world: World) -> None:
    async with world.connections(
        20, request("GET", "/v1/cluster").replace(b"close", b"keep") * 500
    ):
        await asyncio.sleep(2)
        await serves(world)


@attempt("connections opened and closed as fast as it goes")
async def churn(world: World) -> None:
    until = time.monotonic() + HELD_S
    while time.monotonic() < until:
        made = await asyncio.gather(
            *(open_to(world.brokers[0]) for _ in range(50)), return_exceptions=True
        )
        for one in made:
            if not isinstance(one, BaseException):
                one[1].transport.abort()
    await serves(world)


@attempt("nonsense to a bookie")
async def bookie_nonsense(world: World) -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        b"\x7f\xff\xff\xff" + b"x" * 64,
    ):
        for address in world.bookies:
            for _ in range(50):
                _, writer = await open_to(address)
                writer.write(data)
                writer.close()


@attempt("half frames to a bookie")
async def half_frames(world: World) -> None:
    made = []
    for _ in range(500):
        _, writer = await open_to(world.bookies[0])
        writer.write(b"\x00\x00\x10\x00" + bytes(100))
        made.append(writer)
    await asyncio.sleep(1)
    for writer in made:
        writer.transport.abort()


@attempt("malformed requests as fast as it goes, for the log's sake")
async def malformed_for_the_log(world: World) -> None:
    before = world.log_bytes()
    until = time.monotonic() + HELD_S
    while time.monotonic() < until:
        some = [world.raw(b"\x16\x03\x01\r\n\r\n", broker=0, wait_s=5) for _ in range(20)]
        for said in await asyncio.gather(*some):
            assert said.status in (400, 503), said
    assert (more := world.log_bytes() - before) < 50_000, f"{more} bytes of log"


MIB = 1 << 20
NDJSON = "application/x-ndjson"
SUBSCRIPTIONS_MAX = 1_000
AT_ONCE = 40
CALL_S = 120.0
MANY_S = 900.0
PARTITIONS = 2_000


async def _at_each(
    world: World, method: str, path: str, body: Any, *statuses: int, kind: str = "application/json"
) -> list[Said]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = []
    for broker in range(len(world.brokers)):
        said = await world.raw(request(method, path, data, kind=kind), broker=broker, wait_s=CALL_S)
        assert said.status in statuses, (path, data[:80], said.status, said.body[:300])
        assert b"Traceback" not in said.body, said
        found.append(said)
    return found


async def _all_of(
    world: World, calls: Iterable[tuple[str, str, Any]], at_once: int = AT_ONCE
) -> list[int]:
    left = enumerate(calls)
    found: list[int] = []

    async def some(broker: int) -> None:
        reader, writer = await open_to(world.brokers[broker], world.tls)
        try:
            for _, (method, path, body) in left:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                sent = request(method, path, data, kind="application/json" if data else "")
                writer.write(sent.replace(b"Connection: close", b"Connection: keep-alive"))
                async with asyncio.timeout(CALL_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                    await reader.readexactly(int(length[1]) if length else 0)
                found.append(int(head[9:12]))
        finally:
            writer.transport.abort()

    await asyncio.gather(*(some(number % len(world.brokers)) for number in range(at_once)))
    return found


async def _subscribed(world: World, name: str, **settings: Any) -> str:
    path = await world.topic(name, **settings)
    said = await world.ask("PUT", f"{path}/subscriptions/s")
    assert said.status in (200, 201), said
    return path


def _acks() -> list[tuple[str, dict[str, Any], tuple[int, ...]]]:
    """Yield name, body and answers."""
    ids = [f"0-{n}-1-1" for n in range(ACK_IDS_MAX)]
    wrong = ["0", "0-0", "0-0-0", "0--1-1-1", "0-1:0-1-1", "0-0:0-1-1", f"0-0:{2**80}-1-1",
             f"0-{'9' * 4_000}-1-1", "0-0-1-1-1", "0-0:1:2-1-1", ":", "-" * 1_000]  # fmt: skip
    found: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
        ("ids", {"ack_ids": ids}, (409,)),
        ("the same id", {"ack_ids": ids[:1] * 20_000}, (409,)),
        ("nacks", {"nack": ids[:20_000]}, (200, 409)),
        ("nacks with delays", {"nack": [{"ack_id": one, "delay": "1h"} for one in ids[:20_000]]},
         (200, 409)),
        ("releases", {"release": ids[:20_000]}, (200, 409)),
        ("a long range", {"extend": [f"0-0:{ACK_IDS_MAX}-1-1"]}, (200, 409, 422)),
        ("ranges that are more together", {"ack_ids": [f"0-0:{ACK_IDS_MAX}-1-1"] * 1_000}, (422,)),
        ("a range without measure", {"ack_ids": [f"0-0:{2**62}-1-1"]}, (409, 422)),
        ("a wrong id behind many", {"ack_ids": [*ids[:-1], "x"]}, (400, 422)),
        ("more than there may be", {"ack_ids": [*ids, "0-0-1-1"]}, (413, 422)),
    ]  # fmt: skip
    found += [
        (f"{one[:12]} as {field}", {field: [one]}, (400, 409, 422))
        for one in wrong
        for field in ("ack_ids", "nack", "extend", "release")
    ]
    return found


@attempt("acks: lists, ranges and wrong ids, as long as a call takes them", turn_s_max=TURN_S_MAX)
async def long_acks(world: World) -> None:
    path = await _subscribed(world, "acked")
    for name, body, statuses in _acks():
        try:
            await _at_each(world, "POST", f"{path}/subscriptions/s/ack", body, *statuses)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def _filled(unit: bytes, begin: bytes, end: bytes, size: int) -> bytes:
    return begin + b",".join([unit] * ((size - len(begin) - len(end)) // (len(unit) + 1))) + end


@attempt("JSON: bodies of as many parts as there may be, and of more", turn_s_max=TURN_S_MAX)
async def many_parts(world: World) -> None:
    await world.topic("attacked")
    lists = b'{"value":[' + b"[]," * ((MESSAGE_PARTS_MAX - 4) // 2) + b"1]}"
    messages = _filled(b'{"value":1}', b'{"messages":[', b"]}", 6 * BODY_PARTS_MAX - 1_000)
    for body, kind, statuses in (
        (messages, "application/json", (200,)),
        (lists, "application/json", (200,)),
        (lists + b"\n", NDJSON, (200,)),
        (b'{"value":1}\n' * (4 * MIB // 12), NDJSON, (200,)),
        (b"\n" * (8 * MIB), NDJSON, (200, 400, 413, 422)),
        (_filled(b"[]", b'{"messages":[', b"]}", 8 * MIB), "application/json", (413, 422)),
        (_filled(b"[]", b'{"value":[', b"]}", 4 * MIB), "application/json", (413, 422)),
        (_filled(b'"":0', b'{"value":{', b"}}", 4 * MIB), "application/json", (413, 422)),
    ):
        await _at_each(world, "POST", f"{T}/messages", body, *statuses, kind=kind)
    for method, path in (
        ("PUT", f"{T}-x"), ("PATCH", T), ("PUT", f"{T}/subscriptions/x"),
        ("POST", f"{T}/subscriptions/s/seek"), ("POST", f"{T}/subscriptions/s/ack"),
        ("POST", "/v1/groups/public/g/members/m"), ("POST", f"{SUBJECTS}/x/versions"),
        ("POST", "/v1/bulk-loads/x/batches/0/commit"), ("PUT", "/v1/namespaces/x"),
        ("PUT", "/v1/quotas/anonymous"),
    ):  # fmt: skip
        for size in (60_000, 8 * MIB):
            body = _filled(b"[]", b'{"x":[', b"]}", size)
            await _at_each(world, method, path, body, 400, 403, 409, 413, 422)


COSTLY = {
    "lists": _filled(b"[]", b"[", b"]", 4 * MIB - 100),
    "members": b"{" + b",".join(b'"%d":0' % n for n in range(380_000)) + b"}",
    "fractions": _filled(b"0.5", b"[", b"]", 4 * MIB - 100),
    "controls": bytes(4 * MIB - 100),
}


@attempt("JSON: stored as text, and costly to show to a reader", turn_s_max=TURN_S_MAX)
async def costly_values(world: World) -> None:
    """4 MiB of empty lists held a broker for a second at each read."""
    for name, value in COSTLY.items():
        path = await _subscribed(world, f"costly-{name}")
        said = await world.ask("POST", f"{path}/messages", value, Content_Type="text/plain")
        assert said.status == 200, said
        for method, what in (
            ("GET", "/messages?from=earliest"), ("GET", "/subscriptions/s/peek"),
            ("POST", "/subscriptions/s/receive"),
        ):  # fmt: skip
            await _at_each(world, method, path + what, b"", 200, 204)
        stream = f"/v1/durable-streams/public/costly-{name}-stream"
        said = await world.ask("PUT", stream, b"", Content_Type="application/json")
        assert said.status in (200, 201), said
        await _at_each(world, "POST", stream, value, 204, 400, 413)


@attempt(
    "lists: as many subscriptions as four topics may have",
    long=True,
    turn_s_max=TURN_S_MAX,
    seconds=MANY_S,
    collections=False,
)
async def many_subscriptions(world: World) -> None:
    """A list of 4,000 took 1.5 s, and there was no bound."""
    paths = [await world.topic(f"listed-{n}") for n in range(4)]
    calls: list[tuple[str, str, Any]] = [
        ("PUT", f"{path}/subscriptions/s{n:04}", b"")
        for path in paths
        for n in range(SUBSCRIPTIONS_MAX)
    ]
    assert set(await _all_of(world, calls)) <= {200, 201}
    for path in paths:
        refused(await world.ask("PUT", f"{path}/subscriptions/more"), 409)
        for what in ("/subscriptions", "", "/partitions/0", "/partitions/0/explain"):
            await _at_each(world, "GET", path + what, b"", 200)
        await _at_each(world, "GET", path.replace("topics", "explain"), b"", 200)
    for what in ("/metrics", "/", "/v1/cluster"):
        await _at_each(world, "GET", what, b"", 200)
    for path in paths:
        assert (await world.ask("DELETE", path)).status == 204


@attempt(
    "lists: 10,000 topics", long=True, turn_s_max=TURN_S_MAX, seconds=MANY_S, collections=False
)
async def many_topics(world: World) -> None:
    said = await world.ask("PUT", "/v1/namespaces/many", {})
    assert said.status in (200, 201), said
    calls: list[tuple[str, str, Any]] = [
        ("PUT", f"/v1/topics/many/t{n:05}", {}) for n in range(10_000)
    ]
    assert set(await _all_of(world, calls)) <= {200, 201}
    await _at_each(world, "GET", "/v1/topics/many?limit=10000", b"", 200)
    await _at_each(world, "POST", "/v1/groups/many/g/members/m", {"topics": ["*"]}, 409)
    for what in ("/metrics", "/", "/v1/cluster", "/v1/namespaces", "/v1/namespaces/many"):
        await _at_each(world, "GET", what, b"", 200)


@attempt(
    "lists: a topic of 2,000 partitions, all open, with a subscription",
    long=True,
    turn_s_max=TURN_S_MAX,
    last=True,
    seconds=MANY_S,
    collections=False,
)
async def many_partitions(world: World) -> None:
    """The search for partitions to hand on took half a second, and so did the deletion."""
    path = await world.topic("partitioned", partitions=PARTITIONS)
    publishes: list[tuple[str, str, Any]] = [
        ("POST", f"{path}/partitions/{n}/messages", {"value": n}) for n in range(PARTITIONS)
    ]
    found = await _all_of(world, publishes)
    assert set(found) == {200}, Counter(found)
    assert set(await _all_of(world, [("PUT", f"{path}/subscriptions/s", b"")])) <= {200, 201}
    explain = path.replace("topics", "explain")
    reads = [path, f"{path}/subscriptions/s", f"{path}/offsets?at=latest", explain, "/metrics", "/"]
    for one in reads:
        await _at_each(world, "GET", one, b"", 200)
    member = "/v1/groups/public/wide/members/m"
    await _at_each(world, "POST", member, {"topics": ["partitioned"]}, 200)
    await asyncio.sleep(15.0)
    # This deletion takes longer than a call may wait, and continues by itself.
    statuses = await _all_of(world, [("DELETE", path, b"")])
    until_s = time.monotonic() + MANY_S / 2
    while statuses[-1] == 503:
        assert time.monotonic() < until_s, "it is not deleted"
        said = await _all_of(world, [("PUT", f"{path}-beside", {}), ("DELETE", path, b"")])
        assert said[0] in (200, 201), said
        statuses += said[1:]
    assert statuses[-1] in (204, 404), statuses


@attempt("an Avro schema whose comparison doubles, and a decimal of 150 KB", turn_s_max=TURN_S_MAX)
async def avro(world: World) -> None:
    """2 KB of the first ended a broker; the second took 8 s."""
    for reader, status in (("int", 201), ("long", 201), ("string", 409)):
        said = await world.ask(
            "POST",
            f"{SUBJECTS}/tangled/versions",
            {"type": "avro", "schema": entangled(25, reader)},
        )
        assert said.status in (200, status, 422, 503), said
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    said = await world.ask(
        "POST", f"{SUBJECTS}/decimal/versions", {"type": "avro", "schema": schema}
    )
    assert said.status in (200, 201), said
    path = await world.topic("decimals", schema={"subject": "decimal"})
    await _at_each(world, "POST", f"{path}/messages", decimal_of(150_000), 200, 422,
                   kind="application/octet-stream")  # fmt: skip


def frame(payload: bytes = b"", op: int = 0x81) -> bytes:
    size = len(payload)
    head = bytes((op, 0x80 | size)) if size < 126 else bytes((op, 0xFE)) + struct.pack(">H", size)
    return head + bytes(4) + payload


@contextlib.asynccontextmanager
async def socket_of(
    world: World, path: str, broker: int
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await open_to(world.brokers[broker], world.tls)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{SOCKET}\r\n".encode())
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head, head
        yield reader, writer
    finally:
        writer.transport.abort()


async def _goes_on(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        try:
            async with asyncio.timeout(1.0):
                while await reader.read(1 << 20):
                    pass
        except TimeoutError:
            return True
    return False


@attempt("WebSocket: empty fragments, pings and pongs without end", turn_s_max=TURN_S_MAX)
async def small_frames(world: World) -> None:
    path = await _subscribed(world, "framed")
    floods = {
        "fragments": frame(op=0x01) + frame(op=0x00) * 200_000,
        "pings": frame(op=0x89) * 200_000,
        "pongs": frame(op=0x8A) * 200_000,
        "texts": frame(b"{}") * 50_000,
    }
    for broker in range(len(world.brokers)):
        for name, data in floods.items():
            async with socket_of(world, f"{path}/subscriptions/s/stream", broker) as (
                reader,
                writer,
            ):
                writer.write(data)
                goes_on = await _goes_on(reader)
                assert not (goes_on and name == "fragments"), "a message of 200,000 fragments"


@attempt(
    "small frames at a bookie's port, as fast as it goes",
    long=True,
    turn_s_max=TURN_S_MAX,
    turn_of="bookie",
)
async def small_requests(world: World) -> None:
    ledger = 2**41 + int.from_bytes(os.urandom(4), "big")
    adds = b"".join(add_of(ledger, n, b"") for n in range(10_000))
    reads = read_request(ledger, 0) * 50_000
    wrong = struct.pack(">I", 4) + bytes(4)
    for address in world.bookies:
        for data in (adds, reads, adds + reads, wrong * 100_000, struct.pack(">I", 0) * 200_000):
            await exchange(address, data, 1.0, tls=world.tls)


@attempt("documents that nobody reads, one behind the other", turn_s_max=TURN_S_MAX)
async def unread_documents(world: World) -> None:
    before = world.rss()
    asked = request("GET", "/openapi.json").replace(b"close", b"keep") * 200
    async with world.connections(50, asked) as made:
        for _, writer in made:
            transport: Any = writer.transport
            transport.pause_reading()
        await asyncio.sleep(2)
        said = await world.ask("GET", "/v1/cluster")
        assert said.status == 200, said
        grown = world.rss()["broker-1"] - before["broker-1"]
    assert grown < 100 * MIB, f"the broker has grown by {grown / MIB:.0f} MiB"


DELAYED, WATCHERS = 200_000, 5
DELAYED_BYTES_MAX = 40 * DELAYED * WATCHERS
"""A message took 105 bytes in each subscription; it needs 8. The rest is for the broker's reads."""


@attempt(
    "messages due in different minutes, for several subscriptions", long=True, turn_s_max=TURN_S_MAX
)
async def many_minutes(world: World) -> None:
    path = await world.topic("minutes")
    owner = await world.owner(path)
    now_ms = int(time.time() * 1_000)
    for at in range(0, DELAYED, 20_000):
        records = [
            Record(None, b"x", (due_header(now_ms + 60_000 * (1 + at + n)),), 0)
            for n in range(20_000)
        ]
        batch = build_batch(records, compression=Compression.ZSTD)
        said = await world.ask("POST", f"{path}/messages", batch, broker=owner, Content_Type=BATCH)
        assert said.status == 200, said
    before = world.rss()[world.names[owner]]
    for number in range(WATCHERS):
        where = f"{path}/subscriptions/s{number}"
        said = await world.ask("PUT", where, {"type": "shared", "start": "earliest"})
        assert said.status in (200, 201), said
        async with asyncio.timeout(60):
            while True:
                said = await world.ask("POST", f"{where}/receive", {"wait": "1s"}, broker=owner)
                assert said.status in (200, 204), said
                figures = json.loads((await world.ask("GET", where)).body)
                if figures["partitions"][0].get("delayed", 0) >= DELAYED:
                    break
    grown = world.rss()[world.names[owner]] - before
    assert grown < DELAYED_BYTES_MAX, f"{grown / MIB:.0f} MiB"
