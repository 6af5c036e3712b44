"""An encrypted namespace and the jobs over whole topics: with the key they work as ever, without it
they say so, and nothing that they write for the cluster can be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from octavo import Client
from tests.support.processes.canaries import Watcher, said
from tests.support.processes.standalone import OCTAVO, environment, standalone

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]
CANARY = "canary-9ab31f"
ROWS = 300


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
    ):
        url = one.cluster.urls[0]
        client.create_namespace("payments", encrypted=True)
        client.create_topic("payments/orders", rollover={"entries": 2})

        def job(name: str, *arguments: str, with_key: bool = True) -> str:
            found = {"OCTAVO_KEYS_FILE": str(keys)} if with_key else {}
            return said("pipeline", name, *arguments, "--url", url, **found)

        def refused(name: str, *arguments: str) -> str:
            done = subprocess.run(
                [*OCTAVO, "pipeline", name, *arguments, "--url", url],
                capture_output=True,
                text=True,
                timeout=900,
                env=environment(),
                check=False,
            )
            assert done.returncode != 0, done.stdout
            return done.stdout + done.stderr

        ingest = (str(rows), "--topic", "payments/orders", "--key", "id")
        assert "are encrypted" in refused("ingest", *ingest), "it does not write in the clear"
        job("ingest", *ingest)
        read = [json.loads(m.value or b"")["what"] for m in client.messages("payments/orders")]
        assert sorted(read) == sorted(f"{CANARY} {n}" for n in range(ROWS))

        job("verify", "payments/orders")
        assert "is encrypted with key" in refused("verify", "payments/orders")
        job("scrub", with_key=False)
        job("audit", with_key=False)

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
