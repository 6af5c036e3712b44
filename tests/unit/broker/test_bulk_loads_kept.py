"""A bulk load is remembered for seven days from its last use, not from its first.

A query's id is used as long as the query lives, which may be years. If it is forgotten too early, a
repeated batch is stored twice. Random lives of an id, with sweeps in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from octavo.broker.bulkload.driver import KEPT_MS, BulkLoads
from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BulkLoadRecord
from octavo.metadata.one_record import ABSENT
from octavo.metadata.store import MetadataUnavailable, VersionConflict

ID = "query"


class Store:
    """The record of a bulk load, in memory."""

    def __init__(self) -> None:
        self.record = BulkLoadRecord()
        self.version = ABSENT
        self._written = 0

    async def read(self, _: str) -> tuple[BulkLoadRecord, int]:
        return self.record, self.version

    async def write(self, _: str, record: BulkLoadRecord, version: int) -> None:
        if version != self.version:
            raise VersionConflict("somebody was there before")
        self._written += 1
        self.record, self.version = record, self._written

    async def delete(self, _: str, version: int) -> None:
        assert version == self.version
        self.record, self.version = BulkLoadRecord(), ABSENT

    def watch(self, _: str, on_change: Callable[[], None]) -> Any:
        """Never fires: nothing changes behind the sweeps of this test."""
        return Mock()

    async def list(self) -> list[str]:
        return [ID] * (self.version != ABSENT)


async def load_part(_name: PartitionName, _bulk_load: str, _batch: int) -> int | None:
    raise AssertionError("no batch here has parts")


async def nobody(_: PartitionName) -> None:
    return None


@pytest.mark.parametrize("seed", range(40))
async def test_it_is_kept_from_its_last_use(seed: int) -> None:
    rng = random.Random(seed)
    store: Any = Store()
    unused: Any = None
    now_ms = used_ms = 1_700_000_000_000
    bulk_loads = BulkLoads(
        store, unused, unused, lambda: now_ms, lambda: DeletionTime(now_ms, "", 0, now_ms)
    )
    batch, used = -1, False
    for _ in range(60):
        now_ms += rng.choice((0, 1, KEPT_MS // 7, KEPT_MS // 2, KEPT_MS))
        action = rng.choice(("commit", "publish", "sweep", "sweep"))
        if action == "sweep":
            await bulk_loads.sweep(ID, nobody)
            if used and now_ms - used_ms <= KEPT_MS:
                assert store.record.batch == batch, "it was used within seven days"
            else:
                assert store.version == ABSENT
                batch, used = -1, False
            continue
        batch += 1
        if action == "publish":
            assert await bulk_loads.begin(ID, batch, {}, load_part)
        done = await bulk_loads.commit(ID, batch, [], load_part, published=action == "publish")
        assert not done.repeated
        used_ms, used = now_ms, True


@pytest.mark.parametrize("call", ["list", "read"])
@pytest.mark.parametrize("how", [asyncio.CancelledError, MetadataUnavailable])
async def test_a_look_that_is_broken_off_is_made_again(call: str, how: type[BaseException]) -> None:
    """It has read nothing, and the state may have changed."""
    store: Any = Store()
    unused: Any = None
    now_ms = 1_700_000_000_000
    bulk_loads = BulkLoads(
        store, unused, unused, lambda: now_ms, lambda: DeletionTime(now_ms, "", 0, now_ms)
    )
    store.watch_list = lambda _: Mock()
    await bulk_loads.commit(ID, 0, [], load_part)
    answer = getattr(store, call)

    async def broken_off(*_: object) -> None:
        raise how("broken off")

    setattr(store, call, broken_off)
    with pytest.raises(how):
        await (bulk_loads.due() if call == "list" else bulk_loads.sweep(ID, nobody))
    setattr(store, call, answer)
    assert await bulk_loads.due() == [ID]
