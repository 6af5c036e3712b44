"""bench/b15_scale.py in small: each part runs to its end, and everything that it counts is
there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SIZES = {"topics": 12, "ledgers": 20, "holes": 1000, "subscriptions": 3, "messages": 2000}


@pytest.mark.long
def test_each_part_measures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.b15_scale", "--seconds", "0.5"]
    command += ["--json", str(tmp_path / "found.json")]
    for size, count in SIZES.items():
        command += [f"--{size}", str(count)]
    subprocess.run(command, check=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["topics"]["topics"] == SIZES["topics"]
    assert found["topics"]["idle"]["broker"]["rss_mib"] > 0
    assert found["ledgers"]["ledgers"] == SIZES["ledgers"]
    for how in ("nacked", "not_due"):
        assert found["holes"][how]["unacked_ranges"] == SIZES["holes"]
    many = found["subscriptions"]["many"]
    assert 0 < many["slowest_k_per_s"] <= many["median_k_per_s"] < many["all_k_per_s"]
