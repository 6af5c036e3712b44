"""Common features of the programs of bench/: a help with examples, and JSON at the end."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from bench.program import arguments, end, or_zero, rates, several

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAMS = [
    path
    for path in sorted(BENCH.glob("*.py"))
    if path.stem != "program" and "arguments(__doc__)" in path.read_text()
]


def test_all_figures_of_the_page_have_a_program() -> None:
    kinds = {path.stem.split("_")[0] for path in PROGRAMS}
    assert {f"b{number}" for number in range(1, 17)} <= kinds


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_shows_how_it_is_called(path: Path) -> None:
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert f"python -m bench.{path.stem}" in doc
    assert "end(" in text, "its last line is its document"


def test_the_document_is_the_last_line_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments("What it does.\n\n    python -m bench.it   # an example")
    assert "\n    python -m bench.it   # an example" in parser.format_help()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job")
    options = parser.parse_args(["--json", str(tmp_path / "it.json")])
    end(options, "it", found=[1.5])
    said = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "it.json").read_text()) == said
    assert (said["bench"], said["settings"], said["found"]) == ("it", {"rounds": 3}, [1.5])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--rounds", "0"], "argument --rounds: 0 is not above 0"),
        (["--rounds", "x"], "argument --rounds: invalid int value: 'x'"),
        (["--seconds", "-1"], "argument --seconds: -1 is not above 0"),
        (["--seconds", "nan"], "argument --seconds: nan is not above 0"),
        (["--spare", "-1"], "argument --spare: -1 is below 0"),
        (["--kinds", "a,c"], "argument --kinds: 'c' is none of a, b"),
        (["--rates", "5,,6"], "argument --rates: '5,,6' is not numbers with commas"),
        (["--rates", "5,0"], "argument --rates: 0 is not above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments("What it does.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--spare", type=or_zero, default=0)
    parser.add_argument("--kinds", type=several(("a", "b")), default=["a"])
    parser.add_argument("--rates", type=rates, default="1,2.5")
    right = parser.parse_args(["--spare", "0", "--kinds", "b,a"])
    assert (right.spare, right.kinds, right.rates) == (0, ["b", "a"], [1.0, 2.5])
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
