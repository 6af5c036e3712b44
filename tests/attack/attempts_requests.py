"""Single wrong requests: every broker refuses each by its right name."""

from __future__ import annotations

import gzip
import zlib

from tests.attack.attempts import attempt, enter_each, refused
from tests.attack.world import World
from tests.attack.wrong_batches import WRONG_BATCHES

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
