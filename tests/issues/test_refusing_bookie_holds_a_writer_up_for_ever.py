"""A bookie came back, refused the add, came back, refused the add: its writer never gave up.

There was no spare, and without it no ack quorum. A writer that stalls has a time to wait for a
bookie; each return of the one that refuses began it anew. So its callers waited for ever, and
a partition's publishes ended as unknown one by one, without it being opened anew. Seed 1500079 of
profile `beyond` (S8). Now only what is confirmed ends a stall.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.ledger.errors import NotEnoughBookies, OutcomeUnknown
from octavo.protocol.codes import Code
from tests.support.cluster import running_cluster


async def test_the_writer_gives_up(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        client = await cluster.client(stall_timeout_s=0.4, retry_failed_bookie_ms=30.0)
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.append(b"all are well")
        storage: Any = cluster.nodes["b3"].storage
        refused = 0

        def refuses(runs: Any, done: Any, lane: Any = 0, **_: Any) -> None:
            nonlocal refused
            refused += 1
            answer = [(run, Code.IO) for run in runs]
            asyncio.get_running_loop().call_later(0.15, done, answer)  # all seems well meanwhile

        storage.add = refuses
        async with asyncio.timeout(20):
            with pytest.raises(OutcomeUnknown) as unknown:
                await writer.append(b"one is not")
        assert isinstance(unknown.value.cause, NotEnoughBookies)
        assert refused > 2, "it came back, and back"
