"""Full disks under a whole cluster: publishes are refused clearly, reads work, acked messages
stay. The disks are real, with a switch that makes writes fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.bookie.disk.files import DiskFull
from tests.support.cluster import Cluster, running_cluster
from tests.support.raw_bookie import TroubledDisk

TOPIC = "/v1/topics/public/full"


class Disks:
    def __init__(self) -> None:
        self.full: set[str] = set()
        self._lock = threading.Lock()

    def of(self, name: str) -> TroubledDisk:
        disk = TroubledDisk()

        def hook(call: str, path: str) -> None:
            if name in self.full and call in ("pwritev", "preallocate"):
                raise DiskFull(f"{call} {path}: no space left on device")

        disk.hook = hook
        return disk


@pytest.fixture
async def disks() -> Disks:
    return Disks()


@pytest.fixture
async def cluster(tmp_path: Path, disks: Disks) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 0, brokers=2) as found:
        for name in ("b1", "b2", "b3"):
            await found.start_bookie(
                name, disk=disks.of(name), disk_check_interval_ms=50, flush_interval_ms=100
            )
        assert (await found.api.put(TOPIC)).status == 201
        yield found


async def publish(cluster: Cluster, text: str) -> tuple[int, dict[str, object]]:
    answer = await cluster.api.post(TOPIC + "/messages", text.encode(), "text/plain")
    return answer.status, answer.json()


async def read_all(cluster: Cluster) -> list[str]:
    found: list[str] = []
    while True:
        answer = await cluster.api.get(f"{TOPIC}/messages?from={len(found)}&limit=1000")
        if answer.status == 204:
            return found
        assert answer.status == 200, answer
        found += [message["value_text"] for message in answer.json()["messages"]]


async def read_only_ones(cluster: Cluster) -> set[str]:
    bookies = (await cluster.api.get("/v1/bookies")).json()["bookies"]
    return {one["id"] for one in bookies if one["read_only"]}


async def acked(cluster: Cluster, text: str) -> None:
    async with asyncio.timeout(40):
        while True:
            status, said = await publish(cluster, text)
            if status == 200:
                return
            assert status in (503, 504), said
            assert said["retryable"] is True
            assert said["detail"]
            await asyncio.sleep(0.05)


async def test_one_full_disk_of_three_stops_nobody(cluster: Cluster, disks: Disks) -> None:
    for n in range(5):
        await acked(cluster, f"a{n}")
    disks.full = {"b2"}
    for n in range(5):
        await acked(cluster, f"b{n}")
    async with asyncio.timeout(20):
        while await read_only_ones(cluster) != {"b2"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    found = await read_all(cluster)
    wanted = [f"{group}{n}" for group in "ab" for n in range(5)]
    assert [text for text in found if text in wanted] == wanted


async def test_full_disks_below_the_ack_quorum(cluster: Cluster, disks: Disks) -> None:
    for n in range(5):
        await acked(cluster, f"before-{n}")
    disks.full = {"b1", "b2", "b3"}
    status, said = await asyncio.wait_for(publish(cluster, "lost or not"), 40)
    assert status in (503, 504), said
    assert said["retryable"] is True
    status, said = await asyncio.wait_for(publish(cluster, "refused"), 40)
    assert status in (503, 504), said
    assert (await read_all(cluster))[:5] == [f"before-{n}" for n in range(5)]
    disks.full = set()
    for n in range(5):
        await acked(cluster, f"after-{n}")
    found = await read_all(cluster)
    wanted = [f"{when}-{n}" for when in ("before", "after") for n in range(5)]
    assert [text for text in found if text in wanted] == wanted
    assert {*found} - {*wanted} <= {"lost or not", "refused"}


async def test_a_small_disk_is_named_where_nothing_can_be_published(tmp_path: Path) -> None:
    """The error said `0 usable (none)`, but not that all three bookies were read-only, nor why."""
    async with running_cluster(tmp_path, 0, brokers=1) as cluster:
        for name in ("b1", "b2", "b3"):
            disk = TroubledDisk()
            disk.free = 999
            await cluster.start_bookie(
                name, disk=disk, disk_free_bytes_min=1000, disk_free_bytes_resume=2000
            )
        assert (await cluster.api.put(TOPIC)).status == 201
        status, said = await asyncio.wait_for(publish(cluster, "refused"), 40)
        assert status == 503, said
        assert said["retryable"] is True
        detail = str(said["detail"])
        for told in ("3 registered", "b1 is read-only", "b2 is read-only", "b3 is read-only"):
            assert told in detail, detail
        assert "has 999 of" in detail
        assert "fewer than bookie.disk_free_bytes_min (1,000)" in detail
