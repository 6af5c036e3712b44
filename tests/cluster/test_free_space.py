"""A bookie reports its free space, and clients choose by the latest report."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from octavo.ledger.bookies import bookies as bookies_module
from octavo.ledger.bookies.bookies import Bookies
from octavo.ledger.bookies.placement import choose_ensemble
from octavo.ledger.options import LedgerOptions
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.protocol.extension import Op
from tests.support.raw_bookie import (
    RawClient,
    TroubledDisk,
    config_in,
    new_node,
    open_metadata,
    until,
)

GIB = 2**30


async def test_free_space_that_changes_reaches_clients_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watch tells of a change within a registration: clients look again now and then."""
    monkeypatch.setattr(bookies_module, "_LOOK_AGAIN_S", 0.02)
    disk = TroubledDisk()
    total = disk.free_bytes(str(tmp_path))[1]
    limits = {"disk_free_bytes_min": 2, "disk_free_bytes_resume": 3, "disk_free_bytes_reserve": 1}
    disk.free = total // 2
    async with open_metadata(tmp_path) as store:
        registry = BookieRegistry(store)
        others = [BookieInfo(n, n, 1, properties={"free_bytes": str(total // 2)}) for n in "ab"]
        for info in others:
            await registry.register(info)
        config = config_in(tmp_path / "b", disk_check_interval_ms=10, **limits)
        node = new_node(config, store, disk)
        await node.start()
        pool = Bookies(BookieRegistry(store), LedgerOptions(), random.Random(1))
        await pool.start()
        try:
            name = node.bookie_id
            assert pool.available[name].free_bytes == total // 2
            disk.free = total // 2 - total // 100
            client = await RawClient.connect(node)

            async def measured() -> int:
                answer = await client.call(Op.NODE_INFO)
                return int(answer.body["free_bytes"])

            while await measured() != disk.free:
                pass
            assert (await registry.available())[name].free_bytes == total // 2, "a hundredth"
            disk.free = total // 40
            await until(lambda: pool.available[name].free_bytes == total // 40)
            chosen = Counter[str]()
            for seed in range(100):
                chosen.update(choose_ensemble(pool.available, 2, 2, rng=random.Random(seed)))
            assert 0 < chosen[name] < 45, "the fullest of three, so less than its third of 200"
            client.close()
        finally:
            await pool.close()
            await node.stop()
