"""One cluster of real processes and one Spark session for all tests of the Spark source."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from octavo import Client
from tests.support.processes.standalone import Standalone, standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    # Copies that a test removes must stay away: a bookie's first check comes 10 s after its
    # start.
    lost = "--set=bookie.keep_copies=false"
    with standalone(tmp_path_factory.mktemp("spark") / "data", lost) as one:
        yield one


@pytest.fixture(scope="session")
def service(cluster: Standalone) -> str:
    return cluster.cluster.urls[0]


@pytest.fixture(scope="session")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if shutil.which("java") is None:
        assert not os.environ.get("REQUIRE_JAVA"), "CI installs Java: there this is never skipped"
        pytest.skip("Spark needs Java 17")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = (
        SparkSession.builder.master("local[2,2]")
        .appName("octavo tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(tmp_path_factory.mktemp("spark-local")))
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()
