"""Spark and a secured cluster: tasks read by tokens, brokers get a token. It runs in a process
whose environment names the trusted CA and the token."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.standalone import environment, octavo, standalone

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("java") is None and not os.environ.get("REQUIRE_JAVA"),
        reason="Spark needs Java 17",
    ),
]
JOB = """
import json, sys
from pyspark.sql import SparkSession

url, metadata = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
found = {}
for name, service, where in (
    ("metadata", metadata, "auto"),
    ("broker's URL", url, "auto"),
    ("through a broker", url, "broker"),
):
    read = spark.read.format("octavo").option("service", service).option("subscribe", "t")
    rows = read.option("readFrom", where).load()
    found[name] = [bytes(row.value).decode() for row in rows.select("value").collect()]
for commit in ("bulk-load", "producer"):
    out = rows.select("value").write.format("octavo").option("service", url).mode("append")
    out.option("topic", "copy").option("commit", commit).save()
found["copied"] = (
    spark.read.format("octavo").option("service", url).option("subscribe", "copy").load().count()
)
print("FOUND", json.dumps(found))
"""


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    script = folder / "job.py"
    script.write_text(JOB)
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**environment(), "PYSPARK_PYTHON": sys.executable, **more},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_spark_reads_and_writes_in_a_secured_cluster(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--secure") as one:
        data = ("--data", str(one.folder))
        for topic in ("t", "copy"):
            made = octavo("topic", "create", topic, *data)
            assert made.returncode == 0, made.stderr
        sent = octavo("publish", "t", "one", "two", *data)
        assert sent.returncode == 0, sent.stderr
        url, metadata = one.cluster.urls[0], one.cluster.metadata_url
        trust = {"OCTAVO_TLS_CA": str(one.folder / "tls" / "ca.pem")}
        token = (one.folder / "admin.token").read_text().strip()
        done = run(tmp_path, url, metadata, **trust, OCTAVO_TOKEN=token)
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(text for text in done.stdout.splitlines() if text.startswith("FOUND "))
        found = json.loads(line.removeprefix("FOUND "))
        assert found.pop("copied") == 4
        assert set(found) == {"metadata", "broker's URL", "through a broker"}
        assert all(sorted(values) == ["one", "two"] for values in found.values()), found
        refused = run(tmp_path, url, url, **trust)
        assert refused.returncode != 0
        assert "set OCTAVO_TOKEN to a token that may do so" in refused.stderr
