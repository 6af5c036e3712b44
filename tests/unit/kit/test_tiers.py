"""The list of the second tier: how it is read, and how measurements change it."""

from __future__ import annotations

import pytest

from tests.support import tiers
from tests.support.tiers import Line


def test_the_list_is_as_it_would_be_written() -> None:
    """So that two changes of it meet in as few lines as possible."""
    text = tiers.LIST.read_text()
    assert tiers.written(tiers.read(text).values()) == text


CASES = [f"tests/a.py::test_it[{number}]" for number in range(6)]


@pytest.mark.parametrize(
    ("line", "stay"),
    [
        (Line("tests/a.py::test_it", 9, 0), []),
        (Line("tests/a.py::test_it", 9, 1), [CASES[0]]),
        (Line("tests/a.py::test_it", 9, 2), [CASES[0], CASES[3]]),
        (Line("tests/a.py::test_it", 9, 8), CASES),
        (Line("tests/a.py::test_it[4]", 9, 0), [*CASES[:4], CASES[5]]),
        (Line("tests/a.py::test_i", 9, 0), CASES),
        (Line("tests/", 9, 0), []),
    ],
)
def test_what_is_left_to_the_second_tier(line: Line, stay: list[str]) -> None:
    left = tiers.second_tier(CASES, {line.name: line})
    assert [name for name in CASES if name not in left] == stay


def test_a_dear_test_is_left_to_the_second_tier_and_a_cheap_one_is_not() -> None:
    seconds = {"a.py::test_dear": 0.6, "a.py::test_cheap": 0.4}
    assert tiers.lines_of(seconds) == [Line("a.py::test_dear", 0.6, 0)]


def test_of_a_function_the_cases_stay_that_fit() -> None:
    seconds = {f"a.py::test_many[{number}]": 0.1 for number in range(40)}
    [line] = tiers.lines_of(seconds)
    assert (line.name, round(line.seconds, 3), line.kept) == ("a.py::test_many", 4.0, 10)
    assert len(seconds) - len(tiers.second_tier(list(seconds), {line.name: line})) == 10


def test_a_dear_case_is_named_alone() -> None:
    seconds = {"a.py::test_it[x]": 0.1, "a.py::test_it[y y]": 3.0}
    assert tiers.lines_of(seconds) == [Line("a.py::test_it[y y]", 3.0, 0)]


def test_a_measurement_of_some_tests_keeps_the_lines_of_the_others() -> None:
    old = {name: Line(name, 2, 0) for name in ("a.py::test_x", "a.py::test_y", "folder/")}
    new = tiers.merged(old, {"a.py::test_x": 0.1, "folder/b.py::test_z": 7})
    assert new == {name: old[name] for name in ("a.py::test_y", "folder/")}


def test_a_list_is_read_as_it_is_written() -> None:
    lines = [Line("a.py::test_it[y y]", 3.0, 0), Line("b/", 61.5, 2)]
    assert list(tiers.read(tiers.written(lines)).values()) == lines


def test_a_runs_file_is_read() -> None:
    text = """<testsuites><testsuite><testcase classname="c" name="n" time="0.5"><properties>
        <property name="nodeid" value="a.py::test_it[1]@spark"/>
        <property name="processor_seconds" value="0.250"/>
        </properties></testcase><testcase name="skipped"/></testsuite></testsuites>"""
    assert tiers.measured(text) == {"a.py::test_it[1]": 0.25}
    waited = text.replace('time="0.5"', 'time="3"')
    assert tiers.measured(waited) == {"a.py::test_it[1]": 1.0}, "a third of a test that waits"
