"""What several modules of this folder ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.broker_cluster import BrokerCluster, running_brokers


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    """Three bookies and no broker yet: `await brokers.start("A")`."""
    async with running_brokers(tmp_path) as brokers:
        yield brokers
