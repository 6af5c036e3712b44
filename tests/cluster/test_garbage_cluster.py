"""A deleted ledger leaves the disks of real bookies, while others read and write."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from octavo.ledger.write.writer import LedgerWriter
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.storage_support import eventually

SIZE = 4000
COUNT = 100
LIMITS: dict[str, Any] = {
    "admin_port": 0,
    "entry_log_bytes_max": 1024 * 1024,
    "flush_interval_ms": 100,
    "gc_interval_ms": 100,
    "gc_quarantine_ms": 300,
    "gc_minor_interval_ms": 100,
    "gc_major_interval_ms": 100,
    "gc_bytes_per_s": 200 * 1024 * 1024,
}


def used(cluster: Cluster, name: str) -> int:
    size = 0
    for path in sorted((cluster.folder / name / "ledgers").glob("*.log"))[:-1]:
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


async def ask(port: int, request: str) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_deleted_ledgers_leave_every_bookie(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, **LIMITS) as cluster:
        client = await cluster.client()
        written: list[LedgerWriter] = []
        for _ in range(12):
            writer = await client.create(
                ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"x"
            )
            await add_many(writer, COUNT, SIZE)
            await writer.close()
            written.append(writer)
        kept = written[5]
        reader = await client.open(kept.ledger_id, password=b"x")
        reading = asyncio.ensure_future(_read_on(reader, 200))
        for writer in written:
            if writer is not kept:
                await client.delete(writer.ledger_id)
        for name, node in cluster.nodes.items():
            await eventually(lambda node=node: node.storage.ledgers() == [kept.ledger_id], 30)  # type: ignore[misc]
            await eventually(
                lambda name=name: used(cluster, name) < COUNT * SIZE * 1.3 + 2**20,  # type: ignore[misc]
                30,
            )
        await reading
        async with asyncio.timeout(30):
            while True:
                status = await ask(cluster.nodes["b1"].admin.port, "GET /gc?limit=3")
                if status["total"]["ledgers_deleted"] >= 11:
                    break
                await asyncio.sleep(0.05)
        assert status["total"]["ledgers_deleted"] == 11
        assert status["logs"]
        assert all(log["reason"] for log in status["logs"])
        assert "rounds" in await ask(cluster.nodes["b1"].admin.port, "POST /gc?major=1")


async def _read_on(reader: Any, times: int) -> None:
    for _ in range(times):
        entries = await reader.read(0, COUNT - 1)
        assert [bytes(entry.payload) for entry in entries] == [
            payload_of(n, SIZE) for n in range(COUNT)
        ]
        await asyncio.sleep(0.005)
