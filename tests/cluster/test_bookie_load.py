"""A bookie under overload reads less, and refuses and loses nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.node import BookieNode
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
    entry_of,
    on_both_loops,
    running_bookie,
    until,
)

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
event_loop_policy = on_both_loops

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
