"""Which tests `make test` runs, and which it leaves to `make test-medium`: tests/medium.txt
lists the second tier, in seconds of processor time. A test that mostly waits counts with a
third of its time. `python -m tests.support.tiers RUN.xml` writes the list from JUnit files
(`pytest --junitxml=RUN.xml`) of an idle machine, and keeps the lines of tests that did not
run."""

from __future__ import annotations

import argparse
import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "medium.txt"
PROPERTY = "processor_seconds"
"""The processor time of a test and of the processes that it waited for, in a JUnit file."""

WAITING_SHARE = 1 / 3
"""How much of its time a test costs that only waits."""
CASE_SECONDS_MAX = 0.5
FUNCTION_SECONDS_MAX = 1.0
"""As many of a function's cheap cases stay in the first tier as fit into this time."""

FIRST_TIER = {
    # What a change breaks most often: pages, layers, names.
    "tests/unit/test_pages.py::": None,
    "tests/unit/test_tidy.py::": None,
    # Suites whose tests are all dear: these stand for the others.
    "tests/crash_states/test_crash_states.py::test_every_crash_of_some_lives_of_two_operations": 1,
    "tests/engine_model/test_engine_model.py::test_any_history_agrees_with_the_model": 1,
    "tests/io_errors/test_io_errors.py::test_no_failing_call_breaks_a_promise": 1,
    "tests/model/test_models.py::test_nothing_is_wrong_in_any_state": 2,
    "tests/process/test_bookie.py::test_fence_and_key_survive_kill_9": 1,
    "tests/sim/test_callers.py::test_a_seed_is_one_story": 1,
    "tests/sim/test_mutants.py::test_a_planted_bug_is_found_and_by_nothing_but_the_bug": 1,
    "tests/sim/test_simulation.py::test_no_seed_fails": 1,
    "tests/sim/test_simulation.py::test_no_seed_of_a_profile_fails": 4,
    "tests/single_fault/test_three_bookies.py::": None,
}
"""How many cases stay in the first tier whatever they take, the cheapest ones; None: all."""

_HEAD = """\
# The second tier: `make test` leaves these tests to `make test-medium`; CI runs both, always.
# Written from measurements: python -m tests.support.tiers --help
# Seconds · cases that stay in `make test`, evenly spread · test, case or folder
"""


@dataclass(frozen=True)
class Line:
    name: str
    """A function, one of its cases, or a folder, which ends in a slash."""
    seconds: float
    kept: int


def read(text: str) -> dict[str, Line]:
    lines = [line.split(maxsplit=2) for line in text.splitlines() if not line.startswith("#")]
    return {name: Line(name, float(seconds), int(kept)) for seconds, kept, name in lines}


def written(lines: Iterable[Line]) -> str:
    ordered = sorted(lines, key=lambda line: line.name)
    return _HEAD + "".join(f"{line.seconds:.1f} {line.kept} {line.name}\n" for line in ordered)


def function_of(name: str) -> str:
    return name.partition("[")[0]


def second_tier(names: Sequence[str], lines: Mapping[str, Line]) -> set[str]:
    folders = tuple(name for name in lines if name.endswith("/"))
    left = {name for name in names if name in lines and name != function_of(name)}
    left |= {name for name in names if name.startswith(folders)}
    cases = defaultdict(list)
    for name in names:
        if name not in left and function_of(name) in lines:
            cases[function_of(name)].append(name)
    for function, of_function in cases.items():
        left |= set(of_function) - set(_spread(of_function, lines[function].kept))
    return left


def _spread(cases: Sequence[str], count: int) -> list[str]:
    count = min(count, len(cases))
    return [cases[number * len(cases) // count] for number in range(count)]


def measured(text: str) -> dict[str, float]:
    found = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        seconds = case.find(f"./properties/property[@name='{PROPERTY}']")
        named = case.find("./properties/property[@name='nodeid']")
        if seconds is not None and named is not None:
            waited = WAITING_SHARE * float(case.attrib["time"])
            took = max(float(seconds.attrib["value"]), waited)
            found[_without_group(named.attrib["value"])] = took
    return found


def _without_group(name: str) -> str:
    return re.sub(r"@\w+$", "", name)


def lines_of(seconds: Mapping[str, float]) -> list[Line]:
    functions: dict[str, dict[str, float]] = defaultdict(dict)
    for name, took in seconds.items():
        functions[function_of(name)][name] = took
    found: list[Line] = []
    for function, cases in functions.items():
        found += _of_function(function, cases)
    return found


def stays(name: str) -> bool:
    return name.startswith(tuple(FIRST_TIER))


def _of_function(function: str, cases: Mapping[str, float]) -> Iterable[Line]:
    stays = [kept for prefix, kept in FIRST_TIER.items() if function.startswith(prefix)]
    if stays and stays[0] is None:
        return
    by_time = sorted(cases, key=lambda name: (cases[name], name))
    cheap = [name for name in by_time if cases[name] <= CASE_SECONDS_MAX]
    if stays:
        cheap = by_time[: max(stays[0] or 0, len(cheap))]
    if not cheap:
        yield Line(function, sum(cases.values()), 0)
        return
    for name in set(cases) - set(cheap):
        yield Line(name, cases[name], 0)
    took = sum(cases[name] for name in cheap)
    if took > FUNCTION_SECONDS_MAX and not stays:
        kept = int(FUNCTION_SECONDS_MAX / statistics.mean(cases[name] for name in cheap))
        yield Line(function, took, kept)


def merged(old: Mapping[str, Line], seconds: Mapping[str, float]) -> dict[str, Line]:
    """Return the list after a measurement; of functions that did not run it keeps what it has."""
    ran = {function_of(name) for name in seconds}
    kept = {name: line for name, line in old.items() if function_of(name) not in ran}
    return kept | {line.name: line for line in lines_of(seconds) if not _in_folder(line, old)}


def _in_folder(line: Line, old: Mapping[str, Line]) -> bool:
    return line.name.startswith(tuple(name for name in old if name.endswith("/")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="JUnit files, the newest last")
    seconds: dict[str, float] = {}
    for run in parser.parse_args().runs:
        seconds |= measured(run.read_text())
    LIST.write_text(written(merged(read(LIST.read_text()), seconds).values()))


if __name__ == "__main__":
    main()
