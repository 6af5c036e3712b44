"""A second request hidden in an allowed one, for this broker or the owner behind it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from tests.attack.secured.attempts import another_address, bearer, request, secured
from tests.attack.secured.world import OPEN_TOPIC, VAULT, SecuredWorld

Make = Callable[[bytes, bytes], bytes]
"""(lines of the allowed head, hidden request) → bytes."""
PUBLISH = f"POST {OPEN_TOPIC}/messages HTTP/1.1\r\nHost: localhost\r\n".encode()
KIND = b"Content-Type: text/plain\r\n"
WAIT_S = 2.0


def _first(lines: bytes, more: bytes, body: bytes) -> bytes:
    return PUBLISH + KIND + lines + more + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked\r\n"
HIDDEN: dict[str, Make] = {
    "behind a length that is short": lambda a, h: _first(a, b"Content-Length: 2\r\n", b"{}" + h),
    "behind no length": lambda a, h: _first(a, b"", h),
    "length and chunks, the length long": lambda a, h: _first(
        a, b"Content-Length: %d\r\n" % (len(h) + 5) + CHUNKED, b"0\r\n\r\n" + h),
    "chunks and length, the length short": lambda a, h: _first(
        a, CHUNKED + b"Content-Length: 4\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(h), h)),
    "two lengths, the first short": lambda a, h: _first(
        a, b"Content-Length: 2\r\nContent-Length: %d\r\n" % (2 + len(h)), b"{}" + h),
    "two lengths, the first long": lambda a, h: _first(
        a, b"Content-Length: %d\r\nContent-Length: 2\r\n" % (2 + len(h)), b"{}" + h),
    "two lengths in one": lambda a, h: _first(
        a, b"Content-Length: 2, %d\r\n" % (2 + len(h)), b"{}" + h),
    "a length with a sign": lambda a, h: _first(a, b"Content-Length: +2\r\n", b"{}" + h),
    "a length with zeros": lambda a, h: _first(a, b"Content-Length: 0002\r\n", b"{}" + h),
    "a length in sixteens": lambda a, h: _first(a, b"Content-Length: 0x2\r\n", b"{}" + h),
    "a length in other digits": lambda a, h: _first(
        a, b"Content-Length: \xd9\xa2\r\n", b"{}" + h),
    "a length with a line": lambda a, h: _first(a, b"Content-Length: 2_0\r\n", b"{}" + h),
    "a length below zero": lambda a, h: _first(a, b"Content-Length: -1\r\n", h),
    "a length behind a space": lambda a, h: _first(
        a, b"Content-Length : %d\r\n" % len(h), h),
    "a length on a folded line": lambda a, h: _first(
        a, b"Content-Length:\r\n 2\r\n", b"{}" + h),
    "a length behind a line feed alone": lambda a, h: _first(
        a, b"A: b\nContent-Length: 2\r\n", b"{}" + h),
    "chunks behind a line feed alone": lambda a, h: _first(
        a, b"Content-Length: %d\r\nA: b\nTransfer-Encoding: chunked\r\n" % (5 + len(h)),
        b"0\r\n\r\n" + h),
    "chunks by another name": lambda a, h: _first(
        a, b"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + h),
    "chunks, then none": lambda a, h: _first(
        a, b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + h),
    "chunks, twice": lambda a, h: _first(a, CHUNKED + CHUNKED, b"0\r\n\r\n" + h),
    "chunks, behind a space": lambda a, h: _first(
        a, b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + h),
    "chunks, behind a tab": lambda a, h: _first(
        a, b"Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + h),
    "chunks, behind a control character": lambda a, h: _first(
        a, b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + h),
    "chunks, in quotes": lambda a, h: _first(
        a, b'Transfer-Encoding: "chunked"\r\nContent-Length: 5\r\n', b"0\r\n\r\n" + h),
    "a chunk with an extension": lambda a, h: _first(
        a, CHUNKED, b"2;a=b\r\n{}\r\n0;" + b"x" * 100 + b"\r\n\r\n" + h),
    "a chunk with an extension of lines": lambda a, h: _first(
        a, CHUNKED, b"2;a=\nb\r\n{}\r\n0\r\n\r\n" + h),
    "a chunk of more than there are numbers": lambda a, h: _first(
        a, CHUNKED, b"f" * 20 + b"\r\n{}\r\n0\r\n\r\n" + h),
    "a chunk with a sign": lambda a, h: _first(a, CHUNKED, b"+2\r\n{}\r\n0\r\n\r\n" + h),
    "a chunk that ends in a line feed alone": lambda a, h: _first(
        a, CHUNKED, b"2\n{}\n0\n\n" + h),
    "a chunk that is longer than it says": lambda a, h: _first(
        a, CHUNKED, b"2\r\n{}x\r\n0\r\n\r\n" + h),
    "trailers that are headers": lambda a, h: _first(
        a, CHUNKED, b"2\r\n{}\r\n0\r\nContent-Length: 0\r\nAuthorization: x\r\n\r\n" + h),
    "trailers without an end": lambda a, h: _first(
        a, CHUNKED, b"2\r\n{}\r\n0\r\nA: b\r\n" + h),
    "an upgrade to another protocol": lambda a, h: _first(
        a, b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        b"Content-Length: 2\r\n", b"{}" + h),
    "a body that waits for leave": lambda a, h: _first(
        a, b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"{}" + h),
    "HTTP/1.0 that is kept alive": lambda a, h: _first(
        a, b"Connection: keep-alive\r\nContent-Length: 2\r\n", b"{}" + h
    ).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "HTTP/1.0 with chunks": lambda a, h: _first(
        a, CHUNKED + b"Connection: keep-alive\r\n", b"0\r\n\r\n" + h
    ).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "HTTP/0.9": lambda a, h: b"GET " + VAULT.encode() + b"/messages\r\n" + h,
    "a GET with a body": lambda a, h: b"GET " + OPEN_TOPIC.encode() + b" HTTP/1.1\r\n"
        b"Host: localhost\r\n" + a + b"Content-Length: %d\r\n\r\n" % len(h) + h,
    "a GET with a body that is not told": lambda a, h: b"GET " + OPEN_TOPIC.encode()
        + b" HTTP/1.1\r\nHost: localhost\r\n" + a + b"\r\n" + h,
    "in a header": lambda a, h: _first(
        a, b"A: " + h.replace(b"\r\n", b"\r\n ") + b"\r\nContent-Length: 2\r\n", b"{}"),
    "in the request line": lambda a, h: b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        + a + b"\r\n\r\n" + h,
    "behind an empty line": lambda a, h: b"\r\n\r\n" + h,
    "behind spaces": lambda a, h: b"  " + h,
}  # fmt: skip


def enter_hidden(name: str, make: Make) -> None:
    """The first request is alice's and allowed; the hidden request has no token, or mallory's,
    and gets nothing from the vault at either broker."""

    async def run(world: SecuredWorld) -> None:
        alice = bearer(world.tokens["alice"]) + b"\r\n"

        async def one(broker: int, hidden: bytes) -> None:
            found = await world.all_of(make(alice, hidden), broker=broker, wait_s=WAIT_S)
            for status in re.findall(rb"HTTP/1\.[01] (\d+)", found)[1:]:
                assert status[:1] == b"4", found[:1500]

        await asyncio.gather(
            *(
                one(broker, hidden)
                for broker in range(len(world.brokers))
                for lines in ([], [bearer(world.tokens["mallory"])])
                for hidden in (
                    request(lines=lines),
                    request("DELETE", VAULT, lines),
                    request("GET", "/v1/operations", lines),
                )
            )
        )

    secured(f"hidden: {name}")(run)


for one, what in HIDDEN.items():
    enter_hidden(one, what)


@secured("a second request on a connection that has shown a token")
async def nothing_is_remembered(world: SecuredWorld) -> None:
    alice = bearer(world.tokens["alice"])
    mine = request(path=f"{OPEN_TOPIC}/messages?from=earliest", lines=[alice], close=False)
    for second, status in (
        (request(path=f"{OPEN_TOPIC}/messages?from=earliest"), b"401"),
        (request(), b"401"),
        (request(lines=[alice]), b"403"),
        (request("POST", f"{OPEN_TOPIC}/messages", [b"Content-Type: text/plain"], b"x"), b"401"),
    ):
        for broker in range(len(world.brokers)):
            found = await world.all_of(mine + second, broker=broker)
            statuses = re.findall(rb"HTTP/1\.1 (\d+)", found)
            assert len(statuses) == 2, found[:1500]
            assert statuses[0] in (b"200", b"204"), found[:1500]
            assert statuses[1] == status, found[:1500]


@secured("a message whose head is known, with another's token, and with none")
async def on_the_short_way(world: SecuredWorld) -> None:
    """The fast publish path remembers heads; it must not remember their callers."""

    def publish(token: bytes) -> bytes:
        lines = [b"Content-Type: text/plain", *([bearer(token)] if token else [])]
        return request("POST", f"{OPEN_TOPIC}/messages", lines, b"x", close=False)

    alice, mallory = (world.tokens[name].encode() for name in ("alice", "mallory"))
    bad = alice[:-3] + (b"AAA" if alice[-3:] != b"AAA" else b"BBB")
    for broker in range(len(world.brokers)):
        for token, status in ((alice, 200), (alice, 200), (mallory, 403), (b"", 401), (bad, 401)):
            source = another_address() if token == bad else ""
            said = await world.refused(publish(token), (status,), broker=broker, source=source)
            assert said.status == status


@secured("a message through the short way, with a second one hidden in its body")
async def hidden_on_the_short_way(world: SecuredWorld) -> None:
    alice = bearer(world.tokens["alice"])
    first = request(
        "POST", f"{OPEN_TOPIC}/messages", [b"Content-Type: text/plain", alice], b"x", close=False
    )
    hidden = request("POST", f"{VAULT}/messages", [b"Content-Type: text/plain"], b"x")
    for broker in range(len(world.brokers)):
        found = await world.all_of(first + first + hidden, broker=broker)
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", found)
        assert statuses == [b"200", b"200", b"401"], found[:1500]
