"""Spark's own cluster, a master and a worker, that know nothing of Octavo but a zip. The Python
of the workers has Octavo's dependencies and not Octavo."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo import Client
from octavo.spark.pack import PACKAGES, pack, requirements
from tests.spark.kills import run_campaign
from tests.support.processes.standalone import until
from tests.support.published import known_end

ROWS = 60
START_S = 240.0


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return {**kept, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def python_of_workers(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = folder / "bin" / "python"
    tried = subprocess.run(
        [found, "-c", "import aiohttp, pyarrow, octavo"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        check=False,
    )
    assert "No module named 'octavo'" in tried.stderr, "it must not be there but by the zip"
    return found


@contextlib.contextmanager
def running(folder: Path, name: str, *arguments: str, **more: str) -> Iterator[Callable[[], str]]:
    log = folder / f"{name}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                spark_home() / "bin" / "spark-class", "-Xmx256m",
                f"org.apache.spark.deploy.{name.lower()}.{name}",
                "--host", "127.0.0.1", "--webui-port", "0", *arguments,
            ],
            cwd=folder,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def tell() -> str:
        text = log.read_text(errors="replace")
        assert process.poll() is None, text[-3000:]
        return text

    try:
        yield tell
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_a_zip_is_all_that_a_standalone_cluster_needs(service: str, tmp_path: Path) -> None:
    packed = tmp_path / "octavo.zip"
    assert pack(packed) > 100
    python = python_of_workers(tmp_path / "env")
    with Client(service) as client:
        for topic in ("to-copy", "copied-there"):
            client.create_topic(topic, partitions=2)
        with client.producer("to-copy") as producer:
            for number in range(ROWS):
                producer.send(b"%d" % number, key=f"k{number % 7}")
        until(lambda: known_end(service, "to-copy") == ROWS, "bookies know all", 400)
    without_rest = {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
    with running(tmp_path, "Master", "--port", "0", **without_rest) as master:
        url = re.compile(r"Starting Spark master at (spark://\S+)")
        until(lambda: url.search(master()) is not None, "the master", START_S)
        found = url.search(master())
        assert found is not None
        work = tmp_path / "work"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work))
        with running(tmp_path, "Worker", *size, found[1]) as worker:
            until(lambda: "Successfully registered with master" in worker(), "a worker", START_S)
            done = subprocess.run(
                [
                    spark_home() / "bin" / "spark-submit", "--master", found[1],
                    "--driver-memory", "512m", "--executor-memory", "512m",
                    "--conf", "spark.ui.enabled=false", "--py-files", packed,
                    shutil.copy(Path(__file__).with_name("submitted.py"), tmp_path),
                    service, "to-copy", "copied-there",
                ],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment(PYSPARK_PYTHON=str(python)),
                timeout=600,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    module, folder = told["task"]
    assert told["rows"] == ROWS
    assert "octavo.zip" in told["driver"]
    assert "octavo.zip" in module
    assert Path(folder).is_relative_to(work), "a task runs in a folder of the worker's"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_what_the_zip_needs_is_told_apart_from_what_it_has(tmp_path: Path) -> None:
    names = {re.match(r"[\w-]+", one)[0] for one in requirements()}  # type: ignore[index]
    assert {"aiohttp", "aiokafka", "crc32c", "msgpack", "pyarrow"} <= names
    assert not names & {"pyspark", "pytest", "matplotlib"}
    assert not names & set(PACKAGES)
    target = tmp_path / "twice.zip"
    pack(target)
    first = target.read_bytes()
    pack(target)
    assert target.read_bytes() == first
    assert os.listdir(tmp_path) == ["twice.zip"]
    tried = subprocess.run(
        [sys.executable, "-m", "octavo.spark.pack", "/proc/none/octavo.zip"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 3
    assert tried.stderr.startswith("/proc/none/octavo.zip cannot be written: ")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_killed_query_goes_on_with_each_row_once(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        assert not os.environ.get("REQUIRE_JAVA"), "CI installs Java: there this is never skipped"
        pytest.skip("Spark needs Java 17")
    report = run_campaign(tmp_path, cycles=1, seed=7, say=lambda _: None)
    assert report.right, report
    assert report.rows_in == report.rows_distinct > 0
    assert report.batches >= 2
