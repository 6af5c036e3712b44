"""Headers for browsers in every answer, and which pages may see an answer.

The refused changes by foreign pages are in tests/unit/broker_http/test_browsers.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

import octavo.broker
from octavo.broker.config import BrokerConfigError
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.csrf import HSTS_S, PAGE_HEADERS, protect
from octavo.broker.http.routes import ROUTES
from tests.support.memory_cluster import Running, running

CONSOLE = "https://console.example.com"
NAMED = {"Origin": CONSOLE, "Sec-Fetch-Site": "cross-site"}
OTHERS = ["https://evil.example", "null", f"{CONSOLE}.evil.example", "http://console.example.com",
          f"{CONSOLE}:8443", "https://CONSOLE.example.com", "*", ""]  # fmt: skip
TOPIC = "/v1/topics/public/one"
ASKS = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}


def cors(headers: Mapping[str, str]) -> set[str]:
    return {name for name in headers if name.lower().startswith("access-control-")}


# ---- pages of other sites


async def test_a_named_site_is_told_that_it_may_call() -> None:
    async with running(1, allowed_origins=(CONSOLE,)) as one:
        for path in (TOPIC, f"{TOPIC}/messages", "/", "/v1/nothing/here"):
            answer = await one.api.call("OPTIONS", path, headers={**NAMED, **ASKS})
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["Access-Control-Allow-Origin"] == CONSOLE
            assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
            allowed = answer.headers["Access-Control-Allow-Headers"]
            assert allowed == "Authorization, *", "the star is all but that one"
            assert answer.headers["Vary"] == "Origin"
            assert "Access-Control-Allow-Credentials" not in answer.headers
        assert not await one.topics(), "asking does nothing"


@pytest.mark.parametrize("origin", OTHERS)
@pytest.mark.parametrize("named", [(), (CONSOLE,)])
async def test_no_other_site_is_told_anything(origin: str, named: tuple[str, ...]) -> None:
    async with running(1, allowed_origins=named) as one:
        asked = await one.api.call("OPTIONS", TOPIC, headers={"Origin": origin, **ASKS})
        assert asked.status in (404, 405), asked
        read = await one.api.get("/v1/namespaces", headers={"Origin": origin})
        for answer in (asked, read):
            assert not cors(answer.headers)
            assert answer.headers.get("Vary") == ("Origin" if named else None)


async def test_who_asks_under_a_foreign_name_is_told_nothing() -> None:
    async with running(1, allowed_origins=(CONSOLE,)) as one:
        headers = {**NAMED, **ASKS, "Host": "evil.example"}
        asked = await one.api.call("OPTIONS", TOPIC, headers=headers)
        assert asked.status == 421


async def test_what_asks_for_nothing_is_no_question_of_a_browser() -> None:
    async with running(1, allowed_origins=(CONSOLE,)) as one:
        for headers in (NAMED, ASKS, {}):
            answer = await one.api.call("OPTIONS", TOPIC, headers=headers)
            assert answer.status == 405, answer


async def test_a_named_site_sees_answers_and_problems() -> None:
    async with running(2, allowed_origins=(CONSOLE,)) as one:
        made = await one.api.call("PUT", TOPIC, headers=NAMED)
        await one.move("public/one", "b1")
        published = await one.api.post(
            f"{TOPIC}/messages", b"hello", headers={**NAMED, "Content-Type": "text/plain"}
        )
        read = await one.api.get(f"{TOPIC}/messages?from=earliest", headers=NAMED)
        missing = await one.api.get("/v1/topics/public/none", headers=NAMED)
        found = [made.status, published.status, read.status, missing.status]
        assert found == [201, 200, 200, 404]
        for answer in (made, published, read, missing):
            assert answer.headers["Access-Control-Allow-Origin"] == CONSOLE
            assert answer.headers["Access-Control-Expose-Headers"] == "*"
            assert answer.headers.getall("Vary") == ["Origin"]
            assert "Access-Control-Allow-Credentials" not in answer.headers
        unnamed = await one.api.get(f"{TOPIC}/messages?from=earliest")
        assert unnamed.headers["Vary"] == "Origin", "a cache must not give it to the site"
        assert not cors(unnamed.headers)


async def test_a_stream_says_the_same_in_its_head() -> None:
    async with running(1, allowed_origins=(CONSOLE,)) as one:
        await one.api.put(TOPIC)
        await one.api.put(f"{TOPIC}/subscriptions/s")
        for path in (f"{TOPIC}/messages", f"{TOPIC}/subscriptions/s/stream"):
            for origin, seen in ((CONSOLE, True), (None, False)):
                headers = {"Accept": "text/event-stream", **({"Origin": origin} if origin else {})}
                async with one.api.session.get(one.api.url + path, headers=headers) as answer:
                    assert answer.status == 200
                    assert bool(cors(answer.headers)) is seen
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://other.localhost", "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_no_foreign_page_opens_a_websocket(headers: dict[str, str]) -> None:
    async with running(1, allowed_origins=(CONSOLE,)) as one:
        await one.api.put(TOPIC)
        await one.api.put(f"{TOPIC}/subscriptions/s")
        url = f"{one.api.url}{TOPIC}/subscriptions/s/stream"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await one.api.session.ws_connect(url, headers=headers)
        assert refused.value.status == 403
        assert not cors(refused.value.headers or {})
        async with one.api.session.ws_connect(url, headers={"Origin": CONSOLE}) as socket:
            assert not socket.closed


async def test_pages_do_not_take_the_short_way() -> None:
    """The answer of the fast path lacks these headers."""
    async with running(1, allowed_origins=(CONSOLE,)) as one:
        await one.api.put(TOPIC)
        known = one.servers[0]._short_way._young
        for headers, learnt in ((NAMED, 0), ({"Origin": one.api.url}, 0), ({}, 1)):
            for _ in range(2):
                answer = await one.api.post(
                    f"{TOPIC}/messages", b"hello", headers={**headers, "Content-Type": "text/plain"}
                )
                assert answer.status == 200
                assert bool(cors(answer.headers)) is (headers is NAMED)
            assert len(known) == learnt


@pytest.mark.parametrize(
    "origin", ["*", "null", "", "console.example.com", f"{CONSOLE}/", f"{CONSOLE}/page",
               "https://Console.example.com", "https://", f"{CONSOLE} https://other.example",
               "https://*.example.com", "https://a@b.example", f"{CONSOLE}:0", f"{CONSOLE}\r\nX: y"]
)  # fmt: skip
def test_what_no_browser_sends_cannot_be_named(origin: str) -> None:
    with pytest.raises(BrokerConfigError, match=r"allowed_origins has .* as browsers send it"):
        HttpConfig(allowed_origins=(CONSOLE, origin))


def test_what_browsers_send_can() -> None:
    HttpConfig(allowed_origins=(CONSOLE, "http://localhost:3000", "http://[::1]:80", "app://x"))


# ---- what every answer says


async def calls(one: Running) -> list[tuple[str, aiohttp.ClientResponse]]:
    """Yield the head of an answer of every call; of streams, the first part that comes."""
    await one.api.put(TOPIC)
    await one.api.put(f"{TOPIC}/subscriptions/s")
    found = []
    for route in ROUTES:
        path = route.path
        for name, value in PARTS.items():
            path = path.replace("{" + name + "}", value)
        async with asyncio.timeout(20), one.api.session.request(
            route.method, one.api.url + path, data=b"{}" if route.body else None,
            headers={"Content-Type": "application/json"},
        ) as answer:  # fmt: skip
            found.append((f"{route.method} {route.path}", answer))
    found.append(("nothing", await one.api.session.get(one.api.url + "/nothing")))
    return found


async def test_every_answer_is_kept_from_guesses_caches_and_cookies() -> None:
    async with running(1) as one:
        answers = await calls(one)
        assert len(answers) > len(ROUTES)
        for name, answer in answers:
            assert answer.headers["X-Content-Type-Options"] == "nosniff", name
            assert answer.headers["Server"] == "octavo", name
            if name.startswith("GET") or name == "nothing":
                assert answer.headers["Cache-Control"] == "no-store", name
            assert "Set-Cookie" not in answer.headers, name
            assert not cors(answer.headers), name
            assert "Strict-Transport-Security" not in answer.headers, "it came without TLS"


def test_nothing_sets_a_cookie() -> None:
    """Callers prove themselves with each call, so no page can make a browser do it for them. Should
    that change: HttpOnly, Secure and SameSite=Strict, and a test here that says so."""
    root = Path(octavo.__file__).parent
    folders = [root, *(root / name for name in ("broker", "bookie", "ledger", "metadata"))]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(files) > 200
    for path in files:
        assert not re.search(r"(?i)set[-_]cookie", path.read_text()), path


async def test_the_page_has_its_own_style_and_nothing_else() -> None:
    async with running(1) as one:
        page = await one.api.get("/")
        for name, value in PAGE_HEADERS.items():
            assert page.headers[name] == value
        policy = dict(
            part.strip().split(" ", 1)
            for part in page.headers["Content-Security-Policy"].split(";")
        )
        text = page.body.decode()
        (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert policy == {
            "default-src": "'none'", "style-src": f"'sha256-{digest}'", "base-uri": "'none'",
            "form-action": "'none'", "frame-ancestors": "'none'",
        }  # fmt: skip
        assert not re.search(r"(?i)<script|<img|<link|<form|<iframe|style=|\son\w+=", text)


class Asked(NamedTuple):
    method: str
    headers: Mapping[str, str]
    secure: bool


@pytest.mark.parametrize(
    ("host", "secure", "told"),
    [
        ("octavo.example.com", True, True), ("octavo.example.com:8443", True, True),
        ("octavo.example.com", False, False), ("localhost:8080", True, False),
        ("a.localhost", True, False), ("10.0.0.7:8080", True, False), ("[::1]:8080", True, False),
        ("broker-1:8080", True, False), ("", True, False), ("[::1", True, False),
    ],
)  # fmt: skip
def test_tls_alone_is_demanded_where_a_name_is_the_clusters(
    host: str, secure: bool, told: bool
) -> None:
    page: dict[str, str] = dict(PAGE_HEADERS)
    protect(page, Asked("GET", {"Host": host}, secure), ())
    assert page.get("Strict-Transport-Security") == (f"max-age={HSTS_S}" if told else None)
    answer: dict[str, str] = {}
    protect(answer, Asked("GET", {"Host": host}, secure), ())
    assert "Strict-Transport-Security" not in answer, "programs do not look at it"


# A foreign page could publish, receive, seek and commit through its reader's browser.

PARTS = {
    "namespace": "public", "topic": "one", "partition": "0", "subscription": "s",
    "bulk_load": "t", "batch": "0", "ledger": "1", "entry": "0",
}  # fmt: skip
CHANGES = [route for route in ROUTES if route.method not in ("GET", "HEAD")]
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://[::1"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://other.localhost"},
]


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: f"{route.method} {route.path}")
async def test_no_foreign_page_changes_anything(route) -> None:
    path = route.path
    for name, value in PARTS.items():
        path = path.replace("{" + name + "}", value)
    async with running(1) as one:
        for headers in FOREIGN:
            for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
                answer = await one.api.call(
                    route.method, path, data=b"{}", headers={**headers, "Content-Type": kind}
                )
                assert answer.status == 403, (headers, answer)
                assert answer.json()["code"] == "foreign-origin"
        assert not await one.topics()


async def test_own_pages_named_sites_and_programs_may() -> None:
    async with running(1, allowed_origins=("https://console.example.com",)) as one:
        for headers in (
            {},
            {"Origin": one.api.url},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Sec-Fetch-Site": "cross-site", "Origin": "https://console.example.com"},
        ):
            answer = await one.api.call("PUT", TOPIC, headers=headers)
            assert answer.status in (200, 201), (headers, answer)
        reading = await one.api.call("GET", TOPIC, headers=FOREIGN[0])
        assert reading.status == 200, "without CORS headers its page cannot see the answer"
        assert "Access-Control-Allow-Origin" not in reading.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("192.168.1.9:1", 200),
        ("broker-1:8080", 200), ("a.localhost", 200), ("octavo.example.com", 200),
        ("octavo.example.com.:8080", 200), ("OCTAVO.example.com", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example:8080", 421), ("a.b", 421),
        ("[::1", 421), ("127.0.0.1@evil.example", 421), ("[::1].evil.example", 421),
        ("localhost\\.evil.example", 421), ("localhost#.evil.example", 421), ("a:b", 421),
    ],
)  # fmt: skip
async def test_only_own_names_are_answered(host: str, status: int) -> None:
    async with running(1, allowed_hosts=("Octavo.example.com",)) as one:
        answer = await one.api.call("GET", "/v1/topics/public", headers={"Host": host})
        assert answer.status == status, answer


async def test_what_a_browser_shows_is_not_framed_nor_guessed() -> None:
    async with running(1) as one:
        page = await one.api.get("/")
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["X-Frame-Options"] == "DENY"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        assert (await one.api.get("/nope")).headers["X-Content-Type-Options"] == "nosniff"
