"""A fuzzer: every call with every header, body and encoding, and frames at the bookies' ports. A
printed seed decides what a worker sends. Most requests are almost right, because a wrong request
is refused at once. No request is meant for the canary; ledger ids may be any client's."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from octavo.broker.http.call import JSON, NDJSON, RECORD_BATCH
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.protocol import extension
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import add_prefix, batch_read_request, read_request
from tests.attack.attempts_requests import GOOD, WRONG_BATCHES
from tests.attack.world import Attempt, World, exchange

WORKERS = 10
ANSWER_S = 2.0
"""A request that announces more bytes than it sends gets no answer sooner."""
SHORT_S, LONG_S = 5.0, 600.0
LEDGERS = 80
"""The cluster's ledgers, among them the canary's, have ids below it."""

NUMBERS = (
    "0",
    "1",
    "7",
    "-1",
    "99",
    "1e9",
    "9" * 19,
    "9" * 40,
    "NaN",
    "0x10",
    " 1",
    "%00",
    "½",
    "",
)
PLACES = ("earliest", "latest", "0", "5", "1:0:0", "2026-11-22T00:00:00Z", "10000-01-01T00:00:00Z")
NAMES = {
    "namespace": ("public", "lab", "..", "a" * 250, "%ff"),
    "topic": ("fuzz-0", "fuzz-1", "fuzz-2", "fuzz-3", "..", "%2f", "a" * 250, "%C3%BC"),
    "partition": ("0", "1", "2", "-1", "9" * 9, "9" * 30, "x"),
    "subscription": ("s", "t", "u", "..", "%00"),
    "bulk_load": ("fuzz-t", "fuzz-u", "%ff", "b" * 250),
    "batch": NUMBERS,
    "ledger": NUMBERS,
    "entry": NUMBERS,
}
HEADERS = (
    "Producer-Id", "Producer-Epoch", "Producer-Seq", "If-Match", "Accept", "Prefer", "Octavo-Key",
    "Octavo-Timestamp", "Octavo-Header-a", "Octavo-Incarnation", "Octavo-Forwarded-By",
    "Octavo-Forwarded-To", "Octavo-Forwarded-Proof", "Octavo-Forwarded-Escaped", "Origin", "Host",
    "Bulk-Load-Token", "Transaction-Token", "Expect", "Connection",
    "Sec-Fetch-Site", "Accept-Encoding", "Range", "Upgrade", "Cookie",
)  # fmt: skip
TEXTS = (
    b"", b"0", b"1", b"-1", b"x", b'"0"', b"W/\"1\"", b"redirect", b"100-continue", b"\xe9\xff",
    b"gzip", b"close", b"h2c", b"9" * 40, b"a" * 3_000, b"%41", b"null", b"octavo-key",
    b"https://evil.example", b"localhost", b"2026-11-22T00:00:00Z",
)  # fmt: skip
KINDS = (JSON, NDJSON, RECORD_BATCH, "text/plain", "", "multipart/form-data", "a/b;c", "\xe9")
LEAVES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 3, 2**31, 2**63, 10**30, 1.5, 1e300, "", "x", "0", "7d", "999999999999d",
    "10GB", "earliest", "0-0-0-0", "\ud800", "é" * 40, "*", "AA==", [], {}, "shared", "public",
)  # fmt: skip
WORDS = (
    "value", "value_text", "value_base64", "key", "key_base64", "headers", "timestamp", "messages",
    "partitions", "retention", "time", "size", "rollover", "entries", "ensemble_size",
    "write_quorum", "ack_quorum", "type", "start", "to", "ack_ids", "up_to", "nack", "ack_id",
    "delay", "extend", "parts", "topic", "partition", "ledgers", "id", "bytes", "first_ms",
    "last_ms", "bulk_load", "transaction", "batch", "content", "ack_timeout", "compaction",
)  # fmt: skip
_CALLS = FormerNames().routes(ROUTES)
KEYS = (master_key(b""), master_key(b"secret"), bytes(20))
DIGESTS = tuple(digest_for(kind, b"") for kind in (DigestType.CRC32C, DigestType.CRC32))


class Fuzzer:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def request(self) -> bytes:
        rng = self._rng
        route = rng.choice(_CALLS)
        method = route.method if rng.random() < 0.95 else rng.choice(("HEAD", "PUT", "TRACE", "É"))
        kind = rng.choice([one.media_type for one in route.body] or [""])
        if rng.random() < 0.15:
            kind = rng.choice(KINDS)
        body = self._body(kind, route) if route.body or rng.random() < 0.1 else b""
        lines = [
            f"{method} {self._path(route)} HTTP/1.1".encode("latin-1", "replace"),
            b"Host: localhost",
            b"Connection: close",
        ]
        if kind:
            lines.append(b"Content-Type: " + kind.encode("latin-1"))
        lines += [
            rng.choice(HEADERS).encode() + b": " + rng.choice(TEXTS)
            for _ in range(rng.choice((0, 0, 1, 1, 2, 5)))
        ]
        body = self._packed(body, lines)
        data = b"\r\n".join([*lines, b"", b""]) + body
        return self._spoilt(data) if rng.random() < 0.1 else data

    def _path(self, route: Route) -> str:
        rng = self._rng
        steps = []
        for step in route.path.split("/"):
            name = step[1:-1] if step.startswith("{") else ""
            choices = NAMES.get(name, ())
            if name in ("ledger", "entry") and rng.random() < 0.6:
                step = str(rng.randrange(LEDGERS))
            elif choices:
                step = choices[0] if rng.random() < 0.7 else rng.choice(choices)
            steps.append(step)
        query = [
            f"{name}={rng.choice(NUMBERS + PLACES + ('true', '1s', '20ms', 'all'))}"
            for name in sorted(route.query_names)
            if rng.random() < 0.4
        ]
        if rng.random() < 0.05:
            query.append(rng.choice(("x", "=", "&&", "%", "from=%ff", "a=b#c")))
        return "/".join(steps) + ("?" + "&".join(query) if query else "")

    def _body(self, kind: str, route: Route) -> bytes:
        rng = self._rng
        if kind == RECORD_BATCH:
            some = rng.choice([GOOD, *(body for _, body in WRONG_BATCHES)])
            return self._spoilt(some * rng.choice((1, 1, 2, 9))) if rng.random() < 0.5 else some
        if kind == NDJSON:
            return b"".join(
                self._json(3) + b"\n" * rng.randint(1, 3) for _ in range(rng.randrange(9))
            )
        if kind != JSON:
            return rng.randbytes(rng.choice((0, 1, 100, 70_000)))
        examples = [one.example for one in route.body if one.example is not None]
        if examples and rng.random() < 0.6:
            return json.dumps(self._changed(rng.choice(examples))).encode()
        return self._json(4)

    def _json(self, depth: int) -> bytes:
        data = json.dumps(self._tree(depth)).encode("utf-8", "surrogatepass")
        return self._spoilt(data) if self._rng.random() < 0.1 else data

    def _tree(self, depth: int) -> Any:
        rng = self._rng
        if not depth or rng.random() < 0.3:
            return rng.choice(LEAVES)
        if rng.random() < 0.3:
            return [self._tree(depth - 1) for _ in range(rng.randrange(4))]
        return {rng.choice(WORDS): self._tree(depth - 1) for _ in range(rng.randrange(5))}

    def _changed(self, example: Any) -> Any:
        rng = self._rng
        if isinstance(example, dict) and rng.random() < 0.9:
            found = {
                name: self._changed(value) if rng.random() < 0.5 else value
                for name, value in example.items()
            }
            if rng.random() < 0.2:
                found[rng.choice(WORDS)] = self._tree(1)
            return found
        if isinstance(example, list) and rng.random() < 0.9:
            return [self._changed(one) for one in example] * rng.choice((1, 1, 1, 0, 50))
        return rng.choice(LEAVES) if rng.random() < 0.6 else example

    def _packed(self, body: bytes, lines: list[bytes]) -> bytes:
        rng = self._rng
        if body and rng.random() < 0.15:
            pack: Callable[[bytes], bytes] = rng.choice((gzip.compress, zlib.compress, bytes))
            body = pack(body)
            lines.append(
                b"Content-Encoding: " + rng.choice((b"gzip", b"deflate", b"br", b"gzip, gzip"))
            )
            if rng.random() < 0.3:
                body = self._spoilt(body)
        if rng.random() < 0.15:
            lines.append(b"Transfer-Encoding: chunked")
            cut = rng.randint(0, len(body))
            parts = [part for part in (body[:cut], body[cut:]) if part]
            end = b"0\r\n\r\n" if rng.random() < 0.9 else b""
            return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end
        length = len(body) if rng.random() < 0.97 else rng.choice((0, 1, len(body) + 9, 10**12, -1))
        lines.append(b"Content-Length: %d" % length)
        return body

    def _spoilt(self, data: bytes) -> bytes:
        rng = self._rng
        found = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            if not found:
                break
            at = rng.randrange(len(found))
            how = rng.randrange(4)
            if how == 0:
                found[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                del found[at : at + rng.choice((1, 4, 30))]
            elif how == 2:
                found[at:at] = found[at : at + rng.choice((1, 4, 30))] or rng.randbytes(3)
            else:
                del found[at:]
        return bytes(found)

    def frames(self) -> bytes:
        rng = self._rng
        data = b"".join(self._frame() for _ in range(rng.choice((1, 1, 3, 20))))
        return self._spoilt(data) if rng.random() < 0.4 else data

    def _frame(self) -> bytes:
        rng = self._rng
        # Adds to other ids are left to the attempts about squatted ids.
        ledger = rng.choice((10**15 + rng.randrange(5), -1, 2**63 - 1, rng.randrange(LEDGERS)))
        entry = rng.choice((0, 1, 2, 5, -1, 2**63 - 1, 2**40))
        flags = rng.choice((0, 0x300, 0x101, 1, 4, 0x400, 0xFFFF, 2))
        how = rng.randrange(5)
        if how == 0:
            own = 10**15 + rng.randrange(5)
            payload = rng.randbytes(rng.choice((0, 1, 100, 5_000)))
            lac = rng.choice((entry - 1, -1, 10**6, -(2**60)))
            packed = pack_entry(rng.choice(DIGESTS), own, max(entry, 0), lac, 5, payload)
            return add_prefix(rng.choice(KEYS), len(packed), flags) + packed
        if how == 1:
            key = rng.choice(KEYS) if flags & 1 else b""
            return read_request(ledger, entry, flags, key)
        if how == 2:
            count = rng.choice((0, 1, 100, 2**31 - 1, -1))
            size = rng.choice((0, 1, 1 << 20, 2**62, -1))
            return batch_read_request(ledger, entry, rng.randrange(2**40), count, size)
        if how == 3:
            op = rng.choice(list(extension.Op))
            body = {
                name: rng.choice((*LEAVES[:9], ledger, entry, bytes(20)))
                for name in ("ledger", "key", "lac", "after", "timeout_ms", "entry")
                if rng.random() < 0.7
            }
            body = {name: one for name, one in body.items() if one != 10**30}
            return extension.encode_request(op, rng.randrange(2**31), body)
        return rng.choice((
            rng.randbytes(rng.randint(1, 200)),
            b"\x00\x00\x00\x00" * 9,
            b"\x7f\xff\xff\xff" + rng.randbytes(30),
            b"\x00\x00\x00\x40\x0a" + rng.randbytes(63),
        ))  # fmt: skip


class Found(NamedTuple):
    said: Counter[str]
    problems: list[str]


async def fuzz(world: World, seconds: float, seed: int) -> Found:
    until = time.monotonic() + seconds
    found = Found(Counter(), [])

    async def requests(number: int) -> None:
        fuzzer = Fuzzer(random.Random(f"{seed} http {number}"))
        while time.monotonic() < until:
            data = fuzzer.request()
            answer = await world.raw(data, broker=number % len(world.brokers), wait_s=ANSWER_S)
            found.said[f"{answer.status} {answer.code}"] += 1
            # 503 and 504 do not blame the request: the partition may be moving.
            if answer.status in (500, 501, 502, 505) or b"Traceback" in answer.body:
                found.problems.append(f"{answer} to {data[:1_500]!r}")

    async def frames(number: int) -> None:
        fuzzer = Fuzzer(random.Random(f"{seed} frames {number}"))
        while time.monotonic() < until:
            await exchange(world.bookies[number % len(world.bookies)], fuzzer.frames(), 0.2)
            found.said["frames"] += 1

    both = [work(number) for number in range(WORKERS) for work in (requests, frames)]
    await asyncio.gather(*both)
    return found


def fuzzing(seconds: float, seed: int) -> Attempt:
    async def run(world: World) -> None:
        for number in range(4):
            await world.topic(f"fuzz-{number}", partitions=2)
        found = await fuzz(world, seconds, seed)
        print(f"      fuzzer: {dict(found.said.most_common())}", flush=True)
        assert not found.problems, f"{len(found.problems)}: " + "; ".join(found.problems[:5])

    return Attempt(f"whatever a fuzzer sends in {seconds:g} s, seed {seed}", run, False, seconds)
