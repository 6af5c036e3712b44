"""Fixtures for tests of a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled
from tests.support.zookeeper_ensemble import Ensemble, local_places, running

DEADLINE_S = 60.0


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], Awaitable[None]]:
    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    return wait


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    made = Ensemble(tmp_path_factory.mktemp("zookeeper"), local_places(3))
    try:
        with running(made):
            yield made
    except ZooKeeperNotInstalled as error:
        if os.environ.get("REQUIRE_ZOOKEEPER"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def ensemble(servers: Ensemble) -> Ensemble:
    servers.start_all()
    return servers
