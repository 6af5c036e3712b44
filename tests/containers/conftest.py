"""One engine, one set of images and one cluster for all tests of this folder (of a worker)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Its helper container cannot be pulled here, and would have nothing to remove.
os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"

from tests.containers.cluster import Cluster, running_cluster
from tests.containers.engine import Images, NoEngine, build_images, running_engine


@pytest.fixture(scope="session")
def images() -> Iterator[Images]:
    try:
        with running_engine():
            built = build_images()
            print(f"images made in {built.took_s:.0f} s")
            yield built
    except NoEngine as error:
        if os.environ.get("REQUIRE_DOCKER"):
            raise  # For machines that are known to run containers; CI's sandbox may forbid them.
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four bookies, so that a dead bookie is replaced, and two brokers."""
    with running_cluster(images, tmp_path_factory.mktemp("logs"), bookies=4, brokers=2) as running:
        yield running
