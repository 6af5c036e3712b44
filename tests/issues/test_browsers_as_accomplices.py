"""A foreign page could publish, receive, seek and commit through its reader's browser."""

from __future__ import annotations

import pytest

from octavo.broker.http.routes import ROUTES
from tests.support.fake_broker import running

TOPIC = "/v1/topics/public/one"
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
        assert not one.cluster.topics


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
