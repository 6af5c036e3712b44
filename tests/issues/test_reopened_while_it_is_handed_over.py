"""A partition that was being opened anew went on with that while it was handed over.

Its ledger had failed; the broker stopped, or gave the partition to another. When the opening was
done first, the partition counted as served again though it was closed, and its new ledger was left
open for the next owner to recover. Found when its states were written down as a table.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.broker.partition.opening import Opened, PartitionOpener
from octavo.broker.state.log import StateLog
from octavo.broker.types import PartitionState
from octavo.metadata.store import MetadataUnavailable
from tests.support.cluster import batch, make_topic, owned, running_cluster, until


async def test_it_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path) as brokers:
        running = await brokers.start("A")
        partition = await owned(running.broker, await make_topic(running.broker))
        await partition.publish(batch())
        opening, closing, may_go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        reopen, close = PartitionOpener.reopen, StateLog.close
        reopened: list[Opened] = []

        async def slow(opener: PartitionOpener, *known: Any) -> Opened:
            opening.set()
            await closing.wait()
            reopened.append(await reopen(opener, *known))
            return reopened[-1]

        async def slow_close(log: StateLog, *, drain: bool) -> None:
            closing.set()
            await may_go_on.wait()
            await close(log, drain=drain)

        monkeypatch.setattr(PartitionOpener, "reopen", slow)
        monkeypatch.setattr(StateLog, "close", slow_close)
        inside: Any = partition
        inside._publisher.fail(MetadataUnavailable("its ledger failed"))
        await opening.wait()
        assert partition.state is PartitionState.REOPENING
        handed_over = asyncio.create_task(partition.close(graceful=True))
        await closing.wait()
        await until(inside._reopening.done, "its opening is over")
        may_go_on.set()
        await handed_over
        assert not reopened
        assert inside._reopening.cancelled()
        assert partition.state is PartitionState.CLOSED
