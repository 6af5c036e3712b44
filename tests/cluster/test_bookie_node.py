"""The life of a bookie: restart, identity, registration, overload, failure, orderly stop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfigError
from octavo.bookie.disk.files import DiskFull, SyncFailed
from octavo.bookie.ledgers.cookies import CookieRefused, FolderUnusable
from octavo.bookie.node import BookieNode
from octavo.bookie.wire.listener import Listener, ListenFailed
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.cookie import decode_cookie
from octavo.metadata.store import MetadataStore
from octavo.protocol.answers import ReadAnswer
from octavo.protocol.codes import Code
from octavo.protocol.extension import Op, encode_request
from octavo.protocol.frames import Flag, read_request
from tests.support.raw_bookie import (
    KEY,
    RawClient,
    TroubledDisk,
    add_of,
    adds_of,
    config_in,
    entry_of,
    new_node,
    on_both_loops,
    open_metadata,
    running_bookie,
    tell_read_only,
    until,
)

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
event_loop_policy = on_both_loops

RECOVERY = int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY | Flag.CRC32C)


async def registered(store: MetadataStore) -> dict[str, BookieInfo]:
    return await BookieRegistry(store).available()


async def until_registered(store: MetadataStore, *, read_only: bool) -> BookieInfo:
    async with asyncio.timeout(20):
        while True:
            info = (await registered(store)).get("bookie-1")
            if info is not None and info.read_only == read_only:
                return info
            await asyncio.sleep(0.01)


async def refusal(folder: Path, kind: type[BaseException], **how: object) -> str:
    with pytest.raises(kind) as refused:
        async with running_bookie(folder, **how):  # type: ignore[arg-type]
            pass
    return str(refused.value)


async def test_restart_keeps_data_fence_and_key(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        client.send(adds_of(1, range(500)) + adds_of(2, range(5)))
        await client.acked(505)
        assert await client.fence(1) == entry_of(1, 499)
        assert await client.fence(3) is Code.NO_ENTRY
        before = bookie.incarnation
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        assert bookie.incarnation == before
        assert await client.read(1, 0) == entry_of(1, 0)
        assert await client.read(1, -1) == entry_of(1, 499)
        assert await client.add(add_of(1, 500)) is Code.FENCED
        assert await client.add(add_of(3, 0)) is Code.FENCED
        assert await client.add(add_of(2, 5, key=b"x" * 20)) is Code.UNAUTHORIZED
        assert await client.add(add_of(2, 5)) is Code.OK
        client.close()


async def test_stop_answers_what_was_read_and_ends_connections(tmp_path: Path) -> None:
    disk = TroubledDisk()
    gate = threading.Event()
    gate.set()
    disk.hook = lambda call, path: (gate.wait(10), None)[1] if call == "datasync" else None
    async with open_metadata(tmp_path) as store:
        node = new_node(config_in(tmp_path), store, disk)
        await node.start()
        client = await RawClient.connect(node)
        gate.clear()
        client.send(adds_of(1, range(100)))
        await until(lambda: node.storage.pending_add_bytes)
        stopping = asyncio.ensure_future(node.stop())
        listener = node.server._listener
        assert isinstance(listener, Listener)
        await until(lambda: not listener._sockets.is_serving())
        gate.set()
        assert len(await client.acked(100)) == 100
        assert await client.is_closed()
        await stopping
        assert await registered(store) == {}
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(node)


async def test_stop_ends_parked_long_polls(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        await client.add(add_of(1, 0))
        waiting = asyncio.ensure_future(
            client.call(Op.WAIT_LAC, ledger=1, after=7, timeout_ms=60_000)
        )
        await until(lambda: bookie.server.requests._parked)
        await asyncio.wait_for(bookie.stop(), 10)
        assert (await waiting).body == {"lac": -1}


async def test_first_start_stamps_every_folder_and_metadata(tmp_path: Path) -> None:
    async with open_metadata(tmp_path) as store:
        node = new_node(
            config_in(tmp_path, ledger_directories=(f"{tmp_path}/a", f"{tmp_path}/b")), store
        )
        await node.start()
        await node.stop()
        recorded, _ = await BookieRegistry(store).read_cookie("bookie-1")
        assert recorded.incarnation == node.incarnation
        for folder in ("journal", "a", "b"):
            assert decode_cookie((tmp_path / folder / "VERSION").read_bytes()) == recorded


async def test_folder_of_another_bookie_is_refused(tmp_path: Path) -> None:
    async with running_bookie(tmp_path):
        pass
    message = await refusal(tmp_path, CookieRefused, bookie_id="bookie-2")
    assert "belongs to bookie bookie-1" in message
    assert "bookie-2" in message


async def test_folder_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with running_bookie(tmp_path / "data", metadata=tmp_path / "one"):
        pass
    message = await refusal(tmp_path / "data", CookieRefused, metadata=tmp_path / "two")
    assert "instance id" in message


@pytest.mark.parametrize("lost", ["journal", "ledgers"])
async def test_wiped_folder_is_refused(tmp_path: Path, lost: str) -> None:
    """It would deny entries that it has acked."""
    async with running_bookie(tmp_path):
        pass
    os.rename(tmp_path / lost, tmp_path / "away")
    message = await refusal(tmp_path, CookieRefused)
    assert f"{tmp_path}/{lost} carries no cookie" in message
    assert "its data is missing" in message
    shutil.rmtree(tmp_path / lost)
    os.rename(tmp_path / "away", tmp_path / lost)
    async with running_bookie(tmp_path):
        pass


async def test_changed_folders_are_refused(tmp_path: Path) -> None:
    async with running_bookie(tmp_path):
        pass
    folders = (f"{tmp_path}/ledgers", f"{tmp_path}/more")
    message = await refusal(tmp_path, CookieRefused, ledger_directories=folders)
    assert "Configure it as it was" in message


async def test_a_folder_is_added_to_a_bookie_that_has_data(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        client.send(adds_of(1, range(50)))
        await client.acked(50)
        before = bookie.incarnation
    folders = (f"{tmp_path}/ledgers", f"{tmp_path}/more")
    message = await refusal(tmp_path, CookieRefused, ledger_directories=folders)
    assert "--accept-new-folders" in message
    for accept in (True, False):
        async with running_bookie(
            tmp_path, ledger_directories=folders, accept_new_folders=accept
        ) as bookie:
            assert bookie.incarnation == before
            client = await RawClient.connect(bookie)
            assert await client.read(1, 49) == entry_of(1, 49)
    stamps = {decode_cookie((Path(one) / "VERSION").read_bytes()) for one in folders}
    assert [stamp.ledger_dirs for stamp in stamps] == [folders]
    assert (tmp_path / "more" / "journal.mark").exists(), "it is in use"


async def test_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    (tmp_path / "ledgers" / "holiday.jpg").write_bytes(b"x")
    message = await refusal(tmp_path, CookieRefused)
    assert "not empty and carries no cookie" in message


async def test_removed_cookie_in_metadata_is_refused(tmp_path: Path) -> None:
    async with running_bookie(tmp_path / "data", metadata=tmp_path):
        pass
    async with open_metadata(tmp_path) as store:
        await BookieRegistry(store).delete_cookie("bookie-1", 0)
    message = await refusal(tmp_path / "data", CookieRefused, metadata=tmp_path)
    assert "metadata has no cookie" in message


async def test_interrupted_stamping_is_repeated(tmp_path: Path) -> None:
    """Folders with only a cookie have promised nothing yet."""
    async with open_metadata(tmp_path) as store:
        node = new_node(config_in(tmp_path), store)
        await node.start()
        await node.stop()
        await BookieRegistry(store).delete_cookie("bookie-1", 0)
    for folder in ("journal", "ledgers"):
        cookie = (tmp_path / folder / "VERSION").read_bytes()
        shutil.rmtree(tmp_path / folder)
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "VERSION").write_bytes(cookie)
    os.unlink(tmp_path / "ledgers" / "VERSION")
    async with running_bookie(tmp_path) as bookie:
        assert bookie.incarnation


async def test_damaged_cookie_is_refused(tmp_path: Path) -> None:
    async with running_bookie(tmp_path):
        pass
    (tmp_path / "ledgers" / "VERSION").write_bytes(b"\x00\xff")
    assert "VERSION is damaged" in await refusal(tmp_path, CookieRefused)


async def test_two_bookies_on_one_folder(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, metadata=tmp_path / "m") as bookie:
        message = await refusal(tmp_path, FolderUnusable, metadata=tmp_path / "m2")
        assert f"held by process {os.getpid()}" in message
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        client.close()


async def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    message = await refusal(tmp_path, FolderUnusable, journal_directories=(f"{tmp_path}/file/j",))
    assert f"{tmp_path}/file/j" in message
    assert "must be able to write" in message
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        folder = f"{tmp_path}/locked/j"
        message = await refusal(tmp_path, FolderUnusable, journal_directories=(folder,))
        assert "Permission denied" in message


async def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = await refusal(tmp_path, ListenFailed, port=port)
        assert f"port {port}" in message
        assert "in use" in message
    assert not (tmp_path / "journal").exists(), "found before anything was touched"


async def test_address_of_another_machine(tmp_path: Path) -> None:
    message = await refusal(tmp_path, ListenFailed, host="203.0.113.7")
    assert "not an address of this machine" in message


def test_senseless_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(BookieConfigError, match="journal_directories"):
        config_in(tmp_path, journal_directories=())
    with pytest.raises(BookieConfigError, match="absolute"):
        config_in(tmp_path, ledger_directories=("relative",))
    with pytest.raises(BookieConfigError, match="advertised_host"):
        config_in(tmp_path, host="0.0.0.0")
    with pytest.raises(BookieConfigError, match="write_cache_bytes_max"):
        config_in(tmp_path, write_cache_bytes_max=0)


async def test_registration_carries_address_rack_and_incarnation(tmp_path: Path) -> None:
    async with (
        running_bookie(tmp_path / "b", metadata=tmp_path, rack="/dc1/r7") as bookie,
        open_metadata(tmp_path) as store,
    ):
        info = (await registered(store))["bookie-1"]
        assert (info.host, info.port, info.read_only) == ("127.0.0.1", bookie.port, False)
        assert info.properties["rack"] == "/dc1/r7"
        assert info.incarnation == bookie.incarnation


async def test_told_read_only(tmp_path: Path) -> None:
    async with open_metadata(tmp_path) as store:
        node = new_node(config_in(tmp_path, read_only=True), store)
        await node.start()
        client = await RawClient.connect(node)
        info = (await registered(store))["bookie-1"]
        assert info.read_only
        assert info.read_only_because == "the setting bookie.read_only says so"
        assert await client.add(add_of(1, 0)) is Code.READ_ONLY
        assert await client.add(add_of(1, 0, flags=0)) is Code.READ_ONLY
        assert await client.add(add_of(1, 0, flags=RECOVERY)) is Code.OK
        assert await client.read(1, 0) == entry_of(1, 0)
        tell_read_only(node, False)
        await until_registered(store, read_only=False)
        assert await client.add(add_of(1, 1)) is Code.OK
        client.close()
        await node.stop()


async def test_short_of_space_turns_read_only_and_back_by_itself(tmp_path: Path) -> None:
    disk = TroubledDisk()
    limits = {
        "disk_free_bytes_min": 1000,
        "disk_free_bytes_resume": 2000,
        "disk_free_bytes_reserve": 100,
        "disk_check_interval_ms": 10,
    }
    async with open_metadata(tmp_path) as store:
        node = new_node(config_in(tmp_path, **limits), store, disk)
        await node.start()
        client = await RawClient.connect(node)
        assert await client.add(add_of(1, 0)) is Code.OK
        disk.free = 999
        info = await until_registered(store, read_only=True)
        for told in (str(tmp_path), "has 999 of", "bookie.disk_free_bytes_min (1,000)"):
            assert told in info.read_only_because, info
        assert await client.add(add_of(1, 1)) is Code.READ_ONLY
        assert await client.add(add_of(1, 1, flags=RECOVERY)) is Code.OK
        assert await client.fence(2) is Code.NO_ENTRY, "fencing needs next to no space"
        disk.free = 1999
        await asyncio.sleep(0.05)
        assert node.read_only, "not before there is some room again"
        disk.free = 99
        await until(lambda: not node.server.takes_recovery_adds)
        assert await client.add(add_of(1, 2, flags=RECOVERY)) is Code.READ_ONLY
        disk.free = 2000
        info = await until_registered(store, read_only=False)
        assert not info.read_only_because
        assert await client.add(add_of(1, 2)) is Code.OK
        assert (await client.call(Op.NODE_INFO)).body["free_bytes"] == 2000
        client.close()
        await node.stop()


async def test_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    disk = TroubledDisk()
    full = threading.Event()

    def hook(call: str, path: str) -> None:
        if full.is_set() and call in ("pwritev", "preallocate"):
            raise DiskFull(f"{call} {path}: no space left")

    disk.hook = hook
    async with running_bookie(tmp_path, disk=disk, disk_check_interval_ms=10) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        full.set()
        assert await client.add(add_of(1, 1)) is Code.READ_ONLY
        await until(lambda: bookie.read_only)
        assert await client.read(1, 0) == entry_of(1, 0)
        full.clear()
        await until(lambda: not bookie.read_only)
        assert await client.add(add_of(1, 1)) is Code.OK
        client.close()


async def test_failed_sync_ends_the_node_and_acks_nothing(tmp_path: Path) -> None:
    disk = TroubledDisk()

    def hook(call: str, path: str) -> None:
        if call == "datasync":
            raise SyncFailed(f"fdatasync {path}: input/output error")

    async with running_bookie(tmp_path, disk=disk) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        disk.hook = hook
        client.send(add_of(1, 1))
        answers = await client.answers_until_closed()
        assert all(getattr(answer, "code", Code.OK) == Code.IO for answer in answers)
        with pytest.raises(SyncFailed):
            await asyncio.wait_for(asyncio.shield(bookie.failed), 10)
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(bookie)
        disk.hook = lambda call, path: None


async def http(port: int, request: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer.decode()


async def test_metrics_and_health_over_http(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, admin_port=0) as bookie:
        port = bookie.admin.port
        answer = await http(port, "GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
        assert answer.startswith("HTTP/1.1 200 OK\r\n")
        assert "\noctavo_bookie_read_only 0.0\n" in answer
        answer = await http(port, "GET /healthz HTTP/1.1\r\n\r\n")
        assert answer.startswith("HTTP/1.1 200 OK\r\n")
        assert json.loads(answer.partition("\r\n\r\n")[2])["bookie_id"] == "bookie-1"
        assert "404" in await http(port, "GET /../etc/passwd HTTP/1.1\r\n\r\n")
        assert "405" in await http(port, "DELETE /metrics HTTP/1.1\r\n\r\n")
        assert await http(port, "x" * 20_000) == ""
        message = await refusal(tmp_path / "2", ListenFailed, admin_port=port)
        assert f"port {port}" in message


async def test_each_request_to_the_side_port_checks_its_parameters(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, admin_port=0) as bookie:
        admin = bookie.admin
        asked = [
            (method, path, one) for (method, path), (_, of) in admin._routes.items() for one in of
        ]
        assert {path for _, path, _ in asked} >= {"/ledgers", "/damage", "/gc"}
        for method, path, name in asked:
            for wrong in ("many", "-1", "1e3", "%2B1", ""):
                request = f"{method} {path}?{name}={wrong} HTTP/1.1\r\n\r\n"
                answer = await http(admin.port, request)
                assert answer.startswith("HTTP/1.1 400 "), request
                assert name in json.loads(answer.partition("\r\n\r\n")[2])["reason"]
        for method, path in admin._routes:
            answer = await http(admin.port, f"{method} {path}?nothing=1 HTTP/1.1\r\n\r\n")
            assert answer.startswith("HTTP/1.1 400 "), path
            assert "'nothing'" in json.loads(answer.partition("\r\n\r\n")[2])["reason"]
            answer = await http(admin.port, f"{method} {path} HTTP/1.1\r\n\r\n")
            assert answer.startswith("HTTP/1.1 200 "), path


async def test_health_says_why_a_bookie_failed(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, admin_port=0) as bookie:
        bookie._fail(SyncFailed("fdatasync /x: input/output error"))
        answer = await http(bookie.admin.port, "GET /healthz HTTP/1.1\r\n\r\n")
        assert answer.startswith("HTTP/1.1 503 ")
        assert "input/output error" in answer


KIB = 1024
MIB = 1024 * KIB


def slow_syncs(delay_s: float) -> TroubledDisk:
    disk = TroubledDisk()
    disk.hook = lambda call, path: time.sleep(delay_s) if call == "datasync" else None
    return disk


def sample(bookie: BookieNode, name: str, **labels: str) -> float:
    return bookie.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_slow_disk_bounds_memory_and_refuses_nothing(tmp_path: Path) -> None:
    count, payload = 5000, b"x" * 1000
    bounds: dict[str, Any] = {
        "scratch_bytes": 64 * KIB,
        "connection_add_bytes_max": 256 * KIB,
        "journal_queue_bytes_max": 512 * KIB,
        "journal_group_bytes_max": 256 * KIB,
        "write_cache_bytes_max": 512 * KIB,
    }
    async with running_bookie(tmp_path, disk=slow_syncs(0.005), **bounds) as bookie:
        clients = [await RawClient.connect(bookie) for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(adds_of(number, range(count), payload))
        acked = asyncio.gather(*(client.acked(count) for client in clients))
        pending_max = cached_max = 0
        while not acked.done():
            pending_max = max(pending_max, bookie.storage.pending_add_bytes)
            cache = bookie.storage._cache
            flushing = cache.flushing.bytes if cache.flushing else 0
            cached_max = max(cached_max, cache.active.bytes + flushing)
            await asyncio.sleep(0.001)
        for number, found in enumerate(await acked):
            assert found == [(number, i) for i in range(count)]
        # Data that was read before the pressure came is still taken: one chunk per connection.
        slack = 4 * bounds["scratch_bytes"]
        assert pending_max <= bounds["journal_queue_bytes_max"] + slack
        # A half may exceed its bound by the group that filled it.
        half_max = bounds["write_cache_bytes_max"] + bounds["journal_group_bytes_max"]
        assert cached_max <= 2 * half_max + bounds["journal_queue_bytes_max"] + 2 * slack
        assert sample(bookie, "octavo_bookie_read_pauses_total", reason="STORAGE") > 0
        assert sample(bookie, "octavo_bookie_adds_refused_total", code="TOO_MANY_REQUESTS") == 0
        for number, client in enumerate(clients):
            assert (await client.call(Op.LIST_ENTRIES, ledger=number)).body["runs"] == [
                [0, count - 1]
            ]
            assert await client.read(number, 1234) == entry_of(number, 1234, payload)
            client.close()


async def test_twenty_thousand_adds_in_flight_on_one_ledger(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, disk=slow_syncs(0.05)) as bookie:
        client = await RawClient.connect(bookie)
        client.send(adds_of(1, range(20_000), b"x" * 100))
        assert len(await client.acked(20_000)) == 20_000
        client.close()


async def test_one_greedy_connection_does_not_starve_another(tmp_path: Path) -> None:
    async with running_bookie(
        tmp_path, disk=slow_syncs(0.01), connection_add_bytes_max=128 * KIB, scratch_bytes=32 * KIB
    ) as bookie:
        greedy, modest = await RawClient.connect(bookie), await RawClient.connect(bookie)
        greedy.send(adds_of(1, range(8_000), b"x" * 1000))
        await until(lambda: bookie.storage.pending_add_bytes)
        for entry_id in range(5):
            assert await modest.add(add_of(2, entry_id)) is Code.OK
        assert sample(bookie, "octavo_bookie_read_pauses_total", reason="ADDS") > 0
        assert sample(bookie, "octavo_bookie_adds_total") < 8_000, "the greedy one is not done yet"
        assert len(await greedy.acked(8_000)) == 8_000
        greedy.close()
        modest.close()


async def test_reads_do_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    disk = TroubledDisk()
    gate = threading.Event()
    gate.set()
    disk.hook = lambda call, path: (gate.wait(20), None)[1] if call == "datasync" else None
    bounds: dict[str, Any] = {"journal_queue_bytes_max": 64 * KIB, "scratch_bytes": 32 * KIB}
    async with running_bookie(tmp_path, disk=disk, **bounds) as bookie:
        writer, reader = await RawClient.connect(bookie), await RawClient.connect(bookie)
        assert await writer.add(add_of(1, 0)) is Code.OK
        gate.clear()
        try:
            writer.send(adds_of(1, range(1, 2000), b"x" * 1000))
            await until(lambda: bookie.server.pressure)
            assert await reader.read(1, 0) == entry_of(1, 0)
            assert (await reader.call(Op.READ_LAC, ledger=1)).body["lac"] == -1
            assert await reader.read(1, 1) is Code.NO_ENTRY, "not durable, so not readable"
        finally:
            gate.set()
        assert len(await writer.acked(1999)) == 1999
        writer.close()
        reader.close()


async def test_peer_that_takes_no_answers_is_not_read(tmp_path: Path) -> None:
    count, payload = 2000, bytes(64 * KIB)
    async with running_bookie(tmp_path, connection_answer_bytes_max=MIB) as bookie:
        client = await RawClient.connect(bookie, limit=4 * KIB)
        other = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0, payload)) is Code.OK
        client._reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(read_request(1, 0) * count)
        await until(lambda: sample(bookie, "octavo_bookie_read_pauses_total", reason="ANSWERS"))
        [slow] = [c for c in bookie.server._connections if c.flow.pauses]
        for _ in range(20):
            assert await other.read(1, 0) == entry_of(1, 0, payload)
            unsent = slow._transport.get_write_buffer_size()  # type: ignore[union-attr]
            assert unsent <= MIB + 33 * len(payload)
        client._reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(count):
            answer = await client.answer()
            assert isinstance(answer, ReadAnswer)
            assert len(answer.entry) == len(payload) + 36
        client.close()
        other.close()


async def test_peer_that_never_takes_its_answers_is_cut_off(tmp_path: Path) -> None:
    payload = bytes(256 * KIB)
    bounds: dict[str, Any] = {"connection_answer_bytes_max": 64 * KIB, "answer_stall_ms_max": 200}
    async with running_bookie(tmp_path, **bounds) as bookie:
        client = await RawClient.connect(bookie, limit=4 * KIB)
        assert await client.add(add_of(1, 0, payload)) is Code.OK
        client._reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(read_request(1, 0) * 200)
        await until(lambda: sample(bookie, "octavo_bookie_connections") == 0)
        again = await RawClient.connect(bookie)
        assert await again.read(1, 0) == entry_of(1, 0, payload)
        again.close()
        client.close()


@pytest.mark.parametrize(
    "request_frame",
    [
        read_request(1, 0, Flag.FENCE | Flag.HIGH_PRIORITY, KEY),
        read_request(1, 0, Flag.HIGH_PRIORITY),
        encode_request(Op.READ_LAC, 1, {"ledger": 1}),
    ],
    ids=["fence", "priority", "extension"],
)
async def test_what_overtakes_reads_is_bounded_too(tmp_path: Path, request_frame: bytes) -> None:
    payload = bytes(64 * KIB)
    async with running_bookie(tmp_path, connection_answer_bytes_max=MIB) as bookie:
        client = await RawClient.connect(bookie, limit=4 * KIB)
        assert await client.add(add_of(1, 0, payload)) is Code.OK
        [connection] = bookie.server._connections
        client._reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(request_frame * 2000)
        await until(lambda: sample(bookie, "octavo_bookie_read_pauses_total", reason="ANSWERS"))
        for _ in range(50):
            await asyncio.sleep(0)
            unsent = connection._transport.get_write_buffer_size()  # type: ignore[union-attr]
            assert unsent <= MIB + 100 * len(payload)
        client._reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2000):
            await client.answer()
        client.close()


async def test_many_reads_in_flight_are_all_answered(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, connection_reads_max=16) as bookie:
        client = await RawClient.connect(bookie)
        client.send(adds_of(1, range(100)))
        await client.acked(100)
        for entry_id in range(5000):
            client.send(read_request(1, entry_id % 100))
        found = [await client.answer() for _ in range(5000)]
        assert {(a.entry_id, a.entry) for a in found if isinstance(a, ReadAnswer)} == {
            (i, entry_of(1, i)) for i in range(100)
        }
        assert sample(bookie, "octavo_bookie_read_pauses_total", reason="READS") > 0
        client.close()


async def test_peers_that_vanish_in_the_middle(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, disk=slow_syncs(0.02)) as bookie:
        for start in range(0, 100, 10):
            client = await RawClient.connect(bookie)
            client.send(adds_of(1, range(start, start + 10)) + add_of(1, 1000)[:40])
            client.send(b"")
            await until(lambda: bookie.storage.pending_add_bytes)
            client.writer.transport.abort()
        waiter = await RawClient.connect(bookie)
        waiter.send(encode_request(Op.WAIT_LAC, 1, {"ledger": 1, "after": 10**6}))
        await until(lambda: bookie.server.requests._parked)
        waiter.writer.transport.abort()
        await until(lambda: sample(bookie, "octavo_bookie_connections") == 0)
        await until(lambda: not bookie.storage.pending_add_bytes)
        assert bookie.server.requests._parked == {}
        client = await RawClient.connect(bookie)
        assert (await client.call(Op.LIST_ENTRIES, ledger=1)).body["runs"] == [[0, 99]]
        client.close()


async def test_vanished_peers_are_found_by_keep_alive(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, keepalive_ms=30_000) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 0)) is Code.OK
        [connection] = bookie.server._connections
        assert connection._transport is not None
        with socket.socket(
            fileno=os.dup(connection._transport.get_extra_info("socket").fileno())
        ) as s:
            assert s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.close()
