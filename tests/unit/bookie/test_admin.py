"""The admin port: routes, bounded requests, errors as answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bookie import admin as module
from octavo.bookie.admin import AdminServer, flag_of, number_of
from octavo.bookie.metrics import BookieMetrics
from octavo.ledger.rereplication.comparing import ComparingStatus
from octavo.ledger.rereplication.keeper import KeeperStatus
from octavo.process import copies
from octavo.protocol.codes import BookieIOError
from octavo.protocol.numbers import WHOLE_MAX
from tests.support.http_api import until


@pytest.fixture
async def admin() -> AsyncIterator[AdminServer]:
    server = AdminServer(
        BookieMetrics(), lambda: (True, {"bookie_id": "b"}), names=["b1.Example.org"]
    )
    await server.start("127.0.0.1", 0)
    yield server
    server.close()


async def ask(
    server: AdminServer, request: str, headers: str = "", host: str = "Host: b\r\n"
) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{request} HTTP/1.1\r\n{host}{headers}\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert "X-Content-Type-Options: nosniff\r\nCache-Control: no-store" in head
    return int(head.split()[1]), json.loads(body) if body else None


async def test_a_route_answers_json_and_gets_the_query(admin: AdminServer) -> None:
    async def later(query: Mapping[str, str]) -> list[int]:
        await asyncio.sleep(0)
        return [int(query["x"])]

    admin.route("GET", "/plain", lambda query: {"asked": dict(query)}, "a", "b")
    admin.route("POST", "/gc", later, "x")
    assert await ask(admin, "GET /plain?a=1&b=%20c") == (200, {"asked": {"a": "1", "b": " c"}})
    assert await ask(admin, "POST /gc?x=7") == (200, [7])
    assert await ask(admin, "HEAD /plain") == (200, None)


async def test_an_unknown_path_answers_with_what_there_is(admin: AdminServer) -> None:
    admin.route("POST", "/gc", lambda query: None)
    admin.route("GET", "/gc", lambda query: None)
    status, said = await ask(admin, "GET /damaged")
    assert status == 404
    assert said["paths"] == ["GET /gc", "POST /gc", "GET /healthz", "GET /metrics"]
    assert (await ask(admin, "DELETE /gc"))[0] == 405
    assert (await ask(admin, "POST /healthz"))[0] == 405


async def test_a_handler_that_fails_is_an_answer(admin: AdminServer) -> None:
    def refuse(query: Mapping[str, str]) -> None:
        raise BookieIOError("the log is gone")

    admin.route("GET", "/refuse", refuse)
    admin.route("GET", "/number", lambda query: number_of(query, "limit", 1), "limit")
    admin.route("GET", "/wrong", lambda query: 1 // 0)
    status, said = await ask(admin, "GET /refuse")
    assert (status, said["reason"]) == (503, "the log is gone")
    for wrong in ("many", "-1", "007", "%2B7", "1_000", "%D9%A7", "", "9" * 19):
        status, said = await ask(admin, f"GET /number?limit={wrong}")
        assert (status, said["reason"][:6]) == (400, "limit="), wrong
    assert (await ask(admin, "GET /wrong"))[0] == 500
    assert (await ask(admin, "GET /number"))[0] == 200, "the server goes on"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9181", 200), ("10.0.0.7", 200), ("[::1]:9181", 200), ("bookie-1", 200),
        ("b1.example.org:9181", 200), ("B1.example.org.", 200), ("", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("b1@evil.example", 421),
        ("[::1", 421),
    ],
)  # fmt: skip
async def test_only_own_names_are_answered(admin: AdminServer, host: str, status: int) -> None:
    """DNS rebinding: a page under a foreign name that resolves to this host must get nothing."""
    found, said = await ask(admin, "GET /healthz", host=f"Host: {host}\r\n")
    assert found == status, said
    if status == 421:
        assert "advertised_host" in said["reason"]


async def test_who_sends_no_host_is_no_browser(admin: AdminServer) -> None:
    assert (await ask(admin, "GET /healthz", host=""))[0] == 200
    two = "Host: b\r\nHost: evil.example\r\n"
    assert (await ask(admin, "GET /healthz", host=two))[0] == 421


async def test_a_page_in_a_browser_changes_nothing(admin: AdminServer) -> None:
    called: list[int] = []
    admin.route("POST", "/gc", lambda query: called.append(1))
    for headers in ("Origin: http://elsewhere", "Sec-Fetch-Site: cross-site", "origin:null"):
        assert (await ask(admin, "POST /gc", f"{headers}\r\n"))[0] == 403
    assert not called
    assert (await ask(admin, "POST /gc"))[0] == 200
    assert called


async def test_time_bytes_and_connections_are_bounded(
    admin: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REQUEST_S_MAX", 0.1)
    monkeypatch.setattr(module, "_CONNECTIONS_MAX", 2)
    admin.route("GET", "/slow", lambda query: asyncio.sleep(60))
    idle, idle_writer = await asyncio.open_connection("127.0.0.1", admin.port)
    slow, slow_writer = await asyncio.open_connection("127.0.0.1", admin.port)
    slow_writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
    third, third_writer = await asyncio.open_connection("127.0.0.1", admin.port)
    for reader in (third, idle, slow):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    for writer in (idle_writer, slow_writer, third_writer):
        writer.close()
    assert (await ask(admin, "GET /healthz"))[0] == 200


async def test_silent_connections_keep_no_probe_out(
    admin: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client's 64 idle connections took up all places."""
    monkeypatch.setattr(module, "_CONNECTIONS_MAX", 6)
    monkeypatch.setattr(module, "_CONNECTIONS_OF_ADDRESS_MAX", 4)
    silent = [await asyncio.open_connection("127.0.0.1", admin.port) for _ in range(12)]
    for _ in range(5):
        assert (await ask(admin, "GET /healthz"))[0] == 200
    assert admin.describe()["connections"] <= 4
    for reader, _ in silent[:8]:
        assert await asyncio.wait_for(_ended(reader), 5)
    for _, writer in silent:
        writer.close()
    await until(lambda: admin.describe() == {"connections": 0, "silent": 0})


async def test_of_connections_that_are_answered_none_is_cut_off(
    admin: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECTIONS_MAX", 2)
    go_on = asyncio.Event()
    admin.route("GET", "/slow", lambda query: go_on.wait())
    asked = [asyncio.create_task(ask(admin, "GET /slow")) for _ in range(2)]
    await until(lambda: admin.describe() == {"connections": 2, "silent": 0})
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    go_on.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_a_wrong_parameter_is_named(admin: AdminServer) -> None:
    admin.route("POST", "/gc", lambda query: flag_of(query, "major"), "minor", "major")
    admin.route("GET", "/bare", lambda query: None)
    for query, said in {
        "limt=5": "no parameter 'limt': it may be minor, major",
        "major=1&major=0": "major is there twice",
        "major=true": "major='true': it must be 1 (yes) or 0 (no)",
        "major": "it must be 1 (yes) or 0 (no)",
    }.items():
        status, found = await ask(admin, f"POST /gc?{query}")
        assert (status, said in found["reason"]) == (400, True), found
    status, found = await ask(admin, "GET /bare?x=1")
    assert (status, "takes none" in found["reason"]) == (400, True), found
    for query, major in {"": False, "?major=0": False, "?major=1": True}.items():
        assert await ask(admin, f"POST /gc{query}") == (200, major)


async def test_a_mistake_in_a_handler_is_no_mistake_of_the_caller(admin: AdminServer) -> None:
    admin.route("GET", "/wrong", lambda query: int("seven"))
    assert (await ask(admin, "GET /wrong"))[0] == 500


async def test_the_entries_to_compare_make_sense(admin: AdminServer) -> None:
    doubted: list[tuple[int, int, int]] = []
    keeper: Any = SimpleNamespace(
        status=KeeperStatus(), walk_now=lambda: doubted.append((-1, 0, 0))
    )
    comparer: Any = SimpleNamespace(
        status=ComparingStatus(), doubt=lambda *about: doubted.append(about)
    )
    node: Any = SimpleNamespace(admin=admin, metrics=BookieMetrics())
    copies._expose(node, keeper, comparer)
    for query, said in {
        "ledger=x": "ledger='x'",
        "ledger=7&first=9&last=8": "first=9 is above last=8",
        "first=1": "add ledger=ID",
        "last=1": "add ledger=ID",
        "ledgr=7": "it may be ledger, first, last, limit",
    }.items():
        status, found = await ask(admin, f"POST /copies?{query}")
        assert (status, said in found["reason"]) == (400, True), found
    assert not doubted
    for query in ("ledger=7", "ledger=7&first=2&last=3", ""):
        assert (await ask(admin, f"POST /copies?{query}"))[0] == 200
    assert doubted == [(7, 0, WHOLE_MAX), (7, 2, 3), (-1, 0, 0)]
