"""An export that was interrupted ended with 0 and "no findings", with 15,999 of 200,000 rows.

Every job that follows a stream or works in steps now ends as a shell expects of one that was told
to stop, tells how far it has come, and goes on from there when it is run again. Found from outside,
with Ctrl-C. The tests had killed queries by SIGKILL only, where nothing can be said.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import typer

pytest.importorskip("pyspark", reason="needs octavo[spark]")

from octavo.cli.pipeline_run import finish
from octavo.pipeline import compact as compacting
from octavo.pipeline import gc as collecting
from octavo.pipeline import ingest as ingesting
from octavo.pipeline import offload as offloading
from octavo.pipeline.compact import CompactOptions, compact
from octavo.pipeline.files import File
from octavo.pipeline.ingest import IngestOptions, Shape, ingest
from octavo.pipeline.interrupt import told
from octavo.pipeline.offload import OffloadOptions, offload
from octavo.pipeline.offload_rules import OffloadPolicy, Plan
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import Run, run_job
from octavo.pipeline.streams import Progress, follow
from octavo.pipeline.writing import Wrote
from octavo.protocol.codes import OctavoError
from octavo.spark.options import Selection
from octavo.spark.orphans import Orphans

BOTH = pytest.mark.parametrize(
    ("number", "exit_code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)


def stop(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def run(work: Callable[[Run], Outcome], said: list[str] | None = None) -> Outcome:
    """A job that never asks for Spark."""
    say = (said if said is not None else []).append
    return run_job("job", work, service="http://127.0.0.1:1", say=say)


class Query:
    """What Spark gives for a stream: a batch of 10 rows each time somebody looks."""

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
    outcome = run(work)
    assert (outcome.exit, outcome.summary["rows"], query.stopped) == (exit_code, 30, 1)
    assert outcome.plain()["result"] == word
    assert before == {one: signal.getsignal(one) for one in before}


def test_a_query_that_cannot_be_stopped_any_more() -> None:
    """As when Spark got the signal too."""
    query = Query(0, signal.SIGTERM)
    query.stop = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    with_it = partial(follow, query, lambda _: None, every_s=1.0)
    assert run(lambda _: with_it() or Outcome("never")).exit is Exit.TERMINATED


def test_a_job_without_steps() -> None:
    outcome = run(lambda _: stop() or Outcome("never"))  # type: ignore[func-returns-value]
    assert (outcome.job, outcome.exit, outcome.findings) == ("job", Exit.INTERRUPTED, [])


def test_an_error_is_no_interruption() -> None:
    def work(_: Run) -> Outcome:
        outcome = Outcome("job")
        with told(outcome, lambda: None):
            raise OctavoError("no")
        return outcome

    with pytest.raises(OctavoError, match="no"):
        run(work)


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
    outcome = run(work)
    told = {name: outcome.summary[name] for name in ("files", "files_left", "rows")}
    assert (outcome.exit, told) == (130, {"files": 2, "files_left": 2, "rows": 14})
    again = True
    outcome = run(work)
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
    outcome = run(partial(offload, options=options))
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
    outcome = run(partial(compact, options=CompactOptions(Selection(pattern=".*"))))
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
    assert "interrupted: not done" in shown.err
    assert "no findings" not in shown.err
    with pytest.raises(typer.Exit):
        finish(lambda: outcome, as_json=True)
    assert f'"result": "{word}"' in capsys.readouterr().out
