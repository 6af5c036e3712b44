"""Where requests begin and end, compared with aiohttp's own parser."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser

from octavo.broker.http.connection_bytes import HEAD_BYTES_KEPT, RequestEdges, body_bytes_of

LINES = [
    b"Content-Length: 3", b"content-LENGTH:3", b"Content-Length: 0", b"Content-Length: 12",
    b"Content-Length: 3\r\nContent-Length: 3", b"Content-Length : 3", b"Content-Length: 3, 3",
    b"Content-Length: +3", b"Content-Length: 0x3", b"Content-Length:", b"Content-Length: \t3 ",
    b"X-Content-Length: 7", b"X: Content-Length: 7", b"X: a\nContent-Length: 5", b"X: a\rb",
    b"X: 1\r\n Content-Length: 4", b"X: 1\r\n\tContent-Length: 4", b"Transfer-Encoding: chunked",
    b"transfer-encoding: identity", b"Expect: 100-continue", b"Upgrade: websocket",
    b"Connection: upgrade\r\nUpgrade: h2c", b"Host: x", b"Host: y", b"A: " + b"b" * 40,
]  # fmt: skip
FIRST = [
    b"POST /a HTTP/1.1\r\nHost: x",
    b"GET / HTTP/1.1\r\nHost: x",
    b"\r\nPOST /a HTTP/1.1\r\nHost: x",
    b"CONNECT x:1 HTTP/1.1\r\nHost: x",
]
BODIES = [
    b"abc",
    b"",
    b"abcdefghijkl",
    b"3\r\nabc\r\n0\r\n\r\n",
    b"abcd",
    b"\r\n\r\n",
    b"POST / HT",
]


class Judge:
    """aiohttp's parser, and whether it stands between two requests."""

    def __init__(self) -> None:
        protocol = BaseProtocol(asyncio.get_running_loop())
        self.parser: Any = HttpRequestParser(protocol, asyncio.get_running_loop(), 2**16)
        protocol._parser = self.parser
        self.payloads: list[Any] = []
        self.refused = False

    def feed(self, data: bytes) -> int:
        """Return how many requests begin."""
        try:
            messages, _, _ = self.parser.feed_data(data)
        except HttpProcessingError:
            self.refused = True
            return 0
        self.payloads += [payload for _, payload in messages]
        for _ in messages:
            self.parser.message_consumed()
        return len(messages)

    @property
    def all_whole(self) -> bool:
        return all(payload.is_eof() for payload in self.payloads)


def request(rng: random.Random) -> bytes:
    lines = [rng.choice(LINES) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3)))]
    if rng.random() < 0.7:
        lines = [line for line in lines if b"ontent" not in line and b"ncoding" not in line]
        body = rng.choice(BODIES)
        lines.append(b"Content-Length: %d" % len(body))
    else:
        body = rng.choice(BODIES)
    return b"\r\n".join([rng.choice(FIRST[:2] * 20 + FIRST), *lines]) + b"\r\n\r\n" + body


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_called_whole_is_one_request_to_the_parser(seed: int) -> None:
    rng = random.Random(seed)
    whole = 0
    for _ in range(400):
        edges, judge = RequestEdges(), Judge()
        stream = b"".join(request(rng) for _ in range(rng.randrange(1, 6)))
        cuts = sorted({len(stream), *(rng.randrange(len(stream)) for _ in range(rng.randrange(3)))})
        if rng.random() < 0.6:  # cut where requests begin, which is the usual case
            cuts = [n for n in range(1, len(stream)) if stream[n:].startswith((b"POST /a", b"GET"))]
            cuts.append(len(stream))
        begin = 0
        for cut in cuts:
            data, begin = stream[begin:cut], cut
            whole_before = judge.all_whole
            head = edges.follow(data)
            begun = judge.feed(data)
            if judge.refused:
                break  # the connection ends here
            if head:
                whole += 1
                assert data.startswith(head), data
                assert whole_before, (stream, data)
                assert begun == 1, (stream, data)
                assert judge.all_whole, (stream, data)
                assert not judge.parser.feed_data(b"")[0]
    assert whole > 100


def test_a_usual_producer_is_followed_for_ever() -> None:
    edges = RequestEdges()
    head = b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    for _ in range(3):
        assert edges.follow(head + b"abcde") == head
    assert edges.follow(head + b"ab") == b""
    assert edges.follow(b"cd") == b""
    assert edges.follow(b"e") == b""
    assert edges.follow(head + b"abcde") == head
    get = b"GET / HTTP/1.1\r\n\r\n"
    assert edges.follow(get) == get


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nab",
        b"POST / HT",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_KEPT + b"\r\n\r\n",
    ],
)
def test_off_plain_ground_a_connection_is_not_followed_any_more(data: bytes) -> None:
    edges = RequestEdges()
    assert edges.follow(data) == b""
    assert edges.follow(b"GET / HTTP/1.1\r\n\r\n") == b""


def test_the_length_of_a_body() -> None:
    assert body_bytes_of(b"GET / HTTP/1.1\r\n\r\n") == 0
    assert body_bytes_of(b"P / HTTP/1.1\r\nCONTENT-length:\t17 \r\n\r\n") == 17
    assert body_bytes_of(b"P / HTTP/1.1\r\nContent-Length: 9999999999999999\r\n\r\n") == -1
    assert body_bytes_of(b"P / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n") == -1
