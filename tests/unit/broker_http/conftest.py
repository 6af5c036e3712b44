"""Brokers over bookies and metadata in memory, listening on real ports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import uvloop

from tests.support.memory_cluster import Running, running
from tests.support.quiet import unprinted


@pytest.fixture(scope="session")
def event_loop_policy() -> uvloop.EventLoopPolicy:
    """uvloop, as in production: its transports are no subclasses of asyncio's."""
    return uvloop.EventLoopPolicy()


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running(1) as cluster:
        yield cluster


@pytest.fixture
async def two() -> AsyncIterator[Running]:
    async with running(2) as cluster:
        yield cluster


__all__ = ["unprinted"]
