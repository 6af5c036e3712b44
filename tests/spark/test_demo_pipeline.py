"""The worked pipeline on a part of its flights; and that its comparison finds every mistake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo.examples.delays import COLUMNS, Row, differences, expected
from octavo.examples.pipeline import PipelineDemo, copy_tables
from octavo.examples.screen import Screen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    folder = tmp_path_factory.mktemp("tables") / "tables"
    copy_tables(folder, 3000)
    return expected(folder)


@pytest.mark.long
def test_all_checks_pass(
    spark: SparkSession, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Screen() as screen:
        PipelineDemo(screen=screen, service=service, folder=tmp_path, rows=3000).run()
    said = capsys.readouterr().out
    assert screen.checks_failed == 0, said
    assert said.count("  ok  ") == 12, said
    assert (tmp_path / "report" / "report.html").exists()


def test_the_comparison_finds_each_kind_of_mistake(wanted: list[Row]) -> None:
    assert len(wanted) > 100
    assert sum(row[COLUMNS.index("flights")] for row in wanted) == 3000
    assert differences(wanted, wanted) == ([], [], [], [])
    assert differences(wanted[1:], wanted).missing == [wanted[0]]
    assert differences([*wanted, wanted[3]], wanted).doubled == [wanted[3]]
    stranger = ("2013-01-01T10:00:00+00:00", "??", *wanted[0][2:])
    assert differences([*wanted, stranger], wanted).unexpected == [stranger]
    for column in range(2, len(COLUMNS)):
        changed = (*wanted[0][:column], -1, *wanted[0][column + 1 :])
        assert differences([changed, *wanted[1:]], wanted).altered == [changed]
