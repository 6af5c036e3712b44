"""Spark, a secured cluster and an encrypted namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo import Client
from tests.support.processes.canaries import Watcher, said
from tests.support.processes.standalone import environment, octavo, standalone

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


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("java") is None and not os.environ.get("REQUIRE_JAVA"),
    reason="Spark needs Java 17",
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


CANARY = "canary-9ab31f"
ROWS = 300
SHELL = """
import contextlib, io, json, sys
from octavo.cli.main import run
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run(json.loads(line))
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


class Shell:
    def __init__(self, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SHELL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), **variables},
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run(self, *arguments: str) -> tuple[int, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        code, printed = json.loads(self._process.stdout.readline())
        return code, printed


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_jobs_over_an_encrypted_topic(tmp_path: Path) -> None:
    keys, folder, objects = tmp_path / "keys", tmp_path / "data", tmp_path / "objects"
    folder.mkdir()
    objects.mkdir()
    rows = tmp_path / "rows.json"
    rows.write_text(
        "".join(json.dumps({"id": n % 50, "what": f"{CANARY} {n}"}) + "\n" for n in range(ROWS))
    )
    said("keys", "add", "payments", "--file", str(keys))
    watched = (Watcher(folder, CANARY.encode()), Watcher(objects, CANARY.encode()))
    with (
        watched[0],
        watched[1],
        standalone(
            folder, "--set", f"keys.file={keys}", "--set", "ledger.read_timeout_s=20"
        ) as one,
        Client(one.cluster.urls) as client,
        Shell(OCTAVO_KEYS_FILE=str(keys)) as knowing,
        Shell() as keyless,
    ):
        url = one.cluster.urls[0]
        client.create_namespace("payments", encrypted=True)
        client.create_topic("payments/orders", rollover={"entries": 2})

        def job(name: str, *arguments: str, shell: Shell = knowing) -> None:
            code, printed = shell.run("pipeline", name, *arguments, "--url", url)
            assert code == 0, printed

        def refused(name: str, *arguments: str) -> str:
            code, printed = keyless.run("pipeline", name, *arguments, "--url", url)
            assert code != 0, printed
            return printed

        ingest = (str(rows), "--topic", "payments/orders", "--key", "id")
        assert "are encrypted" in refused("ingest", *ingest), "it does not write in the clear"
        job("ingest", *ingest)
        read = [json.loads(m.value or b"")["what"] for m in client.messages("payments/orders")]
        assert sorted(read) == sorted(f"{CANARY} {n}" for n in range(ROWS))

        job("verify", "payments/orders")
        assert "is encrypted with key" in refused("verify", "payments/orders")
        job("scrub", shell=keyless)
        job("audit", shell=keyless)

        job("compact", "payments/orders")
        view = client.messages("payments/orders", compacted=True)
        newest = [json.loads(m.value or b"")["what"] for m in view]
        assert sorted(newest) == sorted(f"{CANARY} {n}" for n in range(ROWS - 50, ROWS))

        job(
            "offload", "payments/orders", "--to", f"file://{objects}",
            "--older-than-s", "0", "--drop-after-s", "0",
        )  # fmt: skip
        job(
            "offload", "payments/orders", "--to", f"file://{objects}",
            "--older-than-s", "0", "--drop-after-s", "0",
        )  # fmt: skip
        assert list(objects.rglob("*.parquet"))
        read = [json.loads(m.value or b"")["what"] for m in client.messages("payments/orders")]
        assert len(read) == ROWS, "by the broker, from objects"
        out = tmp_path / "exported"
        job("export", "payments/orders", "--out", str(out))
        assert any(out.rglob("*.parquet")), "by Spark, from objects"
        said("keys", "add", "payments", "--file", str(keys))
        data = ("--data", str(folder))
        said("keys", "rewrap", "payments", *data, OCTAVO_KEYS_FILE=str(keys))
        listed = said("keys", "list", "--file", str(keys), *data, "--json").splitlines()
        uses = [json.loads(line) for line in listed if line.startswith("{")]
        assert uses[0]["ledgers"] > 0
        assert uses[1]["ledgers"] == 0
        old = ("--key", uses[1]["key_id"], "--file", str(keys), "--yes")
        said("keys", "forget", "payments", *old)
        time.sleep(1)
        job("verify", "payments/orders")
        for watcher in watched:
            watcher.look()
    for watcher in watched:
        assert not watcher.found
