"""Six partitions of a real cluster on separate hosts, under load, and one case of late packets.
`make network-matrix` has them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled, find_class_path, find_java
from tests.network.hosts import NoNamespaces, check_namespaces
from tests.support.processes.standalone import environment

pytestmark = [pytest.mark.long, pytest.mark.zookeeper, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
CELLS = (
    "bookie:roll-over",
    "owner:steady",
    "owner-without-metadata:roll-over",
    "client-in-minority:steady",
    "zookeeper-leader:take-over",
    "loss-30:steady",
    "late-metadata:steady",
)


def test_six_partitions_and_a_delay(tmp_path: Path) -> None:
    """No acked message is lost, doubled or reordered, no minority acks, and all comes back."""
    need(check_namespaces, NoNamespaces, "REQUIRE_NETNS")
    need(lambda: (find_java(), find_class_path()), ZooKeeperNotInstalled, "REQUIRE_ZOOKEEPER")
    found = tmp_path / "cells.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.network", "--json", str(found), "--cells", *CELLS],
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    cells = json.loads(found.read_text())
    assert [f"{cell['case']}:{cell['phase']}" for cell in cells] == [*CELLS]
    by_case = {cell["case"]: cell for cell in cells}
    assert all(cell["recovery_s"] is not None for cell in cells)
    assert len(by_case["owner"]["silent"]) == 1, "somebody tried to publish at the cut-off owner"
    assert by_case["owner"]["acked_while_cut"] > 0
    assert by_case["client-in-minority"]["acked_while_cut"] == 0


def need(check: Callable[[], object], missing: type[Exception], required: str) -> None:
    """Skip with the reason; where CI installs the tool, fail."""
    try:
        check()
    except missing as error:
        if os.environ.get(required):
            raise
        pytest.skip(str(error))
