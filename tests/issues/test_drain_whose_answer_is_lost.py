"""A broker whose drain had no answer stayed drained for the others, though it was undone.

The store had the word, its answer was lost; that the drain was undone looked like what had been
told before, and was told to nobody. The broker was given nothing until it was started anew. Seed 42
of profile `stream` (S10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.metadata.store import MetadataUnavailable
from tests.support.cluster import running_cluster


async def test_it_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        drained, other = (cluster.brokers[f"broker-{number}"] for number in range(2))
        standings = other.broker.registry.standings
        await _until(lambda: len(drained.broker.registry.live) == 2)
        await drained.broker.undrain()
        put: Any = drained.store.put

        async def answer_is_lost(path: str, value: bytes, version: int) -> Any:
            await put(path, value, version)
            raise MetadataUnavailable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(drained.store, "put", answer_is_lost)
            with pytest.raises(MetadataUnavailable):
                await drained.broker.drain()
        await _until(lambda: standings.drained == {"broker-0"})
        await drained.broker.undrain()
        await _until(lambda: not standings.drained)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
