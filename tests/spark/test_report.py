"""`report` on a live cluster: the figures of what was published, in all three forms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.report import ReportOptions, report
from octavo.pipeline.runner import BadUsage, run_job, selection_of
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
DAY_MS = 86_400_000
START_MS = 19_700 * DAY_MS


def test_volume_keys_and_sizes(spark: SparkSession, service: str, tmp_path: Path) -> None:
    with Client(service) as client:
        client.create_topic("told", partitions=2)
        with seen_by_readers(service, "told", 60), client.producer("told") as producer:
            for number in range(60):
                producer.send(
                    b"x" * (9 if number < 40 else 39),
                    key="h" if number % 2 else f"{number % 10}",
                    timestamp_ms=START_MS + DAY_MS * (number // 30),
                )

    def run(overwrite: bool) -> Outcome:
        options = ReportOptions(selection_of("told"), tmp_path / "out", 3, overwrite)
        return run_job(
            "report", lambda run: report(run, options), service=service, say=lambda _: None
        )

    outcome = run(overwrite=False)
    assert (outcome.exit, outcome.summary["messages"]) == (Exit.OK, 60)
    with pytest.raises(BadUsage, match="holds a report"):
        run(overwrite=False)
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["volume"] == [
        {"topic": "public/told", "day": "2023-12-09", "messages": 30, "bytes": 30 * 10},
        {"topic": "public/told", "day": "2023-12-10", "messages": 30, "bytes": 10 * 10 + 20 * 40},
    ]
    assert found["sizes"] == [
        {"topic": "public/told", "bytes_min": 8, "messages": 40},
        {"topic": "public/told", "bytes_min": 32, "messages": 20},
    ]
    assert [(row["key"], row["messages"]) for row in found["hot_keys"]] == [
        ("h", 30),
        ("0", 6),
        ("2", 6),
    ]
    assert found["stored"][0]["partitions"] == 2
    for name in ("volume", "sizes", "hot_keys"):
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == found[name]
    html = (tmp_path / "out" / "report.html").read_text()
    assert html.count("<svg") == 4
    links = re.findall(r'(?:src|href)="([^"#]+)', html)
    assert not links, "the page needs no network"
