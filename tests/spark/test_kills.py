"""One cycle of the campaign of kills; `make spark-kills N=100` runs more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.spark.kills import run_campaign

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
]


def test_a_killed_query_goes_on_with_each_row_once(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        assert not os.environ.get("REQUIRE_JAVA"), "CI installs Java: there this is never skipped"
        pytest.skip("Spark needs Java 17")
    report = run_campaign(tmp_path, cycles=1, seed=7, say=lambda _: None)
    assert report.right, report
    assert report.rows_in == report.rows_distinct > 0
    assert report.batches >= 2
