from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.cluster import cluster as cluster

plain_cluster = cluster


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found
