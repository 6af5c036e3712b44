"""Wrong and forged requests: every broker and bookie refuses each by its right name."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import pty
import re
import struct
import subprocess
import sys
import time
import zlib
from typing import Any

import cramjam
import crc32c

from octavo.broker.cluster.registry import encode_broker
from octavo.broker.http.csrf import SANDBOX
from octavo.broker.types import BrokerInfo
from octavo.metadata.opening import open_store
from octavo.metadata.topics import owner_path
from octavo.protocol.batch import HEADER, HEADER_BYTES, read_header
from octavo.protocol.codes import Code
from octavo.protocol.entry import master_key
from octavo.protocol.frames import Flag
from octavo.protocol.records import Record, build_batch
from tests.attack.world import (
    TURN_S_MAX,
    Said,
    World,
    attempt,
    enter_each,
    exchange,
    open_to,
    refused,
    said_in,
    whole_length,
)
from tests.support.processes.standalone import OCTAVO
from tests.support.raw_bookie import OURS, RawClient, add_of

GOOD = build_batch([Record(b"k", b"v", (), 1), Record(None, None, (), 2)])


def signed(batch: bytes) -> bytes:
    """Add a fitting checksum, so that only the content is wrong."""
    crc = crc32c.crc32c(batch[21:])
    return batch[:17] + struct.pack(">I", crc) + batch[21:]


def header(body: bytes = GOOD[HEADER_BYTES:], **changes: int) -> bytes:
    changed = read_header(GOOD)._replace(**changes)
    if "batch_length" not in changes:
        changed = changed._replace(batch_length=HEADER_BYTES - 12 + len(body))
    return signed(HEADER.pack(*changed) + body)


def _packed(data: bytes, kind: int) -> bytes:
    return bytes({3: cramjam.lz4, 4: cramjam.zstd}[kind].compress(data))


TWO = GOOD[HEADER_BYTES:]
MILLION = {"record_count": 1_000_000, "last_offset_delta": 999_999}
WRONG_BATCHES: list[tuple[str, bytes]] = [
    ("a head alone", GOOD[:HEADER_BYTES]),
    ("cut off", GOOD[:-1]),
    ("one byte more", GOOD + b"\0"),
    ("a bit flipped", GOOD[:-1] + bytes([GOOD[-1] ^ 1])),
    ("an older format", GOOD[:16] + b"\1" + GOOD[17:]),
    ("a length below zero", GOOD[:8] + struct.pack(">i", -5) + GOOD[12:]),
    ("a length without measure", GOOD[:8] + struct.pack(">i", 2**31 - 1) + GOOD[12:]),
    ("no records", header(record_count=0, last_offset_delta=-1)),
    ("records below zero", header(record_count=-2, last_offset_delta=-3)),
    ("a million records in two", header(record_count=1_000_000, last_offset_delta=999_999)),
    ("a last one that is not the last", header(last_offset_delta=5)),
    ("a compression that is none", header(attributes=6)),
    ("a transaction's", header(attributes=16)),
    ("a control batch", header(attributes=32)),
    ("a producer without its epoch", header(producer_id=5, producer_epoch=-1)),
    ("a million in five bytes", header(b"\xff\xff\xff\xff\x0f", **MILLION, attributes=2)),
    ("a million in two, by gzip", header(gzip.compress(TWO), **MILLION, attributes=1)),
    ("a million in two, by zstd", header(_packed(TWO, 4), **MILLION, attributes=4)),
    ("one in two", header(gzip.compress(TWO), record_count=1, last_offset_delta=0, attributes=1)),
    ("numbers that do not count up", header(gzip.compress(TWO[: len(TWO) // 2] * 2),
     attributes=1)),
    ("packed by another", header(gzip.compress(TWO), attributes=3)),
    ("packed and cut off", header(gzip.compress(TWO)[:-5], attributes=1)),
    ("gigabytes of gzip", header(gzip.compress(bytes(200_000_000), 1), **MILLION, attributes=1)),
    ("gigabytes of lz4", header(_packed(bytes(200_000_000), 3), **MILLION, attributes=3)),
    ("gigabytes of zstd", header(_packed(bytes(200_000_000), 4), **MILLION, attributes=4)),
    ("snappy's length of four gigabytes", header(b"\xff\xff\xff\xff\x0f" + bytes(9),
     attributes=2)),
    ("a snappy block without end", header(b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, -4),
     attributes=2)),
    ("a sequence below zero", header(producer_id=5, producer_epoch=0, base_sequence=-7)),
]  # fmt: skip

T = "/v1/topics/public/attacked"
BATCH = "application/vnd.kafka.recordbatch.v2"


def request(
    method: str, path: str, body: bytes = b"", headers: str = "", kind: str = "application/json"
) -> bytes:
    about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if body else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{about}{headers}\r\n"
    )
    return head.encode("latin-1") + body


def _bad_heads() -> list[tuple[str, bytes]]:
    get = b"GET /healthz HTTP/1.1\r\n"
    return [
        ("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n"),
        ("zero bytes", bytes(400) + b"\r\n\r\n"),
        ("a version that is none", b"GET / HTTP/9.9\r\n\r\n"),
        ("a head without an end and a colon", get + b"Host localhost\r\n\r\n"),
        ("a long head", get + b"A: " + b"x" * 70_000 + b"\r\n\r\n"),
        ("many heads", get + b"".join(b"A%d: b\r\n" % n for n in range(500)) + b"\r\n"),
        ("two lengths", get + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        ("a length below zero", get + b"Content-Length: -1\r\n\r\n"),
        ("a length that is no number", get + b"Content-Length: 1e3\r\n\r\n"),
        ("length and chunks",
         b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET"),
        ("a chunk that is no number",
         b"POST %s/messages HTTP/1.1\r\n"
         b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n" % T.encode()),
        ("a name with a space", get + b"Ho st: a\r\n\r\n"),
        ("a bare line feed in a value", get + b"A: b\rc\r\n\r\n"),
        ("a control character", get + b"A: b\x01c\r\n\r\n"),
        ("a method of its own", b"STEAL /healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("a foreign host", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        ("a host that begins as ours", b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n"),
        ("a host behind a name", b"GET / HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n"),
        ("a host that is none", b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n"),
        ("a tunnel", b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("a whole address for a path",
         b"DELETE http://evil.example/v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("the greeting of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("a trace", b"TRACE / HTTP/1.1\r\nHost: localhost\r\nCookie: secret\r\n\r\n"),
        ("another protocol", b"POST / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n"
         b"Connection: Upgrade\r\n\r\n"),
        ("an asterisk", b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    ]  # fmt: skip


enter_each("head", _bad_heads(), (0, 400, 404, 405, 413, 421, 431, 505))


def _bad_paths() -> list[tuple[str, bytes]]:
    names = [
        "..",
        "%2e%2e",
        ".",
        "%00",
        "a" * 300,
        "%ff",
        "a%20b",
        "a%2fb",
        "a:b",
        "%C3%BC",
        "a%0d%0aX",
    ]
    found = [(f"topic {name[:12]}", request("PUT", f"/v1/topics/public/{name}")) for name in names]
    found += [
        ("up and down", request("GET", "/v1/../../etc/passwd")),
        ("encoded twice", request("GET", "/v1/topics/%252e%252e/x")),
        ("longer than any", request("GET", "/" + "a" * 5_000)),
        ("a partition below zero", request("GET", f"{T}/partitions/-1/messages")),
        ("a partition without end", request("GET", f"{T}/partitions/{'9' * 400}/messages")),
        ("a ledger without end", request("GET", f"/v1/ledgers/{'9' * 40}")),
        ("an entry below zero", request("GET", "/v1/ledgers/1/entries/-1")),
        ("an unknown call", request("POST", f"{T}/explode")),
        ("an unknown parameter", request("GET", f"{T}/messages?fromm=0")),
        ("a parameter twice", request("GET", f"{T}/messages?from=0&from=1")),
        ("a hundred parameters", request("GET", f"{T}/messages?" + "&".join(["a=b"] * 100))),
        ("no UTF-8 in a parameter", request("GET", f"{T}/messages?from=%ff")),
    ]  # fmt: skip
    values = ["-1", "1e9", "9" * 40, "NaN", "0x10", " 1", "1;drop", "%00"]
    found += [(f"limit {v[:8]}", request("GET", f"{T}/messages?from=0&limit={v}")) for v in values]
    found += [(f"wait {v[:8]}", request("GET", f"{T}/messages?wait={v}")) for v in values[:4]]
    found += [(f"at {v[:8]}", request("GET", f"{T}/offsets?at={v}")) for v in values[2:7]]
    return found


enter_each("path", _bad_paths(), (400, 404, 405, 414, 416))


def _bad_bodies() -> list[tuple[str, bytes]]:
    settings: list[tuple[str, bytes]] = [
        ("no JSON", b"{"), ("an array", b"[]"), ("a number", b"1"), ("nested", b"[" * 100_000),
        ("an unknown setting", b'{"colour":"red"}'), ("partitions 0", b'{"partitions":0}'),
        ("a million partitions", b'{"partitions":1000000}'), ("ensemble -1",
         b'{"ensemble_size":-1}'),
        ("more acks than writes", b'{"ack_quorum":5}'), ("a huge number", b'{"partitions":1e400}'),
        ("time without measure", b'{"retention":{"time":"999999999999d"}}'),
        ("size without measure", b'{"retention":{"size":"999999999999TB"}}'),
        ("entries without measure", b'{"rollover":{"entries":99999999999999999999}}'),
        ("not UTF-8", b'{"retention":{"time":"\xff"}}'), ("text for a number",
         b'{"partitions":"3"}'),
    ]  # fmt: skip
    found = [(f"settings: {name}", request("PUT", f"{T}-x", body)) for name, body in settings]
    acks: list[tuple[str, bytes]] = [
        ("an id that is none", b'{"ack_ids":["x"]}'), ("ids of numbers", b'{"ack_ids":[1]}'),
        ("a foreign partition", b'{"ack_ids":["99-1-1-1"]}'),
        ("up_to without measure", b'{"up_to":"' + b"9" * 5_000 + b'"}'),
        ("up_to below zero", b'{"up_to":-5}'),
         ("a delay of years", b'{"nack":[{"ack_id":"0-0-0-0","delay":"900d"}]}'),
        ("a huge number of ids", b'{"ack_ids":[' + b'"0-0-0-0",' * 100_001 + b'"0-0-0-0"]}'),
    ]  # fmt: skip
    found += [
        (f"ack: {name}", request("POST", f"{T}/subscriptions/s/ack", body)) for name, body in acks
    ]
    found += [
        ("seek nowhere", request("POST", f"{T}/subscriptions/s/seek", b'{"to":"moon"}')),
        ("seek below zero", request("POST", f"{T}/subscriptions/s/seek", b'{"to":-1}')),
        ("a subscription of no type", request("PUT", f"{T}/subscriptions/x", b'{"type":"odd"}')),
    ]  # fmt: skip
    messages: list[tuple[str, bytes, str, str]] = [
        ("JSON cut off", b'{"value":', "application/json", ""),
        ("neither value nor base64", b"{}", "application/json", ""),
        ("a field misspelt", b'{"vaule":1}', "application/json", ""),
        ("both values", b'{"value":1,"value_base64":"AA=="}', "application/json", ""),
        ("base64 that is none", b'{"value_base64":"*"}', "application/json", ""),
        ("a time below zero", b'{"value":1,"timestamp":-5}', "application/json", ""),
        ("a time in nanoseconds", b'{"value":1,"timestamp":1700000000000000000}',
         "application/json", ""),
        ("nested deeply", b'{"value":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
         "application/json", ""),
        ("a bad second line", b'{"value":1}\n{"value":\n', "application/x-ndjson", ""),
        ("no gzip", b"plain", "text/plain", "Content-Encoding: gzip\r\n"),
        ("gzip cut off", gzip.compress(bytes(99_999))[:50], "text/plain",
         "Content-Encoding: gzip\r\n"),
        ("gzip of lines cut off", gzip.compress(b'{"value":1}\n' * 99)[:-9], "application/x-ndjson",
         "Content-Encoding: gzip\r\n"),
        ("deflate cut off", zlib.compress(bytes(9_999))[:20], "text/plain",
         "Content-Encoding: deflate\r\n"),
        ("an encoding of its own", b"x", "text/plain", "Content-Encoding: br\r\n"),
        ("a bomb of zeros", gzip.compress(bytes(200_000_000), 1), "text/plain",
         "Content-Encoding: gzip\r\n"),
        ("a bomb of blank lines", gzip.compress(b"\n" * 100_000_000, 1), "application/x-ndjson",
         "Content-Encoding: gzip\r\n"),
        ("a form", b"a=b", "multipart/form-data", ""),
        ("a type with odd bytes", b"x", "text/pl\xe9in", "Content-Encoding: \xe9\r\n"),
        ("a producer without its number", b"x", "text/plain", "Producer-Id: p\r\n"),
        ("a sequence without measure", b"x", "text/plain",
         "Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: 99999999999999999999\r\n"),
        ("an offset that is none", b"x", "text/plain", 'If-Match: "soon"\r\n'),
        ("a time that is none", b"x", "text/plain", "Octavo-Timestamp: \xe9\r\n"),
    ]  # fmt: skip
    found += [
        (f"message: {name}", request("POST", f"{T}/messages", body, headers, kind))
        for name, body, kind, headers in messages
    ]
    found += [
        (f"batch: {name}", request("POST", f"{T}/messages", body, "", BATCH))
        for name, body in WRONG_BATCHES
    ]
    return found


enter_each("body", _bad_bodies(), (400, 404, 409, 413, 415, 416, 422))


def _bad_bulk_loads() -> list[tuple[str, bytes]]:
    path = "/v1/bulk-loads/attack/batches"
    ledger = b'{"id":%d,"messages":%d,"bytes":1,"first_ms":0,"last_ms":0}'
    part = b'{"parts":[{"topic":"attacked","partition":%d,"ledgers":[%b]}]}'
    one = ledger % (10**15, 1)
    return [
        ("a batch below zero", request("POST", f"{path}/-1/commit", b'{"parts":[]}')),
        ("a batch without measure", request("POST", f"{path}/{'9' * 30}/commit", b'{"parts":[]}')),
        ("a partition below zero", request("POST", f"{path}/0/commit", part % (-1, one))),
        ("a partition that is not there", request("POST", f"{path}/0/commit", part % (99, one))),
        ("a ledger below zero", request("POST", f"{path}/0/commit", part % (0, ledger % (-1, 1)))),
        ("a ledger without measure", request("POST", f"{path}/0/commit", part % (0,
         ledger % (10**23, 1)))),
        ("no messages", request("POST", f"{path}/0/commit", part % (0, ledger % (1, 0)))),
        ("a ledger that is not there", request("POST", f"{path}/0/commit", part % (0, one))),
        ("giving up what is below zero", request("POST", f"{path}/0/abort", b'{"ledgers":[-1]}')),
        ("giving up too much", request("POST", f"{path}/0/abort",
                                       b'{"ledgers":[' + b"7," * 100_000 + b"7]}")),
    ]  # fmt: skip


enter_each("bulk load", _bad_bulk_loads(), (400, 404, 409, 422))


@attempt("header bytes that are no UTF-8 are the same at every broker")
async def header_bytes(world: World) -> None:
    path = await world.topic("bytes")
    for broker in range(len(world.brokers)):
        for name in ("prod\udce9", "prod\udce8"):
            said = await world.ask(
                "POST", f"{path}/messages", b"x", broker=broker, Content_Type="text/plain",
                Producer_Id=f"{name}{broker}", Producer_Epoch="0", Producer_Seq="0",
                Octavo_Key="k\udce9\udcff",
            )  # fmt: skip
            assert said.status == 200, said
    said = await world.ask("GET", f"{path}/messages?from=earliest")
    assert said.body.count(b'"key_base64":"a+n/"') == 2 * len(world.brokers), said


@attempt("pages of other sites")
async def foreign_pages(world: World) -> None:
    path = await world.topic("attacked")
    await world.ask("PUT", f"{path}/subscriptions/s")
    for suffix in ("/messages", "/subscriptions/s/receive", "/subscriptions/s/ack"):
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            said = await world.ask(
                "POST", path + suffix, b"{}", Origin="https://evil.example", Content_Type=kind
            )
            refused(said, 403)


BY, TO, PROOF = "Octavo-Forwarded-By", "Octavo-Forwarded-To", "Octavo-Forwarded-Proof"


@attempt("calls that say they come from a broker")
async def forged_callers(world: World) -> None:
    path = await world.topic("forged")
    owner = await world.owner(path)
    other = (owner + 1) % len(world.brokers)
    for proof in ("", "0" * 64, "\udcff" * 64):
        headers: dict[str, Any] = {BY: world.names[owner], TO: world.names[other]}
        if proof:
            headers[PROOF] = proof
        said = await world.ask("GET", f"{path}/partitions/0", broker=other, **headers)
        assert json.loads(said.body)["owner"] == world.names[owner], said
        refused(await world.ask("GET", "/v1/operations", broker=owner, **headers), 403)
    assert await world.owner(path) == owner


@attempt("an owner's record that leads elsewhere", long=True)
async def forged_owner(world: World) -> None:
    path = await world.topic("astray")
    visits: list[str] = []

    def visited(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append("visited")
        writer.close()

    trap = await asyncio.start_server(visited, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{trap.sockets[0].getsockname()[1]}"
    store = open_store(world.cluster.cluster.metadata_url)
    await store.start()
    try:
        record = owner_path("public", "astray", 0)
        await store.create(record, encode_broker(BrokerInfo(world.names[0], url), "run"))
        for broker in range(len(world.brokers)):
            said = await world.ask("GET", f"{path}/messages?from=earliest", broker=broker)
            assert said.status == 503, said
        assert not visits
        await store.delete(record, (await store.get(record)).version)
    finally:
        await store.close()
        trap.close()
    assert (await world.ask("GET", f"{path}/messages?from=earliest")).status in (200, 204)


FOREIGN = b"\x07" * 20
WAIT_S = 30.0


async def newest_ledger(world: World, path: str) -> int:
    said = await world.ask("GET", f"{path}/partitions/0")
    return max(int(one["id"]) for one in json.loads(said.body)["ledgers"])


async def squat(world: World, ids: range) -> None:
    for _, port in world.bookies:
        client = await RawClient.connect_to(port)
        try:
            for start in range(ids.start, ids.stop, 1_000):
                some = range(start, min(ids.stop, start + 1_000))
                client.send(b"".join(add_of(one, 0, b"mine", key=FOREIGN) for one in some))
                for _ in some:
                    await client.answer()
        finally:
            client.close()


async def stores(world: World, path: str) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        said = await world.ask("POST", f"{path}/messages", b"x", Content_Type="text/plain")
        if said.status == 200:
            return
        assert said.status in (429, 503, 504), said
        assert time.monotonic() < until, said
        await asyncio.sleep(0.1)


@attempt("the next 300 ledger ids")
async def ids_ahead(world: World) -> None:
    path = await world.topic("ids-before", rollover={"entries": 5})
    await stores(world, path)
    newest = await newest_ledger(world, path)
    await squat(world, range(newest + 1, newest + 301))
    for _ in range(30):
        await stores(world, path)
    for number in range(4):
        await stores(world, await world.topic(f"ids-after-{number}"))


@attempt("more ledger ids than a bookie keeps", long=True, last=True)
async def ids_without_end(world: World) -> None:
    before = world.rss()
    await squat(world, range(1 << 40, (1 << 40) + 100_000))
    for name, grown in ((name, now - before[name]) for name, now in world.rss().items()):
        assert grown < 100 << 20, f"{name} has grown by {grown >> 20} MiB"
    for number in range(4):
        await stores(world, await world.topic(f"ids-beside-{number}"))


RECOVERY = OURS | int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)
MESSAGES = 5


async def filled(world: World, name: str) -> tuple[str, int]:
    path = await world.topic(name)
    for _ in range(MESSAGES):
        await stores(world, path)
    return path, await newest_ledger(world, path)


async def refused_everywhere(world: World, frames: list[bytes], code: Code) -> None:
    for _, port in world.bookies:
        client = await RawClient.connect_to(port)
        try:
            for frame in frames:
                assert await client.add(frame) is code, frame[:60]
        finally:
            client.close()


async def is_unharmed(world: World, path: str, messages: int) -> None:
    said = await world.ask("GET", f"{path}/messages?from=0", Accept="application/x-ndjson")
    assert said.status == 200, said
    assert said.body.count(b'"x"') == messages, said
    assert b"EVIL" not in said.body
    await stores(world, path)


@attempt("a ledger written into without its password")
async def strangers(world: World) -> None:
    path, ledger = await filled(world, "ledger-of-others")
    frames = [
        add_of(ledger, entry, b"EVIL", flags=flags, key=key)
        for key in (master_key(b""), FOREIGN)
        for flags in (0, OURS, RECOVERY)
        for entry in (0, MESSAGES - 1, MESSAGES, 10**6)
    ]
    await refused_everywhere(world, frames, Code.UNAUTHORIZED)
    await is_unharmed(world, path, MESSAGES)


@attempt("acked entries overwritten, a LAC of a million, by who has the password")
async def a_client_with_a_bug(world: World) -> None:
    path, ledger = await filled(world, "ledger-of-ours")
    command = [*OCTAVO, "ledger", "password", "--data", str(world.cluster.folder)]
    said = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    key = master_key(said.stdout.strip())
    other_bytes = [
        add_of(ledger, entry, b"EVIL", flags=flags, key=key)
        for flags in (OURS, RECOVERY)
        for entry in range(MESSAGES)
    ]
    false_lac = [add_of(ledger, 10**6, b"EVIL", key=key, lac=lac) for lac in (10**6, 2 * 10**6)]
    await refused_everywhere(world, other_bytes + false_lac, Code.BAD_REQUEST)
    await is_unharmed(world, path, MESSAGES)


ROUNDS = 20


@attempt("recover in a loop, of all ledgers of a topic that is published to")
async def recover_in_a_loop(world: World) -> None:
    path = await world.topic("recovered")
    said = await world.ask("POST", f"{path}/messages", b"0", Content_Type="text/plain")
    assert said.status == 200, said

    async def newest_ledger() -> int:
        said = await world.ask("GET", path)
        found: int = json.loads(said.body)["partitions"][0]["ledgers"][-1]["id"]
        return found

    newest = await newest_ledger()

    async def recover(number: int) -> None:
        for ledger in (newest, newest + 1, newest - 1):
            said = await world.ask(
                "POST", f"/v1/ledgers/{max(ledger, 0)}/recover", broker=number % len(world.brokers)
            )
            refused(said, 200, 404, 409, 429)
            if ledger == newest and said.code != "ledger-in-use":
                assert await newest_ledger() != newest, said

    async def publish(number: int) -> None:
        said = await world.ask(
            "POST", f"{path}/messages", b"%d" % number, Content_Type="text/plain"
        )
        assert said.status == 200, said

    for number in range(ROUNDS):
        await asyncio.gather(recover(number), recover(number + 1), publish(number))


async def batch_call(world: World, of: str, body: object, *, token: str = "", at: int = 0) -> Said:
    headers = {"Bulk_Load_Token": token} if token else {}
    path = f"/v1/bulk-loads/{of}"
    return await world.ask("POST", path, json.dumps(body).encode(), broker=at,
                           Content_Type="application/json", **headers)  # fmt: skip


@attempt("a bulk load of another: its next batch, one far ahead, junk begun, its ledgers given up")
async def anothers_bulk_load(world: World) -> None:
    await world.topic("attacked")
    last = len(world.brokers) - 1
    for batch in range(ROUNDS):
        said = await batch_call(world, f"owned/batches/{batch}/commit", {"parts": []}, token="me")
        assert (said.status, json.loads(said.body)["repeated"]) == (200, False), said
        for token in ("", "you"):
            for call in (
                f"owned/batches/{batch + 1}/commit",
                f"owned/batches/{2**63 - 1}/commit",
                f"owned/batches/{batch + 1}/begin",
                f"owned/batches/{2**63 - 1}/begin",
            ):
                said = await batch_call(world, call, {"parts": []}, token=token, at=last)
                refused(said, 403)
        said = await batch_call(
            world, f"owned/batches/{batch + 1}/abort", {"ledgers": list(range(50))}, at=last
        )
        refused(said, 403)


@attempt("batches far ahead, below zero and after themselves, by their owner's mistake")
async def batches_out_of_order(world: World) -> None:
    for at in range(len(world.brokers)):
        for batch, body, statuses in (
            (2**63 - 1, {"parts": []}, (409,)),
            (2**63, {"parts": []}, (400,)),
            (5, {"parts": [], "after": 5}, (422,)),
            (5, {"parts": [], "after": -2}, (422,)),
            (5, {"parts": [], "after": 10**30}, (400, 422)),
            (0, {"parts": [{"topic": "attacked", "partition": -1, "ledgers": []}]}, (422,)),
        ):
            said = await batch_call(world, f"mistaken/batches/{batch}/commit", body, at=at)
            refused(said, *statuses)


@attempt("giving up 10,000 ledgers that are not there")
async def abort_of_nothing(world: World) -> None:
    said = await batch_call(
        world, "never/batches/0/abort", {"ledgers": list(range(10**12, 10**12 + 10_000))}
    )
    assert (said.status, json.loads(said.body)) == (200, {"ledgers": []}), said
    said = await batch_call(
        world, "never/batches/0/abort", {"ledgers": list(range(10**12, 10**12 + 10_001))}
    )
    refused(said, 422)
    assert (await world.ask("GET", "/v1/bulk-loads/never")).status == 404


SCRIPT = (
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"
)
PICTURE = "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
SOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CLOSED_S = 10.0


async def _head_of(world: World, path: str, broker: int) -> bytes:
    data = request("GET", path, headers="Accept: text/html,*/*\r\n")
    answer = await exchange(world.brokers[broker], data, CLOSED_S, whole_length, world.tls)
    assert said_in(answer).status == 200, answer[:300]
    return answer.partition(b"\r\n\r\n")[0]


@attempt("browser: pages and pictures with scripts, stored as a stream", turn_s_max=TURN_S_MAX)
async def stored_pages(world: World) -> None:
    for number, kind in enumerate(("text/html", "image/svg+xml", "application/xhtml+xml")):
        path = f"/v1/durable-streams/public/page-{number}"
        said = await world.ask("PUT", path, SCRIPT, Content_Type=kind)
        assert said.status in (200, 201), said
        for broker in range(len(world.brokers)):
            head = await _head_of(world, path, broker)
            for line in (f"Content-Security-Policy: {SANDBOX}", "X-Content-Type-Options: nosniff",
                         "Content-Disposition: attachment"):  # fmt: skip
                assert line.encode().lower() in head.lower(), head


@attempt("browser: a picture whose source is a subscription's stream", turn_s_max=TURN_S_MAX)
async def picture_that_leases(world: World) -> None:
    path = await world.topic("pictured")
    assert (await world.ask("PUT", f"{path}/subscriptions/s")).status in (200, 201)
    said = await world.ask("POST", f"{path}/messages", b"x", Content_Type="text/plain")
    assert said.status == 200, said
    for broker in range(len(world.brokers)):
        for lines in (f"Accept: {PICTURE}\r\n", "Accept: */*\r\nReferer: http://evil.example/\r\n"):
            data = request("GET", f"{path}/subscriptions/s/stream", headers=lines)
            refused(await world.raw(data, broker=broker, wait_s=CLOSED_S), 403)
    said = await world.ask("POST", f"{path}/subscriptions/s/receive", {"wait": "10s"})
    (found,) = json.loads(said.body)["messages"]
    assert found["delivery_count"] == 1, "a picture has leased it"


@attempt("browser: frames of a WebSocket that are not masked", turn_s_max=TURN_S_MAX)
async def unmasked_frames(world: World) -> None:
    path = await world.topic("unmasked")
    assert (await world.ask("PUT", f"{path}/subscriptions/s")).status in (200, 201)
    said = await world.ask("POST", f"{path}/messages", b"x", Content_Type="text/plain")
    assert said.status == 200, said
    call = (
        f"GET {path}/subscriptions/s/stream HTTP/1.1\r\nHost: localhost\r\n{SOCKET}\r\n"
    ).encode()
    for broker in range(len(world.brokers)):
        reader, writer = await open_to(world.brokers[broker], world.tls)
        try:
            async with asyncio.timeout(CLOSED_S):
                writer.write(call)
                found = b""
                while (ack_id := re.search(rb'"ack_id": ?"([^"]+)"', found)) is None:
                    more = await reader.read(1 << 16)
                    assert more, found
                    found += more
                ack = json.dumps({"ack_ids": [ack_id[1].decode()]}).encode()
                writer.write(50 * (bytes((0x81, len(ack))) + ack))
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1 << 16):
                        pass
        finally:
            writer.transport.abort()
    said = await world.ask("POST", f"{path}/subscriptions/s/receive", {"wait": "20s"})
    assert len(json.loads(said.body)["messages"]) == 1, "a frame without a mask has acked it"


def _lenient() -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for zero in ("00", "+0", "-0", "%D9%A0", "0_0", "%200", "0.0"):
        found += [
            (f"partition {zero}", request("GET", f"{T}/partitions/{zero}")),
            (f"from {zero}", request("GET", f"{T}/messages?from={zero}")),
            (f"batch {zero}", request("POST", f"/v1/bulk-loads/lenient/batches/{zero}/commit",
                                      b'{"parts":[]}')),
        ]  # fmt: skip
    for seven in ("007", "+7", "7_0", " 7 7", "7.0", "\xd9\xa7"):
        numbered = f"Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: {seven}\r\n"
        found += [
            (f"sequence {seven!a}", request("POST", f"{T}/messages", b"x", numbered, "text/plain")),
            (f"epoch {seven!a}", request("POST", f"{T}/messages", b"x", numbered.replace(
                "Epoch: 0", f"Epoch: {seven}").replace(f"Seq: {seven}", "Seq: 0"), "text/plain")),
            (f"ack id {seven!a}", request("POST", f"{T}/subscriptions/s/ack", json.dumps(
                {"ack_ids": [f"0-{seven}-1-1"]}).encode())),
        ]  # fmt: skip
    return found


enter_each("number", _lenient(), (400, 404, 422))


@attempt("two spellings of a producer's id are two producers")
async def two_spellings(world: World) -> None:
    path = await world.topic("spelt")
    for name in ("7", "007", "+7", "٧"):
        said = await world.ask(
            "POST", f"{path}/messages", b"x", Content_Type="text/plain",
            Producer_Id=name, Producer_Epoch="0", Producer_Seq="0",
        )  # fmt: skip
        assert said.status == 200, said
    said = await world.ask("GET", f"{path}/messages?from=earliest")
    assert len(json.loads(said.body)["messages"]) == 4, said


ESCAPES = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[2J\x9b31m\u202etxt\b"
OBEYED = [one.encode() for one in ("\x1b", "\x07", "\x9b", "\u202e", "\b")]
TERMINAL_MESSAGES = 3
COMMANDS = {
    "consume": ["--from", "earliest", "--limit", str(TERMINAL_MESSAGES)],
    "consume --json": ["--from", "earliest", "--limit", str(TERMINAL_MESSAGES), "--json"],
    "consume --raw": ["--from", "earliest", "--limit", str(TERMINAL_MESSAGES), "--raw"],
}
SHOWN_S = 120.0


def on_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    found = bytearray()
    try:
        with subprocess.Popen(
            command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment
        ) as process:
            os.close(theirs)
            try:
                while part := os.read(ours, 65536):
                    found += part
            except OSError:
                pass
            assert process.wait(SHOWN_S) == 0, bytes(found)
    finally:
        os.close(ours)
    return bytes(found)


@attempt("a terminal: escapes in keys, values and headers of what is consumed")
async def escapes(world: World) -> None:
    """A message set the title of its reader's terminal, and wrote the clipboard."""
    path = await world.topic("escapes")
    for number in range(TERMINAL_MESSAGES):
        body = {
            "value": ESCAPES if number else {ESCAPES: ESCAPES},
            "key": ESCAPES,
            "headers": {"name": ESCAPES},
        }
        said = await world.ask("POST", f"{path}/messages", body)
        assert said.status == 200, said
    environment = {**world.environment, "OCTAVO_URL": world.urls[0], "TERM": "xterm"}
    for name, options in COMMANDS.items():
        verb = name.split()[0]
        command = [sys.executable, "-m", "octavo.cli.main", verb, "public/escapes", *options]
        found = await asyncio.to_thread(on_terminal, command, environment)
        assert b"owned" in found, (name, found)
        for one in OBEYED:
            assert one not in found, (name, base64.b64encode(found)[:2000], one)
