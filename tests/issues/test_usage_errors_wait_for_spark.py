"""A mistyped topic cost 8 to 14 s: Spark was started first, and asked nothing.

What is wrong with arguments, topics, ledgers, local files and places is now told before; Spark
starts when a job first asks for it. And `offload --to` a place that cannot be written exited 0 when
nothing was due, so that the mistake was told weeks later. Found from outside. The tests had called
the jobs with a session that was there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.ledger.errors import LedgerNotFound
from octavo.pipeline import runner
from octavo.pipeline.compact import CompactOptions, compact
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.files import local, missing
from octavo.pipeline.ingest import IngestOptions, Shape, ingest
from octavo.pipeline.ingest_kafka import KafkaOptions, ingest_kafka
from octavo.pipeline.offload import OffloadOptions, offload
from octavo.pipeline.offload_rules import OffloadPolicy
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.report import ReportOptions, report
from octavo.pipeline.runner import BadUsage, JobFailed, Run, run_job
from octavo.pipeline.scrub import ScrubOptions, scrub
from octavo.pipeline.session import SparkOptions
from octavo.pipeline.verify import verify
from octavo.spark.options import InvalidOption, Selection
from tests.support.spark_place import Place, running_place

pytestmark = pytest.mark.timeout(600)
NOBODY = Selection(topics=("public/nobody",))
FLIGHTS = Selection(topics=("public/flights",))
COLD = OffloadPolicy(age_ms=10**12)


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    def never(*_: Any) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(runner, "session", never)
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    async with running_place(tmp_path) as found:
        yield found


async def run(place: Place, work: Callable[[Run], Outcome]) -> Outcome:
    return await asyncio.to_thread(run_job, "job", work, service=place.service, say=print)


async def test_what_needs_no_spark_is_told_without(place: Place, tmp_path: Path) -> None:
    full, other, done = tmp_path / "full", tmp_path / "other", tmp_path / "done"
    for folder in (full, other, done):
        folder.mkdir()
    (full / "mine.txt").touch()
    (done / "report.json").touch()
    (other / "_export.json").write_text('{"topics": ["public/a"], "checkpoint": "x"}')
    (other / "_ingest.json").write_text('{"targets": {"k": "public/a"}}')
    kafka = partial(KafkaOptions, ("flights",), "h:1", str(tmp_path / "c"))
    wrong: list[tuple[Callable[[Run], Outcome], type[Exception], str]] = [
        (partial(verify, selection=NOBODY), InvalidOption, "there is no topic public/nobody"),
        (partial(export, options=ExportOptions(NOBODY, "out")), InvalidOption, "no topic"),
        (partial(export, options=ExportOptions(FLIGHTS, str(full))), BadUsage, "not an export"),
        (partial(export, options=ExportOptions(FLIGHTS, other.as_uri())), BadUsage, "holds an"),
        (partial(export, options=ExportOptions(FLIGHTS, "o", None, "skip")), BadUsage, "--schema"),
        (partial(report, options=ReportOptions(FLIGHTS, done)), BadUsage, "--overwrite"),
        (partial(report, options=ReportOptions(NOBODY, other)), InvalidOption, "no topic"),
        (partial(scrub, options=ScrubOptions(sample=2)), BadUsage, "--sample"),
        (partial(scrub, options=ScrubOptions((999,))), LedgerNotFound, "999"),
        (partial(compact, options=CompactOptions(NOBODY)), InvalidOption, "no topic"),
        (partial(offload, options=OffloadOptions(NOBODY, "file:/x", COLD)), InvalidOption, "no t"),
        (partial(replay, options=ReplayOptions("nobody", "flights")), InvalidOption, "no topic"),
        (partial(replay, options=ReplayOptions("flights", "nobody")), BadUsage, "topic create"),
        (partial(replay, options=ReplayOptions("flights", "flights")), BadUsage, "source and"),
        (partial(ingest, options=IngestOptions(("f",), "nobody", Shape())), BadUsage, "create"),
        (
            partial(ingest, options=IngestOptions((str(tmp_path / "x"),), "flights", Shape())),
            BadUsage, "x: there is no such file",
        ),
        (partial(ingest_kafka, options=kafka("nobody")), BadUsage, "topic create"),
        (partial(ingest_kafka, options=kafka(start="now")), BadUsage, "--start now"),
        (
            partial(ingest_kafka, options=KafkaOptions(("flights",), "h:1", str(other))),
            BadUsage, "belongs to an ingest of",
        ),
    ]  # fmt: skip
    for work, kind, said in wrong:
        with pytest.raises(kind, match=said):
            await run(place, work)


async def test_a_place_that_cannot_be_written_is_told_when_nothing_is_due(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    there = (tmp_path / "file" / "x").as_uri()
    work = partial(offload, options=OffloadOptions(FLIGHTS, there, COLD))
    with pytest.raises(JobFailed, match=r"nothing was copied: .*cannot be written"):
        await run(place, work)
    good = OffloadOptions(FLIGHTS, (tmp_path / "out").as_uri(), COLD)
    assert (await run(place, partial(offload, options=good))).exit is Exit.OK
    assert list((tmp_path / "out").iterdir()) == []


def test_which_paths_are_surely_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    here = Run("job", "http://h:1", print, SparkOptions())
    hdfs = Run("job", "http://h:1", print, SparkOptions(None, {"spark.hadoop.fs.defaultFS": "h"}))
    assert local(here, "a/b") == Path("a/b")
    assert local(here, "file:///a%20b") == Path("/a b")
    assert local(here, "s3a://a/b") is local(here, "hdfs:/a") is local(hdfs, "a") is None
    (tmp_path / "x").touch()
    there, pattern, gone = str(tmp_path / "x"), str(tmp_path / "*.csv"), str(tmp_path / "y")
    assert missing(here, [there, "s3a://a/b", pattern]) is None
    assert missing(here, [there, gone]) == gone
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert local(here, "a") is None
