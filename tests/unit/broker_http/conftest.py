"""Brokers over bookies and metadata in memory, listening on real ports."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from tests.support import memory_cluster
from tests.support.quiet import unprinted


@pytest.fixture(scope="session")
def event_loop_policy() -> uvloop.EventLoopPolicy:
    """uvloop, as in production: its transports are no subclasses of asyncio's."""
    return uvloop.EventLoopPolicy()


def started(request: pytest.FixtureRequest, brokers: int) -> Any:
    """Start the brokers whose `Running` the test's module imports: the real ones, or fakes."""
    running = getattr(request.module, "Running", memory_cluster.Running)
    return sys.modules[running.__module__].running(brokers)  # type: ignore[attr-defined]


@pytest.fixture
async def one(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with started(request, 1) as cluster:
        yield cluster


@pytest.fixture
async def two(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with started(request, 2) as cluster:
        yield cluster


__all__ = ["unprinted"]
