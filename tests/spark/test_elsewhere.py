"""The source with tasks outside of the session's process: executors, Spark Connect."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from octavo import Client
from tests.support.processes.standalone import environment, until
from tests.support.published import known_end

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17"),
]


def read_by(kind: str, service: str) -> dict[str, object]:
    topic = f"elsewhere-{kind}"
    with Client(service) as client:
        client.create_topic(topic, partitions=2)
        with client.producer(topic, batch_bytes=600) as producer:
            for number in range(200):
                producer.send(b"%d" % number, key=f"k{number % 7}")
        until(lambda: known_end(service, topic) == 200, "bookies know all", 400)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.elsewhere", kind, service, topic],
        capture_output=True,
        text=True,
        timeout=540,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_executors_in_processes_of_their_own(service: str) -> None:
    assert read_by("local-cluster", service) == {"values": list(range(200)), "executors": 2}


@pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None,
    reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'",
)
def test_spark_connect(service: str) -> None:
    assert read_by("connect", service) == {"values": list(range(200)), "executors": 1}
