"""A roll-over that failed before it named its new ledger left that ledger, empty, for ever.

Nothing refers to it, so nothing would ever have deleted it. Found by reading.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.store import MetadataUnavailable
from tests.support.cluster import batch, make_topic, owned, running_cluster


async def test_the_new_ledger_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        partition = await owned(
            running.broker, await make_topic(running.broker, rollover_entries=2)
        )

        failed = asyncio.Event()

        async def fails(writer: LedgerWriter) -> LedgerMetadata:
            failed.set()
            raise MetadataUnavailable("the store is away")

        monkeypatch.setattr(LedgerWriter, "close", fails)
        publishing = asyncio.gather(
            *(partition.publish(batch()) for _ in range(3)), return_exceptions=True
        )
        async with asyncio.timeout(15):
            await failed.wait()
            await publishing
        monkeypatch.undo()

        async def left_over() -> set[int]:
            named = {ledger_id for ledger_id, _ in partition.stats().ledgers}
            return set(await running.ledgers.list()) - named

        async with asyncio.timeout(15):
            while partition.next_offset < 2 or await left_over():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
