"""The parts of the jobs that need no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from octavo.metadata.topics import PartitionLedger, PartitionRecord

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.cli.pipeline_run import finish
from octavo.pipeline.outcome import SHOWN_MAX, Exit, Finding, Outcome
from octavo.pipeline.runner import BadUsage, Run, cause_in, run_job, selection_of
from octavo.pipeline.verify import LedgerRows, chain_findings, span_findings
from octavo.spark.splits import Span, View


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
