"""A bookie's admin port, metrics and messages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bookie import admin as module
from octavo.bookie.admin import AdminServer, flag_of, number_of
from octavo.bookie.disk.files import DiskFull, RealDisk
from octavo.bookie.disk.space import disk_is_short, has_changed
from octavo.bookie.gc.rules import Action, Decision, LogFacts
from octavo.bookie.gc.status import CollectorStatus
from octavo.bookie.metrics import BookieMetrics
from octavo.ledger.rereplication.comparing import ComparingStatus
from octavo.ledger.rereplication.keeper import KeeperStatus
from octavo.process import copies
from octavo.protocol.codes import BookieIOError
from octavo.protocol.numbers import WHOLE_MAX
from tests.support.http_api import until
from tests.support.storage_support import CONFIG, Bench, make_run


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


# Metrics of a bookie's writes: groups, queue, syncs, flushes, and where its bytes are.
def value(metrics: BookieMetrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, labels)
    assert found is not None, (name, labels)
    return found


def observed(bench: Bench) -> BookieMetrics:
    metrics = BookieMetrics()
    metrics.writing.observe(bench.storage.write_stats)
    return metrics


async def test_a_group_tells_its_size_its_appends_and_its_wait() -> None:
    bench = Bench()
    async with bench:
        metrics = observed(bench)
        runs = [make_run(1, number, [b"x" * 100]) for number in range(3)]
        await asyncio.gather(*(bench.send(run) for run in runs))
        assert value(metrics, "octavo_bookie_group_appends_sum") == 3
        assert value(metrics, "octavo_bookie_group_bytes_sum") == sum(
            len(run.frames) for run in runs
        )
        groups = value(metrics, "octavo_bookie_group_seconds_count")
        assert value(metrics, "octavo_bookie_queue_seconds_count") == groups
        bench.disk.hook = lambda call, path: _dawdle(call)
        slow = bench.send(make_run(1, 3, [b"slow"]))
        await asyncio.sleep(0.02)
        await asyncio.gather(slow, bench.send(make_run(1, 4, [b"waits for it"])))
        assert value(metrics, "octavo_bookie_queue_seconds_sum") > 0.05, (
            "the second waited for the first"
        )


def _dawdle(call: str) -> None:
    if call == "datasync":
        time.sleep(0.1)


async def test_bytes_move_from_journal_and_cache_to_the_logs() -> None:
    bench = Bench()
    empty = BookieMetrics()
    assert empty.registry.get_sample_value("octavo_bookie_bytes", {"state": "journal"}) is None
    async with bench:
        metrics = observed(bench)
        assert value(metrics, "octavo_bookie_bytes", state="journal") == 0
        await bench.add(1, 0, b"x" * 1000)
        assert value(metrics, "octavo_bookie_bytes", state="journal") > 1000
        assert value(metrics, "octavo_bookie_bytes", state="write_cache") > 1000
        await bench.storage.checkpoint()
        assert value(metrics, "octavo_bookie_bytes", state="journal") == 0
        assert value(metrics, "octavo_bookie_bytes", state="write_cache") == 0
        assert value(metrics, "octavo_bookie_flush_bytes_sum") > 1000
        assert value(metrics, "octavo_bookie_flush_seconds_count") == 1
        await bench.add(1, 1, b"y")
        assert 0 < value(metrics, "octavo_bookie_bytes", state="journal") < 1000


async def test_a_flush_that_failed_leaves_the_bytes_to_the_journal() -> None:
    bench = Bench(replace(CONFIG, entry_log_bytes_max=10**6))
    async with bench:
        metrics = observed(bench)
        await bench.add(1, 0, b"x" * 1000)
        bench.disk.capacity = bench.disk.used
        with pytest.raises(DiskFull):
            await bench.storage.checkpoint()
        before = value(metrics, "octavo_bookie_bytes", state="journal")
        assert before > 1000
        assert value(metrics, "octavo_bookie_bytes", state="flushing") > 1000
        bench.disk.capacity = 2**40
        await bench.add(1, 1, b"later")
        await bench.storage.checkpoint()  # the checkpoint that had failed: later adds are not in it
        assert 0 < value(metrics, "octavo_bookie_bytes", state="journal") < before
        await bench.storage.checkpoint()
        assert value(metrics, "octavo_bookie_bytes", state="journal") == 0


def test_entry_logs_are_told_apart_after_a_round() -> None:
    metrics, status = BookieMetrics(), CollectorStatus()
    metrics.garbage(status)
    assert (
        metrics.registry.get_sample_value("octavo_bookie_bytes", {"state": "entry_logs_live"})
        is None
    )
    status.begin(1)
    status.planned(
        [LogFacts(1, 1000, 300, False), LogFacts(2, 500, 500, True)],
        [Decision(1, Action.REWRITE, ""), Decision(2, Action.KEEP, "")],
    )
    status.end(0.1)
    assert value(metrics, "octavo_bookie_bytes", state="entry_logs_live") == 800
    assert value(metrics, "octavo_bookie_bytes", state="entry_logs_dead") == 700


def test_syncs_are_told_by_what_was_synced(tmp_path: Path) -> None:
    disk, metrics = RealDisk(), BookieMetrics()
    metrics.writing.observe_disk(disk)
    for name in ("1.journal", "journal.spare", "1.log", "1.state", "journal.mark.new", "VERSION"):
        file = disk.open(str(tmp_path / name), create=True)
        file.datasync()
        file.close()
    counts = {
        of: value(metrics, "octavo_bookie_sync_seconds_count", of=of)
        for of in ("journal", "entry_log", "ledger_state", "mark", "other")
    }
    assert counts == {"journal": 2, "entry_log": 1, "ledger_state": 1, "mark": 1, "other": 1}


# The message about short space names the folder, its free bytes and the threshold.
ROOM = {"/journal": (900, 1000), "/ledgers": (7, 1000)}


def test_the_folder_with_the_least_room_is_named_with_the_threshold() -> None:
    said = disk_is_short(ROOM, 10, 20, write_failed=False)
    assert said.startswith("disk full: /ledgers has 7 of 1,000 bytes free, fewer than")
    assert "bookie.disk_free_bytes_min (10)" in said
    assert "bookie.disk_free_bytes_resume (20) free" in said


def test_a_write_that_found_no_room_is_told_apart() -> None:
    said = disk_is_short(ROOM, 5, 6, write_failed=True)
    assert "/ledgers has 7 of 1,000 bytes free, and a write found no room all the same" in said


def test_free_space_is_told_anew_when_placement_should_know() -> None:
    assert has_changed(500, 450, 1000), "a twentieth of all"
    assert not has_changed(500, 451, 1000)
    assert has_changed(500, 550, 1000), "also when it is more"
    assert has_changed(20, 10, 1000), "half of the little that was left"
    assert not has_changed(20, 11, 1000)
    assert has_changed(10, 20, 1000), "twice as much"
    assert not has_changed(0, 0, 1000)
    assert not has_changed(0, 0, 0), "a folder that cannot be read"
    assert not has_changed(100, 300, 1_000_000), "too little of all to matter"
