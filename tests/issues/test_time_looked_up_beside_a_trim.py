"""A lookup by time answered the end, although what it asked for was there.

It walked over the ledgers as they were when it began. Where retention removed them under its feet
it passed over those, and never came to the ledgers that had followed meanwhile. Found by the
simulator (seed 26 of the profile `topic`), once brokers joined and left beside lookups.

And it answered an offset that was removed while it was found, below the earliest one that the same
answer told: found by a program that compares, beside compaction with `delete_raw`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.ledger.errors import LedgerNotFound
from tests.support.cluster import batch, make_topic, owned, running_cluster, until


async def test_ledgers_that_came_meanwhile_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        name = await make_topic(running.broker, rollover_entries=1, retention_bytes=0)
        partition = await owned(running.broker, name)
        await partition.publish(batch(1, time_ms=1_000))
        log: Any = partition._log
        look, looked = log._offset_in, 0
        stored: list[int] = []

        async def slow(link: Any, time_ms: int, least: int) -> int | None:
            nonlocal looked
            looked += 1
            if looked > 1:
                found: int | None = await look(link, time_ms, least)
                return found
            await partition.publish(batch(1, time_ms=2_000))
            await until(
                lambda: link.ledger_id not in dict(partition.stats().ledgers[-1:]), "rolled over"
            )
            await partition.maintain()
            assert link.ledger_id not in dict(partition.stats().ledgers)
            stored.append((await partition.publish(batch(1, time_ms=5_000))).first_offset)
            raise LedgerNotFound(f"ledger {link.ledger_id} is gone")

        monkeypatch.setattr(log, "_offset_in", slow)
        assert await partition.offset_at(4_000) == stored[0]
        assert looked > 1


async def test_what_is_removed_meanwhile_is_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        partition = await owned(running.broker, await make_topic(running.broker))
        for time_ms in (1_000, 2_000, 1_500, 3_000):
            await partition.publish(batch(1, time_ms=time_ms))
        log: Any = partition._log
        look = log._offset_in

        async def slow(link: Any, time_ms: int, least: int) -> int | None:
            found: int | None = await look(link, time_ms, least)
            await partition.truncate(2)
            return found

        monkeypatch.setattr(log, "_offset_in", slow)
        assert await partition.offset_at(1_200) == 2
        assert await partition.offset_at(1_800) == 3
