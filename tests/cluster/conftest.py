"""What several modules of this folder ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three bookies and no broker yet: `await brokers.start("A")`."""
    async with running_cluster(tmp_path) as brokers:
        yield brokers
