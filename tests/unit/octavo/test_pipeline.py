"""`octavo pipeline` without Spark: its errors, and parts of its jobs."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from pyspark.errors import PySparkImportError
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from octavo.cli.pipeline_run import finish
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from octavo.pipeline import compact as compacting
from octavo.pipeline import gc as collecting
from octavo.pipeline import ingest as ingesting
from octavo.pipeline import offload as offloading
from octavo.pipeline import runner, session
from octavo.pipeline.compact import CompactOptions, compact
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.files import File, local, missing
from octavo.pipeline.ingest import IngestOptions, Shape, ingest
from octavo.pipeline.ingest_kafka import KafkaOptions, ingest_kafka
from octavo.pipeline.interrupt import told
from octavo.pipeline.offload import OffloadOptions, offload
from octavo.pipeline.offload_rules import OffloadPolicy, Plan
from octavo.pipeline.outcome import SHOWN_MAX, Exit, Finding, Outcome
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.report import ReportOptions, report
from octavo.pipeline.runner import BadUsage, JobFailed, Run, cause_in, run_job, selection_of
from octavo.pipeline.scrub import ScrubOptions, scrub
from octavo.pipeline.session import SparkMissing, SparkOptions, check_java
from octavo.pipeline.streams import Progress, follow
from octavo.pipeline.verify import LedgerRows, chain_findings, span_findings, verify
from octavo.pipeline.writing import Wrote
from octavo.protocol.codes import OctavoError
from octavo.spark.options import InvalidOption, Selection
from octavo.spark.orphans import Orphans
from octavo.spark.splits import Span, View
from tests.support.processes.standalone import OCTAVO
from tests.support.processes.standalone import octavo as run_octavo
from tests.support.spark_place import Place, running_place

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

pytest.importorskip("pyspark", reason="needs octavo[spark]")

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pandas", reason="needs octavo[spark]")

# Mistakes in arguments, topics, ledgers and places are reported before Spark starts (8 to 14 s),
# also by `offload --to` when nothing is due.

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


@pytest.mark.timeout(600)
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
        (partial(export, options=ExportOptions(FLIGHTS, str(full))), BadUsage, "no earlier export"),
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


@pytest.mark.timeout(600)
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


@pytest.mark.timeout(600)
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


# Ctrl-C ended an export with 0 and "no findings". A job exits as an interrupted program, reports
# its progress, and continues from there when run again.

BOTH = pytest.mark.parametrize(
    ("number", "exit_code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)


def stop(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def interrupted_run(work: Callable[[Run], Outcome], said: list[str] | None = None) -> Outcome:
    say = (said if said is not None else []).append
    return run_job("job", work, service="http://127.0.0.1:1", say=say)


class Query:
    """Spark's object for a stream: a batch of 10 rows at each look."""

    def __init__(self, stop_at: int, number: int) -> None:
        self.recentProgress: list[dict[str, int]] = []
        self.stopped = 0
        self._stop_at = stop_at
        self._number = number

    def trigger(self, **_: Any) -> Query:
        return self

    start = trigger

    def awaitTermination(self, _: float) -> bool:
        batch = len(self.recentProgress)
        self.recentProgress.append({"batchId": batch, "numInputRows": 10})
        if batch == self._stop_at:
            stop(self._number)
        return False

    def stop(self) -> None:
        self.stopped += 1


@BOTH
def test_a_stream_that_is_followed(number: int, exit_code: int, word: str) -> None:
    query = Query(2, number)

    def work(job: Run) -> Outcome:
        progress = Progress(job.say)
        outcome = Outcome("job")
        with told(outcome, lambda: outcome.summary.update(rows=progress.rows)):
            follow(query, progress.look, every_s=None)
        return outcome

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    outcome = interrupted_run(work)
    assert (outcome.exit, outcome.summary["rows"], query.stopped) == (exit_code, 30, 1)
    assert outcome.plain()["result"] == word
    assert before == {one: signal.getsignal(one) for one in before}


def test_a_query_that_cannot_be_stopped_any_more() -> None:
    """As when Spark got the signal too."""
    query = Query(0, signal.SIGTERM)
    query.stop = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    with_it = partial(follow, query, lambda _: None, every_s=1.0)
    assert interrupted_run(lambda _: with_it() or Outcome("never")).exit is Exit.TERMINATED


def test_a_job_without_steps() -> None:
    outcome = interrupted_run(lambda _: stop() or Outcome("never"))  # type: ignore[func-returns-value]
    assert (outcome.job, outcome.exit, outcome.findings) == ("job", Exit.INTERRUPTED, [])


def test_an_error_is_no_interruption() -> None:
    def work(_: Run) -> Outcome:
        outcome = Outcome("job")
        with told(outcome, lambda: None):
            raise OctavoError("no")
        return outcome

    with pytest.raises(OctavoError, match="no"):
        interrupted_run(work)


def test_files_that_are_ingested(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [File(f"file:/f{number}", 10, 1) for number in range(4)]
    ingested: set[str] = set()

    def write(_: Run, rows: Any, topic: str, bulk_load: str) -> Wrote:
        if len(ingested) == 2 and not again:
            stop()
        ingested.add(bulk_load)
        return Wrote(7, repeated=False)

    monkeypatch.setattr(ingesting, "target_settings", lambda *_: ("public/t", None))
    monkeypatch.setattr(ingesting, "_files", lambda *_: files)
    monkeypatch.setattr(ingesting, "_messages", lambda *_: None)
    monkeypatch.setattr(ingesting, "was_written", lambda _, one: one in ingested)
    monkeypatch.setattr(ingesting, "write_once", write)
    work = partial(ingest, options=IngestOptions(("f",), "t", Shape()))
    again = False
    outcome = interrupted_run(work)
    told = {name: outcome.summary[name] for name in ("files", "files_left", "rows")}
    assert (outcome.exit, told) == (130, {"files": 2, "files_left": 2, "rows": 14})
    again = True
    outcome = interrupted_run(work)
    assert (outcome.exit, outcome.summary["files"], outcome.summary["files_left"]) == (0, 2, 0)


def test_waves_of_an_offload(monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    def copy(self: Any, wave: Any, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if done == 3:
            stop()
        self.done += Counter(copied=len(wave))

    async def plan(_: Any) -> Plan:
        job: Any = SimpleNamespace(link=SimpleNamespace(bytes=5))
        return Plan((job,) * 10, (), 0, 0, ())

    monkeypatch.setattr(offloading._Offload, "_plan", plan)
    monkeypatch.setattr(offloading._Offload, "_copy", copy)
    monkeypatch.setattr(offloading._Offload, "_check_writable", lambda _: None)
    monkeypatch.setattr(offloading._Offload, "_tasks_at_once", lambda _: 1)
    monkeypatch.setattr(offloading, "waves", lambda jobs, _: [jobs[:2]] * 5)
    options = OffloadOptions(Selection(topics=("public/t",)), "file:/x", OffloadPolicy())
    outcome = interrupted_run(partial(offload, options=options))
    assert (outcome.exit, outcome.summary["copied_ledgers"]) == (130, 4)


def test_topics_that_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def topics(_: Any) -> dict[str, list[int]]:
        return {f"public/t{number}": [0] for number in range(3)}

    async def begin(self: Any, topic: str, partitions: list[int]) -> list[Any]:
        if topic == "public/t2":
            stop()
        self.done["up to date"] += 1
        return []

    async def collect(*_: Any) -> None: ...

    monkeypatch.setattr(compacting._Compact, "_topics", topics)
    monkeypatch.setattr(compacting._Compact, "_begin", begin)
    monkeypatch.setattr(compacting._Compact, "_collect", collect)
    outcome = interrupted_run(partial(compact, options=CompactOptions(Selection(pattern=".*"))))
    assert (outcome.exit, outcome.summary["partitions_up_to_date"]) == (130, 2)


def test_orphans_that_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def orphans(_: str, *, each: Callable[[Orphans], None], **how: Any) -> list[Orphans]:
        for batch in range(5):
            if batch == 2:
                stop()
            each(Orphans("q", batch, (7, 8), (7,)))
        return []

    monkeypatch.setattr(collecting, "collect_orphans", orphans)
    said: list[str] = []
    outcome = collecting.gc("http://x", said.append, grace_ms=0, dry_run=False)
    assert (outcome.exit, outcome.summary["ledgers_deleted"]) == (130, 2)
    assert said == ["batch 0 of q: 1 deleted", "batch 1 of q: 1 deleted"]


@BOTH
def test_what_a_person_and_a_script_are_told(
    number: int, exit_code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome("export", {"rows": 15_999}, interrupted=number)
    with pytest.raises(typer.Exit) as plain:
        finish(lambda: outcome, as_json=False)
    shown = capsys.readouterr()
    assert plain.value.exit_code == exit_code
    assert "15,999" in shown.out
    assert "interrupted: finished parts stay" in shown.err
    assert "no findings" not in shown.err
    with pytest.raises(typer.Exit):
        finish(lambda: outcome, as_json=True)
    assert f'"result": "{word}"' in capsys.readouterr().out


# Without Spark every command of `octavo pipeline` said "this should not have happened".

WITHOUT_SPARK = textwrap.dedent(
    """
    import importlib.util, sys
    ABSENT = ("pyspark", "pyarrow", "pandas")

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ABSENT:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Absent())
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *a: None if name in ABSENT else real(name, *a)
    from octavo.cli.main import run

    for line in sys.stdin.read().splitlines():
        print("$", line, flush=True, file=sys.stderr)
        print("exit", run(line.split()), flush=True, file=sys.stderr)
    """
)
COMMANDS = (
    "pipeline verify orders",
    "pipeline report orders",
    "pipeline audit",
    "pipeline scrub",
    "pipeline gc",
    "pipeline compact orders",
    "pipeline replay orders again",
    "demo pipeline",
)


def test_every_job_says_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK],
        input="\n".join(COMMANDS),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=120,
        check=True,
    )
    said = done.stderr.split("$ ")[1:]
    assert len(said) == len(COMMANDS)
    for one in said:
        assert "jobs need pyspark, which is not installed: pip install 'octavo[spark]'" in one, one
        assert "should not have happened" not in one, one
        assert ("exit 3" if one.startswith("pipeline") else "exit 1") in one, one


def test_without_java_it_is_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        SparkMissing, match=f"Java {session.JAVA_MIN} or newer: no java on the PATH"
    ):
        check_java()


# `octavo[spark]` may install only the pandas that PySpark's own check accepts.

ROOT = Path(__file__).resolve().parents[3]


def pyspark_likes(version: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(__version__=version))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            require_minimum_pandas_version()
        except (PySparkImportError, Warning):
            return False
    return True


@pytest.mark.parametrize("version", ["2.1.4", "2.2.0", "2.3.3", "3.0.0", "3.1.1"])
def test_the_bound_is_that_of_pyspark(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [
        wanted.specifier
        for extra in ("spark", "demo")
        for text in extras["optional-dependencies"][extra]
        if (wanted := Requirement(text)).name == "pandas"
    ]
    assert len(bounds) == 2
    liked = pyspark_likes(version, monkeypatch)
    assert [bound.contains(version) for bound in bounds] == [liked, liked]


def test_the_first_example_is_whole() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    shell, python = (re.search(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("sh", "python"))
    assert shell is not None
    assert "/bin/activate" in shell[1]
    assert python is not None
    bound: set[str] = set()
    for statement in ast.parse(python[1]).body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        assert used <= bound, f"{used - bound} come from nowhere"
        bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        if isinstance(statement, ast.ImportFrom):
            bound |= {alias.name for alias in statement.names}


# Spark gives the first Python process of a stream 10 s, which no setting changes: on a busy machine
# 5 of 6 first attempts failed.


class SlowAtFirst:
    """A stream's writer: its first queries fail as Spark's do."""

    def __init__(self, failures: int, said: str) -> None:
        self._failures = failures
        self._said = said
        self.starts = 0

    def trigger(self, **_: object) -> SlowAtFirst:
        return self

    def start(self) -> SlowAtFirst:
        self.starts += 1
        return self

    def awaitTermination(self, _: float) -> bool:
        from pyspark.errors import StreamingQueryException

        if self.starts <= self._failures:
            raise StreamingQueryException(self._said)
        return True


def test_a_query_whose_python_process_started_too_slowly_is_started_again() -> None:
    from octavo.pipeline.streams import SLOW_START, follow

    slow = SlowAtFirst(3, f"[STREAM_FAILED] {SLOW_START}.")
    follow(slow, lambda _: None, every_s=None)
    assert slow.starts == 4
    never = SlowAtFirst(99, f"[STREAM_FAILED] {SLOW_START}.")
    with pytest.raises(Exception, match=SLOW_START):
        follow(never, lambda _: None, every_s=1)
    assert never.starts == 5, "bounded"
    other = SlowAtFirst(1, "[STREAM_FAILED] offsets are lost")
    with pytest.raises(Exception, match="offsets are lost"):
        follow(other, lambda _: None, every_s=1)
    assert other.starts == 1


def test_a_python_process_that_started_too_slowly_is_explained() -> None:
    error = runner._translated(
        RuntimeError("SparkException: Python worker failed to connect back.")
    )
    assert isinstance(error, JobFailed)
    assert "was not ready 10 s after its start" in str(error)
    assert "--master 'local[1]'" in str(error)


# The parts of the jobs that need no Spark.
pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")


def octavo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_all_findings_count_and_some_are_shown() -> None:
    outcome = Outcome("verify")
    assert outcome.exit is Exit.OK
    many = [Finding("gap", "public/a/0", str(number)) for number in range(SHOWN_MAX + 5)]
    outcome.found(many)
    outcome.found([Finding("chain", "public/a/0", "x")], {"chain": 7})
    assert outcome.exit is Exit.FINDINGS
    assert len(outcome.findings) == SHOWN_MAX + 1
    found = json.loads(json.dumps(outcome.plain()))
    assert found["findings_count"] == {"gap": SHOWN_MAX + 5, "chain": 7}
    assert found["result"] == "findings"


def test_the_line_of_ours_in_a_page_of_two_languages() -> None:
    said = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance planned: "
        "Traceback (most recent call last):\n"
        "Traceback (most recent call last):\n"
        '  File "/x/source.py", line 3, in partitions\n'
        "    raise InvalidOption(\n"
        "octavo.spark.options.InvalidOption: there is no topic public/nix\n"
        "\tat org.apache.spark.Whatever\n"
        "Caused by: java.lang.Exception: no\n"
    )
    assert cause_in(said) == ("InvalidOption", "there is no topic public/nix")
    assert cause_in("\n[X] it broke\nmore") == ("", "[X] it broke")
    committing = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort: Traceback (most recent call last):\n"
        '  File "sink.py", line 1, in commit\n'
        "octavo.spark.commit.SinkFailed: the topic takes no large messages\n"
    )
    assert cause_in(committing) == ("SinkFailed", "the topic takes no large messages")


def test_which_topics() -> None:
    assert selection_of("a, b/c").topics == ("public/a", "b/c")
    assert selection_of(None, every=True).pattern == ".*"
    for topics, every in ((None, False), ("a", True)):
        with pytest.raises(BadUsage, match="not both"):
            selection_of(topics, every=every)


def test_a_chain_without_hole_or_overlap() -> None:
    good = PartitionRecord(
        ledgers=(PartitionLedger(7, 10, 5), PartitionLedger(9, 15, 1), PartitionLedger(12, 16)),
        trimmed_offset=10,
    )
    assert chain_findings("public/a/0", good) == []


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ((PartitionLedger(7, 3, 5),), "offsets 0 to 2 are not trimmed"),
        ((PartitionLedger(7, 0, 5), PartitionLedger(9, 6, 1)), "before offset 5, the other begins"),
        ((PartitionLedger(7, 0, 5), PartitionLedger(9, 4, 1)), "before offset 5, the other begins"),
        ((PartitionLedger(7, 0), PartitionLedger(9, 4, 1)), "ledger 7, then 9: the first is open"),
    ],
)
def test_what_is_wrong_with_a_chain(links: tuple[PartitionLedger, ...], said: str) -> None:
    (finding,) = chain_findings("public/a/0", PartitionRecord(ledgers=links))
    assert said in finding.what


def test_what_was_read_against_the_chain() -> None:
    view = View("public/a", 0, (Span(7, 0, 5, 9, 9), Span(9, 5, 8, 9, 9), Span(11, 8, 8, 0, -1)))
    whole = {7: LedgerRows(0, 4), 9: LedgerRows(5, 7)}
    assert span_findings(view, whole) == []
    (short,) = span_findings(view, {**whole, 9: LedgerRows(5, 6)})
    assert "holds offsets 5 to 6, but the record says 5 to 7" in short.what
    (none,) = span_findings(view, {9: whole[9]})
    assert "ledger 7: no message of offsets 0 to 4" in none.what


def test_pieces_of_large_messages_are_read_as_all_that_is_stored() -> None:
    """A fork that was cut within them shows nothing of the ledger, so nothing is read."""
    large, cut = Span(7, 0, 5, 9, 9, hidden=4), Span(9, 5, 8, 9, 9, hidden=3)
    view = View("public/a", 0, (large, cut))
    assert span_findings(view, {7: LedgerRows(0, 4)}) == []
    (piece,) = span_findings(view, {7: LedgerRows(1, 4)})
    assert "holds offsets 1 to 4, but the record says 0 to 4" in piece.what
    (none,) = span_findings(view, {})
    assert "ledger 7: no message of offsets 0 to 4" in none.what


def test_usage_is_exit_code_2() -> None:
    assert octavo("verify").returncode == 2
    wrong = octavo("verify", "a/b/c")
    assert wrong.returncode == 2
    assert "write topic or namespace/topic" in wrong.stderr
    setting = octavo("verify", "a", "--conf", "x=1")
    assert (setting.returncode, "spark.name=value" in setting.stderr) == (2, True)


def test_no_java_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As soon as a job needs Spark."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    def job(run: Run) -> Outcome:
        assert run.spark is None, "never"
        return Outcome("job")

    with pytest.raises(typer.Exit) as ended:
        finish(lambda: run_job("job", job, service="http://h:1", say=print), as_json=False)
    assert ended.value.exit_code == 3
    said = capsys.readouterr().err
    assert f"jobs need Java 17 or newer: JAVA_HOME is {tmp_path}" in " ".join(said.split())


def test_every_job_has_an_example_and_a_page() -> None:
    from octavo.cli.pipeline import app

    pages = Path(__file__).resolve().parents[3] / "docs" / "pipeline"
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        assert f"octavo pipeline {name}" in (command.callback.__doc__ or "")
        page = pages.parent / "tables.md" if name == "table" else pages / f"{name}.md"
        assert f"octavo pipeline {name}" in page.read_text()


# `octavo pipeline table`: it needs no Spark, and says which library is missing.
WITHOUT = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {hidden!r} else found(name)
from octavo.cli.main import main
main({arguments!r})
"""
ARGUMENTS = ["pipeline", "table", "flights", "--to"]
NO_CLUSTER = ["--url", "http://127.0.0.1:9"]


def run_without(hidden: list[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(hidden=hidden, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("package", ["pyiceberg", "pyiceberg_core", "pyarrow", "sqlalchemy"])
def test_a_missing_library_is_named_with_its_extra(package: str, tmp_path: object) -> None:
    if package != "pyiceberg":  # the first that is looked for
        pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    found = run_without([package], [*ARGUMENTS, str(tmp_path)])
    assert found.returncode == 3
    assert f"tables need {package}, which is not installed: pip install 'octavo[tables]'" in (
        found.stderr
    )


def test_it_does_not_import_spark(tmp_path: object) -> None:
    """It goes as far as asking the cluster, which is not there."""
    pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    found = run_without(["pyspark", "pandas"], [*ARGUMENTS, str(tmp_path), *NO_CLUSTER])
    assert "no broker answers at http://127.0.0.1:9" in found.stderr
    assert found.returncode == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say where the table is: --to FOLDER, or --catalog"),
        (["--to", "s3://lake/x"], "--to s3://lake/x needs --catalog"),
        (["--to", "a#b"], "PyIceberg cannot read names with ?, # or %"),
        (["--to", "x", "--table", "flights"], "--table flights: give NAMESPACE.NAME"),
        (["--to", "x", "--schema", "none.json"], "none.json"),
        (["--to", "x", "--bad-rows", "keep"], "--bad-rows: use suspend or skip"),
        (["--to", "x", "--catalog-option", "uri"], "write --catalog-option name=value"),
    ],
)
def test_a_mistake_is_said_before_anything_is_made(arguments: list[str], said: str) -> None:
    pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    found = run_octavo(*ARGUMENTS[:-1], *arguments, *NO_CLUSTER)
    assert found.returncode == 2, (OCTAVO, found.stderr)
    assert said in found.stderr
